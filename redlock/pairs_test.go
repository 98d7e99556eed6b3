package redlock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/stretchr/testify/require"
)

// What can befall one lock at once: each thing is stopped at each of its steps, and each other runs there. So no window
// is left out because nobody has thought of it. All goes on one after the other, with the same Mutexes.

// A stopAt says at which steps of a client something is stopped, and which masters carry out nothing meanwhile.
type stopAt struct {
	what   string
	frozen []int
}

// stopsAt are all of them: a minority of the masters, or a majority, has not carried out a command yet; a command was answered, and nobody
// has looked at the answers; a waiter was woken, and has not looked why.
var stopsAt = []stopAt{{"posted", []int{0}}, {"posted", []int{0, 1}}, {"answered", nil}, {"woken", nil}, {"woken", []int{0, 1}}}

// A stopper is the rounds of one client, which it stops at a step. When they are closed, those of others are not.
type stopper struct {
	*notifiedRounds
	life  context.Context // ends with the client
	close context.CancelFunc

	stops   sync.Mutex
	at      stopAt
	left    int // steps before the one that is stopped at; below 0 if it was
	stopped chan struct{}
	goOn    chan struct{}
}

// arm has the stopper stop at the nth step from now on, counted from 0.
func (s *stopper) arm(at stopAt, n int) {
	s.stops.Lock()
	defer s.stops.Unlock()
	s.at, s.left, s.stopped, s.goOn = at, n, make(chan struct{}), make(chan struct{})
}

// thaw lets the masters go on.
func (s *stopper) thaw() {
	s.stops.Lock()
	defer s.stops.Unlock()
	s.left = -1
	s.set(thaw, s.at.frozen...)
}

// step stops at a step, if it is the one.
func (s *stopper) step(what string, blocks bool) {
	s.stops.Lock()
	if what == s.at.what {
		s.left--
	}
	if what != s.at.what || s.left != -1 {
		s.stops.Unlock()
		return
	}
	s.set(freeze, s.at.frozen...)
	close(s.stopped)
	s.stops.Unlock()
	if blocks {
		<-s.goOn
	}
}

// takes reports whether the client is still open for an operation.
func (s *stopper) takes(op *mux.Op) bool { return s.life.Err() == nil || op.Persist > 0 }

func (s *stopper) Post(ops ...*mux.Op) {
	for _, op := range ops {
		if op.Command != nil {
			s.step("posted", false)
		}
		if s.takes(op) {
			s.notifiedRounds.Post(op)
			continue
		}
		op.Started, op.Decided, op.Votes = s.now(), s.now(), make([]mux.Vote, 3)
		if op.OnDecided != nil {
			go op.OnDecided(mux.ErrClosed)
		}
	}
}

func (s *stopper) Send(op *mux.Op) {
	s.step("posted", false)
	if s.takes(op) {
		s.notifiedRounds.Send(op)
	}
}

func (s *stopper) Do(ctx context.Context, op *mux.Op) error {
	if ctx.Err() != nil {
		return s.notifiedRounds.Do(ctx, op)
	}
	s.Post(op)
	return s.Wait(ctx, op)
}

func (s *stopper) Wait(ctx context.Context, op *mux.Op) error {
	if !s.takes(op) && op.Decided != 0 {
		return mux.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(mux.ErrClosed) })()
	err := s.notifiedRounds.Wait(ctx, op)
	if err != nil && context.Cause(ctx) == mux.ErrClosed {
		return mux.ErrClosed
	}
	if op.Command != nil {
		s.step("answered", true)
	}
	return err
}

func (s *stopper) Drain()       { s.close() }
func (s *stopper) Close() error { s.close(); return nil }

const (
	pairTTL    = 3 * time.Second        // renewed every second
	toldSoon   = 300 * time.Millisecond // of a loss, where masters tell of it, and answer
	toldAtOnce = 60 * time.Millisecond  // ... of a master that the lock needs, before the masters are asked for anything else
)

// A party is a Mutex, and what is known of it.
type party struct {
	*Mutex
	who string

	// Guarded by duel.mu.
	held      context.Context // of its lock; nil if it had none yet
	deadSince time.Duration   // since when the lock was over, and that had not ended; 0 if it had
	had       string          // its token
	missing   time.Duration   // when enough masters had that
}

// A duel is one lock, whom it belongs to, who waits for it, and who of another process asks for it all the time.
type duel struct {
	t              *testing.T
	name           string
	r              *fakeRounds
	c, other       *Client
	stop           *stopper
	opts           []Option
	holder, waiter *party
	rival          *party
	parties        []*party // all three
	running        sync.WaitGroup
	leave          context.CancelFunc // of those who wait
	over, slow     atomic.Bool        // ... nothing is expected for long

	heeded uint64 // renewals of c because of what masters have told, when the duel began

	mu     sync.Mutex      // comes after those of the Mutexes
	closed bool            // c is
	calm   time.Duration   // since when nothing is stopped
	fence  uint64          // the greatest that somebody has had
	seen   map[string]bool // tokens that somebody has had
	lost   map[string]loss // those of which no quorum was left
}

// begin makes the clients and their Mutexes.
func (d *duel) begin() {
	c, told := another(d.t, d.r, Config{})
	d.stop = &stopper{notifiedRounds: told, left: -1}
	d.stop.life, d.stop.close = context.WithCancel(context.Background())
	c.round.Mux, c.groups = d.stop, true
	c.events.hook(behind.Wake, func(*Event) { d.stop.step("woken", true) })
	d.c, d.closed = c, false
	d.holder, d.waiter = d.party("one", c), d.party("the other", c)
	d.parties = []*party{d.holder, d.waiter, d.rival}
}

func (d *duel) party(who string, c *Client) *party {
	return &party{who: who, Mutex: Within(c.NewMutex("k", pairTTL, d.opts...), 50*time.Millisecond)}
}

func (d *duel) wrong(format string, args ...any) {
	d.t.Errorf("%s: %s", d.name, fmt.Sprintf(format, args...))
}

// gains notes that a party has the lock. One that was lost may have a lower fence than the next, which is there already.
func (d *duel) gains(k *party) {
	fence, token := k.Fence(), k.secretly()
	d.mu.Lock()
	loss, lost := d.lost[token]
	if !lost && fence != 0 && fence <= d.fence {
		d.wrong("%s has fence %d after %d", k.who, fence, d.fence)
	}
	d.fence = max(fence, d.fence)
	known := loss.switched || loss.frozen && fence == 0 && d.calm < loss.at+40*time.Millisecond // before a round times out
	if d.seen[token] && known && d.r.now() > max(loss.at, d.calm)+3*time.Millisecond {
		d.wrong("%s is given a lock that was lost", k.who)
	}
	d.seen[token] = true
	d.mu.Unlock()
	d.look()
}

// idles lets time pass in which little happens.
func (d *duel) idles(by time.Duration) {
	d.slow.Store(true)
	time.Sleep(by)
	d.slow.Store(false)
}

func (d *duel) pause(by time.Duration) (goesOn bool) {
	if d.slow.Load() {
		by = 100 * time.Millisecond
	}
	time.Sleep(by)
	return !d.over.Load()
}

// contends has the rival ask for the lock, and have it for a moment, until the end.
func (d *duel) contends() {
	for d.pause(5 * time.Millisecond) {
		if d.rival.TryLock(context.Background()) == nil {
			d.gains(d.rival)
			time.Sleep(2 * time.Millisecond) // the work
			d.rival.Unlock(context.Background())
		}
	}
}

func (d *duel) watches() {
	for d.pause(10 * time.Millisecond) {
		d.look()
	}
}

// look sees that no two have the lock, that whoever has lost it is told soon, and that no context outlives it.
func (d *duel) look() {
	for _, k := range d.parties { // all at one moment: a lock can be handed over in no time
		mu := holdMu(k.Mutex)
		mu.Lock()
		defer mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now, sound := d.r.now(), 0 // those whose lock no quorum of masters has lost
	for _, k := range d.parties {
		token, until := underMu(k.Mutex)
		holds := until > now
		if _, lost := d.lost[token]; holds && !lost {
			sound++
		}
		switch {
		case !holds || token != k.had || d.r.holders("k", token) >= 2:
			k.had, k.missing = token, now
		case now > max(k.missing, d.calm)+cmp.Or(d.lost[token].told, d.soon()) && !d.closed:
			d.wrong("%s is not told that it has lost the lock", k.who)
		}
		dead := k.held != nil && !holds && k.held.Err() == nil
		switch {
		case !dead:
			k.deadSince = 0
		case k.deadSince == 0:
			k.deadSince = now
		case now > k.deadSince: // a goroutine ends it, in the same moment
			d.wrong("a context of %s outlives its lock", k.who)
		}
	}
	if sound > 1 {
		d.wrong("%d have the lock at once", sound)
	}
}

// keeps has a party keep the lock that it has gained.
func (d *duel) keeps(k *party) {
	d.gains(k)
	held, _ := k.KeepAlive(context.Background())
	d.mu.Lock()
	defer d.mu.Unlock()
	k.held = held
}

// waits has the waiter wait for the lock, and keep it.
func (d *duel) waits(ctx context.Context) {
	k := d.waiter
	d.running.Go(func() {
		if k.Lock(ctx) == nil {
			d.keeps(k)
		}
	})
	time.Sleep(20 * time.Millisecond)
}

// soon is within which time a holder is told of a loss. Where masters have told of much, they are heeded less often, up to
// the time between two renewals.
func (d *duel) soon() time.Duration {
	if d.c.held.Counts().RenewalsNotified.Load() > d.heeded+2 {
		return pairTTL * 2 / 5
	}
	return toldSoon
}

// A loss is how a lock was lost.
type loss struct {
	at       time.Duration
	told     time.Duration // within which its holder is told; 0 for soon
	switched bool          // by a switch, so that the masters are asked before a waiter takes the lock over
	frozen   bool          // while a majority was frozen, with the round of a hand-over
}

// loses has masters forget the lock, or one of its keys, and do something with that.
func (d *duel) loses(l loss, forget func(m *fakeMaster), which ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.at, l.frozen = d.r.now(), len(d.stop.at.frozen) > 1
	for _, i := range which {
		d.r.set(func(m *fakeMaster) { d.seen[m.keys["k"].token] = true }, i)
	}
	whole := map[string]bool{} // also a lock that was lost before, and that a late set has brought back
	for token := range d.seen {
		whole[token] = d.r.holders("k", token) >= 2
	}
	d.r.set(forget, which...)
	for token := range d.seen {
		if _, lost := d.lost[token]; (whole[token] || !lost) && d.r.holders("k", token) < 2 {
			d.lost[token] = l
			for _, k := range d.parties {
				if whole[token] && k.had == token {
					k.missing = l.at
				}
			}
		}
	}
}

func tell(m *fakeMaster)    { m.drop("k") }
func quietly(m *fakeMaster) { delete(m.keys, "k") } // without a word

// claims is what must not succeed after a loss.
func (d *duel) claims(f func(context.Context) error) {
	token := d.holder.secretly()
	d.mu.Lock()
	_, lost := d.lost[token]
	d.mu.Unlock()
	if f(context.Background()) == nil && lost {
		d.wrong("it is confirmed that the lock was held, and it was lost")
	}
}

// The moves are what can befall the lock.
type move struct {
	what string
	do   func(d *duel)
}

var moves = []move{
	{"take over", func(d *duel) { d.claims(d.holder.Unlock) }},
	{"extend", func(d *duel) { d.claims(d.holder.Extend) }},
	{"renew", func(d *duel) { d.idles(pairTTL * 2 / 5) }},
	{"release", func(d *duel) { d.holder.Release() }},
	{"revoke", func(d *duel) { d.other.Revoke(context.Background(), "k", "enough") }},
	{"replace", func(d *duel) { // a master that the lock needs, as another has lost it
		d.loses(loss{told: toldAtOnce, switched: true}, quietly, 0, 2)
		d.c.held.Switched(0)
		time.Sleep(5 * time.Millisecond)
	}},
	{"close", func(d *duel) { d.mu.Lock(); d.closed = true; d.mu.Unlock(); d.c.Close() }},
	{"lose", func(d *duel) { d.loses(loss{}, tell, 0, 1); time.Sleep(5 * time.Millisecond) }},
	{"lose untold", func(d *duel) { d.loses(loss{told: pairTTL * 2 / 5}, quietly, 0, 1); d.idles(pairTTL * 2 / 5) }},
}

// fight is one duel: the first move is stopped at its nth step, and the second one runs. It reports whether the first
// one has such a step.
func (d *duel) fight(first, second move, at stopAt, n int, again bool) (reached bool) {
	t := d.t
	d.over.Store(false)
	d.heeded = d.c.held.Counts().RenewalsNotified.Load()
	d.calm, d.seen, d.lost = 0, map[string]bool{}, map[string]loss{}
	require.NoError(t, d.holder.TryLock(t.Context()), d.name)
	d.keeps(d.holder)
	var ctx context.Context
	ctx, d.leave = context.WithCancel(t.Context())
	d.waits(ctx)
	d.idles(200 * time.Millisecond) // until the masters are asked to tell
	d.running.Go(d.contends)
	d.running.Go(d.watches)
	if again { // the lock goes round once before
		require.NoError(t, d.holder.Unlock(t.Context()))
		time.Sleep(5 * time.Millisecond)
		d.holder, d.waiter = d.waiter, d.holder
		d.waits(ctx)
	}
	d.mu.Lock()
	d.calm = clock.Forever - pairTTL
	d.mu.Unlock()
	d.stop.arm(at, n)
	var moving sync.WaitGroup
	done := make(chan struct{})
	moving.Go(func() { first.do(d); time.Sleep(5 * time.Millisecond); close(done) })
	select {
	case <-d.stop.stopped:
		reached = true
		time.Sleep(5 * time.Millisecond)
		moving.Go(func() { second.do(d) })
		time.Sleep(5 * time.Millisecond)
	case <-done:
	}
	if second.what == "renew" || second.what == "lose untold" {
		d.idles(pairTTL * 2 / 5)
	}
	d.stop.thaw()
	d.mu.Lock()
	d.calm = d.r.now()
	d.mu.Unlock()
	time.Sleep(5 * time.Millisecond) // it is known what the masters say before whoever was stopped goes on
	close(d.stop.goOn)
	conntest.AllEnd(t, d.name, &moving)
	d.ends()
	return reached
}

// ends sees that others can have the lock, and that everything is as at the start then.
func (d *duel) ends() {
	t := d.t
	d.idles(toldSoon + 100*time.Millisecond)
	d.loses(loss{}, tell, 0, 1) // of whoever has it by now, and keeps it
	d.idles(toldSoon + 100*time.Millisecond)
	d.leave()
	for _, k := range []*party{d.holder, d.waiter} {
		k.Unlock(context.Background())
	}
	d.over.Store(true)
	conntest.AllEnd(t, d.name, &d.running)
	for _, k := range d.parties { // whoever has it by now
		k.Unlock(context.Background())
	}
	if d.closed {
		time.Sleep(pairTTL) // it has left its lock to the TTL
		d.begin()
	}
	time.Sleep(5 * time.Millisecond)
	last := d.party("the last", d.other)
	clear(d.lost)
	ctx, cancel := context.WithTimeout(t.Context(), 2*pairTTL)
	defer cancel()
	require.NoError(t, last.Lock(ctx), "%s: nobody has the lock any more", d.name)
	d.gains(last)
	last.Unlock(context.Background())
	time.Sleep(5 * time.Millisecond)
	synctest.Wait()
	for _, k := range d.parties {
		require.Zero(t, k.pins(), "%s: %s is still pinned", d.name, k.who)
	}
	asAtTheStart(t, d.name, d.r, d.c, d.other)
}

// Whatever two things befall a lock at once, no two have it, each holder has a greater fence, no context outlives it, a
// loss is told, others can have the lock afterwards, and nothing is left. A run looks at one case in three, each with one
// kind of lock, and without the race detector also at the first steps of what most depends on; REDLOCK_HISTORIES=9 has it look at all.
func TestWhateverTwoThingsMeet(t *testing.T) {
	kinds := [...][]Option{nil, {WithFence()}, {WithKeys("l")}}
	seed, parts := seeds(t, 1)
	for kind, opts := range kinds {
		parted := func(i int) bool { return (uint64(i+len(kinds)*kind)+seed%9)%9 < parts }
		for _, first := range moves {
			t.Run(fmt.Sprint([]string{"plain", "fence", "several"}[kind], "/", first.what), func(t *testing.T) {
				t.Parallel()
				simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
					other, _ := another(t, r, Config{})
					d := &duel{t: t, r: r, other: other, opts: opts}
					d.rival = d.party("the rival", other)
					d.begin()
					for i, second := range moves {
						for at := range stopsAt {
							for n := 0; !t.Failed(); n++ {
								goesRound := n%2 == 1
								d.name = fmt.Sprintf("%s, stopped where its step %d is %s %v, and %s; second time: %v (%s)",
									first.what, n/2, stopsAt[at].what, stopsAt[at].frozen, second.what, goesRound, again(t, seed))
								always := !Raced && n/2 == 0 && (first.what == "take over" || first.what == "lose untold" || first.what == "replace")
								if (always || parted(i+at+n)) && !d.fight(first, second, stopsAt[at], n/2, goesRound) || n == 24 {
									break
								}
							}
						}
					}
				})
			})
		}
	}
}
