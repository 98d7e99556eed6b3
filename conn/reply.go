package conn

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redburst/redburst/resp"
)

const (
	maxErrorText = 256 // bytes of a server's error that are shown
	maxWord      = 64  // bytes of what a server says about itself
	maxHead      = 24  // bytes of an answer that is no reply
	minSecret    = 4   // bytes; anything shorter stands in a text by chance
	longSecret   = 8   // bytes; anything shorter can be a part of a word by chance
)

// ErrorCode is the code of an error reply, such as NOPERM, and "" for any other reply.
// A server before Redis 7 wraps the error that a command had inside of a script, in
// "ERR Error running script (...): ... -NOREPLICAS Not enough ...": then it is the code of
// that error.
func ErrorCode(v resp.Value) string {
	if !v.IsError() {
		return ""
	}
	code := v.ErrorCode()
	if string(code) == "ERR" {
		if inner := scriptError(ownWords(v)); inner != "" {
			return inner
		}
	}
	return string(code)
}

// scriptError is the code of the error inside of a script's; "" if the text is no
// script's error, or names no code.
func scriptError(text []byte) string {
	if !bytes.Contains(text, []byte("script")) {
		return ""
	}
	if bytes.Contains(text, []byte("The user executing the script can't")) || bytes.Contains(text, []byte("ACL failure in script")) {
		return "NOPERM"
	}
	if !bytes.Contains(text, []byte("rror running script")) {
		return ""
	}
	for word := range bytes.FieldsSeq(text) {
		if code, ok := bytes.CutPrefix(word, []byte("-")); ok && isCode(code) {
			return string(code)
		}
	}
	return ""
}

func isCode(s []byte) bool {
	for _, c := range s {
		if !(c >= 'A' && c <= 'Z' || c == '_') {
			return false
		}
	}
	return len(s) > 2
}

// ErrorText is the text of an error reply, fit to be logged: what is not printable is
// escaped, it has 256 bytes at most, and it ends where the server begins to quote the
// arguments of our command, among which passwords and tokens are.
func ErrorText(v resp.Value) string { return errorText(v, "") }

// errorText also hides a secret of ours.
func errorText(v resp.Value, secret string) string {
	return clip(mask(string(ownWords(v)), secret), maxErrorText)
}

// ownWords is the text of an error reply up to where the server begins to quote the arguments
// of our command, which can hold anything.
func ownWords(v resp.Value) []byte {
	text, _, _ := bytes.Cut(v.Bytes(), []byte(", with args"))
	return text
}

// IsTransient reports whether an error reply speaks of a state that ends by itself, and so
// says that nothing was done.
func IsTransient(v resp.Value) bool {
	switch ErrorCode(v) {
	case "LOADING", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN":
		return true
	}
	return bytes.Contains(ownWords(v), []byte("max number of clients"))
}

// Printable is s with everything escaped, as in Go's strings, that could do something to
// a terminal or a log: control characters, line ends, invalid UTF-8.
func Printable(s string) string {
	at := strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError })
	if at < 0 {
		return s
	}
	out := []byte(s[:at])
	for s = s[at:]; s != ""; {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			out = append(out, `\x`...)
			out = append(out, "0123456789abcdef"[s[0]>>4], "0123456789abcdef"[s[0]&15])
		case strconv.IsPrint(r):
			out = utf8.AppendRune(out, r)
		default:
			q := strconv.QuoteRune(r)
			out = append(out, q[1:len(q)-1]...)
		}
		s = s[n:]
	}
	return string(out)
}

// clip is the printable form of at most so many bytes of s.
func clip(s string, most int) string {
	if len(s) <= most {
		return Printable(s)
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return Printable(s[:most]) + "..."
}

// word is one of the words that a server describes itself with.
func word(b []byte) string { return clip(string(b), maxWord) }

// mask hides a secret that was sent: a long one wherever it stands in a text, a shorter one
// where it stands as a whole. So a password such as "pass" does not edit the server's own
// words, as in "username-password pair". What is shorter than a few characters is not looked
// for: it would be found everywhere. The text is to be masked before it is escaped or cut.
func mask(text, secret string) string {
	if len(secret) < minSecret {
		return text
	}
	for from := 0; ; {
		i := strings.Index(text[from:], secret)
		if i < 0 {
			return text
		}
		i += from
		end := i + len(secret)
		if len(secret) < longSecret &&
			(endsInWord(text[:i]) && isWordByte(secret[0]) ||
				end < len(text) && isWordByte(text[end]) && isWordByte(secret[len(secret)-1])) {
			from = i + 1
			continue
		}
		text = text[:i] + "***" + text[end:]
		from = i + len("***")
	}
}

// endsInWord reports whether a text ends within a word. What ends an escape that the server
// has made, such as \n or \x0a, is of no word.
func endsInWord(s string) bool {
	n := len(s)
	return n > 0 && isWordByte(s[n-1]) && !(n > 1 && s[n-2] == '\\') && !(n > 3 && s[n-4:n-2] == `\x`)
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= utf8.RuneSelf
}
