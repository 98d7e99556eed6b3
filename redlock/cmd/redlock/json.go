package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// A keyJSON is a key in JSON, which every object that names one has. JSON is UTF-8, and a key is any bytes.
type keyJSON struct {
	Key    string `json:"key"`                  // for people, if there is a Base64
	Base64 string `json:"key_base64,omitempty"` // of a key that is not UTF-8; --key-base64 takes it
}

func newKeyJSON(key string) keyJSON {
	k := keyJSON{Key: key}
	if !utf8.ValidString(key) {
		k.Base64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return k
}

// leftMS is nil for a key that does not expire.
func leftMS(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	return new(d.Milliseconds())
}

func writeJSON(t *terminal, v any) { encodeJSON(t, v, "  ") }

// encodeJSON writes v as JSON, in which everything is escaped that could harm a terminal, as
// [conn.Printable] has it. encoding/json leaves what lies behind ASCII as it is.
func encodeJSON(t *terminal, v any, indent string) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // it is one of our types
	}
	var out []byte
	for _, r := range text.String() {
		switch {
		case r == '\n' || strconv.IsPrint(r): // such a line end is none of a string's
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	t.printf("%s", out)
}
