// Package script encodes calls of Lua scripts, and keeps the texts of those that are called by their hash.
package script

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"

	"github.com/redburst/redburst/resp"
)

// A Script is called by its hash. A master that does not know the hash is sent the text. New and NewRare make one.
type Script struct {
	Text, Hash     string
	byText, byHash string // EVAL and the text, EVALSHA and the hash, encoded
}

// Texts are the texts of all scripts that New has made. They are loaded when a master is connected.
var Texts []string

// UnlessForeign ends a script if the pcall of GET whose result is in v has failed. The script returns that error,
// such as NOPERM, as it does not say whose the key is. The script goes on after one error: that the key holds
// no string. Such a key is another's.
const UnlessForeign = `if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
  return v
end
`

// NoLock is what a script returns of a lock's key that holds no string: a key that is no lock. It is a status, as a number or
// an error would be something else.
const NoLock = "NOLOCK"

// UnlessLock is UnlessForeign for a script that has nothing more to do then, and tells what it has found.
const UnlessLock = `if type(v) == 'table' then
  return string.find(v.err, 'WRONGTYPE', 1, true) and {ok = '` + NoLock + `'} or v
end
`

// AnyKeys begins a script that touches keys which are not among its KEYS, as it reads their names from other keys, or as
// a user may lack the right to one. To Dragonfly this comment says that the script may. Without it, Dragonfly refuses
// such a script: https://www.dragonflydb.io/docs/managing-dragonfly/scripting. The comment must be the first line.
const AnyKeys = "--!df flags=allow-undeclared-keys\n"

// New makes a script, for a package-level variable. It takes the indentation out of the text that is sent, as
// a mux keeps only two KiB of memory for an operation's text.
func New(text string) Script {
	s := NewRare(text)
	Texts = append(Texts, s.Text)
	return s
}

// NewRare is New for a script that few clients call. It is not loaded when a master is connected: the first call sends
// its text.
func NewRare(text string) Script {
	for strings.Contains(text, "\n ") {
		text = strings.ReplaceAll(text, "\n ", "\n")
	}
	sum := sha1.Sum([]byte(text))
	hash := hex.EncodeToString(sum[:])
	return Script{text, hash, call("EVAL", text), call("EVALSHA", hash)}
}

func call(name, what string) string {
	return string(resp.AppendBulkString(resp.AppendBulkString(nil, name), what))
}

// AppendHash and AppendText append the head of a script's call, by hash and by text, and its keys. The
// caller appends the arguments after it: as many as args says.
func (s Script) AppendHash(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.AppendHead(dst, false, len(keys), args), keys)
}

func (s Script) AppendText(dst []byte, args int, keys ...string) []byte {
	return appendKeys(s.AppendHead(dst, true, len(keys), args), keys)
}

// AppendHead appends the head of a script's call, by text or by hash. The caller appends the keys after it,
// and then the arguments.
func (s Script) AppendHead(dst []byte, text bool, keys, args int) []byte {
	call := s.byHash
	if text {
		call = s.byText
	}
	dst = append(resp.AppendArray(dst, 3+keys+args), call...)
	return resp.AppendBulkInt(dst, int64(keys))
}

func appendKeys(dst []byte, keys []string) []byte {
	for _, key := range keys {
		dst = resp.AppendBulkString(dst, key)
	}
	return dst
}
