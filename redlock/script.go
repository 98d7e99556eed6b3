package redlock

import (
	"crypto/sha1"
	"encoding/hex"

	"github.com/redburst/redburst/resp"
)

// A script is called by its hash, and by its text where a master does not know the hash.
type script struct{ text, hash string }

// scripts are the texts of all scripts. They are loaded when a master is connected.
var scripts []string

// newScript makes a script, for a package-level variable.
func newScript(text string) script {
	scripts = append(scripts, text)
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// appendHash and appendText append the head of a script's call, by hash and by
// text, with its key. args arguments must follow.
func (s script) appendHash(dst []byte, key string, args int) []byte {
	return appendCall(dst, "EVALSHA", s.hash, key, args)
}

func (s script) appendText(dst []byte, key string, args int) []byte {
	return appendCall(dst, "EVAL", s.text, key, args)
}

func appendCall(dst []byte, name, what, key string, args int) []byte {
	dst = resp.AppendArray(dst, 4+args)
	dst = resp.AppendBulkString(dst, name)
	dst = resp.AppendBulkString(dst, what)
	dst = resp.AppendBulkString(dst, "1")
	return resp.AppendBulkString(dst, key)
}
