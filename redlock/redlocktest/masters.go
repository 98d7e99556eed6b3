// Package redlocktest starts Redis masters for tests: real redis-server
// processes ([Start]), or masters inside the test's own process ([Embedded])
// where none is installed. They can be frozen, killed and restarted, and behind
// links ([WithLinks]) be far away or cut off, which is what a lock has to survive.
//
//	func TestOrders(t *testing.T) {
//		masters := redlocktest.Start(t, 5)
//		client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
//		...
//		masters.Pause(0)
//		masters.Kill(1)
//		// the lock still works: three masters are a majority
//	}
//
// [Run] and [RunEmbedded] do the same without a test.
//
// # What is left behind
//
// Nothing. [Start] and [Embedded] close the masters when the test ends, whether
// it passed or not. If the test process dies first (a panic, a timeout, an
// interrupt, SIGKILL), its redis-servers are killed and their files removed
// within milliseconds, paused ones too. On systems that have no Unix process
// groups, such as Windows, the latter is not so: there they outlive a test
// process that did not get to close them.
package redlocktest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// TB is the part of [testing.TB] that this package needs; any *testing.T, B
// and F is one.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
	Skip(args ...any)
}

// Masters are n independent Redis masters, numbered from 0. All methods may be
// called by any number of goroutines at once.
//
// A method that cannot do what it was asked for ends the test ([TB.Fatal]), or
// panics if the masters were started without one, by [Run] or [RunEmbedded].
type Masters struct {
	tb      TB // nil without a test
	masters []master
	links   []*link // none without WithLinks
	group   *group  // nil when embedded
	close   sync.Once
}

// A master is one Redis, in whichever way it is run. Killing a killed master,
// pausing a paused one and resuming a running one do nothing.
type master interface {
	addr() string
	pid() int
	control() (network, address, password string) // how Do reaches it
	state() error                                 // nil if it runs, ErrPaused, or ErrDown
	pause() error
	resume() error
	kill() error
	restart() error
}

// An Option changes how masters are started.
type Option func(*options)

type options struct {
	args  []string
	unix  bool
	links bool
}

func chosen(opts []Option) (o options) {
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithArgs appends arguments to each redis-server's command line. They win over
// those of this package: WithArgs("--appendonly", "yes") makes the data survive
// a Restart. The password of a "--requirepass" is used by Do as well. Each value is
// an argument of its own: not all versions of Redis split "--save", "60 1000".
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// WithUnixSockets makes the masters listen on Unix domain sockets and not on
// TCP: Addr returns unix:///path. Unix only.
func WithUnixSockets() Option {
	return func(o *options) { o.unix = true }
}

// Start starts n redis-servers on free ports of 127.0.0.1, without persistence,
// and returns when each of them answers. They are closed when the test ends.
//
// Where redis-server is not installed the test is skipped, or fails if the
// environment says CI=true, so that a gate never passes by skipping.
func Start(tb TB, n int, opts ...Option) *Masters {
	tb.Helper()
	needed(tb)
	m, err := Run(n, opts...)
	return m.of(tb, err)
}

// needed ends the test where redis-server is not installed.
func needed(tb TB) {
	tb.Helper()
	if err := Available(); err != nil {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
}

// Run is [Start] without a test. The caller closes the masters.
func Run(n int, opts ...Option) (*Masters, error) {
	o := chosen(opts)
	if o.unix && !unixSockets {
		return nil, errors.New("redlocktest: redis-server has no Unix sockets on this system")
	}
	if o.unix && o.links {
		return nil, errors.New("redlocktest: there are no links in front of Unix sockets: leave out WithLinks or WithUnixSockets")
	}
	bin, err := lookup()
	if err != nil {
		return nil, err
	}
	g, err := newGroup()
	if err != nil {
		return nil, err
	}
	holdBlock()
	m := &Masters{group: g}
	for i := range n {
		m.masters = append(m.masters, newServer(bin, i, g, o))
	}
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { errs[i] = m.masters[i].(*server).startAnywhere() })
	}
	starting.Wait()
	return m.started(o, errors.Join(errs...))
}

// started puts the links in front of masters that were started, or closes them.
func (m *Masters) started(o options, err error) (*Masters, error) {
	for i := 0; err == nil && o.links && i < m.N(); i++ {
		var l *link
		if l, err = newLink(m.masters[i].addr()); err == nil {
			m.links = append(m.links, l)
		}
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Embedded starts n masters inside this process ([miniredis]), each behind its
// own port of 127.0.0.1. They need nothing installed, start in less than a
// millisecond and run everywhere. Keys expire in real time, and each start has a
// run_id and an uptime of its own (INFO). What miniredis lacks, they lack: CLIENT
// TRACKING, ACLs, persistence. They are closed when the test ends.
//
// Of the options they take WithLinks alone.
//
// [miniredis]: https://github.com/alicebob/miniredis
func Embedded(tb TB, n int, opts ...Option) *Masters {
	tb.Helper()
	m, err := RunEmbedded(n, opts...)
	return m.of(tb, err)
}

// RunEmbedded is [Embedded] without a test. The caller closes the masters.
func RunEmbedded(n int, opts ...Option) (*Masters, error) {
	o := chosen(opts)
	if o.unix || o.args != nil {
		return nil, errors.New("redlocktest: embedded masters have neither arguments nor Unix sockets")
	}
	holdBlock()
	m := &Masters{}
	var err error
	for i := 0; err == nil && i < n; i++ {
		var e *embedded
		if e, err = newEmbedded(); err == nil {
			m.masters = append(m.masters, e)
		}
	}
	return m.started(o, err)
}

// of ties freshly started masters to a test.
func (m *Masters) of(tb TB, err error) *Masters {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	m.tb = tb
	tb.Cleanup(m.Close)
	return m
}

// Available returns nil if this machine has what [Start] and [Run] need, or an
// error that says what to install.
func Available() error {
	_, err := lookup()
	return err
}

// Close kills the masters, paused ones too, and removes their files. It returns
// when they are gone. Later calls do nothing; other methods must not follow.
func (m *Masters) Close() {
	m.close.Do(func() {
		var addrs []string
		for _, l := range m.links {
			l.close()
			addrs = append(addrs, l.addr())
		}
		for _, one := range m.masters {
			one.kill()
			addrs = append(addrs, one.addr())
		}
		if m.group != nil {
			m.group.close()
		}
		releaseBlock(addrs)
	})
}

// N returns the number of masters.
func (m *Masters) N() int { return len(m.masters) }

// Addr returns the address of master i: 127.0.0.1:port, or unix:///path. It
// never changes, through Kill and Restart.
func (m *Masters) Addr(i int) string {
	if m.links != nil {
		return m.links[i].addr()
	}
	return m.masters[i].addr()
}

// Addrs returns the addresses of all masters, as [Masters.Addr] does.
func (m *Masters) Addrs() []string {
	addrs := make([]string, len(m.masters))
	for i := range addrs {
		addrs[i] = m.Addr(i)
	}
	return addrs
}

// PID returns the process id of master i, or 0 if it has no process: while it
// is killed, and always when it is embedded.
func (m *Masters) PID(i int) int { return m.masters[i].pid() }

// Pause freezes master i as SIGSTOP does: connections stay open and new ones
// are taken, but nothing is answered until Resume. It returns when the master
// has stopped. A real redis-server can be paused on Unix only.
func (m *Masters) Pause(i int) {
	m.helper()
	m.must(i, "pause", m.masters[i].pause())
}

// Resume lets a paused master go on: it serves what has arrived meanwhile.
func (m *Masters) Resume(i int) {
	m.helper()
	m.must(i, "resume", m.masters[i].resume())
}

// Kill ends master i as SIGKILL does, running or paused, and returns when it is
// gone. Its connections break and its address refuses new ones.
func (m *Masters) Kill(i int) {
	m.helper()
	m.must(i, "kill", m.masters[i].kill())
}

// Restart kills master i if it is alive, starts it anew at the same address and
// returns when it answers. Its data is gone, and its run_id is another.
func (m *Masters) Restart(i int) {
	m.helper()
	m.must(i, "restart", m.masters[i].restart())
}

// Flush deletes all keys of master i, which must be up and not paused.
func (m *Masters) Flush(i int) {
	m.helper()
	_, err := do(m.masters[i], "FLUSHALL")
	m.must(i, "flush", err)
}

// Do sends one command to master i, on a connection of its own, and returns the
// reply: a string, int64, float64, bool, nil for a null, or []any, in which a
// map is a flat sequence of keys and values. An error reply is a [ReplyError].
// A master that is paused or down is asked nothing: the error is [ErrPaused] or
// [ErrDown], at once. One that has not answered after five seconds is an error too.
func (m *Masters) Do(i int, args ...string) (any, error) {
	reply, err := do(m.masters[i], args...)
	return reply, asking(m.name(i), err)
}

func (m *Masters) helper() {
	if m.tb != nil {
		m.tb.Helper()
	}
}

func (m *Masters) must(i int, op string, err error) {
	if err == nil {
		return
	}
	err = fmt.Errorf("redlocktest: %s %s: %w", op, m.name(i), err)
	if m.tb == nil {
		panic(err)
	}
	m.tb.Helper()
	m.tb.Fatal(err)
}

func (m *Masters) name(i int) string { return fmt.Sprintf("master %d (%s)", i, m.Addr(i)) }

// The reasons why a master, or a sentinel, does not answer. They are wrapped in
// errors that name it.
var (
	ErrPaused = errors.New("it is paused") // by Pause
	ErrDown   = errors.New("it is down")   // by Kill or Close, or by its own fault
)
