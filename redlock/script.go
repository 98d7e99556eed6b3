package redlock

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"

	"github.com/redburst/redburst/resp"
)

// A script is called by its hash, and by its text where a master does not know the hash.
type script struct{ text, hash string }

// scripts are the texts of all scripts. They are loaded when a master is connected.
var scripts []string

// unlessForeign ends a script with the error that a pcall of GET has returned in v. It goes on if that says
// that the key holds no string: then the key is another's. Any other error, such as NOPERM, does not
// say whose it is.
const unlessForeign = `if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
  return v
end
`

// newScript makes a script, for a package-level variable. What is sent has no indentation: a mux keeps two KiB of
// memory for an operation's text.
func newScript(text string) script {
	for strings.Contains(text, "\n ") {
		text = strings.ReplaceAll(text, "\n ", "\n")
	}
	scripts = append(scripts, text)
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// appendHash and appendText append the head of a script's call, by hash and by
// text, with its keys. args arguments must follow.
func (s script) appendHash(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.appendHead(dst, false, len(keys), args), keys)
}

func (s script) appendText(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.appendHead(dst, true, len(keys), args), keys)
}

// appendHead appends the head of a script's call, by text or by hash, without its keys. They must
// follow, and then the arguments.
func (s script) appendHead(dst []byte, text bool, keys, args int) []byte {
	name, what := "EVALSHA", s.hash
	if text {
		name, what = "EVAL", s.text
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
