//go:build linux

package network_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
	"github.com/stretchr/testify/require"
)

// A parting is a test with five masters, each of which has a node of its own, as this process has,
// and another client in one more.
type parting struct {
	*testing.T
	network *network.Network
	here    *network.Node
	there   *network.Node
	nodes   []*network.Node // of the masters
	masters *redlocktest.Masters
}

const (
	longTTL = 5 * time.Minute        // more than a test may take
	aWhile  = 2 * time.Second        // before a connection is given up
	tooLate = 200 * time.Millisecond // for an answer
)

func part(t *testing.T) *parting {
	redlocktest.Start(t, 0) // skips, or fails, where there is no Redis
	n, all := network.Start(t, 6)
	here, err := n.Join()
	require.NoError(t, err)
	p := &parting{T: t, network: n, here: here, there: all[5], nodes: all[:5]}
	var hosts []redlocktest.Host
	for _, node := range p.nodes {
		hosts = append(hosts, node)
	}
	p.masters = redlocktest.Start(t, len(hosts), redlocktest.WithHosts(hosts...))
	return p
}

// client opens a client in this process, which hangs on to its connections for so long, whatever
// becomes of them. It waits until it is connected to all masters.
func (p *parting) client(hold, round time.Duration) *redlock.Client {
	p.Helper()
	var c *redlock.Client
	p.eventually("it is open", func() (is bool) {
		c, is = openClient(p.Context(), p.masters.Addrs(), hold, round)
		return is
	})
	p.Cleanup(func() { c.Close() })
	p.awaitAll(c)
	return c
}

func openClient(ctx context.Context, masters []string, hold, round time.Duration) (*redlock.Client, bool) {
	c, err := redlock.Open(ctx, redlock.Config{Masters: masters, RoundTimeout: round, DialTimeout: hold, StallTime: hold})
	return c, err == nil
}

// awaitAll waits until a client is connected to all masters, and each has answered it.
func (p *parting) awaitAll(c *redlock.Client) {
	p.Helper()
	m := c.NewMutex("all", longTTL)
	p.eventually("it is connected to all masters", func() bool {
		if m.Lock(p.Context()) != nil {
			return false
		}
		lock, err := c.Holders(p.Context(), "all")
		require.NoError(p, m.Unlock(p.Context()))
		return err == nil && len(lock.Holders) == 1 && len(lock.Holders[0].Masters) == p.masters.N()
	})
}

func (p *parting) eventually(what string, is func() bool) {
	p.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		require.True(p, time.Now().Before(deadline), what)
	}
}

// has says on which masters there is a key.
func (p *parting) has(key string) (on []int) {
	for i := range p.masters.N() {
		n, err := p.masters.Do(i, "EXISTS", key)
		require.NoError(p, err)
		if n == int64(1) {
			on = append(on, i)
		}
	}
	return on
}

// ways is what there is of the traffic of the client here with the first so many masters.
func (p *parting) ways(masters int) (both, requests, replies []network.Way) {
	for _, node := range p.nodes[:masters] {
		requests = append(requests, network.Way{From: p.here, To: node})
		replies = append(replies, network.Way{From: node, To: p.here})
	}
	return append(append(both, requests...), replies...), requests, replies
}

func TestAMinorityCutOffHoldsNobodyUp(t *testing.T) {
	p := part(t)
	// Whoever waits for all masters, or for a timeout, waits for longer than the test does.
	c := p.client(time.Hour, longTTL/2)
	m := c.NewMutex("k", longTTL)
	both, requests, replies := p.ways(2)
	for _, cut := range []struct {
		ways []network.Way
		on   []int // the masters that have the key while it is held
	}{
		{both, []int{2, 3, 4}},
		{requests, []int{2, 3, 4}},
		{replies, []int{0, 1, 2, 3, 4}},
	} {
		lift := p.network.Impose(network.Weather{Cut: true}, cut.ways...)
		ctx, cancel := context.WithTimeout(p.Context(), patience)
		require.NoError(p, m.Lock(ctx))
		p.eventually("the key is where it can be", func() bool { return fmt.Sprint(p.has("k")) == fmt.Sprint(cut.on) })
		require.NoError(p, m.Extend(ctx))
		require.NoError(p, m.Unlock(ctx))
		cancel()
		lift() // TCP itself may keep the release until then, if nothing comes back
		p.awaitAll(c)
		p.eventually("it is released everywhere", func() bool { return len(p.has("k")) == 0 })
	}
}

func TestAMajorityCutOffEndsAnAttemptAndLeavesNothing(t *testing.T) {
	p := part(t)
	c := p.client(aWhile, tooLate)
	m := c.NewMutex("k", longTTL)
	both, requests, replies := p.ways(3)
	for _, cut := range []struct {
		ways    []network.Way
		arrives bool
	}{{both, false}, {requests, false}, {replies, true}} {
		before := p.sets(0)
		lift := p.network.Impose(network.Weather{Cut: true}, cut.ways...)
		require.ErrorIs(p, m.TryLock(p.Context()), redlock.ErrNoQuorum)
		if cut.arrives {
			p.eventually("the master has set the key", func() bool { return p.sets(0) > before })
		} else {
			require.Equal(p, before, p.sets(0), "what is cut off does not arrive")
		}
		lift()
		p.awaitAll(c)
		p.eventually("it is released, where it was set", func() bool { return len(p.has("k")) == 0 })
		after := c.NewMutex("k", longTTL)
		require.NoError(p, after.Lock(p.Context()))
		require.NoError(p, after.Unlock(p.Context()))
		p.awaitAll(c) // so that all SETs are counted
	}
}

// sets returns how many SETs a master has served.
func (p *parting) sets(i int) (count int) {
	info, err := p.masters.Do(i, "INFO", "commandstats")
	require.NoError(p, err)
	_, calls, found := strings.Cut(info.(string), "cmdstat_set:calls=")
	require.True(p, found)
	_, err = fmt.Sscan(strings.Split(calls, ",")[0], &count)
	require.NoError(p, err)
	return count
}

func TestALockThatIsCutOffFromAMajorityEndsByItself(t *testing.T) {
	p := part(t)
	c := p.client(aWhile, patience)
	m := c.NewMutex("k", time.Second)
	require.NoError(p, m.Lock(p.Context()))
	held, stop := m.KeepAlive(p.Context())
	defer stop()
	_, _, replies := p.ways(3)
	lift := p.network.Impose(network.Weather{Cut: true}, replies...)
	defer lift()
	select {
	case <-held.Done():
	case <-time.After(patience):
		require.Fail(p, "it is held for ever")
	}
	require.ErrorIs(p, context.Cause(held), redlock.ErrLost)
}

func TestOneClientCutOffFromOneMaster(t *testing.T) {
	p := part(t)
	c := p.client(aWhile, patience)
	m := c.NewMutex("k", longTTL)
	both, requests, replies := p.ways(1)
	for _, ways := range [][]network.Way{both, requests, replies} {
		lift := p.network.Impose(network.Weather{Cut: true}, ways...)
		require.NoError(p, m.Lock(p.Context()))
		require.Equal(p, "held", p.another(nil), "it sees all masters")
		require.NoError(p, m.Unlock(p.Context()))
		lift()
		p.awaitAll(c)
		p.eventually("no key is left", func() bool { return len(p.has("k")) == 0 })
	}
	p.network.Impose(network.Weather{Cut: true}, both...)
	require.Equal(p, "taken", p.another(func() {
		p.eventually("it is held", func() bool { return errors.Is(m.TryLock(p.Context()), redlock.ErrHeld) })
	}))
}

func TestOfTwoSidesOneHasTheLock(t *testing.T) {
	p := part(t)
	c := p.client(aWhile, tooLate)
	m := c.NewMutex("k", longTTL)
	apart, _, _ := p.ways(3)
	for _, node := range p.nodes[3:] {
		apart = append(apart, network.Both(p.there, node)...)
	}
	lift := p.network.Impose(network.Weather{Cut: true}, apart...)
	require.Equal(p, "taken", p.another(func() {
		require.ErrorIs(p, m.TryLock(p.Context()), redlock.ErrNoQuorum)
		lift()
		p.awaitAll(c)
		p.eventually("it is held", func() bool { return errors.Is(m.TryLock(p.Context()), redlock.ErrHeld) })
	}))
	require.NoError(p, m.Lock(p.Context()))
	require.NoError(p, m.Unlock(p.Context()))
}

// anotherEnv has the masters' addresses for a process that is another client.
const anotherEnv = "REDBURST_NETWORK_ANOTHER"

// another has a client in another process and node try to take the lock. It returns "taken" or
// what is in its way. If the lock is taken, it is held while f runs.
func (p *parting) another(f func()) (outcome string) {
	p.Helper()
	program, err := os.Executable()
	require.NoError(p, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), anotherEnv+"="+strings.Join(p.masters.Addrs(), ","))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(p, err)
	out, err := cmd.StdoutPipe()
	require.NoError(p, err)
	require.NoError(p, p.there.Do(cmd.Start))
	defer func() { require.NoError(p, cmd.Wait()) }()
	defer in.Close()
	outcome, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(p, err)
	outcome = strings.TrimSpace(outcome)
	if outcome == "taken" && f != nil {
		f()
	}
	return outcome
}

// runAsAnother makes this process another client, and does not return, if its environment says so.
// It ends with its input.
func runAsAnother() {
	addresses, is := os.LookupEnv(anotherEnv)
	if !is {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if c, is := openClient(ctx, strings.Split(addresses, ","), aWhile, patience); is {
			if err := tell(ctx, c); err != nil {
				panic(err)
			}
			os.Exit(0)
		}
		if ctx.Err() != nil {
			panic(ctx.Err())
		}
	}
}

func tell(ctx context.Context, c *redlock.Client) error {
	defer c.Close()
	m := c.NewMutex("k", longTTL)
	err := m.TryLock(ctx)
	switch {
	case err == nil:
		fmt.Println("taken")
	case errors.Is(err, redlock.ErrHeld):
		fmt.Println("held")
	default:
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	io.Copy(io.Discard, os.Stdin)
	if err != nil {
		return nil
	}
	return m.Unlock(ctx)
}
