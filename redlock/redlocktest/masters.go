// Package redlocktest starts Redis masters for tests: real redis-server
// processes ([Start]), or masters inside the test's own process ([Embedded]),
// which need nothing installed. A test can freeze, kill and restart them. Behind
// links ([WithLinks]) it can also make them slow, cut them off and reset their
// connections, with clocks of their own ([WithClocks]) set those off, and with disks
// of their own ([WithDisks]) let those fail.
//
//	func TestOrders(t *testing.T) {
//		masters := redlocktest.Start(t, 5)
//		client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
//		...
//		masters.Pause(0)
//		masters.Kill(1)
//		// The lock still works: three masters are a majority.
//	}
//
// [Run] and [RunEmbedded] do the same without a test. [StartGroups] starts masters
// with replicas that Sentinel puts in their place, and [StartClusters] starts Redis Clusters.
// Their servers are Masters, too.
//
// The environment variable REDLOCKTEST_SERVER names the server that is started, by a
// path or by a name on the PATH: to test against another version, or against Valkey.
// Without it, this is redis-server, or valkey-server where there is no other.
//
// # A service's own configuration
//
// A service is tested as it is configured for production, with its RestartGuard: to the clients of the test's process,
// masters that were started are as masters that have been up for long, and vote at once. One that [Masters.Restart] has
// started, or that has lost its keys, has no vote until the guard has passed, as in production. A process that the test
// starts takes new masters for new, unless a client of the test with the same Prefix has taken a lock before.
//
// # What is left behind
//
// Nothing. [Start] and [Embedded] close the masters when the test ends, whether
// it passed or not. If the test process dies first (a panic, a timeout, an
// interrupt, SIGKILL), its redis-servers are killed within milliseconds, paused
// ones too, and their files are removed. This needs Unix process groups: on Windows
// the servers outlive a test process that dies before it has closed them.
//
// # Tests in parallel
//
// Each call starts masters of its own, so tests that use this package can call
// t.Parallel. A master keeps its port until it is closed, also while it is killed.
package redlocktest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redburst/redburst/redlock/internal/aged"
	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/redlocktest/internal/ci"
	"testing"
)

// Masters are n independent Redis masters, numbered from 0. All methods may be
// called by several goroutines at once. The zero Masters has no master.
//
// A method that fails ends the test with Fatal. If the masters were started
// without a test, by [Run] or [RunEmbedded], it panics with the error.
type Masters struct {
	tb      testing.TB // nil without a test
	what    string     // they are, for errors; "master" if it is empty
	masters []master
	links   []*link          // none without WithLinks
	group   *processes.Group // nil when embedded
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
	args   []string
	secret string // that clients must know; empty for none
	unix   bool
	links  bool
	clocks bool
	disks  bool
	hosts  []Host // nil, or one for each
}

func chosen(opts []Option) (o options) {
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithArgs appends arguments to the command line of each redis-server. They win
// over those of this package: with WithArgs("--appendonly", "yes") the data
// survives a Restart. Do uses the password of a "--requirepass". Give each value as
// an argument of its own: not all versions of Redis split "60 1000" behind "--save".
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// WithPassword has each server demand a password: of clients, of its replicas, and sentinels of each other. Without one,
// every user of this machine can use the servers while they run. No other user sees it: it is in a file that is ours, and
// on no command line. Do uses it, and Addr does not show it:
//
//	password := rand.Text()
//	masters := redlocktest.Start(t, 3, redlocktest.WithPassword(password))
//	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), Password: redlock.NewSecret(password)})
//
// It has letters and digits only. It is for embedded masters, groups (Config.SentinelPassword, too) and clusters as well.
// The bus of a cluster has none.
func WithPassword(password string) Option {
	return func(o *options) { o.secret = password }
}

// WithUnixSockets makes the masters listen on Unix domain sockets instead of TCP:
// Addr returns unix:///path. It works on Unix only, and without links.
func WithUnixSockets() Option {
	return func(o *options) { o.unix = true }
}

// Start starts n redis-servers (or valkey-servers) on free ports of 127.0.0.1,
// without persistence, and returns when each of them answers. They are closed when
// the test ends.
//
// If neither is installed, Start skips the test. With CI=true in the environment
// the test fails instead, so that a gate never passes by skipping.
func Start(tb testing.TB, n int, opts ...Option) *Masters {
	tb.Helper()
	needed(tb, opts...)
	m, err := Run(n, opts...)
	return m.of(tb, err)
}

// needed ends the test where redis-server is not installed, or what an option needs.
func needed(tb testing.TB, opts ...Option) {
	tb.Helper()
	if err := Available(opts...); err != nil {
		if ci.Runs() {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
}

// Run is [Start] without a test. The caller must call [Masters.Close]. A missing
// redis-server is an error that says what to install.
func Run(n int, opts ...Option) (*Masters, error) {
	o := chosen(opts)
	if o.unix && !unixSockets {
		return nil, errors.New("redlocktest: redis-server has no Unix sockets on this system")
	}
	if o.unix && o.links {
		return nil, errors.New("redlocktest: there are no links in front of Unix sockets: leave out WithLinks or WithUnixSockets")
	}
	if err := hostable(n, o); err != nil {
		return nil, err
	}
	bin, err := lookup()
	if err != nil {
		return nil, err
	}
	g, err := processes.NewGroup("redlocktest")
	if err != nil {
		return nil, err
	}
	holdBlock()
	m := &Masters{group: g}
	l, err := compileLibraries(g.Dir, o)
	if err != nil {
		return m.started(o, err)
	}
	for i := range n {
		s := newServer(bin, i, g, o)
		s.libraries = l
		m.masters = append(m.masters, s)
	}
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { errs[i] = m.masters[i].(*server).startAnywhere() })
	}
	starting.Wait()
	return m.started(o, errors.Join(errs...))
}

// started has clients know masters that were started, and puts the links in front of them; or it closes them.
func (m *Masters) started(o options, err error) (*Masters, error) {
	for i := 0; err == nil && i < m.N(); i++ {
		grow(m.masters[i])
	}
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

// grow has the clients of this process take a master for one that has been up for long: it was started empty just now, so
// it has forgotten nothing. One that does not let us ask stays as young as it is.
func grow(m master) { aged.Add(runID(m), "") }

func runID(m master) string { return said(m, "run_id", "INFO", "server") }

// said is what a master says of itself; empty if it does not.
func said(m master, what string, command ...string) string {
	reply, _ := do(m, command...)
	text, _ := reply.(string)
	_, value, _ := strings.Cut(text, "\n"+what+":")
	value, _, _ = strings.Cut(value, "\r\n")
	return value
}

// Embedded starts n masters inside this process ([miniredis]), each on a port of
// 127.0.0.1. They need nothing installed, start in less than a millisecond and run
// on every system. Keys expire in real time, and INFO shows a new run_id and uptime
// after each start. They are closed when the test ends.
//
// They lack what miniredis lacks: persistence, ACLs, CONFIG, ROLE, REPLICAOF, MSETEX, SCRIPT KILL, and of CLIENT all but
// SETNAME and GETNAME. So nothing ends a script that does not end by itself: Kill, Restart and Close wait for it. Within
// MULTI, INFO is answered at once. With [WithPassword], HELLO, CLIENT and INFO are answered to those who have not logged
// in, too.
//
// The only options for them are WithLinks and WithPassword.
//
// [miniredis]: https://github.com/alicebob/miniredis
func Embedded(tb testing.TB, n int, opts ...Option) *Masters {
	tb.Helper()
	m, err := RunEmbedded(n, opts...)
	return m.of(tb, err)
}

// RunEmbedded is [Embedded] without a test. The caller must call [Masters.Close].
func RunEmbedded(n int, opts ...Option) (*Masters, error) {
	o := chosen(opts)
	if o.unix || o.args != nil || o.clocks || o.disks || o.hosts != nil {
		return nil, errors.New("redlocktest: embedded masters have neither arguments nor Unix sockets " +
			"nor clocks of their own nor disks nor hosts")
	}
	holdBlock()
	m := &Masters{}
	var err error
	for i := 0; err == nil && i < n; i++ {
		var e *embedded
		if e, err = newEmbedded(o.secret); err == nil {
			m.masters = append(m.masters, e)
		}
	}
	return m.started(o, err)
}

// of ties freshly started masters to a test.
func (m *Masters) of(tb testing.TB, err error) *Masters {
	tb.Helper()
	tied(tb, m, err).tb = tb
	return m
}

// tied has what was started be closed when a test ends.
func tied[C interface{ Close() }](tb testing.TB, c C, err error) C {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Available returns nil if this machine has what [Start] and [Run] need with these
// options, or an error that says what to install.
func Available(opts ...Option) error {
	_, err := lookup()
	if o := chosen(opts); err == nil && (o.clocks || o.disks) {
		_, err = compiler()
	}
	return err
}

// Close kills the masters, paused ones too, and removes their files. It returns
// when they are gone. Further calls of Close do nothing; no other method may be
// called after it. Masters that belong to a test close when the test ends.
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
			m.group.Close()
		}
		releaseBlock(addrs)
	})
}

// N returns the number of masters.
func (m *Masters) N() int { return len(m.masters) }

// Addr returns the address of master i, as redlock.Config.Masters takes it:
// 127.0.0.1:port, or unix:///path. Kill and Restart do not change it. With links it
// is the address of the link, and on a host that of the host.
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

// PID returns the process id of master i. It is 0 while the master is killed, and
// always 0 for an embedded master.
func (m *Masters) PID(i int) int { return m.masters[i].pid() }

// Pause freezes master i as SIGSTOP does: connections stay open and new ones are
// accepted, but the master answers nothing until Resume. Pause returns when the
// master has stopped. A real redis-server can be paused on Unix only. A master that
// is down is an error, one that is paused already is not.
func (m *Masters) Pause(i int) {
	m.helper()
	m.must(i, "pause", m.masters[i].pause())
}

// Resume lets a paused master go on. It then serves what has arrived in the
// meantime. It does nothing to a running master; one that is down is an error.
func (m *Masters) Resume(i int) {
	m.helper()
	m.must(i, "resume", m.masters[i].resume())
}

// Kill ends master i as SIGKILL does, running or paused, and returns when it is
// gone. Its connections break, and its address refuses new ones until Restart. It
// does nothing to a master that is down.
func (m *Masters) Kill(i int) {
	m.helper()
	m.must(i, "kill", m.masters[i].kill())
}

// Restart kills master i if it is alive, starts it again at the same address and
// returns when it answers. Its data is gone (but see [WithArgs]) and it has a new
// run_id. So clients give it no vote until the RestartGuard or the longest TTL has passed:
// tests of restarts use a short one, or persistence (WithArgs("--appendonly", "yes",
// "--appendfsync", "always")).
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

// Do sends one command to master i, on a new connection that bypasses the link,
// and returns the reply: a string, int64, float64, bool, nil for a null, or []any.
// A map becomes a flat []any of keys and values. An error reply is returned as a
// [ReplyError]. If the master is paused or down, Do sends nothing and returns an
// error that wraps [ErrPaused] or [ErrDown] at once. A master that does not answer
// within five seconds is an error, too.
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
	m.helper()
	fail(m.tb, fmt.Errorf("redlocktest: %s %s: %w", op, m.name(i), err))
}

func fail(tb testing.TB, err error) {
	if tb == nil {
		panic(err)
	}
	tb.Helper()
	tb.Fatal(err)
}

func (m *Masters) name(i int) string {
	return fmt.Sprintf("%s %d (%s)", cmp.Or(m.what, "master"), i, m.Addr(i))
}

// The reasons why a master or a sentinel does not answer. The errors of this
// package wrap them and name the server.
var (
	ErrPaused = errors.New("it is paused") // by Pause
	ErrDown   = errors.New("it is down")   // by Kill or Close, or because it has ended by itself
)
