package redlock

import (
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A call is what one round needs: the operation and the buffers its commands
// are encoded into. Calls are pooled by the client and not owned by a Mutex, so
// that a lock which is only held is small.
type call struct {
	op       mux.Op
	one      [1]*mux.Op // op, as the argument of Post
	command  []byte
	fallback []byte
	token    []byte // for which the round is
	votes    []Vote // for the Observer
	keep     *keep  // whose renewal it is
	gates    []gate // of an acquire in turn
	asked    int    // ... masters; 0 if it asked all
}

func (c *Client) takeCall() *call { return c.calls.Get().(*call) }

func (c *Client) putCall(k *call) {
	k.keep, k.asked = nil, 0
	c.calls.Put(k)
}

func newCall() any {
	k := new(call)
	k.one[0] = &k.op
	return k
}

// reset makes the operation a new one, and keeps its votes' memory.
func (k *call) reset(judge mux.Judge, timeout time.Duration) {
	op := &k.op
	op.Judge, op.Timeout = judge, timeout
	op.All, op.Thorough, op.Keep, op.Persist = false, false, false, 0
	op.Only, op.Quorum, op.Replies = 0, 0, 0
	op.Command, op.Fallback = nil, nil
}

func (k *call) acquire(m *Mutex) {
	k.reset(judgeSet, m.timeout)
	k.token = appendToken(k.token[:0], m.client.owner)
	k.command = appendSet(k.command[:0], m.key, k.token, m.term.ttl)
	k.op.Command = k.command
}

// release makes the call a release, which is delivered however long it takes,
// within the TTL: by then the key is gone without it. If it fails, only all votes
// can tell whether the lock was lost; so for an extend.
func (k *call) release(m *Mutex, token []byte) {
	k.reset(judgeScript, m.timeout)
	k.token = append(k.token[:0], token...)
	k.command = resp.AppendBulk(releaseScript.appendHash(k.command[:0], m.key, 1), token)
	k.fallback = resp.AppendBulk(releaseScript.appendText(k.fallback[:0], m.key, 1), token)
	k.op.Command, k.op.Fallback = k.command, k.fallback
	k.op.Persist, k.op.Thorough = m.term.ttl, true
}

// extend makes the call an extend. The fallback never sets a key again: it is
// sent only when a master has said that it does not know the script, and a
// release may have been written to that master by then.
func (k *call) extend(m *Mutex, token []byte, restore bool) {
	k.reset(judgeScript, m.timeout)
	k.command = appendExtendArgs(extendScript.appendHash(k.command[:0], m.key, 3), token, m.term.ttl, restore)
	k.fallback = appendExtendArgs(extendScript.appendText(k.fallback[:0], m.key, 3), token, m.term.ttl, false)
	k.op.Command, k.op.Fallback = k.command, k.fallback
	k.op.Thorough = true
}

func (k *call) holders(key string, timeout time.Duration) {
	k.reset(judgeHolders, timeout)
	k.token = k.token[:0]
	k.command = holdersScript.appendHash(k.command[:0], key, 0)
	k.fallback = holdersScript.appendText(k.fallback[:0], key, 0)
	k.op.Command, k.op.Fallback = k.command, k.fallback
	k.op.All, k.op.Keep = true, true
}

// look makes the call a read of how long the key has to live, by which the
// master also promises to tell of its next change. The promise is refused by a
// connection without tracking; then it is only a read.
func (k *call) look(key string, timeout time.Duration) {
	k.reset(judgeFree, timeout)
	k.command = resp.AppendCommand(k.command[:0], "CLIENT", "CACHING", "YES")
	k.command = resp.AppendCommand(k.command, "PTTL", key)
	k.op.Command, k.op.Replies = k.command, 2
	k.op.All = true
}
