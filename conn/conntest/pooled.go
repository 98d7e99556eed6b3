package conntest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// Soil sets all fields of what v points to, and theirs, to what no new one has, as if it had been used before. It leaves
// channels, interfaces, maps, what package sync guards with, and the fields that are named, by their paths.
func Soil(v any, but ...string) { soil(reflect.ValueOf(v).Elem(), "", but) }

// Differs returns the paths of the fields in which two pooled objects differ. Both are pointers to the same type. Of
// slices it compares how many elements they have, as their memory is kept, and of functions whether there is one. It
// passes over what Soil passes over, and over the fields that are named.
func Differs(used, fresh any, but ...string) (paths []string) {
	differ(reflect.ValueOf(used).Elem(), reflect.ValueOf(fresh).Elem(), "", but, func(path string) { paths = append(paths, path) })
	return paths
}

func soil(v reflect.Value, path string, but []string) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(7)
	case reflect.String:
		v.SetString("soil")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 7, 7))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Func:
		v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { panic("of an earlier user") }))
	case reflect.Array:
		for i := range v.Len() {
			soil(v.Index(i), fmt.Sprintf("%s[%d]", path, i), but)
		}
	case reflect.Struct:
		each(v, path, but, func(f reflect.Value, _ int, path string) { soil(f, path, but) })
	}
}

func differ(a, b reflect.Value, path string, but []string, tell func(path string)) {
	switch a.Kind() {
	case reflect.Slice:
		if a.Len() != b.Len() {
			tell(path)
		}
	case reflect.Array:
		for i := range a.Len() {
			differ(a.Index(i), b.Index(i), fmt.Sprintf("%s[%d]", path, i), but, tell)
		}
	case reflect.Struct:
		each(a, path, but, func(f reflect.Value, i int, path string) { differ(f, b.Field(i), path, but, tell) })
	case reflect.Func:
		if a.IsNil() != b.IsNil() {
			tell(path)
		}
	case reflect.Chan, reflect.Interface, reflect.Map, reflect.UnsafePointer:
	default:
		if !a.Equal(b) {
			tell(path)
		}
	}
}

// each calls do for the fields of a struct that can be soiled.
func each(v reflect.Value, path string, but []string, do func(f reflect.Value, i int, path string)) {
	t := v.Type()
	if t.PkgPath() == "sync" {
		return
	}
	for i := range t.NumField() {
		if path := strings.TrimPrefix(path+"."+t.Field(i).Name, "."); !slices.Contains(but, path) {
			do(reflect.NewAt(t.Field(i).Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem(), i, path)
		}
	}
}
