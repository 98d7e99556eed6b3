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

// ownWords returns the text of an error reply up to where the server begins to quote the
// arguments of the command, which can hold anything.
func ownWords(v resp.Value) []byte {
	text, _, _ := bytes.Cut(v.Bytes(), []byte(", with args"))
	return text
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
	var out strings.Builder
	for from, done := 0, 0; ; { // text[:done] is in out. A server may have made the text of nothing but secrets
		i := strings.Index(text[from:], secret)
		if i < 0 {
			if done == 0 {
				return text
			}
			out.WriteString(text[done:])
			return out.String()
		}
		i += from
		end := i + len(secret)
		if len(secret) < longSecret &&
			(endsInWord(text[done:i]) && isWordByte(secret[0]) ||
				end < len(text) && isWordByte(text[end]) && isWordByte(secret[len(secret)-1])) {
			from = i + 1
			continue
		}
		out.WriteString(text[done:i])
		out.WriteString("***")
		from, done = end, end
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
