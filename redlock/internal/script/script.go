// Package script encodes calls of Lua scripts, and keeps the texts of all of them.
package script

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"

	"github.com/redburst/redburst/resp"
)

// A Script is called by its hash, and by its text where a master does not know the hash.
type Script struct{ Text, Hash string }

// Texts are the texts of all scripts. They are loaded when a master is connected.
var Texts []string

// UnlessForeign ends a script with the error that a pcall of GET has returned in v. It goes on if that says
// that the key holds no string: then the key is another's. Any other error, such as NOPERM, does not
// say whose it is.
const UnlessForeign = `if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
  return v
end
`

// New makes a script, for a package-level variable. What is sent has no indentation: a mux keeps two KiB of
// memory for an operation's text.
func New(text string) Script {
	for strings.Contains(text, "\n ") {
		text = strings.ReplaceAll(text, "\n ", "\n")
	}
	Texts = append(Texts, text)
	sum := sha1.Sum([]byte(text))
	return Script{text, hex.EncodeToString(sum[:])}
}

// AppendHash and AppendText append the head of a script's call, by hash and by
// text, with its keys. args arguments must follow.
func (s Script) AppendHash(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.AppendHead(dst, false, len(keys), args), keys)
}

func (s Script) AppendText(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.AppendHead(dst, true, len(keys), args), keys)
}

// AppendHead appends the head of a script's call, by text or by hash, without its keys. They must
// follow, and then the arguments.
func (s Script) AppendHead(dst []byte, text bool, keys, args int) []byte {
	name, what := "EVALSHA", s.Hash
	if text {
		name, what = "EVAL", s.Text
	}
	dst = resp.AppendArray(dst, 3+keys+args)
	dst = resp.AppendBulkString(dst, name)
	dst = resp.AppendBulkString(dst, what)
	return resp.AppendBulkInt(dst, int64(keys))
}

func appendKeys(dst []byte, keys []string) []byte {
	for _, key := range keys {
		dst = resp.AppendBulkString(dst, key)
	}
	return dst
}
