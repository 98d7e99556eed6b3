package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// fakeRounds takes the place of a mux.Mux: simulated masters, on whatever clock
// the test runs (synctest's, above all). Like the Mux it keeps the commands to one
// master in order, decides early, and delivers debts. What a master does with a command is
// in helper_commands_test.go.
type fakeRounds struct {
	start time.Time
	wg    sync.WaitGroup
	rtt   time.Duration // what RTT returns; a millisecond if it is 0

	mu      *sync.Mutex   // of all clients of the masters
	jump    time.Duration // what the clock has gained over the timers: a suspend
	masters []*fakeMaster
	posted  map[*mux.Op]*fakeFlight
	closed  bool
	drained bool                         // only releases are taken
	tells   func(master int, key string) // is told of a change of what was read with CLIENT CACHING YES; nil if they cannot tell
	ended   chan struct{}
	looked  func() // is called before somebody looks at the clock
}

type fakeMaster struct {
	r        *fakeRounds
	delay    time.Duration // of what it is sent
	back     time.Duration // of what it answers
	frozen   bool
	down     error
	refusal  string                // what it answers to a SET
	stubborn bool                  // says no to each SET, though the key is free
	deny     func([]string) string // the error that it answers; empty if it answers none
	mute     bool                  // does what it is told, and never answers
	scripts  bool                  // knows them
	textless bool                  // ... nor takes them by text
	commands conn.Commands         // that it has beside
	vanish   func([]string) bool   // commands that are never answered
	keys     map[string]fakeKey
	counters map[string]int64 // of the fences, by the locks' keys
	lines    map[string][]string
	tracked  map[string][]func(key string) // whom it tells of a key's next change
	log      []string                      // what it did: "set k token", "extend ...", "release ..."
	queue    []*fakeCommand
	debts    []*fakeCommand
	sent     []*fakeCommand // all that it was sent, in this order
	process  time.Duration  // when it was last restarted
	news     *sync.Cond
}

type fakeKey struct {
	token   string
	expires time.Duration
}

type fakeCommand struct {
	f        *fakeFlight
	bytes    []byte
	arrives  time.Duration
	fallback bool
	at       time.Duration // when it was sent
	answered time.Duration // when its answer came; 0 if none has come
	never    bool          // none will
}

type fakeFlight struct {
	mux.Op                               // as it was submitted
	op      *mux.Op                      // nil once decided
	persist time.Duration                // until when
	tells   func(master int, key string) // of changes, if its client can be told
	waits   bool                         // it waits for other votes, by Grace or Lead
	done    chan struct{}
	err     error // what Wait returns
}

// newClient returns a client of the masters that r leads to.
func newClient(cfg Config, r round.Mux, now func() time.Duration) *Client {
	for range r.Masters() {
		cfg.Masters = append(cfg.Masters, "")
	}
	c := prepare(cfg)
	c.begin(r, now)
	return c
}

// newFake returns a client of n simulated masters.
func newFake(t testing.TB, n int, cfg Config) (*Client, *fakeRounds) {
	t.Helper()
	r := &fakeRounds{start: time.Now(), mu: new(sync.Mutex)}
	for range n {
		r.masters = append(r.masters, &fakeMaster{keys: map[string]fakeKey{}, counters: map[string]int64{}, lines: map[string][]string{},
			tracked: map[string][]func(string){}})
	}
	return r.serve(t, cfg)
}

// apart returns another client of the same masters, with connections of its own.
func (r *fakeRounds) apart(t testing.TB, cfg Config) (*Client, *fakeRounds) {
	t.Helper()
	other := &fakeRounds{start: r.start, mu: r.mu}
	for _, m := range r.masters {
		other.masters = append(other.masters, &fakeMaster{keys: m.keys, counters: m.counters, lines: m.lines, tracked: m.tracked})
	}
	return other.serve(t, cfg)
}

// serve begins to serve a client.
func (r *fakeRounds) serve(t testing.TB, cfg Config) (*Client, *fakeRounds) {
	t.Helper()
	r.posted, r.ended = map[*mux.Op]*fakeFlight{}, make(chan struct{})
	for _, m := range r.masters {
		m.r, m.scripts, m.news = r, true, sync.NewCond(r.mu)
		r.wg.Go(m.serve)
	}
	c := newClient(cfg, r, r.now)
	c.events.tellAtOnce()
	t.Cleanup(func() { ends(t, c) })
	return c, r
}

func (r *fakeRounds) now() time.Duration {
	if r.looked != nil {
		r.looked()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock()
}

func (r *fakeRounds) clock() time.Duration { return time.Since(r.start) + time.Hour + r.jump }

// set changes masters, under the lock.
func (r *fakeRounds) set(change func(m *fakeMaster), which ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range which {
		change(r.masters[i])
		r.masters[i].news.Broadcast()
	}
}

// holders counts the masters on which the key has the token.
func (r *fakeRounds) holders(key, token string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.masters {
		if v, ok := m.get(key); ok && v.token == token {
			n++
		}
	}
	return n
}

func (r *fakeRounds) keys() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.masters {
		for key := range m.keys {
			if _, ok := m.get(key); ok {
				n++
			}
		}
	}
	return n
}

// gone requires that no master has a key after a while.
func (r *fakeRounds) gone(t testing.TB, after time.Duration, why ...any) {
	t.Helper()
	time.Sleep(after)
	require.Zero(t, r.keys(), why...)
}

func (r *fakeRounds) logs(i int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.masters[i].log)
}

func (r *fakeRounds) RTT() time.Duration { return cmp.Or(r.rtt, time.Millisecond) }

func (r *fakeRounds) Masters() []mux.State {
	all := make([]mux.State, len(r.masters))
	for i := range all {
		all[i] = mux.State{Addr: fmt.Sprint("m", i), Phase: mux.Up}
		all[i].Server.Tracking = r.tells != nil
	}
	return all
}

func (r *fakeRounds) AppendMasters(dst []mux.State) []mux.State { return append(dst, r.Masters()...) }

// Drain is Close but for the goroutines: what comes later is refused, and releases are
// taken until then.
func (r *fakeRounds) Drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.drained {
		r.drained = true
		close(r.ended)
	}
}

func (r *fakeRounds) Close() error {
	r.Drain()
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		for _, m := range r.masters {
			m.news.Broadcast()
		}
	}
	r.mu.Unlock()
	r.wg.Wait()
	return nil
}

func (r *fakeRounds) Do(ctx context.Context, op *mux.Op) error {
	if err := ctx.Err(); err != nil {
		op.Votes = make([]mux.Vote, len(r.masters))
		op.Started = r.now()
		op.Decided, op.Asked = op.Started, 0
		return err
	}
	r.Post(op)
	return r.Wait(ctx, op)
}

func (r *fakeRounds) Post(ops ...*mux.Op) {
	for _, op := range ops {
		r.post(op, nil)
	}
}

// post submits an operation. One without a command only waits.
func (r *fakeRounds) post(op *mux.Op, tells func(master int, key string)) {
	f := &fakeFlight{op: op, done: make(chan struct{})}
	if op.Command != nil {
		f = r.submit(op, true, 0, tells)
	}
	if op.OnDecided != nil {
		time.AfterFunc(op.Timeout, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if f.op != nil {
				f.err = mux.ErrTimeout
				f.decide(r.clock())
			}
		})
		return
	}
	r.mu.Lock()
	r.posted[op] = f
	r.mu.Unlock()
}

// hook runs what the mux runs in a hook.
func (r *fakeRounds) hook(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *fakeRounds) Forget(op *mux.Op) {
	r.mu.Lock()
	r.ForgetInHook(op)
	r.mu.Unlock()
}

func (r *fakeRounds) ForgetInHook(op *mux.Op) {
	if f := r.posted[op]; f != nil && f.op != nil {
		f.err = mux.ErrForgotten
		f.decide(r.clock())
	}
}

func (r *fakeRounds) Send(op *mux.Op) { r.submit(op, false, 0, nil) }

func (r *fakeRounds) submit(op *mux.Op, wanted bool, far time.Duration, tells func(master int, key string)) *fakeFlight {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	f := &fakeFlight{Op: *op, tells: tells, done: make(chan struct{})}
	f.Fallback = slices.Clone(op.Fallback)
	if f.Only == 0 {
		f.Only = 1<<len(r.masters) - 1
	}
	if f.Quorum == 0 {
		f.Quorum = quorum.Majority(len(r.masters))
	}
	if op.Persist > 0 {
		f.persist = now + op.Persist
	}
	if wanted {
		f.op = op
		op.Votes = make([]mux.Vote, len(r.masters))
		op.Started, op.Decided, op.Asked = now, 0, 0
	}
	up := 0
	for i, m := range r.masters {
		if m.down == nil && f.Only.Has(i) {
			up++
		}
	}
	for i, m := range r.masters {
		bytes := op.Command
		for _, d := range op.Dialects {
			if len(d.Command) > 0 && m.commands&d.Needs == d.Needs {
				bytes = d.Command
				break
			}
		}
		c := &fakeCommand{f: f, bytes: slices.Clone(bytes), arrives: now + m.delay + far}
		switch {
		case r.closed || r.drained && f.persist == 0, !f.Only.Has(i):
		case m.down != nil:
			if f.persist > 0 {
				m.debts = append(m.debts, c)
			}
			f.cast(r, i, mux.VerdictFailed, 0, m.down)
		case up < f.Quorum && !f.All && f.persist == 0: // nothing is written
		default:
			if wanted {
				op.Asked |= 1 << i
			}
			c.at = now
			m.queue, m.sent = append(m.queue, c), append(m.sent, c)
			m.news.Broadcast()
		}
	}
	if up < f.Quorum && !f.All && f.persist == 0 {
		f.decide(now)
	}
	return f
}

func (r *fakeRounds) Wait(ctx context.Context, op *mux.Op) error {
	r.mu.Lock()
	f := r.posted[op]
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.posted, op)
		r.mu.Unlock()
	}()
	var timeout <-chan time.Time
	if op.Timeout > 0 {
		timer := time.NewTimer(op.Started + op.Timeout - r.now())
		defer timer.Stop()
		timeout = timer.C
	}
	var err error
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout:
		err = mux.ErrTimeout
	case <-r.ended:
		err = mux.ErrClosed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.op == nil {
		return f.err
	}
	f.decide(r.clock())
	return err
}

func (f *fakeFlight) decide(now time.Duration) {
	if f.op != nil {
		op := f.op
		op.Decided = now
		f.op = nil
		close(f.done)
		if op.OnDecided != nil { // and nothing after it: the operation may be another's by now
			op.OnDecided(f.err)
		}
	}
}

func (f *fakeFlight) cast(r *fakeRounds, i int, v mux.Verdict, n int64, err error) {
	if f.op == nil {
		return
	}
	vote := &f.op.Votes[i]
	vote.Verdict, vote.Int, vote.Err, vote.RTT = v, n, err, r.clock()-f.op.Started
	yes, open := 0, 0
	for i, v := range f.op.Votes {
		switch {
		case v.Verdict == mux.VerdictYes:
			yes++
		case v.Verdict == mux.VerdictPending && f.Only.Has(i):
			open++
		}
	}
	won := yes >= f.Quorum
	wait := func(d time.Duration) {
		if !f.waits {
			f.waits = true
			time.AfterFunc(d, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				f.decide(r.clock())
			})
		}
	}
	switch {
	case open > 0 && won && !f.All && f.Grace > 0:
		wait(f.Grace)
	case open > 0 && !won && !f.All && f.Lead && yes+open < f.Quorum && f.awaitsFirst():
		wait(max(4*r.RTT(), round.MinShortTimeout) - (r.clock() - f.op.Started))
	case open == 0 || !f.All && (won || !f.Thorough && yes+open < f.Quorum):
		f.decide(r.clock())
	}
}

// awaitsFirst reports whether the first master's vote is not there, or is a yes: see mux.Op.Lead.
func (f *fakeFlight) awaitsFirst() bool {
	for i, v := range f.op.Votes { // the order of fakeRounds.Leading
		if v.Verdict != mux.VerdictFailed && f.op.Asked.Has(i) {
			return v.Verdict != mux.VerdictNo
		}
	}
	return false
}

// Leading is the Mux's: the masters' names are in order.
func (r *fakeRounds) Leading(of mux.Set) int { return bits.TrailingZeros64(uint64(of)) }

// serve works off one master's queue, in order.
func (m *fakeMaster) serve() {
	r := m.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for !r.closed && (m.frozen || len(m.queue) == 0 && (m.down != nil || len(m.debts) == 0)) {
			m.news.Wait()
		}
		if r.closed && (m.frozen || m.down != nil || len(m.queue) == 0) { // releases that were written before are still served
			return
		}
		if m.down == nil && len(m.debts) > 0 {
			c := m.debts[0]
			m.debts = m.debts[1:]
			if c.f.persist > r.clock() {
				m.apply(c.f.Fallback)
			}
			continue
		}
		c := m.queue[0]
		if wait := c.arrives - r.clock(); wait > 0 {
			r.mu.Unlock()
			time.Sleep(wait)
			r.mu.Lock()
			continue
		}
		m.queue = m.queue[1:]
		i := slices.Index(r.masters, m)
		if m.down != nil { // the connection broke before it was read
			c.never = true
			if c.f.persist > 0 {
				m.debts = append(m.debts, c)
			}
			c.f.cast(r, i, mux.VerdictFailed, 0, m.down)
			continue
		}
		bytes := []byte(strings.TrimPrefix(string(c.bytes), loudAgain))
		if rest, ok := strings.CutPrefix(string(bytes), cachingYes); ok {
			bytes = []byte(rest)
			tells := c.f.tells
			if tells == nil {
				tells = m.r.tells
			}
			if tells != nil {
				args := words(bytes)
				keys := args[1:]
				if strings.HasPrefix(args[0], "EVAL") {
					n, _ := strconv.Atoi(keys[1])
					keys = keys[2 : 2+n]
				}
				for _, key := range keys {
					m.track(key, func(key string) { tells(i, key) })
				}
			}
		}
		before := m.seen()
		var reply []byte
		var answered bool
		for _, command := range strings.SplitAfter(strings.ReplaceAll(string(bytes), "\r\n*", "\r\n\x00*"), "\x00") {
			reply, answered = m.apply([]byte(strings.TrimSuffix(command, "\x00"))) // the last is judged
		}
		m.tell(before)
		if !answered || m.mute {
			continue
		}
		if v := resptest.Parse(reply); m.back > 0 {
			time.AfterFunc(m.back, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				m.answers(c, i, v)
			})
		} else {
			m.answers(c, i, v)
		}
	}
}

// answers has the answer to a command come.
func (m *fakeMaster) answers(c *fakeCommand, i int, v resp.Value) {
	r := m.r
	verdict := c.f.Verdict(v)
	if verdict == mux.VerdictAgain && !c.fallback {
		if c.f.Lease == nil || c.f.Lease.Holds(c.f.Epoch, r.clock()) {
			again := &fakeCommand{f: c.f, bytes: c.f.Fallback, fallback: true, at: c.at}
			*c = fakeCommand{at: c.at, answered: r.clock()}
			m.queue, m.sent = append(m.queue, again), append(m.sent, again)
			m.news.Broadcast()
			return
		}
		if verdict = mux.VerdictNo; v.IsError() {
			verdict = mux.VerdictFailed
		}
	}
	c.answered = r.clock()
	var err error
	if verdict != mux.VerdictNo && !v.IsError() && m.suspects(c.f, i) {
		c.f.cast(r, i, mux.VerdictFailed, 0, mux.ErrSuspect)
		return
	}
	if verdict != mux.VerdictYes && verdict != mux.VerdictNo {
		verdict, err = mux.VerdictFailed, &mux.ReplyError{Code: string(v.ErrorCode()), Message: string(v.Bytes())}
	}
	if c.f.OnReply != nil {
		c.f.OnReply(i, v)
	}
	n, _ := v.Int()
	if c.f.op != nil && (c.f.Keep || c.f.KeepNo && verdict == mux.VerdictNo && v.Kind() != resp.Integer) {
		c.f.op.Votes[i].Reply = v.Clone()
	}
	c.f.cast(r, i, verdict, n, err)
}

// Heard is the Mux's, but exact.
func (r *fakeRounds) Heard(of mux.Sent) (answered, soon, never mux.Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, m := range r.masters {
		switch a, s, n := m.heard(of); {
		case !of.To.Has(i):
		case n:
			never = never.With(i)
		case a:
			answered = answered.With(i)
			if s {
				soon = soon.With(i)
			}
		}
	}
	return answered, soon, never
}

func (m *fakeMaster) heard(of mux.Sent) (answered, soon, never bool) {
	if m.process > of.Last {
		return true, false, false
	}
	if of.First == 0 {
		return false, false, true
	}
	answered, soon = true, true
	for _, c := range slices.Backward(m.sent) {
		if c.at < of.First {
			break
		}
		if c.at <= of.Last {
			never = never || c.never
			answered = answered && c.answered != 0
			soon = soon && answered && c.answered-c.at <= 50*time.Millisecond
		}
	}
	return answered, soon, never
}

func (m *fakeMaster) suspects(f *fakeFlight, i int) bool {
	if !f.Unless.To.Has(i) {
		return f.Suspect.Has(i)
	}
	_, soon, _ := m.heard(f.Unless)
	return !soon
}

var (
	cachingYes = string(resp.AppendCommand(nil, "CLIENT", "CACHING", "YES"))
	loudAgain  = string(resp.AppendCommand(nil, "CLIENT", "TRACKING", "ON", "OPTIN"))
)

// track has the master notify of the next change of a key, and of its end by its TTL.
func (m *fakeMaster) track(key string, told func(key string)) {
	m.tracked[key] = append(m.tracked[key], told)
	if v, ok := m.get(key); ok {
		time.AfterFunc(v.expires-m.r.clock(), func() {
			m.r.mu.Lock()
			defer m.r.mu.Unlock()
			if _, there := m.get(key); !there { // it was not extended
				m.tell(map[string]fakeKey{key: v})
			}
		})
	}
}

// seen returns what is tracked, as it is now.
func (m *fakeMaster) seen() map[string]fakeKey {
	all := map[string]fakeKey{}
	for key := range m.tracked {
		all[key], _ = m.get(key)
	}
	return all
}

// tell notifies of what is no longer as it was before.
func (m *fakeMaster) tell(before map[string]fakeKey) {
	for key, was := range before {
		if is, there := m.get(key); there && is == was || !there && was == (fakeKey{}) {
			continue
		}
		tracked := m.tracked[key]
		delete(m.tracked, key)
		for _, told := range tracked {
			told(key)
		}
	}
}

// hookedRounds have a test see, and hold up, what a client asks of them: posting is called
// before an operation is posted, sending before one is sent, waited when Wait is about to
// return. All may be nil.
type hookedRounds struct {
	round.Mux
	posting func(op *mux.Op)
	posted  func()
	sending func(op *mux.Op)
	waited  func(ctx context.Context, op *mux.Op)
}

func (h *hookedRounds) Post(ops ...*mux.Op) {
	if h.posting != nil {
		for _, op := range ops {
			h.posting(op)
		}
	}
	h.Mux.Post(ops...)
	if h.posted != nil {
		h.posted()
	}
}

func (h *hookedRounds) Send(op *mux.Op) {
	if h.sending != nil {
		h.sending(op)
	}
	h.Mux.Send(op)
}

func (h *hookedRounds) Wait(ctx context.Context, op *mux.Op) error {
	err := h.Mux.Wait(ctx, op)
	if h.waited != nil {
		h.waited(ctx, op)
	}
	return err
}

// lineKey is the key of the line of one of a lock's names.
func queueKey(name string) string { return string(kind.AppendQueueKey(nil, name)) }

// asks reports whether an operation asks for a script.
func asks(op *mux.Op, s script.Script) bool {
	return strings.Contains(string(op.Command), s.Hash) || strings.Contains(string(op.Command), s.Text)
}

// notifiedRounds are one client's connections to simulated masters that notify of changes. Several
// clients can have the same masters.
type notifiedRounds struct {
	*fakeRounds
	client *Client
	silent bool    // they cannot tell
	mum    bool    // they can, and never do
	deaf   mux.Set // which masters it sees as down
	old    mux.Set // which cannot tell
	lame   bool    // what it sets fails
	dead   bool    // it asks for nothing any more
	orders int     // that were given
	first  string  // of what it has asked: the command's word, "look" for a look, "enter" for an entry in a queue
	looked func()  // is called after a look, before whoever looks has the answers

	far time.Duration // how much later what it asks arrives
}

// another returns another client of the masters, which they notify of changes.
func another(t testing.TB, r *fakeRounds, cfg Config) (*Client, *notifiedRounds) {
	told := &notifiedRounds{fakeRounds: r}
	told.client = newClient(cfg, told, r.now)
	t.Cleanup(func() { ends(t, told.client) })
	return told.client, told
}

func (r *notifiedRounds) Masters() []mux.State {
	all := r.fakeRounds.Masters()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		all[i].Server.Tracking = !r.silent && !r.old.Has(i)
		if r.deaf.Has(i) {
			all[i].Phase = mux.Down
		}
	}
	return all
}

func (r *notifiedRounds) AppendMasters(dst []mux.State) []mux.State {
	return append(dst, r.Masters()...)
}

// loses has the process see a master as down.
func (r *notifiedRounds) loses(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf = r.deaf.With(i)
	r.client.tracking.Disconnected(i)
}

// finds has the process see that a master is up again.
func (r *notifiedRounds) finds(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf &^= 1 << i
}

func (r *notifiedRounds) Do(ctx context.Context, op *mux.Op) error {
	if err := ctx.Err(); err != nil {
		return r.fakeRounds.Do(ctx, op)
	}
	r.Post(op)
	return r.Wait(ctx, op)
}

func (r *notifiedRounds) Wait(ctx context.Context, op *mux.Op) error {
	err := r.fakeRounds.Wait(ctx, op)
	if op.Replies == 2 && r.looked != nil {
		r.looked()
	}
	return err
}

func (r *notifiedRounds) Post(ops ...*mux.Op) {
	for _, op := range ops {
		if op.Command == nil {
			r.post(op, nil)
			continue
		}
		r.note(op)
		f := &fakeFlight{done: make(chan struct{})}
		lame, dead := r.is(&r.lame), r.is(&r.dead)
		if lame && strings.Contains(string(op.Command), "SET") {
			op.Started, op.Decided, op.Votes = r.now(), r.now(), make([]mux.Vote, len(r.masters))
			for i := range op.Votes {
				op.Votes[i] = mux.Vote{Verdict: mux.VerdictFailed, Err: errFake}
			}
			close(f.done)
		} else if dead {
			op.Started, op.Votes = r.now(), make([]mux.Vote, len(r.masters))
		} else {
			tells := r.told
			if r.mum {
				tells = nil
			}
			f = r.submit(op, true, r.far, tells)
		}
		r.mu.Lock()
		r.posted[op] = f
		r.orders++
		r.mu.Unlock()
	}
}

func (r *notifiedRounds) note(op *mux.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.first != "":
	case op.Replies == 2:
		r.first = "look"
	case asks(op, kind.EnterScript):
		r.first = "enter"
	default:
		r.first = words(op.Command)[0]
	}
}

func (r *notifiedRounds) Send(op *mux.Op) {
	if r.is(&r.dead) {
		return
	}
	tells := r.told
	if r.mum {
		tells = nil
	}
	r.submit(op, false, r.far, tells)
	r.mu.Lock()
	r.orders++
	r.mu.Unlock()
}

func (r *notifiedRounds) is(what *bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *what
}

// turn changes what the process is like.
func (r *notifiedRounds) turn(what *bool, to bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*what = to
}

func (r *notifiedRounds) ordered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.orders
}

// told is called under the lock of the masters, as the hooks of a mux are under its own.
func (r *notifiedRounds) told(master int, key string) {
	r.client.tracking.Push(master, []byte(key))
}

// words returns the arguments of a command.
func words(command []byte) (args []string) {
	elems := resptest.Parse(command).Elems()
	for v, ok := elems.Next(); ok; v, ok = elems.Next() {
		args = append(args, string(v.Bytes()))
	}
	return args
}

var errFake = errors.New("connection refused")

func freeze(m *fakeMaster)   { m.frozen = true }
func thaw(m *fakeMaster)     { m.frozen = false }
func fail(m *fakeMaster)     { m.down = errFake }
func flush(m *fakeMaster)    { clear(m.keys); clear(m.counters); clear(m.lines) }
func restart(m *fakeMaster)  { m.down, m.process = nil, m.r.clock(); flush(m) }
func unscript(m *fakeMaster) { m.scripts = false }

// late is the rounds, whose first Wait returns so much later.
func (r *fakeRounds) late(by time.Duration) *hookedRounds {
	var over atomic.Bool
	return &hookedRounds{Mux: r, waited: func(context.Context, *mux.Op) {
		if !over.Swap(true) {
			time.Sleep(by)
		}
	}}
}

// keyOf returns the token that a master has for "k", and how long it lasts.
func (r *fakeRounds) keyOf(i int) (token string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.masters[i].get("k"); ok {
		return v.token, v.expires - r.clock()
	}
	return "", 0
}

// occupy gives a key to somebody else.
func occupy(m *fakeMaster) {
	m.keys["k"] = fakeKey{"another's", m.r.clock() + time.Hour}
}

func all(n int) (which []int) {
	for i := range n {
		which = append(which, i)
	}
	return which
}

// subset returns the masters whose bits are set.
func subset(mask uint) (which []int) {
	for i := range bits.Len(mask) {
		if mask&(1<<i) != 0 {
			which = append(which, i)
		}
	}
	return which
}

const ttl = 3 * time.Second // renewed every second, until 2.968 s (drift 32 ms)

// taken returns a Mutex that holds the lock on "k".
func taken(t *testing.T, c *Client, opts ...Option) *Mutex {
	t.Helper()
	m := c.NewMutex("k", ttl, opts...)
	require.NoError(t, m.TryLock(t.Context()))
	time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
	return m
}

// simulated runs a test on synctest's clock, with masters that take a
// millisecond to answer.
func simulated(t *testing.T, n int, cfg Config, f func(t *testing.T, c *Client, r *fakeRounds)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, r := newFake(t, n, cfg)
		for _, m := range r.masters {
			m.delay = time.Millisecond
		}
		f(t, c, r)
	})
}

// ends closes a client, which then keeps nothing alive, and is notified of nothing, once whoever waits has learnt of that.
func ends(t testing.TB, c *Client) {
	require.NoError(t, c.Close())
	kept, _ := c.held.Size()
	require.Zero(t, kept, "KeepAlives are left")
	require.Eventually(t, func() bool { return len(c.tracking.Keys()) == 0 }, hanging, time.Millisecond, "subscriptions are left")
}

// asAtTheStart requires that nothing is left of what clients did, neither with them nor on the masters: no key, no entry in
// a line, nobody who waits or is kept, no operation, no subscription.
func asAtTheStart(t *testing.T, after string, r *fakeRounds, clients ...*Client) {
	t.Helper()
	left := map[string]int{"keys": r.keys()}
	r.mu.Lock()
	for _, f := range r.posted {
		if f.op != nil && f.op.Command != nil {
			left["operations"]++
		}
	}
	for _, m := range r.masters {
		left["debts"] += len(m.debts)
		for _, line := range m.lines {
			left["entries in lines"] += len(line)
		}
	}
	r.mu.Unlock()
	for _, c := range clients {
		s := c.Stats()
		left["waiters"] += s.Waiting
		left["waiters in queues"] += c.localQueues.Size()
		left["kept locks"] += s.Kept
		kept, listed := c.held.Size()
		left["KeepAlives"] += kept
		left["subscriptions"] += len(c.tracking.Keys())
		left["locks that are rechecked"] += listed
	}
	for what, n := range left {
		require.Zero(t, n, "%s: %s are left", after, what)
	}
}

// requireReleasedForGood fails if any master was asked to extend a lock after it
// was asked to release it.
func requireReleasedForGood(t *testing.T, r *fakeRounds) {
	t.Helper()
	for i := range r.masters {
		released := map[string]bool{}
		for _, did := range r.logs(i) {
			what, lock, _ := strings.Cut(did, " ")
			switch what {
			case "release":
				released[lock] = true
			case "extend":
				require.False(t, released[lock], "%s was extended after its release", lock)
			}
		}
	}
}

// spin waits for what another goroutine does at this moment: for those who hold a lock,
// while the simulated clock stands still.
func spin(t *testing.T, what string, done func() bool) {
	for range 10_000_000 {
		if done() {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("never happened: %s", what)
}

// suspend has the clock gain on the timers.
func (r *fakeRounds) suspend(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jump += d
}

var errCause = errors.New("the shop has closed")

// lostBy requires that the context ends because of a loss, and returns how long
// that took.
func lostBy(t *testing.T, r *fakeRounds, held context.Context) (after time.Duration, why *RoundError) {
	t.Helper()
	since := r.now()
	conntest.Soon(t, "the loss is noticed", held.Done())
	require.ErrorIs(t, held.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(held), ErrLost)
	require.ErrorAs(t, context.Cause(held), &why)
	return r.now() - since, why
}
