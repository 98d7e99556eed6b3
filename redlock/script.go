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
// text, with its keys. args arguments must follow.
func (s script) appendHash(dst []byte, args int, keys ...string) []byte {
	return appendCall(dst, "EVALSHA", s.hash, args, keys)
}

func (s script) appendText(dst []byte, args int, keys ...string) []byte {
	return appendCall(dst, "EVAL", s.text, args, keys)
}

func appendCall(dst []byte, name, what string, args int, keys []string) []byte {
	dst = resp.AppendArray(dst, 3+len(keys)+args)
	dst = resp.AppendBulkString(dst, name)
	dst = resp.AppendBulkString(dst, what)
	dst = resp.AppendBulkInt(dst, int64(len(keys)))
	for _, key := range keys {
		dst = resp.AppendBulkString(dst, key)
	}
	return dst
}
