package kind

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// A tombstone is what a revocation puts in the place of a token: RevokedPrefix, the token, a newline, and the reason.
// It lives for as long as the key would have lived, so it excludes everybody just as the key did. Only the extensions
// of the token's holder no longer find the token there.
//
// Everything that a holder sends knows the tombstone of its own token:
//
//   - An extend neither prolongs the tombstone nor sets the key again beside it. It returns the tombstone, which tells
//     the holder of the revocation and of its reason.
//   - A release deletes the tombstone, and a linger shortens its life, as they would do to the key. Both return it.
//
// To everybody else it is a key of another.
const RevokedPrefix = "revoked:"

// MaxReason is how many bytes the reason of a revocation has at most.
const MaxReason = 128

// Tombstone returns the tombstone of a token.
func Tombstone(token, reason string) string { return RevokedPrefix + token + "\n" + reason }

// CutTombstone undoes Tombstone, with a reason that can be printed. It returns ok false if the value is no tombstone.
func CutTombstone(value string) (token, reason string, ok bool) {
	rest, ok := strings.CutPrefix(value, RevokedPrefix)
	i := strings.LastIndexByte(rest, '\n')
	if !ok || i <= 0 {
		return "", "", false
	}
	reason = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, rest[i+1:])
	for len(reason) > MaxReason { // somebody else has written it
		_, size := utf8.DecodeLastRuneInString(reason)
		reason = reason[:len(reason)-size]
	}
	return rest[:i], reason, true
}

// isTombstone reports whether a reply is a tombstone, which our scripts return of nobody but the caller.
func isTombstone(v resp.Value) bool {
	return v.Kind() == resp.BulkString && len(v.Bytes()) > len(RevokedPrefix) && string(v.Bytes()[:len(RevokedPrefix)]) == RevokedPrefix
}

// RevokedIn looks for the tombstone of the token in the reply to an extend, a release, a linger or a read.
func RevokedIn(reply resp.Value, token []byte) (reason string, ok bool) {
	if reply.Kind() == resp.Array { // of several keys
		elems := reply.Elems()
		for elem, more := elems.Next(); more && !ok; elem, more = elems.Next() {
			reason, ok = RevokedIn(elem, token)
		}
		return reason, ok
	}
	if !isTombstone(reply) {
		return "", false
	}
	of, reason, ok := CutTombstone(string(reply.Bytes()))
	return reason, ok && of == string(token)
}

const (
	// isRevoked is the Lua of whether v is the tombstone of the token, ARGV[1]. A value that is longer than a tombstone
	// can be is another's, however it begins.
	isRevoked = `#tostring(v) <= #ARGV[1] + 256 and string.find(tostring(v), 'revoked:' .. ARGV[1] .. '\n', 1, true) == 1`

	// tellRevoked is the Lua that ends a script with v, if that is the tombstone of the token.
	tellRevoked = `if ` + isRevoked + ` then
  return v
end
`
	// findTombstone is the Lua that looks for the tombstone of the reader with the token, ARGV[1], if unless is false.
	// dead becomes the tombstone, or remains false. It reads all members. But no reader misses its own member often.
	findTombstone = `local dead = false
if not there then
  for _, v in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if ` + isRevoked + ` then
      dead = v
    end
  end
end
`
)

var (
	// KEYS key. ARGV token, tombstone. It puts the tombstone in the place of the token, for as long as the key would have
	// lived. A tombstone of this token that is there already stays. It returns for how many ms the tombstone lives, -1 if
	// the key does not expire, and then leaves it alone, and -2 if the token is not there. The tombstone of such a key
	// would never go: the holder is another library's, and does not know it.
	RevokeScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] and not (` + isRevoked + `) then
  return -2
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return left
end
left = math.max(left, 1)
if v == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', left)
end
return left`)

	// sharedRevokeScript is RevokeScript for a reader: its member becomes the tombstone. A set that does not expire is none of
	// readers.
	sharedRevokeScript = script.New(`local there = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
local got = there
` + refuse("-2", "ZSCORE") + findTombstone + MasterTime + `local score = tonumber(there or dead and redis.call('ZSCORE', KEYS[1], dead) or 0)
local left = math.floor(score) - now
if left < 0 then
  return -2
end
if redis.call('PTTL', KEYS[1]) < 0 then
  return -1
end
redis.call('ZADD', KEYS[1], string.format('%.6f', score), dead or ARGV[2])
redis.call('ZREM', KEYS[1], ARGV[1])
` + keepReaders + `return left`)
)

// Endless is the reply of a master whose key has the token, and does not expire.
const Endless = -1

// Revoke has the tombstone put in the place of a token, on each master that has the token. The key is a lock's or,
// of permits, a slot's. The tombstone lives for as long as the key does. A yes has for how many milliseconds it lives. A
// no is [Endless] where the key does not expire.
func Revoke(r *Request, key string, shared bool, token, tombstone string) {
	s := RevokeScript
	if shared {
		s = sharedRevokeScript
	}
	r.Judge = judgeRevoke
	r.Call(s, 2, func(dst []byte) []byte {
		return resp.AppendBulkString(resp.AppendBulkString(dst, token), tombstone)
	}, key)
}

func judgeRevoke(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n >= 0:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return JudgeError(v)
}
