package redlock

import (
	"errors"
	"strings"
)

// A pattern is a glob, as Redis has it in SCAN: * stands for any bytes, ? for one byte, [a-z] for one of a class, [^a]
// for one outside it, and a backslash has the next byte stand for itself.
type pattern string

var (
	errOpenClass   = errors.New("the pattern has a [ without a ]: write \\[ for the character")
	errOpenEscape  = errors.New("the pattern ends with a backslash: write \\\\ for the character")
	errLongPattern = errors.New("the pattern is longer than any key")
)

// escaped makes a text a pattern that matches it alone.
var escaped = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// check returns what is wrong with the pattern. Redis takes such patterns, but means other things by them in front of
// other characters.
func (p pattern) check() error {
	for rest := string(p); rest != ""; {
		switch size, _, ok := piece(rest); {
		case ok:
			rest = rest[size:]
		case rest[0] == '[':
			return errOpenClass
		default:
			return errOpenEscape
		}
	}
	if len(p) > 2*maxKey {
		return errLongPattern
	}
	return nil
}

// literal returns the only key that the pattern matches, if there is only one.
func (p pattern) literal() (key string, ok bool) {
	var text []byte
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '*', '?', '[':
			return "", false
		case '\\':
			i++
		}
		text = append(text, p[i])
	}
	return string(text), true
}

// around is a pattern for SCAN. It matches each key that the pattern matches, and what is kept beside that.
func (p pattern) around() string {
	text := strings.TrimLeft(string(p), "*")
	if rest := strings.TrimRight(text, "*"); !strings.HasSuffix(rest, `\`) { // otherwise the first of them is escaped
		text = rest
	}
	if text == "" {
		return "*" // which costs Redis least
	}
	return "*" + text + "*"
}

// matches reports whether the whole key matches. Its time is at most the product of the two lengths.
func (p pattern) matches(key string) bool {
	glob, star, retry := string(p), "", ""
	starred := false
	for key != "" {
		if glob != "" && glob[0] == '*' {
			glob = glob[1:]
			star, retry, starred = glob, key, true
			continue
		}
		if glob != "" {
			if size, fits, _ := piece(glob); fits(key[0]) {
				glob, key = glob[size:], key[1:]
				continue
			}
		}
		if !starred {
			return false
		}
		retry = retry[1:]
		glob, key = star, retry
	}
	for glob != "" && glob[0] == '*' {
		glob = glob[1:]
	}
	return glob == ""
}

// piece reads what a glob begins with: how many bytes of it stand for one byte of a key, and which bytes fit. ok is
// false if the piece has no end.
func piece(glob string) (size int, fits func(byte) bool, ok bool) {
	switch glob[0] {
	case '?':
		return 1, func(byte) bool { return true }, true
	case '\\':
		if len(glob) < 2 {
			return 1, nil, false
		}
		return 2, func(c byte) bool { return c == glob[1] }, true
	case '[':
		return class(glob)
	}
	return 1, func(c byte) bool { return c == glob[0] }, true
}

// class is piece for a class. As in Redis, a ] that comes first ends it.
func class(glob string) (size int, fits func(byte) bool, ok bool) {
	var in [256]bool
	i, not := 1, false
	if i < len(glob) && glob[i] == '^' {
		i, not = 2, true
	}
	for ; i < len(glob); i++ {
		low := glob[i]
		switch {
		case low == ']':
			return i + 1, func(c byte) bool { return in[c] != not }, true
		case low == '\\' && i+1 < len(glob):
			i++
			in[glob[i]] = true
		case i+2 < len(glob) && glob[i+1] == '-':
			high := glob[i+2]
			for c := int(min(low, high)); c <= int(max(low, high)); c++ {
				in[c] = true
			}
			i += 2
		default:
			in[low] = true
		}
	}
	return i, nil, false
}
