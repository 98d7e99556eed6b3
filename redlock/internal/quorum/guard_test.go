package quorum

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// A fleet is masters as the guards of some processes see them. What is asked is answered at once, in order.
type fleet struct {
	now     time.Duration
	servers []conn.Server // Witness is what stands there
	guards  []*Guard
	linked  []map[int]conn.Server // what each guard was told of each master
	tracks  []map[int]bool
	births  int
	refuse  bool // nobody may write
}

func newFleet(n int) *fleet {
	f := &fleet{now: 1000 * time.Hour}
	for i := range n {
		f.servers = append(f.servers, conn.Server{Endpoint: fmt.Sprint("m", i), RunID: fmt.Sprint("run", i), ReplID: fmt.Sprint("repl", i), Role: "master",
			Witnessed: true, Tracking: true, Uptime: 30 * 24 * time.Hour, Within: time.Microsecond})
	}
	return f
}

// starts starts a process that is connected to some of the masters, and takes locks with that TTL.
func (f *fleet) starts(restart time.Duration, durable bool, ttl time.Duration, to ...int) (process int) {
	process = f.add(restart, durable, 0)
	f.connect(process, to...)
	f.uses(process, ttl)
	return process
}

// add adds a process whose clock is wrong by so much, and that is connected to nobody.
func (f *fleet) add(restart time.Duration, durable bool, skew time.Duration) (process int) {
	g := &Guard{}
	g.Init(len(f.servers), restart, durable, conn.Options{Witness: "{}:since"},
		func() time.Duration { return 20000*24*time.Hour + f.now + skew },
		func() string { f.births++; return fmt.Sprint("birth", f.births) })
	f.guards, f.linked, f.tracks = append(f.guards, g), append(f.linked, map[int]conn.Server{}), append(f.tracks, map[int]bool{})
	return len(f.guards) - 1
}

func (f *fleet) uses(process int, ttl time.Duration) {
	f.takes(process, ttl)
	f.settle()
}

// takes has a process take locks with that TTL, and nobody answer what it asks then.
func (f *fleet) takes(process int, ttl time.Duration) *Guard {
	g := f.guards[process]
	g.Use(ttl)
	g.heed(time.Duration(g.longest.Load()), f.now)
	return g
}

func (f *fleet) connect(process int, to ...int) {
	for _, i := range to {
		f.link(process, i)
	}
	f.settle()
}

// link connects a process to a master, and has nobody answer yet.
func (f *fleet) link(process, i int) {
	before := f.linked[process][i]
	f.linked[process][i] = f.servers[i]
	f.tracks[process][i] = f.servers[i].Tracking
	f.guards[process].Connected(i, before, f.servers[i], f.now)
}

// cut ends a process's connection to a master, if there is one.
func (f *fleet) cut(process, i int) {
	if f.guards[process].places[i].up {
		f.guards[process].Disconnected(i)
	}
}

func (f *fleet) cutAll(i int) {
	for p := range f.guards {
		f.cut(p, i)
	}
}

// answer has a server answer all that it was asked.
func (g *Guard) answer(i int, s conn.Server, at time.Duration) {
	for range g.places[i].asked {
		switch g.places[i].asked[0] {
		case asksReplication:
			g.answered(i, fmt.Sprintf("# Replication\r\nrole:%s\r\nmaster_replid:%s\r\nmaster_replid2:%s\r\n", s.Role, s.ReplID, s.ReplID2), false, at)
		case asksEpoch:
			g.answered(i, "cluster_state:ok\r\ncluster_my_epoch:"+s.Epoch+"\r\n", false, at)
		default:
			g.answered(i, s.Witness, false, at)
		}
	}
}

// write has a witness be another, and tells who has read it.
func (f *fleet) write(i int, text string, push []byte) {
	f.servers[i].Witness = text
	for p, tracks := range f.tracks {
		if tracks[i] || push == nil && f.servers[i].Tracking && f.guards[p].places[i].up {
			tracks[i] = false
			f.guards[p].Push(i, push, f.now)
		}
	}
}

func (f *fleet) settle() {
	rounds := 0
	for again := true; again; rounds++ {
		if again = false; rounds > 100 {
			panic("they ask and write in turn for ever")
		}
		for p, g := range f.guards {
			g.news = false
			for i := range f.servers {
				again = f.speak(p, i) || again
			}
		}
	}
}

// speak has a master answer what a process asks it; false if that is nothing.
func (f *fleet) speak(p, i int) bool {
	g := f.guards[p]
	st := g.Standing(i)
	if st.Ask == nil || !g.places[i].up {
		return false
	}
	if args := contactArgs(st.Ask); args[0] == "EVAL" && args[4] == f.servers[i].Witness && !f.refuse {
		f.write(i, args[5], pushWitness)
	}
	f.tracks[p][i] = f.servers[i].Tracking
	g.answer(i, f.servers[i], f.now)
	return true
}

func (f *fleet) flush(all ...int) {
	for _, i := range all {
		f.write(i, "", pushAll)
	}
	f.settle()
}

// pass lets some time pass, and has the guards look.
func (f *fleet) pass(d time.Duration) {
	f.now += d
	for _, g := range f.guards {
		g.at, g.news = f.now, true
		g.step()
	}
	f.settle()
}

// restart has a master be another process, without its disk or with it, and connects who was connected, if any is to be.
func (f *fleet) restart(i int, disk bool, processes ...int) {
	s := &f.servers[i]
	s.RunID, s.ReplID, s.Uptime = s.RunID+"'", s.ReplID+"'", 0
	if !disk {
		s.Witness = ""
	}
	f.cutAll(i)
	for _, p := range processes {
		f.connect(p, i)
	}
}

// waits returns for how long each master has no vote yet for a process; -1 if its yes is withheld.
func (f *fleet) waits(process int) (all []time.Duration) {
	g := f.guards[process]
	for i := range f.servers {
		st := g.Standing(i)
		switch {
		case !g.places[i].up:
			all = append(all, -2)
		case st.Until > f.now:
			all = append(all, (st.Until - f.now).Round(time.Millisecond))
		case st.Withheld:
			all = append(all, -1)
		default:
			all = append(all, 0)
		}
	}
	return all
}

const (
	fleetTTL   = 30 * time.Second
	fleetGuard = time.Minute
)

func TestNobodyWaitsForMastersThatNobodyHasUsed(t *testing.T) {
	t.Parallel()
	for _, guarded := range []time.Duration{0, fleetGuard} {
		f := newFleet(3) // weeks old: an upgrade, or a new prefix
		p := f.starts(guarded, false, fleetTTL, 0, 1, 2)
		q := f.starts(guarded, false, fleetTTL, 0, 1, 2)
		for _, process := range []int{p, q} {
			require.Equal(t, []time.Duration{0, 0, 0}, f.waits(process))
		}
		for _, s := range f.servers {
			w, ok := parseWitness(s.Witness)
			require.True(t, ok)
			require.True(t, w.first && w.used)
			require.EqualValues(t, 1, w.number)
		}
	}
	f := newFleet(3)
	for i := range f.servers {
		f.servers[i].Uptime = 0 // just started
	}
	require.Equal(t, []time.Duration{0, -2, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 2)), "one of three is down")
	require.Equal(t, []time.Duration{0, -2, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 2)), "for the next one, too")
	late := f.starts(0, false, fleetTTL, 0, 1, 2)
	require.Equal(t, []time.Duration{0, fleetTTL, 0}, f.waits(late), "and then it comes, and may have been at work before")
	require.Equal(t, []time.Duration{fleetGuard, fleetGuard + 0, fleetGuard}, f.waits(f.starts(fleetGuard, false, fleetTTL, 0, 1, 2)), "a guard goes by the age")
	require.Equal(t, []time.Duration{-1, -2, -2}, newFleet(3).only(), "one alone tells nothing")
}

// A replica that was promoted has what it was told of before its master was lost. That it has no witness proves nothing.
func TestPromotedReplicasDoNotSayThatNobodyWasThere(t *testing.T) {
	t.Parallel()
	promoted := func(f *fleet, i int) { f.servers[i].ReplID2 = "of another" }
	for _, cluster := range []bool{false, true} {
		alone := newFleet(1)
		promoted(alone, 0)
		if alone.servers[0].Cluster = cluster; cluster {
			alone.servers[0].Group, alone.servers[0].Epoch = "slot", "7"
		}
		p := alone.starts(0, false, fleetTTL, 0)
		require.Equal(t, []time.Duration{fleetTTL}, alone.waits(p))
		alone.pass(10 * time.Second)
		require.Equal(t, []time.Duration{20 * time.Second}, alone.waits(alone.starts(0, false, fleetTTL, 0)))
		require.Equal(t, []time.Duration{20 * time.Second}, alone.waits(p))
		alone.pass(20*time.Second + time.Millisecond)
		require.Equal(t, []time.Duration{0}, alone.waits(p))
	}
	f := newFleet(3)
	promoted(f, 1)
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)), "two say that none was there")
	f = newFleet(3)
	promoted(f, 0)
	promoted(f, 1)
	require.Equal(t, []time.Duration{fleetTTL, fleetTTL, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)), "the third is weeks old")
	f = newFleet(3) // its sentinels have known it as the master for long
	for i := range 3 {
		promoted(f, i)
		f.servers[i].Group, f.servers[i].MasterFor = "sentinels", time.Hour
	}
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
}

// only is what a process waits that reaches one of three.
func (f *fleet) only() []time.Duration { return f.waits(f.starts(0, false, fleetTTL, 0)) }

// Who takes no locks, as one that only looks, writes nothing.
func TestWhoTakesNoLocksLeavesNoWitness(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	f.starts(0, false, 0, 0, 1, 2)
	for _, s := range f.servers {
		require.Empty(t, s.Witness)
	}
}

// A restart, a new disk, a spare and a flush are one case: without a guard the TTL that is asked for has to pass since
// the witness was left, and with one the guard. It is the same for who was there and for who comes.
func TestWhatMayHaveForgottenWaits(t *testing.T) {
	t.Parallel()
	for _, guarded := range []time.Duration{0, fleetGuard} {
		wait := max(guarded, fleetTTL)
		for name, forgets := range map[string]func(f *fleet, p int){
			"restarted empty":            func(f *fleet, p int) { f.restart(2, false, p) },
			"restarted with its disk":    func(f *fleet, p int) { f.restart(2, true, p) },
			"restarted, nobody is there": func(f *fleet, p int) { f.restart(2, false) },
			"flushed":                    func(f *fleet, p int) { f.flush(2) },
			"its witness was deleted":    func(f *fleet, p int) { f.write(2, "", pushWitness); f.settle() },
			"a spare, long up": func(f *fleet, p int) {
				f.guards[p].Disconnected(2)
				f.servers[2] = newFleet(4).servers[2]
				f.servers[2].RunID, f.servers[2].Endpoint = "spare", "m9"
				f.linked[p][2] = conn.Server{Endpoint: "m2"} // as mux.Replace says
				f.connect(p, 2)
			},
			"a stranger's text": func(f *fleet, p int) { f.write(2, "x", pushWitness); f.settle() },
		} {
			f := newFleet(3)
			p := f.starts(guarded, false, fleetTTL, 0, 1, 2)
			f.now += time.Hour
			forgets(f, p)
			if f.guards[p].places[2].flushed != 0 && guarded == 0 {
				require.EqualValues(t, -1, f.waits(p)[2], "the others may have been flushed as well")
			}
			f.pass(2 * flushedWithin)
			wait := wait - 2*flushedWithin
			if name == "restarted, nobody is there" {
				wait += 2 * flushedWithin
			}
			q := f.starts(guarded, false, fleetTTL, 0, 1, 2)
			if name != "restarted, nobody is there" {
				require.Equal(t, []time.Duration{0, 0, wait}, f.waits(p), "%s, %v", name, guarded)
			}
			require.Equal(t, []time.Duration{0, 0, wait}, f.waits(q), "%s, %v", name, guarded)
			f.now += wait / 2
			require.Equal(t, wait/2, f.waits(f.starts(guarded, false, fleetTTL, 0, 1, 2))[2].Round(time.Second), "%s: it goes on", name)
			require.Equal(t, wait/2, f.waits(q)[2])
			f.guards[q].Disconnected(2)
			f.connect(q, 2)
			require.Equal(t, wait/2, f.waits(q)[2].Round(time.Second), "it does not begin anew with a connection")
			f.now += wait/2 + time.Second
			require.Equal(t, []time.Duration{0, 0, 0}, f.waits(q))
		}
	}
}

// Restarts of all, one after the other, leave nobody who is believed, as long as one client is there.
func TestARollingRestartLeavesNobodyWhoIsBelieved(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	for i := range 3 {
		f.now += 5 * time.Second
		f.restart(i, false, p)
	}
	require.Equal(t, []time.Duration{20 * time.Second, 25 * time.Second, 30 * time.Second}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
	require.Equal(t, []time.Duration{20 * time.Second, 25 * time.Second, 30 * time.Second}, f.waits(p))
}

// A test suite flushes all masters in its setup, again and again. That is a new list, if it is done at once.
func TestAFlushOfAllIsANewList(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	q := f.starts(0, false, fleetTTL, 0, 1, 2)
	for range 3 {
		f.now += 100 * time.Millisecond
		f.flush(0, 1, 2)
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(q))
		for i := range 3 { // one after the other, and both look in between
			f.now += time.Second
			f.flush(i)
		}
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(q))
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
	}
	f.now += time.Minute
	f.flush(0)
	f.flush(1)
	f.now += 2 * flushedWithin
	f.flush(2)
	f.pass(2 * flushedWithin)
	require.NotContains(t, f.waits(p), time.Duration(0), "a flush later is another one")
	require.NotContains(t, f.waits(p), time.Duration(-1))

	f = newFleet(3)
	p = f.starts(0, false, fleetTTL, 0, 1, 2)
	f.guards[p].Disconnected(2) // it is down, and has all that it had
	f.flush(0, 1)
	f.pass(2 * flushedWithin)
	require.Equal(t, []time.Duration{fleetTTL - 2*flushedWithin, fleetTTL - 2*flushedWithin, -2}, f.waits(p))

	f = newFleet(3)
	p = f.starts(0, false, fleetTTL, 0, 1, 2)
	f.now += time.Minute
	f.flush(0)
	f.guards[p].Disconnected(0)
	f.connect(p, 0)
	f.flush(1, 2)
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p), "a new connection to a master that was flushed")

	f = newFleet(1)
	p = f.starts(0, false, fleetTTL, 0)
	f.guards[p].Disconnected(0)
	f.servers[0].Witness = ""
	f.linked[p][0] = with(f.servers[0], func(s *conn.Server) { s.Endpoint = "m9" })
	f.connect(p, 0)
	require.Equal(t, []time.Duration{fleetTTL}, f.waits(p), "another was in its place meanwhile: that is no flush")

	f = newFleet(3)
	p = f.starts(fleetGuard, false, fleetTTL, 0, 1, 2)
	f.flush(0, 1, 2)
	require.Equal(t, []time.Duration{fleetGuard, fleetGuard, fleetGuard}, f.waits(p), "with a guard it is always a quarantine")
}

// Who is idle is told of many flushes at once. What others have left in between says that they are not one.
func TestFlushesThatAreHeardOfAtOnceAreNotOne(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{0, time.Hour} { // the other's clock is wrong
		f := newFleet(3)
		p := f.starts(0, false, fleetTTL, 0, 1, 2)
		for i := range f.servers {
			f.servers[i].Ahead = -off
		}
		q := f.starts(0, false, fleetTTL, 0, 1, 2)
		wall := f.guards[q].wall
		f.guards[q].wall = func() time.Duration { return wall() + off }
		idle := func(is bool) {
			for i := range f.servers {
				f.guards[p].places[i].up = !is
			}
		}
		idle(true)
		for i := range f.servers {
			f.pass(2 * fleetTTL)
			require.Equal(t, []time.Duration{0, 0, 0}, f.waits(q))
			f.flush(i)
		}
		f.pass(2 * flushedWithin)
		idle(false)
		for i := range f.servers {
			f.guards[p].Push(i, pushAll, f.now)
		}
		f.settle()
		if off == 0 {
			require.Equal(t, []time.Duration{0, 0, fleetTTL - 2*flushedWithin}, f.waits(p))
		} else {
			require.Equal(t, []time.Duration{fleetTTL, fleetTTL, fleetTTL}, f.waits(p))
		}
		require.Equal(t, fleetTTL-2*flushedWithin, f.waits(q)[2])
	}
}

// A copy (redis-cli --rdb) changes the replication id, twice, and nothing else.
func TestACopySilencesNobody(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	f.starts(0, false, fleetTTL, 0, 1, 2)
	for i := range f.servers {
		f.servers[i].ReplID = "copied"
	}
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
}

// A client whose clock is wrong leaves a witness that others can do with.
func TestAClientWithAWrongClockSilencesNobody(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour, 24 * time.Hour} {
		f := newFleet(3)
		f.starts(fleetGuard, false, fleetTTL, 0, 1, 2)
		f.now += time.Hour
		wrong := f.starts(fleetGuard, false, 0)
		wall := f.guards[wrong].wall
		f.guards[wrong].wall = func() time.Duration { return wall() + off }
		f.restart(2, false)
		was := append([]conn.Server(nil), f.servers...)
		for i := range f.servers { // as it sees them
			f.servers[i].Ahead = -off
		}
		f.uses(wrong, fleetTTL)
		f.connect(wrong, 0, 1, 2)
		for i := range f.servers {
			was[i].Witness = f.servers[i].Witness
		}
		f.servers = was
		require.Equal(t, fleetGuard, f.waits(wrong)[2])
		f.now += 10 * time.Second
		right := f.starts(fleetGuard, false, fleetTTL, 0, 1, 2)
		require.LessOrEqual(t, f.waits(right)[2], fleetGuard)
		require.GreaterOrEqual(t, f.waits(right)[2], fleetGuard-10*time.Second)
		f.now += fleetGuard
		require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(fleetGuard, false, fleetTTL, 0, 1, 2)), "%v", off)
	}
}

// Declared durability is for a master that has kept its disk, and does not deny it.
func TestWhoIsExemptIsBornForLongEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(f *fleet)
		disk    bool
		durable bool
		want    time.Duration
	}{
		"with its disk":                  {func(*fleet) {}, true, true, 0},
		"not declared":                   {func(*fleet) {}, true, false, fleetGuard},
		"a new disk":                     {func(*fleet) {}, false, true, fleetGuard},
		"no append-only file":            {func(f *fleet) { f.servers[2].NoAOF = true }, true, true, fleetGuard},
		"it was a replica before":        {func(f *fleet) { f.servers[2].ReplID2 = "x" }, true, true, fleetGuard},
		"of a group":                     {func(f *fleet) { f.servers[2].Group = "g" }, true, true, fleetGuard},
		"it has refused what it had":     {func(f *fleet) { f.servers[2].Unexpected = true }, true, true, fleetGuard},
		"a cluster declares its copies":  {func(f *fleet) { f.servers[2].Cluster, f.servers[2].Group, f.servers[2].Epoch = true, "cluster", "8" }, true, true, 0},
		"it does not say who it is":      {func(f *fleet) { f.servers[2].RunID = "" }, true, true, fleetGuard},
		"the witness may not be touched": {func(f *fleet) { f.servers[2].Witnessed = false }, true, true, fleetGuard},
	} {
		for _, known := range []bool{true, false} {
			f := newFleet(3)
			p := f.starts(fleetGuard, c.durable, fleetTTL, 0, 1, 2)
			f.now += time.Hour
			f.restart(2, c.disk)
			c.change(f)
			if !known {
				p = f.starts(fleetGuard, c.durable, fleetTTL, 0, 1)
			}
			f.connect(p, 2)
			require.Equal(t, []time.Duration{0, 0, c.want}, f.waits(p), "%s, %v", name, known)
		}
	}
	// What it denies after its restart counts for whoever meets it then, though the witness names that process by now.
	for name, change := range map[string]func(s *conn.Server){
		"nothing":             func(*conn.Server) {},
		"no append-only file": func(s *conn.Server) { s.NoAOF = true },
		"it was a replica":    func(s *conn.Server) { s.ReplID2 = "x" },
	} {
		f := newFleet(3)
		p := f.starts(fleetGuard, true, fleetTTL, 0, 1, 2)
		f.now += time.Hour
		f.restart(2, true)
		f.connect(p, 2)
		require.Zero(t, f.waits(p)[2], name)
		f.now += time.Second
		change(&f.servers[2])
		want := fleetGuard - time.Second
		if name == "nothing" {
			want = 0
		}
		require.Equal(t, want, f.waits(f.starts(fleetGuard, true, fleetTTL, 0, 1, 2))[2], name)
	}
	// A restart forgets that it has refused what it had, was a replica or had no append-only file: the birth does not.
	for _, change := range []func(s *conn.Server, did bool){
		func(s *conn.Server, did bool) { s.Unexpected = did },
		func(s *conn.Server, did bool) { s.NoAOF = did },
		func(s *conn.Server, did bool) {
			if s.ReplID2 = ""; did {
				s.ReplID2 = "x"
			}
		},
	} {
		f := newFleet(3)
		p := f.starts(fleetGuard, true, fleetTTL, 0, 1, 2)
		f.now += time.Hour
		for _, did := range []bool{true, false} {
			f.now += time.Second
			f.restart(2, true)
			change(&f.servers[2], did)
			f.connect(p, 2)
		}
		require.Equal(t, fleetGuard-time.Second, f.waits(p)[2])
		require.Equal(t, fleetGuard-time.Second, f.waits(f.starts(fleetGuard, true, fleetTTL, 0, 1, 2))[2])
	}
}

// A master that comes back with what it was (a backup) is known by those who have known it later.
func TestABackupIsKnownByWhoHasKnownMore(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(fleetGuard, true, fleetTTL, 0, 1, 2)
	backup := f.servers[2].Witness
	f.now += time.Hour
	f.flush(2)
	f.now += time.Hour
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	f.restart(2, true)
	f.servers[2].Witness = backup
	f.connect(p, 2)
	require.Equal(t, fleetGuard, f.waits(p)[2])
	w, _ := parseWitness(f.servers[2].Witness)
	require.EqualValues(t, 3, w.number)
	require.Equal(t, fleetGuard, f.waits(f.starts(fleetGuard, true, fleetTTL, 0, 1, 2))[2], "and tells the others")
}

// with is a server that is changed.
func with(s conn.Server, change func(*conn.Server)) conn.Server {
	change(&s)
	return s
}

// Who has no right to the witness goes by uptime, as clients did before, and by what it has seen.
func TestWithoutTheRightUptimeCounts(t *testing.T) {
	t.Parallel()
	for _, read := range []bool{true, false} {
		f := newFleet(3)
		f.refuse = true
		for i := range f.servers {
			f.servers[i].Witnessed = read
		}
		f.servers[2].Uptime = 20 * time.Second
		p := f.starts(fleetGuard, true, fleetTTL, 0, 1, 2)
		third := 41 * time.Second
		if read { // two had locks by the time, for all that it knows
			third = fleetGuard
		}
		require.Equal(t, []time.Duration{0, 0, third}, f.waits(p))
		third = 0
		if read {
			third = fleetTTL
		}
		require.Equal(t, []time.Duration{0, 0, third}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
		f.now += time.Hour
		f.restart(1, true, p)
		require.Equal(t, []time.Duration{0, fleetGuard, 0}, f.waits(p))
		if read {
			f = newFleet(3)
			f.refuse = true
			g := &Guard{}
			g.Init(3, 0, false, conn.Options{Witness: "{}:since"}, func() time.Duration { return time.Hour }, func() string { return "birth" })
			g.longest.Store(1)
			g.heeded = 1
			g.Connected(0, conn.Server{}, f.servers[0], f.now)
			g.Connected(1, conn.Server{}, f.servers[1], f.now)
			var st mux.Standing
			for i := 1; i >= 0; i-- {
				for st = g.Standing(i); st.Ask != nil; st = g.Standing(i) {
					g.answer(i, f.servers[i], f.now)
				}
			}
			require.True(t, strings.Contains(st.Missing, "~{}:since"), st.Missing)
			require.False(t, st.Withheld)
		}
	}
}

// Whatever a master says of a refusal, only its code is shown.
func TestARefusedWitnessQuotesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	g := f.guards[f.starts(0, false, fleetTTL, 0, 1, 2)]
	var st mux.Standing
	for range 3 { // the first may pass
		g.Push(1, pushWitness, f.now)
		st = g.Standing(1)
		for range st.Replies {
			g.Answered(1, resptest.Parse([]byte("-NOPERM what about hunter2?\r\n")), f.now)
		}
		f.now += time.Hour
	}
	require.Contains(t, st.Missing, "NOPERM")
	require.NotContains(t, st.Missing, "hunter2")
}

// What is under way at an invalidation does not count before the witness was read again.
func TestAYesIsWithheldUntilTheWitnessWasReadAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	g := f.guards[p]
	for _, push := range [][]byte{pushAll, pushWitness} {
		g.Push(1, push, f.now)
		st := g.Standing(1)
		require.True(t, st.Withheld)
		require.NotEmpty(t, st.Ask)
		require.False(t, g.Standing(0).Withheld)
		g.answer(1, f.servers[1], f.now)
		require.False(t, g.Standing(1).Withheld)
	}
	g.Push(1, []byte("k"), f.now)
	require.False(t, g.Standing(1).Withheld, "another key's")
}

// A longer TTL makes quarantines longer, also those that have ended.
func TestALongerTTLMakesAQuarantineLonger(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	f.starts(0, false, time.Second, 0, 1, 2)
	f.restart(2, false)
	p := f.starts(0, false, time.Second, 0, 1, 2)
	f.now += 2 * time.Second
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	f.uses(p, time.Minute)
	require.Equal(t, []time.Duration{0, 0, 58 * time.Second}, f.waits(p))
	require.Equal(t, clock.Forever, -forgotNothing)
}

// Who uses a longer TTL than before does so when the masters have been judged by it.
func TestMastersAreJudgedByALongerTTLBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	g := f.guards[f.starts(0, false, time.Second, 0, 1, 2)]
	judged := 0
	g.raised = func() {
		judged++
		require.Equal(t, time.Minute, g.LongestTTL())
		require.Less(t, g.used.Load(), int64(time.Minute), "who comes meanwhile waits until they are judged, too")
	}
	g.Use(time.Minute)
	require.Equal(t, 1, judged)
	require.Equal(t, time.Minute, g.LongestTTL())
	g.Use(time.Minute)
	g.Use(time.Second)
	require.Equal(t, 1, judged)
}

// A witness that may be read and not written, as on a disk that is full, leaves what was read: a master that voted before
// does so still, and a new one when it has waited.
func TestWhoseWitnessCannotBeWrittenVotes(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	f.now += time.Hour
	f.refuse = true
	f.guards[p].Disconnected(0)
	f.connect(p, 0)
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	f.restart(2, true, p)
	require.Equal(t, []time.Duration{0, 0, fleetTTL}, f.waits(p))
	f.now += fleetTTL
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	f.refuse = false
	f.pass(2 * flushedWithin)
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	w, _ := parseWitness(f.servers[2].Witness)
	require.Equal(t, f.servers[2].RunID, w.run, "it was tried again")
}

// What a client has seen itself counts where no witness tells.
func TestWhoMayHaveForgottenByItsOwnWord(t *testing.T) {
	t.Parallel()
	is := conn.Server{Endpoint: "a", RunID: "r", ReplID: "q", Role: "master", Uptime: time.Hour}
	with := func(change func(*conn.Server)) conn.Server { return with(is, change) }
	slot := with(func(s *conn.Server) { s.Cluster, s.Group, s.Epoch = true, "cluster", "7" })
	for name, c := range map[string]struct {
		before, now conn.Server
		forgot      bool
	}{
		"the first time":                    {conn.Server{}, is, false},
		"it was out of reach":               {is, is, false},
		"another process":                   {is, with(func(s *conn.Server) { s.RunID = "s" }), true},
		"it does not say":                   {is, with(func(s *conn.Server) { s.RunID = "" }), true},
		"it did not say":                    {with(func(s *conn.Server) { s.RunID = "" }), is, true},
		"it never says":                     {with(func(s *conn.Server) { s.RunID = "" }), with(func(s *conn.Server) { s.RunID = "" }), true},
		"it was a replica, as it has said":  {with(func(s *conn.Server) { s.Role = "replica" }), is, true},
		"it was one, as its ids say":        {is, with(func(s *conn.Server) { s.ReplID, s.ReplID2 = "p", "q" }), true},
		"it was copied":                     {is, with(func(s *conn.Server) { s.ReplID = "p" }), false},
		"another was the master meanwhile":  {with(func(s *conn.Server) { s.Endpoint = "b" }), is, true},
		"of a group, again the master":      {is, with(func(s *conn.Server) { s.Group, s.ReplID = "g", "p" }), true},
		"of a cluster":                      {slot, slot, false},
		"of a cluster, another's meanwhile": {slot, func() conn.Server { s := slot; s.Epoch = "8"; return s }(), true},
		"of a cluster, which does not say":  {slot, func() conn.Server { s := slot; s.Epoch = ""; return s }(), true},
	} {
		require.Equal(t, c.forgot, forgot(c.before, c.now) != "", name)
	}
	for name, c := range map[string]struct {
		now conn.Server
		age time.Duration
	}{
		"by its uptime":               {is, time.Hour - time.Second},
		"it was started just now":     {with(func(s *conn.Server) { s.Uptime = 0 }), 0},
		"it was a replica before":     {with(func(s *conn.Server) { s.ReplID2 = "p" }), 0},
		"it does not say who it is":   {with(func(s *conn.Server) { s.RunID = "" }), 0},
		"of a group, for a while":     {with(func(s *conn.Server) { s.Group, s.MasterFor = "g", time.Minute }), time.Minute},
		"of a cluster, nothing tells": {slot, 0},
	} {
		from, _ := (&Guard{}).byUptime(c.now, fleetGuard)
		require.Equal(t, fleetGuard-c.age, from, name)
	}
}

// What a push says has changed.
var pushAll, pushWitness = []byte(nil), []byte("{}:since")

// A client that was connected before anybody had used the masters, and takes its first lock now, has not been told of what
// there was meanwhile, and is gone.
func TestWhoIsIdleReadsAgain(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} { // whether the server tells of changes
		for _, again := range []bool{true, false} { // whether it is connected again
			for _, push := range [][]byte{pushAll, pushWitness} { // a flush, or somebody distrusts it
				f := newFleet(3)
				for i := range f.servers {
					f.servers[i].Tracking = told
				}
				idle := f.starts(0, false, 0, 0, 1, 2)
				p := f.starts(0, false, fleetTTL, 0, 1, 2)
				f.now += time.Hour
				f.write(2, "", push)
				f.guards[p].Disconnected(2)
				if again {
					f.guards[idle].Disconnected(2)
					f.connect(idle, 2)
				}
				f.uses(idle, fleetTTL)
				require.Equal(t, []time.Duration{0, 0, fleetTTL}, f.waits(idle))
			}
		}
	}
}

// By the time who was idle takes a lock, others have left another witness on a master that was flushed, and it says since
// when. What the idle one has known of that master itself ended with the flush, or with its connection.
func TestWhatWasFlushedMeanwhileIsNotBelievedByWhoWasIdle(t *testing.T) {
	t.Parallel()
	for _, guarded := range []time.Duration{0, fleetGuard} {
		for _, cut := range []string{"", "before", "after"} {
			f := newFleet(3)
			p := f.starts(guarded, false, fleetTTL, 0, 1, 2)
			f.pass(time.Minute)
			idle := f.starts(guarded, false, 0, 0, 1, 2)
			for range 2 { // it is idle again and again
				f.pass(time.Hour)
				if cut == "before" {
					f.guards[idle].Disconnected(2)
				}
				f.flush(2)
				if cut == "after" {
					f.guards[idle].Disconnected(2)
				}
				f.pass(2 * flushedWithin)
				if cut != "" {
					f.connect(idle, 2)
				}
				f.pass(2 * flushedWithin)
			}
			f.uses(idle, fleetTTL)
			want := []time.Duration{0, 0, max(guarded, fleetTTL) - 4*flushedWithin}
			require.Equal(t, want, f.waits(p), "%v %s", guarded, cut)
			require.Equal(t, want, f.waits(idle), "%v %s", guarded, cut)
		}
	}
}

// A flush while a witness is being written, which then finds nothing there once more.
func TestAFlushWhileTheWitnessIsWritten(t *testing.T) {
	t.Parallel()
	for guarded, quarantine := range map[time.Duration]time.Duration{0: fleetTTL, fleetGuard: fleetGuard} {
		f := newFleet(3)
		p := f.starts(guarded, false, 0, 0, 1, 2)
		g := f.takes(p, fleetTTL)
		for i := range f.servers {
			require.NotEmpty(t, g.Standing(i).Ask)
		}
		f.now += 500 * time.Millisecond
		g.Push(2, pushAll, f.now)
		for i := range f.servers {
			f.servers[i].Witness = g.places[i].wrote
			g.answer(i, f.servers[i], f.now)
		}
		f.settle()
		f.pass(2 * flushedWithin)
		want := []time.Duration{0, 0, quarantine - 2*flushedWithin}
		require.Equal(t, want, f.waits(p), "guard %v", guarded)
		require.Equal(t, want, f.waits(f.starts(guarded, false, fleetTTL, 0, 1, 2)), "a newcomer, guard %v", guarded)
	}
}

// A test suite flushes masters that have been up for long, and one client takes the first lock. Another hears of the flush as
// it writes its own witness.
func TestAFlushBeforeTheFirstLockIsANewList(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, 0, 0, 1, 2)
	for i := range f.servers {
		f.tracks[p][i] = false // it is idle
	}
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)))
	g := f.takes(p, fleetTTL)
	for i := range f.servers {
		require.NotEmpty(t, g.Standing(i).Ask)
		g.Push(i, pushAll, f.now)
		g.answer(i, f.servers[i], f.now)
	}
	f.settle()
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
}

// A master that has lost all keys is asked who it is, before a yes of it counts: it may have been a replica for a moment, or
// its slot another's, and has the witness that it had. One that has only been flushed is what it was.
func TestWhoHasLostAllKeysSaysWhoItIs(t *testing.T) {
	t.Parallel()
	slot := func(s *conn.Server) { s.Cluster, s.Group, s.Epoch, s.MasterFor = true, "cluster", "7", time.Hour }
	for name, c := range map[string]struct {
		is, becomes func(s *conn.Server)
		denied      bool
		forgot      bool
	}{
		"another database was flushed":        {becomes: func(*conn.Server) {}},
		"it was copied":                       {becomes: func(s *conn.Server) { s.ReplID = "p" }},
		"it was a replica":                    {becomes: func(s *conn.Server) { s.ReplID, s.ReplID2 = "p", "q" }, forgot: true},
		"it is one":                           {becomes: func(s *conn.Server) { s.Role = "slave" }, forgot: true},
		"of a cluster, nothing was":           {is: slot, becomes: func(*conn.Server) {}},
		"of a cluster, another's meanwhile":   {is: slot, becomes: func(s *conn.Server) { s.Epoch = "8" }, forgot: true},
		"of a cluster, which does not say":    {is: slot, becomes: func(s *conn.Server) { s.Epoch = "" }, forgot: true},
		"it lets us not ask any more":         {becomes: func(*conn.Server) {}, denied: true, forgot: true},
		"of a group, it is the master again":  {is: func(s *conn.Server) { s.Group = "g" }, becomes: func(s *conn.Server) { s.ReplID = "p" }, forgot: true},
		"of a group, which has flushed it":    {is: func(s *conn.Server) { s.Group = "g" }, becomes: func(*conn.Server) {}},
		"without the right to the witness":    {is: func(s *conn.Server) { s.Witnessed = false }, becomes: func(*conn.Server) {}},
		"without it, and it was a replica":    {is: func(s *conn.Server) { s.Witnessed = false }, becomes: func(s *conn.Server) { s.ReplID, s.ReplID2 = "p", "q" }, forgot: true},
		"without it, and another's meanwhile": {is: func(s *conn.Server) { slot(s); s.Witnessed = false }, becomes: func(s *conn.Server) { s.Epoch = "8" }, forgot: true},
	} {
		for round := range 2 { // on a master that has been asked before, too
			f := newFleet(3)
			if c.is != nil {
				c.is(&f.servers[2])
			}
			p := f.starts(0, false, fleetTTL, 0, 1, 2)
			g := f.guards[p]
			f.now += time.Hour
			for range round {
				g.Push(2, pushAll, f.now)
				f.settle()
				require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p), name)
			}
			c.becomes(&f.servers[2])
			g.Push(2, pushAll, f.now)
			st := g.Standing(2)
			require.True(t, st.Withheld, name)
			require.NotEmpty(t, st.Ask, name)
			if c.denied {
				g.answered(2, "NOPERM", true, f.now)
			}
			g.answer(2, f.servers[2], f.now)
			f.settle()
			want := []time.Duration{0, 0, 0}
			if c.forgot {
				want[2] = fleetTTL
			}
			require.Equal(t, want, f.waits(p), name)
			f.guards[p].Disconnected(2)
			f.now += time.Second
			if c.is == nil && f.servers[2].Role == "master" {
				want[2] -= time.Second * time.Duration(min(1, want[2]))
				require.Equal(t, want, f.waits(f.starts(0, false, fleetTTL, 0, 1, 2)), "%s: and so it is for who comes", name)
			}
		}
	}
}

// A master that cannot be asked for its witness for a moment, as a script is running there, is asked again. If that is
// refused as well, it is believed as far as we have seen ourselves.
func TestAWitnessThatCannotBeReadForAMoment(t *testing.T) {
	t.Parallel()
	for _, push := range [][]byte{pushAll, pushWitness} {
		for _, passes := range []bool{true, false} {
			f := newFleet(3)
			p := f.starts(0, false, fleetTTL, 0, 1, 2)
			g := f.guards[p]
			f.now += time.Hour
			busy := func() {
				for range g.places[2].asked {
					if g.places[2].asked[0] == asksWitness {
						g.answered(2, "BUSY", true, f.now)
					} else {
						g.answered(2, fmt.Sprintf("role:master\r\nmaster_replid:%s\r\n", f.servers[2].ReplID), false, f.now)
					}
				}
			}
			for range 3 { // what has passed is forgotten
				g.Push(2, push, f.now)
				require.NotEmpty(t, g.Standing(2).Ask)
				busy()
				st := g.Standing(2)
				require.True(t, st.Withheld)
				require.Empty(t, st.Ask, "not at once")
				f.now += 2 * flushedWithin
				g.at = f.now
				g.step()
				st = g.Standing(2)
				require.NotEmpty(t, st.Ask)
				if !passes {
					break
				}
				g.answer(2, f.servers[2], f.now)
				require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
			}
			if passes {
				continue
			}
			busy()
			f.pass(2 * flushedWithin)
			require.Equal(t, []time.Duration{0, 0, fleetTTL - 2*flushedWithin}, f.waits(p), "it may have been flushed")
		}
	}
}

// A master whose disk is full, so that no witness can be written, and that is flushed then.
func TestAFlushWhereNoWitnessCanBeWritten(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	f.now += time.Hour
	f.refuse = true
	f.restart(2, true, p)
	f.now += fleetTTL
	require.Equal(t, []time.Duration{0, 0, 0}, f.waits(p))
	f.servers[2].Witness = ""
	f.guards[p].Push(2, pushAll, f.now)
	require.True(t, f.guards[p].Standing(2).Withheld)
}

// Two clients find that a slot was another's for a moment, and each leaves a witness of a new birth. The other's is no flush:
// the only master would be one of a new list then, which has forgotten nothing.
func TestANewBirthIsNoFlush(t *testing.T) {
	t.Parallel()
	f := newFleet(1)
	f.servers[0].Cluster, f.servers[0].Group, f.servers[0].Epoch, f.servers[0].MasterFor = true, "cluster", "7", time.Hour
	a, b := f.starts(0, false, fleetTTL, 0), f.starts(0, false, fleetTTL, 0)
	for _, epoch := range []string{"8", "9"} {
		f.now += time.Hour
		f.servers[0].Epoch = epoch
		for range 2 { // one after the other: each leaves its own
			for _, p := range []int{a, b} {
				require.NotPanics(t, func() {
					f.guards[p].Push(0, pushAll, f.now)
					f.settle()
					f.guards[p].Disconnected(0)
					f.connect(p, 0)
				})
			}
		}
		f.pass(2 * flushedWithin)
		for _, p := range []int{a, b, f.starts(0, false, fleetTTL, 0)} {
			require.Equal(t, []time.Duration{fleetTTL - 2*flushedWithin}, f.waits(p))
		}
		f.now += fleetTTL
		require.Equal(t, []time.Duration{0}, f.waits(a))
	}
}

// What a master has said yes to before it has lost its keys is told the mux, once: a new list would make it count.
func TestTheMuxIsToldOfALoss(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	g := f.guards[p]
	for range 2 {
		require.False(t, g.Standing(2).Forgot)
		g.Push(2, pushWitness, f.now)
		require.False(t, g.Standing(2).Forgot, "it has its keys")
		f.settle()
		f.servers[2].Witness = ""
		g.Push(2, pushAll, f.now)
		require.True(t, g.Standing(2).Forgot)
		require.False(t, g.Standing(2).Forgot)
		f.settle()
		require.False(t, g.Standing(2).Forgot, "what it has said since counts")
		f.now += time.Hour
	}
}

// A master that said that the list is used, and is down now, has said it.
func TestWhoSaidUsedMayBeDown(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 2)
	f.guards[p].Disconnected(2)
	f.flush(2)
	q := f.starts(0, false, 0, 0, 1, 2)
	f.guards[q].Disconnected(0)
	f.uses(q, fleetTTL)
	require.Equal(t, []time.Duration{fleetTTL, fleetTTL}, f.waits(q)[1:])
}

// A master loses its keys, and lets its witness not be read, before this client has found the list in use.
func TestALossWhereTheWitnessCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, 0, 0, 1, 2)
	f.now += time.Hour
	g := f.takes(p, fleetTTL)
	deny := func() {
		require.NotEmpty(t, g.Standing(1).Ask)
		for range g.places[1].asked {
			q := g.places[1].asked[0]
			g.answered(1, fmt.Sprintf("role:master\r\nmaster_replid:%s\r\n", f.servers[1].ReplID), q == asksWitness, f.now)
		}
	}
	deny()
	g.Push(1, pushAll, f.now)
	deny()
	f.settle()
	require.Equal(t, fleetTTL, f.waits(p)[1])
}

// A disk is full, so that the witness cannot be written, and then it cannot be read either: it is not asked for ever.
func TestWhatCanBeNeitherWrittenNorReadIsNotAskedForEver(t *testing.T) {
	t.Parallel()
	f := newFleet(3)
	p := f.starts(0, false, fleetTTL, 0, 1, 2)
	g := f.guards[p]
	f.now += time.Hour
	f.refuse = true
	f.restart(2, true, p)
	f.now += 2 * flushedWithin
	g.at = f.now
	g.step()
	for asked := 0; g.Standing(2).Ask != nil; asked++ {
		require.Less(t, asked, 3)
		for range g.places[2].asked {
			g.answered(2, "BUSY", true, f.now)
		}
	}
}

// A client meets a master that nobody has met, and one that was flushed. Another has a lock by that one and the third, which
// says so. That the two are the first there counts for nothing.
func TestNobodyIsTheFirstInAUsedList(t *testing.T) {
	t.Parallel()
	const late = 2 * flushedWithin
	set := func(ask bool) (f *fleet, holder, other int) {
		f = newFleet(3)
		other = f.starts(0, false, 0)
		if ask { // it is connected before anybody takes a lock
			f.connect(other, 0, 1, 2)
		}
		holder = f.starts(0, false, fleetTTL, 1, 2)
		f.now += time.Hour
		return f, holder, other
	}
	for name, meets := range map[string]func() (f *fleet, process int){
		"an idle client, which reads again": func() (*fleet, int) {
			f, holder, q := set(true)
			f.guards[holder].Disconnected(1)
			f.write(1, "", pushAll)
			g := f.takes(q, fleetTTL)
			for i := range 2 {
				require.True(t, f.speak(q, i))
				require.Nil(t, g.Standing(i).Ask, "it waits for what the third says")
			}
			return f, q
		},
		"the holder sees the flush, and that another was faster": func() (*fleet, int) {
			f, holder, q := set(false)
			f.write(1, "", pushAll)
			g := f.takes(q, fleetTTL)
			for i := range 2 {
				g.Connected(i, conn.Server{}, f.servers[i], f.now)
			}
			for i := range 2 {
				require.True(t, f.speak(q, i))
				require.Contains(t, f.servers[i].Witness, "first")
				g.Disconnected(i)
			}
			f.settle()
			f.pass(late)
			require.Positive(t, f.waits(holder)[1])
			f.connect(holder, 0)
			return f, f.starts(0, false, fleetTTL, 0, 1, 2)
		},
	} {
		f, process := meets()
		f.settle()
		f.pass(late)
		waits := f.waits(process)
		require.Positive(t, waits[1], name)
		require.GreaterOrEqual(t, waits[1], fleetTTL-2*late, name)
		require.Zero(t, waits[2], name)
	}
}

// Of two clients one takes flushes for one of all, and the other, which came in between, does not: they do not write in turn.
func TestTwoWhoDifferAboutAFlushAgree(t *testing.T) {
	t.Parallel()
	for again := range 3 {
		f := newFleet(3)
		p := f.starts(0, false, fleetTTL, 0, 1, 2)
		for i := range 3 {
			f.now += time.Second
			f.flush(i)
		}
		q := f.starts(0, false, fleetTTL, 0, 1, 2)
		f.now += time.Second
		require.NotPanics(t, func() { f.flush(again) }, "they come to an end")
		f.pass(2 * flushedWithin)
		for _, process := range []int{p, q, f.starts(0, false, fleetTTL, 0, 1, 2)} {
			require.Equal(t, fleetTTL-2*flushedWithin, f.waits(process)[again].Round(time.Second), "%d, %d", again, process)
		}
	}
}
