package redlock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// watches is what this client waits for on the masters. The first of a line that
// was refused reads the key on every master, asking to be told of its next change
// (CLIENT TRACKING, OPTIN), and parks. The masters' invalidations are read by the
// listener, a goroutine that waits in the mux while anybody watches: as long as
// nothing else is in flight, it is the parked driver.
//
// A watch is registered before the key is read, so no change is lost: what was
// before the read is in its answer, what is after it is pushed, in this order on
// one connection.
//
// mu is a leaf of the lock order; the hooks take it under the lock of the mux.
type watches struct {
	quorum int

	mu        sync.Mutex
	byKey     map[string]*watch
	idle      time.Duration // since when nobody watches
	listening bool
	closed    bool // nobody listens any more

	// When a key of that hash was last refused. Two keys may share an entry:
	// it only decides who looks before trying.
	refused [256]atomic.Int64
}

// A watch is one waiter's. A set of masters has a bit for each.
type watch struct {
	told chan struct{} // capacity 1: something has come to be known

	// Guarded by watches.mu.
	changed mux.Set // where the key was free when it was read, or has changed since
	deaf    mux.Set // who will not tell: did not answer, cannot, or has been disconnected
}

const (
	listenFor   = time.Second // how long the listener stays when nobody watches
	refusedFor  = time.Second // how long a key that was refused counts as contended
	minBrief    = 5 * time.Millisecond
	lookAgain   = 10 * time.Second // how long a waiter relies on being told, up to twice that
	expirySlack = time.Millisecond
)

func newWatches(n int) *watches {
	return &watches{quorum: majority(n), byKey: map[string]*watch{}}
}

func newWatch() *watch { return &watch{told: make(chan struct{}, 1)} }

func (ws *watches) add(key string, w *watch) {
	select {
	case <-w.told:
	default:
	}
	ws.mu.Lock()
	w.changed, w.deaf = 0, 0
	ws.byKey[key] = w
	ws.mu.Unlock()
}

func (ws *watches) remove(key string, now time.Duration) {
	ws.mu.Lock()
	delete(ws.byKey, key)
	ws.idle = now
	ws.mu.Unlock()
}

// note adds masters where the key is, or can be, free, and masters that will not
// tell. It reports whether they can be a majority: then it is time to look, since
// the last that is needed may be one that does not tell.
func (ws *watches) note(w *watch, changed, deaf mux.Set) bool {
	w.changed |= changed
	w.deaf |= deaf
	return (w.changed | w.deaf).Len() >= ws.quorum
}

// free returns where the key is, or can be, free, and whether that is a majority.
func (ws *watches) free(w *watch) (likely mux.Set, majority bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.changed, w.changed.Len() >= ws.quorum
}

func (w *watch) tell() {
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// push takes a push of a master: an invalidation lists the keys that have
// changed, or no list if all have (FLUSHALL).
func (ws *watches) push(master int, v resp.Value) {
	it := v.Elems()
	kind, _ := it.Next()
	if string(kind.Bytes()) != "invalidate" {
		return
	}
	keys, _ := it.Next()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if keys.IsNull() {
		for _, w := range ws.byKey {
			if ws.note(w, 1<<master, 0) {
				w.tell()
			}
		}
		return
	}
	for it := keys.Elems(); ; {
		key, ok := it.Next()
		if !ok {
			return
		}
		if w := ws.byKey[string(key.Bytes())]; w != nil && ws.note(w, 1<<master, 0) {
			w.tell()
		}
	}
}

// disconnected notes that a master will not tell what it has promised to.
func (ws *watches) disconnected(master int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.byKey {
		if ws.note(w, 0, 1<<master) {
			w.tell()
		}
	}
}

// listen makes sure that somebody reads the masters' pushes while keys are
// watched. The listener looks once a second whether it is still of use.
func (c *Client) listen() {
	ws := c.watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.listening || ws.closed {
		return
	}
	ws.listening = true
	c.listeners.Go(func() {
		op := &mux.Op{Timeout: listenFor}
		for {
			c.rounds.Post(op)
			err := c.rounds.Wait(context.Background(), op)
			ws.mu.Lock()
			if err != mux.ErrTimeout || len(ws.byKey) == 0 && c.now()-ws.idle >= listenFor {
				ws.listening = false
				ws.mu.Unlock()
				return
			}
			ws.mu.Unlock()
		}
	})
}

func (ws *watches) entry(key string) *atomic.Int64 { return &ws.refused[hash(key, "")%256] }

// noteRefused marks a key as contended, and contended reports whether it is.
// Whoever wants a contended key looks before trying: those who were told of its
// release come first then, and a holder that takes the lock again and again does
// not starve the others.
func (ws *watches) noteRefused(key string, now time.Duration) { ws.entry(key).Store(int64(now)) }

func (ws *watches) contended(key string, now time.Duration) bool {
	at := time.Duration(ws.entry(key).Load())
	return at != 0 && now-at < refusedFor
}

// hash is FNV-1a of two strings, with a finalizer that spreads it over all bits.
// It is the same in every process.
func hash(a, b string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(a) {
		h = (h ^ uint64(a[i])) * 1099511628211
	}
	h *= 1099511628211 // the NUL between them
	for i := range len(b) {
		h = (h ^ uint64(b[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}

// ranked returns the masters in the order in which everybody who contends for a
// key asks them: by a hash of the key and the server's own identity, which all
// processes know alike, however they name it.
func ranked(key string, masters []mux.State) []int {
	order := make([]int, len(masters))
	weight := make([]uint64, len(masters))
	for i, s := range masters {
		order[i] = i
		id := s.Server.RunID
		if id == "" {
			id = s.Address
		}
		weight[i] = hash(key, id)
	}
	slices.SortFunc(order, func(a, b int) int {
		if weight[a] < weight[b] {
			return -1
		}
		return 1
	})
	return order
}

// prospect is what looking at a key has shown.
type prospect struct {
	free bool          // a majority of the masters can be had now
	told bool          // none can be before one of them tells
	held bool          // it is another's on so many
	at   time.Duration // when the TTLs of so many will have passed; conn.Forever if never
}

// look reads the key on all masters, and has them tell of its next change. The
// watch was registered before.
func (c *Client) look(ctx context.Context, m *Mutex, w *watch) (prospect, error) {
	k := c.takeCall()
	defer c.putCall(k)
	k.look(m.key, c.brief(m))
	err := c.rounds.Do(ctx, &k.op)
	if err != nil && err != mux.ErrTimeout {
		return prospect{}, err
	}
	now := c.now()
	states := c.rounds.Masters()
	var free, deaf mux.Set
	no := 0
	var ends []time.Duration
	for i := range k.op.Votes {
		v := &k.op.Votes[i]
		end := conn.Forever
		switch {
		case v.Verdict == VerdictYes:
			free = free.With(i)
			end = now
		case v.Verdict == VerdictNo && v.Int >= 0:
			end = conn.After(conn.After(now, milliseconds(v.Int)), expirySlack)
		}
		ends = append(ends, end)
		if v.Verdict == VerdictNo {
			no++
		}
		if v.Verdict != VerdictYes && v.Verdict != VerdictNo || states[i].Phase != mux.Up || !states[i].Server.Tracking {
			deaf = deaf.With(i)
		}
	}
	slices.Sort(ends)
	ws := c.watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	p := prospect{told: !ws.note(w, free, deaf), held: no >= ws.quorum, at: ends[ws.quorum-1]}
	p.free = w.changed.Len() >= ws.quorum
	return p, nil
}

// tracked reports whether so many masters are up and can tell of changes that no
// majority can become free without one of them.
func (c *Client) tracked() bool {
	n := 0
	for _, s := range c.rounds.Masters() {
		if s.Phase == mux.Up && s.Server.Tracking {
			n++
		}
	}
	return n > len(c.masters)-majority(len(c.masters))
}

// brief is a timeout for what only helps: a few round trips.
func (c *Client) brief(m *Mutex) time.Duration {
	return min(m.timeout, max(4*c.rounds.RTT(), minBrief))
}

// inTurn is how contenders ask: one master first, the same for all of them, and
// the others only if that said yes. So of any number who were told of a release
// at the same moment one goes on, the others have cost one command each, and a
// vote that was split does not split again. If the first master does not answer,
// the next one takes its place. The first is one of likely, where the key is, or
// can be, free; zero means all. It reports whether nothing of ours can be left
// behind, as all that were asked said no.
func (c *Client) inTurn(ctx context.Context, m *Mutex, k *call, likely mux.Set) (clean bool, err error) {
	quorum := majority(len(c.masters))
	timeout := k.op.Timeout
	k.gates = k.gates[:0]
	var asked mux.Set
	var started time.Duration
	failed := 0
	clean = true
	for _, g := range ranked(m.key, c.rounds.Masters()) {
		if likely != 0 && !likely.Has(g) {
			continue
		}
		k.op.Only, k.op.Quorum, k.op.Timeout = 1<<g, 1, c.brief(m)
		err = c.rounds.Do(ctx, &k.op)
		if asked == 0 {
			started = k.op.Started
		}
		asked = asked.With(g)
		vote := k.op.Votes[g]
		k.gates = append(k.gates, gate{g, vote})
		k.asked = len(k.gates)
		clean = clean && (k.op.Asked == 0 || vote.Verdict == VerdictNo)
		if vote.Verdict == VerdictYes && quorum > 1 {
			k.op.Only, k.op.Quorum, k.op.Timeout = (1<<len(c.masters)-1)&^asked, quorum-1, timeout
			err = c.rounds.Do(ctx, &k.op)
			k.asked = len(c.masters)
			break
		}
		if vote.Verdict == VerdictYes || vote.Verdict == VerdictNo || err != nil && err != mux.ErrTimeout {
			break
		}
		if failed++; failed > len(c.masters)-quorum {
			break
		}
	}
	// The round is all that was asked, from the first moment on.
	k.op.Started = started
	for i, g := range k.gates {
		cut := i == len(k.gates)-1 && err != nil && err != mux.ErrTimeout
		if g.vote.Verdict == VerdictPending && !cut { // it had its time
			g.vote.Verdict, g.vote.Err = VerdictFailed, mux.ErrTimeout
		}
		k.op.Votes[g.master] = g.vote
	}
	return clean, err
}

// A gate is a master that was asked before the others.
type gate struct {
	master int
	vote   mux.Vote
}
