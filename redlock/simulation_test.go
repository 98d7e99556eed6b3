package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// Goroutines do whatever they like with Mutexes that they share, on simulated masters that
// freeze, are slow, and are replaced for all that is known, on a machine that is suspended. In
// no history are there two valid locks or a KeepAlive without its lock, and nothing is left.
//
// A failure names its seed.

func TestSimulatedHistories(t *testing.T) {
	seed, histories := seeds(t, 10)
	for i := range histories {
		t.Run(fmt.Sprint(seed+i), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newSimulation(t, seed+i).run() })
		})
	}
}

// A simulation is what happens with one seed.
type simulation struct {
	t       *testing.T
	random  func(n int) int // that of the events
	callers []*rand.Rand
	client  *Client
	masters *fakeRounds
	mutexes []*Mutex
	suspend bool // the machine is suspended at times
	fenced  bool

	mu    sync.Mutex
	keeps []keptAlive
	token string // of the last lock that was seen, and its fence
	fence uint64
}

// A keptAlive is a KeepAlive, and the lock that it is of.
type keptAlive struct {
	mutex         *Mutex
	token         string
	held, derived context.Context
}

const simulatedTTL = 200 * time.Millisecond

func newSimulation(t *testing.T, seed uint64) *simulation {
	events := rand.New(rand.NewPCG(seed, 0))
	h := &simulation{t: t, random: events.IntN, suspend: events.IntN(2) == 0}
	h.client, h.masters = newFake(t, []int{1, 3, 5}[h.random(3)], Config{})
	if h.random(2) == 0 { // rechecks at any moment, though no master forgets anything
		h.client.groups = true
	}
	for _, m := range h.masters.masters {
		m.delay = time.Millisecond
		m.commands = []conn.Commands{0, conn.DelEx | conn.SetIfEq, conn.DelIfEq | conn.SetIfEq}[h.random(3)]
		m.scripts = h.random(4) > 0
	}
	var opts []Option
	if h.fenced = h.random(2) == 0; h.fenced {
		opts = append(opts, WithFence())
	}
	timeout, alike := time.Duration(0), h.random(2) == 0 // those that are alike hand the lock over
	for i := range 1 + h.random(4) {
		if timeout == 0 || !alike {
			timeout = time.Duration(5+h.random(100)) * time.Millisecond
			opts = append(opts, WithOwner(strconv.Itoa(i)))
		}
		h.mutexes = append(h.mutexes, Within(h.client.NewMutex("k", simulatedTTL, opts...), timeout))
	}
	for i := range 2 + h.random(5) {
		h.callers = append(h.callers, rand.New(rand.NewPCG(seed, uint64(i)+1)))
	}
	return h
}

func (h *simulation) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, r := range h.callers {
		all.Go(func() {
			for ctx.Err() == nil {
				h.call(ctx, r)
				h.oneIsValid()
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(h.moment(simulatedTTL))
			h.event()
			h.oneIsValid()
			h.noneIsAliveWithoutItsLock()
		}
	})
	time.Sleep(10 * time.Second)
	cancel()
	all.Wait()
	h.nothingIsLeft()
}

func (h *simulation) moment(most time.Duration) time.Duration {
	return time.Duration(h.random(int(most)))
}

// call is one operation of a caller's.
func (h *simulation) call(ctx context.Context, r *rand.Rand) {
	moment := func(most time.Duration) time.Duration { return time.Duration(r.IntN(int(most))) }
	ctx, cancel := context.WithTimeout(ctx, moment(2*simulatedTTL))
	defer cancel()
	switch m := h.mutexes[r.IntN(len(h.mutexes))]; r.IntN(7) {
	case 0, 1:
		m.Lock(ctx)
	case 2:
		m.TryLock(ctx)
	case 3:
		m.Extend(ctx)
	case 4:
		m.Unlock(ctx)
	case 5:
		time.Sleep(moment(simulatedTTL))
	case 6:
		held, stop := m.KeepAlive(context.Background())
		derived, end := context.WithCancel(held)
		context.AfterFunc(derived, end)
		token := m.secretly()
		h.mu.Lock()
		h.keeps = append(h.keeps, keptAlive{m, token, held, derived})
		h.mu.Unlock()
		if r.IntN(2) == 0 {
			time.Sleep(moment(3 * simulatedTTL))
			stop()
		}
	}
}

// event is something that happens to the masters, or to the machine.
func (h *simulation) event() {
	r := h.masters
	n := len(r.masters)
	i := h.random(n)
	if h.client.groups && h.random(2) == 0 {
		for range 1 + h.random(3) {
			h.client.held.Switched(i)
			time.Sleep(h.moment(simulatedTTL / 20))
		}
	}
	if h.fenced { // attempts of others have moved on one counter only
		r.set(func(m *fakeMaster) { m.counters["k"] += int64(h.random(1_000_000)) }, i)
		if n > 1 && h.random(4) == 0 { // somebody writes one that nobody can believe, always to the same master
			r.set(func(m *fakeMaster) { m.counters["k"] = quorum.MaxFence - int64(h.random(1_000_000)) }, n-1)
		}
	}
	switch h.random(6) {
	case 0, 1:
		r.set(freeze, i)
	case 2, 3:
		r.set(thaw, all(n)...)
	case 4:
		delay := time.Millisecond + h.moment(simulatedTTL/3)
		r.set(func(m *fakeMaster) { m.delay = delay }, i)
	case 5:
		if h.suspend {
			r.suspend(h.moment(2 * simulatedTTL))
		} else {
			r.set(func(m *fakeMaster) { m.delay = time.Millisecond }, all(n)...)
		}
	}
}

func (h *simulation) oneIsValid() {
	valid := 0
	for _, m := range h.mutexes { // all at one moment: a lock can be handed over in no time
		holdMu(m).Lock()
	}
	now := h.client.now()
	for _, m := range h.mutexes {
		if _, until := underMu(m); until > now {
			valid++
		}
	}
	for _, m := range h.mutexes {
		holdMu(m).Unlock()
	}
	if valid > 1 {
		h.t.Errorf("%d locks on one key are valid", valid)
	}
	h.fencesGrow()
}

func (h *simulation) fencesGrow() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.mutexes {
		mu := holdMu(m)
		mu.Lock()
		token, until := underMu(m)
		fence, valid := *hidden[uint64](&m.hold, "fence"), until > h.client.now()
		mu.Unlock()
		if !valid || token == h.token {
			continue
		}
		if h.fenced && fence <= h.fence || !h.fenced && fence != 0 {
			h.t.Errorf("fence %d comes after %d", fence, h.fence)
		}
		if fence > latest() {
			h.t.Errorf("fence %d cannot be believed", fence)
		}
		h.token, h.fence = token, fence
	}
}

func (h *simulation) noneIsAliveWithoutItsLock() {
	h.mu.Lock()
	keeps := h.keeps
	h.keeps = nil
	h.mu.Unlock()
	for _, k := range keeps {
		mu := holdMu(k.mutex)
		mu.Lock()
		token, until := underMu(k.mutex)
		gone := k.token == "" || token != k.token || until <= h.client.now()
		mu.Unlock()
		if !gone {
			h.mu.Lock()
			h.keeps = append(h.keeps, k)
			h.mu.Unlock()
			continue
		}
		require.Error(h.t, k.held.Err(), "it is kept alive without its lock")
		time.Sleep(time.Microsecond) // whoever has found that it is over is ending what hangs on it
		require.Error(h.t, k.derived.Err(), "what is derived from it has not ended")
	}
}

func (h *simulation) nothingIsLeft() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, m := range h.mutexes {
		m.Unlock(ended)
	}
	h.masters.set(func(m *fakeMaster) { m.frozen, m.delay = false, 0 }, all(len(h.masters.masters))...)
	time.Sleep(simulatedTTL / 2)
	if !h.suspend { // timers that come late leave what they would have released to its TTL
		require.Zero(h.t, h.masters.keys())
	}
	s := h.client.Stats()
	require.Zero(h.t, s.Kept)
	require.Zero(h.t, s.Waiting)
	require.Zero(h.t, h.client.localQueues.Size())
}
