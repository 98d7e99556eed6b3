package redlock

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// hanging is how long what should come at once may take before a test gives up.
const hanging = 20 * time.Second

// Refused has a Mutex wait in vain for a lock that another has, and returns the error. It does so again until the error says
// that: on a busy machine the masters may answer later than it waits.
func Refused(t testing.TB, m *Mutex, said string) error {
	t.Helper()
	for until := time.Now().Add(hanging); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := m.Lock(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, ErrHeld) && strings.Contains(err.Error(), said) {
			return err
		}
		require.True(t, time.Now().Before(until), "%v", err)
	}
}

// opened returns a client whose masters are all up.
func opened(t *testing.T, addrs []string, observer []Observer) *Client {
	t.Helper()
	return openedWith(t, Config{Masters: addrs, Observers: observer})
}

// started returns masters that were just started, and a client of theirs.
func started(t *testing.T, n int) (*redlocktest.Masters, *Client) {
	t.Helper()
	masters := redlocktest.Start(t, n)
	return masters, opened(t, masters.Addrs(), nil)
}

// onEvent returns an Observer that is told of events of one kind.
func onEvent(kind EventKind, tell func(e *Event)) []Observer {
	return []Observer{func(_ context.Context, e *Event) {
		if e.Kind == kind {
			tell(e)
		}
	}}
}

// tellAtOnce has the Observers called by who tells, so that what they do happens at that moment.
func (q *events) tellAtOnce() {
	all := q.observers
	if q.observers = nil; len(all) > 0 {
		q.inTests = func(ctx context.Context, e *Event) {
			for _, o := range all {
				o.tell(ctx, e)
			}
		}
	}
}

// hook has a function called by who tells of an event of that kind, at the moment when it happens.
func (q *events) hook(kind EventKind, f func(e *Event)) { q.inTests = onEvent(kind, f)[0] }

// openedTimes returns n clients, as processes have one each.
func openedTimes(t *testing.T, n int, cfg Config) (all []*Client) {
	t.Helper()
	for range n {
		all = append(all, openedWith(t, cfg))
	}
	return all
}

// believingTimes is openedTimes for clients that believe every master.
func believingTimes(t *testing.T, n int, cfg Config) (all []*Client) {
	t.Helper()
	for range n {
		all = append(all, openedBy(t, cfg, believing))
	}
	return all
}

func openedWith(t *testing.T, cfg Config) *Client {
	t.Helper()
	return openedBy(t, cfg, Open)
}

// believing opens a client that believes every master, as soon as that is back.
func believing(ctx context.Context, cfg Config) (*Client, error) {
	return open(cfg, func(cfg mux.Config) (*mux.Mux, error) {
		cfg.Keeper = nil
		return mux.Open(ctx, cfg)
	})
}

func openedBy(t *testing.T, cfg Config, open func(context.Context, Config) (*Client, error)) *Client {
	t.Helper()
	cfg.RoundTimeout, cfg.DialTimeout = 10*time.Second, 10*time.Second // a machine that is busy is no failure
	cfg.StallTime = cmp.Or(cfg.StallTime, 10*time.Second)
	c, err := open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	for i := range cfg.Masters {
		comesUp(t, c, i)
	}
	return c
}

func comesUp(t *testing.T, c *Client, i int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.round.Mux.Masters()[i].Phase == mux.Up }, hanging, 5*time.Millisecond)
}

// parked starts to wait for a key, and returns when the waiter has looked at it
// and sleeps.
func parked(t *testing.T, c *Client, key string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.NewMutex(key, 30*time.Second).Lock(t.Context()) }()
	asleep(t, c, key)
	return done
}

// As redlock/internal/line has them.
const (
	contendedFor    = time.Second
	streakGap       = 200 * time.Millisecond
	streakMax       = 250 * time.Millisecond
	minQueueTimeout = 250 * time.Millisecond
	enterTries      = 3
	closeLinger     = 100 * time.Millisecond
)

// HeldKeys is a script that counts the keys of a master that are held: a fence's counter and the number of permits outlive a lock.
const HeldKeys = `
	local n = 0
	for _, key in ipairs(redis.call('KEYS', '*')) do
		if key ~= '{}:since' and not string.find(key, ':fence$') and not string.find(key, ':permits$') then
			n = n + 1
		end
	end
	return n`

// asleep returns when the head of a key's queue has looked at the key, and sleeps until it is notified or
// is to look again.
func asleep(t *testing.T, c *Client, key string) {
	t.Helper()
	require.Eventually(t, func() bool { return anySleeps(c, key) }, hanging, 5*time.Millisecond)
}

// anySleeps reports whether a listener sleeps that has subscribed to a key, or to any if the key is empty: before it has
// looked it does not sleep in the mux.
func anySleeps(c *Client, key string) bool {
	for at, asleep := range c.tracking.Keys() {
		if asleep && (key == "" || at == key) {
			return true
		}
	}
	return false
}

func comes(t *testing.T, done <-chan error) {
	t.Helper()
	require.NoError(t, conntest.Soon(t, "the lock is free, and the waiter has it", done))
}

// Says returns what a master says to a command, and requires that it is no error.
func Says(t testing.TB, masters *redlocktest.Masters, i int, args ...string) any {
	t.Helper()
	v, err := masters.Do(i, args...)
	require.NoError(t, err, "%q", args)
	return v
}

// SoonSays waits until a master says what it is to say to a command: for less than 30 seconds, in which locks of tests expire.
func SoonSays(t testing.TB, masters *redlocktest.Masters, i int, want any, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool { v, err := masters.Do(i, args...); return err == nil && v == want }, hanging, 5*time.Millisecond, "%q", args)
}

// Asker returns Says of the first master.
func Asker(t testing.TB, masters *redlocktest.Masters) func(args ...string) any {
	return func(args ...string) any { t.Helper(); return Says(t, masters, 0, args...) }
}

// Within returns the Mutex, whose rounds end after d, whatever its TTL is.
func Within(m *Mutex, d time.Duration) *Mutex {
	m.spec().Timeout = d
	return m
}

// Until returns the end of the lock's validity.
func Until(m *Mutex) time.Time { return time.Now().Add(m.Remaining()) }

// A Said is what one master says of who holds a key.
type Said struct {
	Addr    string
	Token   Secret // zero if the key is free there
	TTL     time.Duration
	Permit  int
	Fence   uint64 // the last that was given there
	Size    int64
	Err     error // why the master's answer is missing; nil if it is not
	Revoked bool
	Reason  string
}

func (s Said) holder() census.Holder {
	return census.Holder{Token: s.Token, TTL: s.TTL, Permit: s.Permit, Size: s.Size, Revoked: s.Revoked, Reason: s.Reason}
}

func (s Said) Owner() string { return s.holder().Owner() }

func (s Said) Left() bool { return s.holder().Left() }

// OnEach is Holders, and returns what each master says.
func OnEach(c *Client, ctx context.Context, key string, opts ...Option) (all []Said, err error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	t, err := c.census(ctx, opHolders, key, &o)
	for i, row := range t.Rows {
		s := Said{Addr: c.masters.at(i)}
		if row == nil {
			s.Err = mux.ErrTimeout
			all = append(all, s)
			continue
		}
		s.Fence = row.Fence
		for _, h := range row.Holders {
			s.Token, s.TTL, s.Permit, s.Size, s.Revoked, s.Reason = h.Token, h.TTL, h.Permit, h.Size, h.Revoked, h.Reason
			all = append(all, s)
		}
		if len(row.Holders) == 0 {
			all = append(all, s)
		}
	}
	return all, err
}

// said is the tally of what the first of so many masters say.
func said(masters int, all ...Said) *census.Tally {
	t := census.NewTally(masters)
	for i, s := range all {
		row := census.Row{Fence: s.Fence}
		if !s.Token.IsZero() {
			row.Holders = []census.Holder{s.holder()}
		}
		if s.Err == nil {
			t.Add(i, row)
		}
	}
	return t
}

// A Leader is what most tests look at of what Watch yields.
type Leader struct {
	Held  bool
	Owner string
	Fence uint64
}

func LeaderOf(lock LockInfo) Leader {
	l := Leader{Held: lock.Held, Fence: lock.Fence}
	if lock.Held {
		l.Owner = lock.Holders[0].Owner
	}
	return l
}
