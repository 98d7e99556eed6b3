package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

const (
	maxOwed   = 1 << 15 // replies a master may owe before it is given nothing more
	maxQueued = 4 << 20 // bytes that may wait to be written to a master, likewise

	keepBuffer = 64 << 10 // an output buffer above this is not kept
)

// A slot is one master's place in the Mux. All of it is guarded by Mux.mu.
type slot struct {
	addr         conn.Address
	link         *link  // nil unless the master is up
	queued       []byte // not taken by the flusher yet
	spare        []byte // the buffer that queued will be swapped with
	held         []byte // a renewal that waits for replies from before it, and what came after it; nil if none waits
	taken        int    // bytes the flusher has, or the connection keeps unsent
	owed         ring[owed]
	debts        debts         // to be delivered before anything else
	refused      debts         // what it has refused for a moment, to be sent again
	lateCommands bool          // a connection ended with commands unanswered, and the debts were not delivered since
	since        time.Duration // when the link was installed
	lastReply    time.Duration // when a reply was last matched on it

	unanswered span          // commands to which no reply will come
	late       span          // commands whose replies came late, of those that were not votes any more
	wasLate    bool          // the last of such replies did
	again      int           // fallbacks that it has not answered
	againFrom  time.Duration // ... the first of what they repeat was sent then
	leastRTT   time.Duration // the least round trip on this connection; 0 before the first
	leastFrom  time.Duration // ... and when that first one was known: a hang may have made it long for what was sent before

	pulse     pulse
	suspected time.Duration // when it was found silent for the stall time; 0 if it was not
	pause     time.Duration // before the next dial, doubling while links are short-lived
	silent    int           // dials in a row that took too long, and links that fell silent without any reply
	state     State
	dialer    uint64             // the number of the latest goroutine that dials it; those before end
	dialledAt string             // where a dial goes on that has taken the dial timeout; empty if none does
	endDial   context.CancelFunc // ends the latest dial; nil before the first
	elsewhere chan struct{}      // tells that goroutine not to pause: the master is at another place than it was

	known            conn.Server      // what it said at its last connection; state.Server is the copy that is shown
	quarantinedUntil time.Duration    // it must not vote until then
	quarantineErr    *QuarantineError // ... for this reason
	process          time.Duration    // when it was connected and its process was another than before; 0 if it never was
	withheld         bool             // no yes of it counts yet
	remote           string           // the address of its last connection, see conn.Conn.RemoteAddr
	demoted          error            // what it has said on this connection: that it is no master now; nil if it has not
	moved            string           // where the sentinels or nodes say that the group's master is now, if that is news
	moves            uint64           // ... and how often they have named another place than before
	interim          string           // another master since known was connected, if there was one
	nodes            []string         // of its cluster, as a majority of them has said
	trustedUntil     time.Duration    // a majority of its cluster has confirmed it; Forever if it is of no cluster
}

// A link is a connection in use. Its pins count the calls that are under way on it without
// mu. It is closed once it is out of its slot and has no pins.
type link struct {
	c       *conn.Conn
	id      uint64 // of its events: generation and slot
	pins    int
	blocked bool // the socket took less than it was given: wait until it is writable
	orderly bool // close it with what it has still to send, instead of a reset

	renewAt    time.Duration // when its credentials are to be renewed; 0 if they do not end
	renewPause time.Duration // before the next try, doubling while they cannot be renewed
	renewalErr error         // why they could not be; nil if they were, or were not yet due
	renewal    *conn.Renewal // under way, or the latest
	renewed    chan error    // ... is told how it went

	gone chan struct{} // closed when it is out of its slot
}

// slotOf is the slot of an event's id, which place makes: a link's generation above, the slot below.
func slotOf(id uint64) int { return int(id % maxMasters) }

// unavailable says why a master can be asked nothing now; it is nil if the master can be asked.
func (s *slot) unavailable(now time.Duration) error {
	if s.link != nil && (s.debts.len() > 0 || s.owed.len() >= maxOwed || s.unsent() >= maxQueued) {
		return ErrBacklog
	}
	return s.barred(now)
}

// barred says why a master may not vote now, however much it owes; it is nil if it may.
func (s *slot) barred(now time.Duration) error {
	switch {
	case s.link == nil && s.state.Err != nil:
		return s.state.Err
	case s.link == nil:
		return ErrConnecting
	case now < s.quarantinedUntil:
		return s.quarantineErr
	case now >= s.trustedUntil:
		return ErrUnconfirmed
	}
	return nil
}

// unsent is the number of bytes that wait to be written to a master.
func (s *slot) unsent() int { return len(s.queued) + s.taken + len(s.held) }

// write queues a command to a master, behind a renewal that is held back if there is one.
func (m *Mux) write(i int, command []byte) {
	s := &m.slots[i]
	if s.held != nil {
		s.held = append(s.held, command...)
		return
	}
	s.queued = append(s.queued, command...)
	m.markDirty(i)
}

// markDirty marks a slot as dirty: it has something to send. If its socket is known to take
// nothing now, it is marked once the socket is writable.
func (m *Mux) markDirty(i int) {
	if !m.slots[i].link.blocked {
		m.dirty = m.dirty.With(i)
	}
}

// drop takes a connection out of its slot. Votes that it still owes are failed ones, and
// persistent operations become debts. Unless the Mux is closing, the master is redialled.
func (m *Mux) drop(i int, err error) {
	s := &m.slots[i]
	l := s.link
	s.link, s.demoted, s.withheld = nil, nil, false
	close(l.gone)
	m.dirty = m.dirty.Without(i)
	m.hangups = m.hangups.Without(i)
	m.poll.Remove(l.c)
	m.hangupPoll.Remove(l.c)
	if m.cfg.OnDisconnect != nil {
		if p := callHook(func() { m.cfg.OnDisconnect(i) }); p != nil {
			err = fmt.Errorf("%w; %s", err, unprefixed(p))
		}
	}
	phase := Down
	if errors.Is(err, ErrStalled) {
		phase = Stalled
	}
	l.orderly = err == ErrClosed
	m.setPhase(i, phase, err)
	now := clock.Now()
	// What the master has refused is older than what it owes, and debts that a backlog has kept back are younger.
	kept := s.debts
	s.debts = debts{}
	owing := s.owed
	s.owed = ring[owed]{}
	s.held, s.again, s.leastRTT, s.wasLate = nil, 0, 0, false
	if s.queued, s.taken, s.suspected = s.queued[:0], 0, 0; cap(s.queued) > keepBuffer {
		s.queued = nil
	}
	s.lateCommands = s.lateCommands || owing.len() > 0
	if owing.len() > 0 {
		s.unanswered.begin(now)
	}
	m.addDebts(i, &s.refused, now)
	for owing.len() > 0 {
		o := owing.pop()
		s.unanswered.add(cmp.Or(o.first, o.sent))
		f := o.f
		if f == nil { // whoever waits for it is told by gone
			continue
		}
		if s.wants(f, now) {
			m.addDebt(i, f, now)
		}
		if op := f.op; op != nil && !o.voted {
			m.cast(op, i, VerdictFailed, err)
			m.settle(op, now)
		} else {
			m.cast(nil, i, VerdictFailed, err)
		}
		m.unref(f)
	}
	m.addDebts(i, &kept, now)
	m.castWithheld(i, err, now)
	l.close()
	if m.closed {
		return
	}
	m.judge(now)
	s.backOff(phase, now, &m.cfg)
	m.startDial(i, s.pause)
}

// backOff sets the pause before the master is dialled again, when its connection has ended in a
// phase. One that has lasted for a while earns an immediate redial. One that keeps breaking goes on
// with its backoff. A master that completes each handshake, and then answers nothing, is dialled ever
// less often: by fault or by intent, it would have all debts each time.
func (s *slot) backOff(phase Phase, now time.Duration, cfg *Config) {
	switch {
	case s.lastReply >= s.since:
		s.silent = 0
	case phase == Stalled:
		s.silent++
	}
	switch {
	case s.silent > 0:
		s.pause = max(s.pause, s.leastPause(cfg))
	case phase != Stalled && now-s.since >= cfg.BackoffMax:
		s.pause = 0
	}
}

// close closes a link that was dropped, unless somebody uses it: then the last one to unpin
// it does. It may be called without mu by whoever has the last pin.
func (l *link) close() {
	if l.pins > 0 {
		return
	}
	if l.orderly {
		l.c.Close()
	} else {
		l.c.Abort()
	}
}

// masterError adds to the cause of a connection's end which master it was. It may be called
// without mu.
func (m *Mux) masterError(i int, err error) error {
	return &conn.Error{Addr: m.slots[i].addr.String(), Op: "read", Err: err}
}
