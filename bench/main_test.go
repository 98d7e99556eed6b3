package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

func start(t *testing.T, k Case) *Fleet {
	t.Helper()
	f, err := StartFleet(k)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func caseNamed(t *testing.T, name string) Case {
	t.Helper()
	ks, err := choose(name, Cases(), caseName)
	require.NoError(t, err)
	return ks[0]
}

// Other users of the machine do not command the masters meanwhile.
func TestTheMastersDemandAPassword(t *testing.T) {
	for _, transport := range []Transport{TCP, Unix} {
		e := start(t, Case{N: 1, Transport: transport}).endpoints[0]
		require.NotEmpty(t, e.Password)
		c, err := net.Dial(e.Network, e.Addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(resp.AppendCommand(nil, "CONFIG", "GET", "dir"))
		require.NoError(t, err)
		answer := make([]byte, len("-NOAUTH"))
		_, err = io.ReadFull(c, answer)
		require.NoError(t, err)
		require.Equal(t, "-NOAUTH", string(answer))
	}
}

func TestTrafficIsThatOfTheOthers(t *testing.T) {
	f := start(t, Case{N: 3, Transport: TCP})
	before, _, err := f.Traffic(Healthy)
	require.NoError(t, err)
	quiet, asked, err := f.Traffic(Healthy)
	require.NoError(t, err)
	require.Equal(t, 3, asked)
	require.Equal(t, Traffic{}, quiet.since(before, asked))

	l, err := openFloor(waitEpoll)(f, 1)
	require.NoError(t, err)
	defer l.Close()
	m, err := l.Mutex("key")
	require.NoError(t, err)
	before, _, err = f.Traffic(Healthy)
	require.NoError(t, err)
	require.NoError(t, m.TryLock(t.Context()))
	after, asked, err := f.Traffic(Healthy)
	require.NoError(t, err)
	require.Equal(t, Traffic{Commands: 3, Reads: 3}, after.since(before, asked))
}

func TestEveryContestantLocksExtendsAndReleases(t *testing.T) {
	for _, transport := range []Transport{TCP, Unix, TLS} {
		for _, n := range []int{1, 5} {
			// Redsync gives a round a twentieth of the TTL, in which it connects as well.
			k := Case{N: n, Transport: transport, Goroutines: 1, Keys: 1, TTL: 10 * time.Minute}
			f := start(t, k)
			for _, c := range Contestants() {
				if !c.Takes(k) {
					continue
				}
				t.Run(string(transport)+"/"+c.Name, func(t *testing.T) {
					f.Flush()
					l, err := c.Open(f, 1)
					require.NoError(t, err)
					defer func() { require.NoError(t, l.Close()) }()
					first, err := l.Mutex("key")
					require.NoError(t, err)
					second, err := l.Mutex("key")
					require.NoError(t, err)
					ctx := t.Context()
					for try := 0; c.Peer(); try++ { // until it is connected, which may take longer than it waits
						m, err := l.Mutex(fmt.Sprint("connect", try))
						require.NoError(t, err)
						if err = m.TryLock(ctx); err == nil {
							require.NoError(t, m.Unlock(ctx))
							break
						}
						require.Less(t, try, 50, "%v", err)
					}
					require.NoError(t, first.TryLock(ctx))
					if !c.Floor() { // which does not read its replies
						require.Error(t, second.TryLock(ctx))
					}
					if c.Name != "rueidislock" { // which extends by itself
						for try := 0; ; try++ { // one that fails fast gives up on masters that it has just cancelled
							if err = first.Extend(ctx); err == nil {
								break
							}
							require.True(t, c.failFast && try < 50, "%v", err)
						}
					}
					require.NoError(t, first.Unlock(ctx))
					if c.waits {
						require.NoError(t, second.Lock(ctx))
						require.NoError(t, second.Unlock(ctx))
					}
				})
			}
		}
	}
}

func TestTheFloorReturnsAtTheQuorumWhateverTheFault(t *testing.T) {
	for _, w := range []wait{waitEpoll, waitPpoll} {
		for _, fault := range []Fault{Hung, Dead} {
			f := start(t, Case{N: 5, Transport: TCP})
			l, err := openFloor(w)(f, 1)
			require.NoError(t, err)
			m, err := l.Mutex("key")
			require.NoError(t, err)
			f.Break(0, fault)
			for range 8000 { // beyond what the hung one may owe
				require.NoError(t, m.TryLock(t.Context()))
				require.NoError(t, m.Unlock(t.Context()))
			}
			require.NoError(t, l.Close())
			require.NoError(t, f.Heal(0, fault))
		}
	}
}

func TestARowThatFailsIsReported(t *testing.T) {
	k := caseNamed(t, "serial")
	broken := Contestant{Name: "broken", Open: func(*Fleet, int) (Locker, error) { return nil, errors.New("no such | thing") }}
	r, err := k.run(t.Context(), []Contestant{Contestants()[0], broken}, 2, time.Millisecond)
	require.NoError(t, err)
	dir := t.TempDir()
	report := Report{Rounds: 2, Slice: time.Millisecond, Results: []Result{r}}
	require.NoError(t, report.Write(dir))
	text, err := os.ReadFile(report.path(dir))
	require.NoError(t, err)
	require.Regexp(t, `Masters: (redis|valkey)-server \d+\.`, string(text))
	require.Contains(t, string(text), "| broken | — | — | — | — |")
	require.Contains(t, string(text), "**2** (100 %)")
	require.Contains(t, string(text), "no such | thing")
	require.FileExists(t, filepath.Join(dir, "latency.svg"))
	require.FileExists(t, filepath.Join(dir, "figures.json"))
}

func TestWhoHasFinishedNothingIsExplained(t *testing.T) {
	r := Result{Case: Case{metric: mean}, Contestants: []Contestant{{Name: ours}}, Rounds: [][]*Sample{{newSample()}}}
	of := func() string {
		var b bytes.Buffer
		r.writeLatency(&b)
		return b.String()
	}
	require.Contains(t, of(), "no operation had ended")
	r.Rounds[0][0].Record(time.Millisecond)
	require.NotContains(t, of(), "no operation had ended")
}

func TestTheReportSaysHowItIsMadeAgain(t *testing.T) {
	require.Equal(t, "go run . -cases 'hot=*' -rounds 3", invocation([]string{"-cases", "hot=*", "-rounds", "3"}))
}

func TestEveryKindOfCaseRuns(t *testing.T) {
	names := "redburst*,bsm-redislock,redsync-goredis-quickretry,redsync-goredis-failfast-quickretry,redsync-goredis-failfast,by-hand,rueidislock"
	if haveEtcd() {
		names += ",etcd-*"
	}
	cs, err := choose(names, Contestants(), contestantName)
	require.NoError(t, err)
	for _, name := range []string{"serial", "goroutines=4", "contended", "contended-N=1", "hung", "dead", "delay=1ms", "cluster", "extend", "fence", "fence-hot=64", "durable", "durable-everysec-goroutines=256", "release", "release-durable", "busy-serial", "busy-paced", "busy-handover", "busy-idle", "handover", "handover-N=1", "handover-processes=2", "leader-resigns", "leader-killed", "told", "told-revoked", "restart", "waiting", "renew"} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && slices.Contains([]string{"leader-killed", "leader-resigns"}, name) {
				t.Skip("it waits for a TTL of each contestant, or starts etcd's servers")
			}
			k := caseNamed(t, name).hurried()
			k.least = min(k.least, 300*time.Millisecond)
			var takes []Contestant
			for _, c := range cs {
				if k.durable && c.Peer() {
					continue // which waits for its TTL, and more
				}
				if k.Wants(c) || name == "renew" && c.Takes(k) { // there, one that users renew
					takes = append(takes, c)
				}
			}
			r, err := k.run(t.Context(), takes, 1, 20*time.Millisecond)
			require.NoError(t, err)
			idle := func(s *Sample) bool { return !k.many && s.Errors == 0 && s.Ops() == 0 }
			if slices.ContainsFunc(r.Rounds[0], idle) {
				// On a busy machine one process may have the lock to itself for so short a time.
				r, err = k.run(t.Context(), takes, 1, 10*time.Second)
				require.NoError(t, err)
			}
			for i, c := range takes {
				s := r.Total(i)
				if c.Peer() && s.Errors > 0 {
					continue // it may, and it is reported
				}
				require.Zero(t, s.Errors, "%s: %s", c.Name, s.Err)
				if k.many {
					require.Positive(t, s.Extra[cores], c.Name)
					continue
				}
				require.Positive(t, s.Ops(), c.Name)
				if k.harms() && !c.Peer() {
					require.Positive(t, s.Extra[harmless], c.Name)
				}
			}
		})
	}
}

func TestAQuickRunEndsWhenItsTimeIsOver(t *testing.T) {
	k := caseNamed(t, "serial").hurried()
	require.Positive(t, k.spend)
	k.spend = time.Nanosecond
	r, err := k.run(t.Context(), Contestants()[:1], mostRounds, time.Millisecond)
	require.NoError(t, err)
	require.Len(t, r.Rounds, leastRounds, "fewer say nothing")
}

func TestAQuickRunComparesOursWithAFloorAndPeersInFiveCases(t *testing.T) {
	ks, err := choose(quickCases, Cases(), caseName)
	require.NoError(t, err)
	require.Len(t, ks, 5)
	for _, k := range ks {
		k = k.hurried()
		require.Equal(t, quickTime, k.spend, k.Name)
		require.Greater(t, k.turns(mostRounds, 50*time.Millisecond), 50, k.Name)
		var rows []string
		peers, floors := 0, 0
		for _, c := range Contestants() {
			if !k.Wants(c) || !c.hurries(k) {
				continue
			}
			rows = append(rows, c.Name)
			if c.Peer() {
				peers++
			} else if c.Floor() {
				floors++
			}
		}
		require.Contains(t, rows, ours, k.Name)
		require.Equal(t, 2, peers, "%s: %q", k.Name, rows)
		require.LessOrEqual(t, floors, 1, "%s: %q", k.Name, rows)
	}
}

func TestTheTableOfAQuickRunMarksWhatSaysNothing(t *testing.T) {
	at := func(d time.Duration) *Sample {
		s := newSample()
		s.Record(d)
		return s
	}
	r := Result{Case: Case{Name: "serial", metric: p50}, Contestants: []Contestant{{Name: floor}, {Name: ours}, {Name: "peer"}}}
	for i := range 5 {
		r.Rounds = append(r.Rounds, []*Sample{at(time.Duration(100+100*i) * time.Microsecond), at(200 * time.Microsecond), at(400 * time.Microsecond)})
	}
	text := string(Report{Results: []Result{r}}.table())
	require.Regexp(t, `serial, p50 +200 µs +300 µs +400 µs \(peer\) +⚠ 0.67 \[0.40, 2.00\] +2.00 \[2.00, 2.00\]\n`, text)
}

func TestARoundThatFailsIsInNoFigureOfTheTimes(t *testing.T) {
	at := func(d time.Duration) *Sample {
		s := newSample()
		s.Record(d)
		return s
	}
	failed := newSample()
	failed.Fail(errors.New("too late"))
	r := Result{Contestants: []Contestant{{Name: ours}, {Name: "half"}, {Name: "none"}}, Rounds: [][]*Sample{
		{at(1200 * time.Millisecond), at(3600 * time.Millisecond), failed}, {at(1800 * time.Millisecond), failed, failed},
	}}
	var b bytes.Buffer
	r.writeTimes(&b)
	require.Contains(t, b.String(), "| redburst | 1.50 s | — | 1.20 s | 1.80 s | 2 | 0 |\n")
	require.Contains(t, b.String(), "| half | 3.60 s | 3.00 (one round) | 3.60 s | 3.60 s | 1 | **1** (50.0 %) |\n")
	require.Contains(t, b.String(), "| none | — | — | — | — | 0 | **2** (100 %) |\n")
}

func TestMastersPersistWhileACaseIsMeasured(t *testing.T) {
	f := start(t, Case{N: 2, Transport: TCP})
	asked := func() (values []any) {
		for i := range f.N {
			for _, setting := range []string{"appendonly", "appendfsync"} {
				v, err := f.Do(i, "CONFIG", "GET", setting)
				require.NoError(t, err)
				values = append(values, v.([]any)[1])
			}
		}
		return values
	}
	require.NoError(t, f.Persist(""))
	require.Equal(t, []any{"no", "everysec", "no", "everysec"}, asked())
	require.NoError(t, f.Persist("always"))
	require.Equal(t, []any{"yes", "always", "yes", "always"}, asked())
	for i := range f.N {
		v, err := f.Do(i, "INFO", "persistence")
		require.NoError(t, err)
		require.Contains(t, v, "aof_rewrite_in_progress:0", "it would be measured, too")
	}
	require.NoError(t, f.Forget("always"))
	require.Equal(t, []any{"no", "always", "no", "always"}, asked())
	require.NoError(t, f.Persist("everysec"), "again")
	require.Equal(t, []any{"yes", "everysec", "yes", "everysec"}, asked())
}

func TestThePriceOfAFaultIsComparedWithTheFloors(t *testing.T) {
	of := func(before, with time.Duration) *Sample {
		s := newSample()
		s.Record(with)
		s.Extra[harmless] = float64(before)
		return s
	}
	r := Result{Case: Case{metric: p50, Fault: Hung}, Contestants: []Contestant{{Name: floor}, {Name: ours}}}
	for range leastRounds {
		r.Rounds = append(r.Rounds, []*Sample{of(100*time.Microsecond, 120*time.Microsecond), of(100*time.Microsecond, 180*time.Microsecond)})
	}
	var b bytes.Buffer
	r.writePrice(&b)
	require.Contains(t, b.String(), "while all masters are well")
	require.Contains(t, b.String(), "| floor | 1.20 [1.20, 1.20] | 1.00 [1.00, 1.00] |\n")
	require.Contains(t, b.String(), "| redburst | 1.80 [1.80, 1.80] | 1.50 [1.50, 1.50] |\n")
	b.Reset()
	r.Case = Case{metric: p50, Fsync: "always"}
	r.writePrice(&b)
	require.Contains(t, b.String(), "while the masters persist nothing")
}

func TestTheBatchedFloorReturnsAtTheQuorumWhateverTheFault(t *testing.T) {
	for _, fault := range []Fault{Hung, Dead} {
		f := start(t, Case{N: 3, Transport: TCP})
		l, err := openBatchedFloor(f, 2)
		require.NoError(t, err)
		f.Break(0, fault)
		var wg sync.WaitGroup
		errs := make(chan error, 16)
		for i := range cap(errs) {
			m, err := l.Mutex(fmt.Sprint("key", i))
			require.NoError(t, err)
			wg.Go(func() {
				for range 600 { // of all together beyond what the hung one may owe
					if err := errors.Join(m.TryLock(t.Context()), m.Unlock(t.Context())); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		require.Empty(t, errs)
		require.NoError(t, l.Close())
		require.NoError(t, f.Heal(0, fault))
	}
}

func TestTheBatchedFloorFailsWithoutAMajority(t *testing.T) {
	f := start(t, Case{N: 3, Transport: TCP})
	l, err := openBatchedFloor(f, 2)
	require.NoError(t, err)
	m, err := l.Mutex("key")
	require.NoError(t, err)
	require.NoError(t, m.TryLock(t.Context()))
	f.Break(0, Dead)
	f.Break(1, Dead)
	require.ErrorIs(t, m.Unlock(t.Context()), errDead)
	require.ErrorIs(t, m.TryLock(t.Context()), errDead, "nor does it later")
	require.NoError(t, l.Close())
}

// The heir is only as good a floor as it is a lock.
func TestTheFloorOfAHandOverWaitsForTheHolder(t *testing.T) {
	for _, n := range []int{1, 5} {
		f := start(t, Case{N: n, Transport: TCP})
		l, err := openHandoverFloor(f, 1)
		require.NoError(t, err)
		holder, err := l.Mutex("key")
		require.NoError(t, err)
		heir, err := l.Mutex("key")
		require.NoError(t, err)
		for range 20 {
			require.NoError(t, holder.Lock(t.Context()))
			require.Error(t, heir.TryLock(t.Context()))
			got := make(chan error, 1)
			go func() { got <- heir.Lock(t.Context()) }()
			require.Eventually(t, func() bool { // a majority, which has done all else, has taken its watch
				watched := 0
				for i := range n {
					if v, err := f.Do(i, "INFO", "stats"); err == nil && infoField(v.(string), "tracking_total_keys") > 0 {
						watched++
					}
				}
				return watched > n/2
			}, time.Minute, time.Millisecond)
			require.Empty(t, got)
			require.NoError(t, holder.Unlock(t.Context()))
			require.NoError(t, <-got)
			require.NoError(t, heir.Unlock(t.Context()))
		}
		require.NoError(t, l.Close())
	}
}

func TestACancelledRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := caseNamed(t, "N=1").run(ctx, Contestants()[:1], 1, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
}

func TestRatiosCompareOneRound(t *testing.T) {
	at := func(d time.Duration) *Sample {
		s := newSample()
		s.Record(d)
		return s
	}
	failing := at(time.Microsecond)
	failing.Fail(errors.New("most of the time"))
	r := Result{
		Case:        Case{metric: p50},
		Contestants: []Contestant{{Name: floor + "-a"}, {Name: floor + "-b"}, {Name: ours}, {Name: "fast"}, {Name: "slow"}, {Name: "failing"}},
		Rounds: [][]*Sample{
			{at(20 * time.Microsecond), at(10 * time.Microsecond), at(20 * time.Microsecond), at(40 * time.Microsecond), at(800 * time.Microsecond), failing},
			{at(100 * time.Microsecond), at(200 * time.Microsecond), at(150 * time.Microsecond), at(600 * time.Microsecond), at(60 * time.Microsecond), failing},
			{at(10 * time.Microsecond), at(10 * time.Microsecond), at(10 * time.Microsecond), newSample(), at(900 * time.Microsecond), failing},
		},
	}
	over, ok := r.AgainstFloor(ours)
	require.True(t, ok)
	require.InDelta(t, 1, over.Median, 0.01, "of 2, 0.75 and 1: floor-b is the faster in all")
	require.Equal(t, 3, over.Rounds)
	require.False(t, over.Known(), "three rounds are too few")
	faster, ok := r.AgainstPeers()
	require.True(t, ok)
	require.Equal(t, 2, faster.Rounds)
	require.InDelta(t, 3, faster.Median, 0.01, "of the two rounds in which the peer has a figure; another was faster in one")
	require.Equal(t, 3, r.best(Contestant.Peer), "a peer that mostly fails is not the best")
	require.True(t, math.IsNaN(r.of(r.Rounds[2], 5)), "nor has it a figure")
	require.Equal(t, -1, r.best(named("nobody")))
}

func TestLongerTurnsLeaveRoomForFewerRounds(t *testing.T) {
	for _, c := range []struct {
		k      Case
		rounds int
		want   int
	}{
		{Case{}, 40, 40},
		{Case{least: 10 * time.Millisecond}, 40, 40},
		{Case{least: 200 * time.Millisecond}, 40, 10},
		{Case{least: time.Minute}, 40, leastRounds},
		{Case{least: time.Minute}, 2, 2},
		{Case{rounds: 1}, 40, 1},
		{Case{rounds: 7, least: 100 * time.Millisecond}, 40, 7},
		{Case{rounds: 7}, 3, 3},
	} {
		require.Equal(t, c.want, c.k.turns(c.rounds, 50*time.Millisecond), "%+v", c)
	}
}

func TestFiguresHaveThreeDigits(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"7 ns": 7, "1.00 µs": 1000, "12.3 µs": 12345, "100 µs": 99_960, "1000 µs": 999_999, "1.50 ms": 1500 * time.Microsecond, "2.00 s": 2 * time.Second,
	} {
		require.Equal(t, want, short(d))
	}
}
