package redlock

import (
	"crypto/sha1"
	"encoding/hex"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A script is asked for by its hash, and by its text where the hash is unknown.
type script struct{ text, hash string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// scripts are loaded when a master is connected.
func scripts() []string { return []string{releaseScript.text, extendScript.text, holdersScript.text} }

// In all of them GET is called by pcall: a key that holds no string is not ours,
// which is an answer and not an error.
var (
	// KEYS key, ARGV token.
	releaseScript = newScript(`if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)

	// KEYS key, ARGV token, TTL in ms, whether it may be set again. A key is
	// set again only where it is free, never where it is another's.
	extendScript = newScript(`local v = redis.pcall('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if v == false and ARGV[3] == '1' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
  return 2
end
return 0`)

	// KEYS key. A value that is too long for a token is cut: it can be of any size.
	holdersScript = newScript(`local v = redis.pcall('GET', KEYS[1])
if type(v) == 'string' then
  v = string.sub(v, 1, 1024)
end
return {v, redis.call('PTTL', KEYS[1])}`)
)

// replyRestored is the extend script's word for a key that was set again.
const replyRestored = 2

// judgeSet judges SET NX: it is taken, or there is somebody.
func judgeSet(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

// judgeScript judges the release and the extend script. Restored is no yes: a
// quorum of those that still had the key decides at once, and how many had not
// decides whether the lock was lost.
func judgeScript(v resp.Value) mux.Verdict {
	n, ok := v.Int()
	switch {
	case ok && n == 1:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return judgeError(v)
}

// judgeHolders judges the holders script: an answer is a yes.
func judgeHolders(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array && v.Len() == 2 {
		return mux.VerdictYes
	}
	return judgeError(v)
}

// judgeFree judges PTTL: a key that is not there is a yes.
func judgeFree(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n == -2:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

func judgeError(v resp.Value) mux.Verdict {
	if string(v.ErrorCode()) == "NOSCRIPT" {
		return mux.VerdictAgain
	}
	return mux.VerdictFailed
}

// appendSet appends the acquire. The expiry is relative (PX): an absolute one
// (PXAT) would have each master compare our wall clock with its own, and the
// lock's safety would hang on their being in step. Every other Redlock library
// sets its keys so, and they exclude each other with us.
func appendSet(dst []byte, key string, token []byte, ttl time.Duration) []byte {
	dst = resp.AppendArray(dst, 6)
	dst = resp.AppendBulkString(dst, "SET")
	dst = resp.AppendBulkString(dst, key)
	dst = resp.AppendBulk(dst, token)
	dst = resp.AppendBulkString(dst, "NX")
	dst = resp.AppendBulkString(dst, "PX")
	return resp.AppendBulkInt(dst, ttl.Milliseconds())
}

// appendHash and appendText append the head of a script's call, by hash and by
// text, with its key; args arguments are to follow.
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

func appendExtendArgs(dst, token []byte, ttl time.Duration, restore bool) []byte {
	dst = resp.AppendBulk(dst, token)
	dst = resp.AppendBulkInt(dst, ttl.Milliseconds())
	if restore {
		return resp.AppendBulkString(dst, "1")
	}
	return resp.AppendBulkString(dst, "0")
}
