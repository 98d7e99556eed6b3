package conn

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redburst/redburst/resp"
)

const (
	maxErrorText = 256 // bytes of an error reply that are shown
	maxWord      = 64  // bytes of a word with which a server describes itself
	maxHead      = 24  // bytes that are shown of an answer that is no RESP
	minSecret    = 4   // bytes; a shorter one stands in a text by chance
	longSecret   = 8   // bytes; a shorter one can be part of a word by chance
)

// ErrorCode returns the code of an error reply, such as NOPERM, and "" for any other reply. If a
// command fails inside a script, a server before Redis 7 wraps its error, as in "ERR Error
// running script (...): ... -NOREPLICAS Not enough ...", or says where it was, as in
// "@user_script: 1: -NOREPLICAS Not enough ...". ErrorCode returns the inner code then, here
// NOREPLICAS.
func ErrorCode(v resp.Value) string {
	if !v.IsError() {
		return ""
	}
	code := string(v.ErrorCode())
	if code == "ERR" || code == scriptName {
		code = "ERR"
		if inner := scriptError(ownWords(v)); inner != "" {
			return inner
		}
	}
	return code
}

// scriptName begins an error that a script of a server before Redis 7 has returned and not raised.
const scriptName = "@user_script:"

// scriptError returns the code of the error that a command had inside a script. It is "" if
// the text is no error of a script, or names no code.
func scriptError(text []byte) string {
	if !bytes.Contains(text, []byte("script")) {
		return ""
	}
	if bytes.Contains(text, []byte("The user executing the script can't")) || bytes.Contains(text, []byte("ACL failure in script")) {
		return "NOPERM"
	}
	if !bytes.Contains(text, []byte("rror running script")) && !bytes.HasPrefix(text, []byte(scriptName)) {
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

// ErrorText returns the text of an error reply of this connection, with its code, for a log. What is not printable is
// escaped. At most 256 bytes of the text are shown; "..." stands for the rest. The text ends where the server begins to
// quote the arguments of the command, which can be passwords and tokens. A password that the server was told here is
// "***" in it.
func (c *Conn) ErrorText(v resp.Value) string { return clip(c.Hide(string(ownWords(v))), maxErrorText) }

// Hide returns what the server says, for people, with "***" for each password that it was told on this connection. Hide a
// text before it is escaped or cut: else a password is not found. [Conn.Server] and ErrorText have none.
func (c *Conn) Hide(said string) string {
	c.mu.Lock()
	told := c.told
	c.mu.Unlock()
	for _, s := range told {
		said = mask(said, s.Reveal())
	}
	return said
}

// errorText is the text of an error reply without our password.
func errorText(v resp.Value, secret Secret) string {
	return clip(mask(string(ownWords(v)), secret.Reveal()), maxErrorText)
}

// ownWords returns the text of an error reply up to where the server begins to quote the
// arguments of the command, which can hold anything.
func ownWords(v resp.Value) []byte {
	text, _, _ := bytes.Cut(v.Bytes(), []byte(", with args"))
	return text
}

// IsTransient reports whether an error reply names a state that passes by itself, such as
// LOADING or BUSY. The command was then not executed, and may be sent again.
func IsTransient(v resp.Value) bool {
	switch ErrorCode(v) {
	case "LOADING", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN":
		return true
	}
	return bytes.Contains(ownWords(v), []byte("max number of clients"))
}

// unsupported reports whether an error reply says that there is no such command, in the words of
// a server or of a proxy.
func unsupported(v resp.Value) bool {
	text := bytes.ToLower(ownWords(v))
	for _, words := range []string{"unknown command", "unsupported", "not supported", "disabled"} {
		if v.IsError() && bytes.Contains(text, []byte(words)) {
			return true
		}
	}
	return false
}

// Printable returns s with escapes, as in a string of Go, for everything that could harm a
// terminal or a log: control characters, line ends and invalid UTF-8.
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

// clip returns the printable form of at most so many bytes of s, and "..." for the rest.
func clip(s string, most int) string {
	if len(s) <= most {
		return Printable(s)
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return Printable(s[:most]) + "..."
}

// word returns the printable form of a word with which a server describes itself, without the password that it was told. The
// words of which something depends stay what they are, also if one of them is the password.
func word(b []byte, told Secret) string {
	switch s := string(b); s {
	case "master", "slave", "replica", "sentinel", "standalone", "cluster":
		return s
	default:
		return clip(mask(s, told.Reveal()), maxWord)
	}
}

// mask replaces a secret in a text by "***": a long one everywhere, a shorter one where it is a
// word of its own. So the password "pass" does not change the words of the server, as in
// "username-password pair". A secret below minSecret is not looked for, as it would be found
// everywhere. Mask a text before you escape or cut it, or the secret is not found.
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

// endsInWord reports whether the last byte of a text is part of a word. The last byte of an
// escape that the server has made, such as \n or \x0a, is not.
func endsInWord(s string) bool {
	n := len(s)
	return n > 0 && isWordByte(s[n-1]) && !(n > 1 && s[n-2] == '\\') && !(n > 3 && s[n-4:n-2] == `\x`)
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= utf8.RuneSelf
}
