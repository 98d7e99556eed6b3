package mux

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// A master that completes each handshake, and then answers nothing, is dialled ever less often. One that
// has answered meanwhile is dialled as any other.
func TestSilentMasterIsDialledEverLessOften(t *testing.T) {
	t.Parallel()
	cfg := Config{StallTime: time.Second, BackoffMax: time.Second}
	s := slot{lastReply: time.Minute, since: time.Hour}
	ends := func(phase Phase, lasted time.Duration) time.Duration {
		s.pause = 10 * time.Millisecond
		s.backOff(phase, s.since+lasted, &cfg)
		return s.pause
	}
	require.Zero(t, ends(Down, time.Second))
	require.Equal(t, 10*time.Millisecond, ends(Down, time.Second-1))
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 32} {
		require.Equal(t, want*time.Second, ends(Stalled, 2*time.Second))
	}
	require.Equal(t, 32*time.Second, ends(Down, time.Hour), "it has answered nothing since")
	s.lastReply = s.since
	require.Equal(t, 10*time.Millisecond, ends(Stalled, time.Hour), "it has answered")
	require.Zero(t, ends(Down, time.Hour))
}

// A refused operation looks again when the next of those that it waits for is late, and waits as long as one that may be
// the first in the order has not answered, and is not late.
func TestWhoIsWaitedForOnceNoYesIsPossible(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		votes     string           // of a, b, c in the order of all: yes, no, pending
		rtt       [3]time.Duration // the least round trip of each
		now, want time.Duration    // since the operation began
	}{
		{"pnn", [3]time.Duration{}, 0, 50 * ms},
		{"pnn", [3]time.Duration{40 * ms}, 0, 80 * ms},
		{"npn", [3]time.Duration{}, 0, 0},
		{"ynp", [3]time.Duration{}, 0, 50 * ms},
		{"ypp", [3]time.Duration{0, 100 * ms, 40 * ms}, 0, 80 * ms},
		{"ypp", [3]time.Duration{0, 100 * ms, 40 * ms}, 80 * ms, 200 * ms},
		{"ppn", [3]time.Duration{0, 100 * ms}, 0, 50 * ms},
		{"ppn", [3]time.Duration{0, 100 * ms}, 50 * ms, 200 * ms},
		{"pnp", [3]time.Duration{0, 0, 100 * ms}, 0, 50 * ms},
		{"pnp", [3]time.Duration{0, 0, 100 * ms}, 50 * ms, 50 * ms}, // the next has said no; what has arrived is read
		{"pnn", [3]time.Duration{}, 60 * ms, 60 * ms},
		{"ynn", [3]time.Duration{}, 0, 0},
	} {
		m, op := Mux{slots: make([]slot, 3)}, Op{Started: time.Hour}
		for i := range m.slots {
			m.slots[i].state.Addr, m.slots[i].leastRTT = string(rune('a'+i)), c.rtt[i]
			op.Asked = op.Asked.With(i)
			op.Votes = append(op.Votes, Vote{Verdict: map[byte]Verdict{'y': VerdictYes, 'n': VerdictNo, 'p': VerdictPending}[c.votes[i]]})
		}
		want := c.want
		if want != 0 {
			want += op.Started
		}
		require.Equal(t, want, m.leadUntil(&op, op.Started+c.now), c)
	}
}

// An OnState that hangs keeps a bounded number of changes waiting. The oldest are left out, which is counted; the others
// are told in order.
func TestChangesWaitForAnOnStateThatHangs(t *testing.T) {
	t.Parallel()
	const more = 100
	hang := make(chan struct{})
	var told []Phase
	m := Mux{slots: make([]slot, 2)}
	m.cfg.OnState = func(master int, s State) {
		<-hang
		require.Equal(t, 1, master)
		told = append(told, s.Phase)
	}
	m.mu.Lock()
	m.setPhase(1, Up, nil)
	m.mu.Unlock()
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.stateChanges) == 0
	}, time.Minute, time.Millisecond, "the first is being told")
	m.mu.Lock()
	for i := range mostChanges + more {
		m.setPhase(1, []Phase{Stalled, Down}[i%2], nil)
	}
	require.Len(t, m.stateChanges, mostChanges)
	require.Equal(t, uint64(more), m.slots[1].snapshot().Untold)
	require.Zero(t, m.slots[0].snapshot().Untold)
	m.mu.Unlock()
	close(hang)
	m.wg.Wait()
	require.Len(t, told, 1+mostChanges)
	require.Equal(t, []Phase{Up, Stalled, Down}, told[:3])
	require.Equal(t, Down, told[mostChanges])
}

// A hiccup in the first reply on a connection is no round trip: what takes four times as long is late.
func TestTheHandshakeBoundsTheRoundTrip(t *testing.T) {
	for _, c := range []struct{ handshake, first, least time.Duration }{
		{3 * time.Millisecond, 700 * time.Millisecond, 3 * time.Millisecond},
		{3 * time.Millisecond, time.Millisecond, time.Millisecond},
		{0, 2 * time.Millisecond, 2 * time.Millisecond}, // INFO was denied
	} {
		s := &slot{}
		s.state.Server.Within = c.handshake
		s.noteRoundTrip(c.first)
		require.Equal(t, c.least, s.leastRTT)
		s.noteRoundTrip(time.Hour)
		require.Equal(t, c.least, s.leastRTT)
		s.noteRoundTrip(time.Microsecond)
		require.Equal(t, time.Microsecond, s.leastRTT)
	}
}

// A majority's word about the master of a slot counts from when it was asked, if that was on this connection. Before it, the
// slot may have been another's.
func TestAWordFromBeforeTheConnectionConfirmsNothing(t *testing.T) {
	t.Parallel()
	const since, trusted = time.Hour, time.Hour + time.Second
	for name, c := range map[string]struct {
		said conn.SlotOwner
		want time.Duration
	}{
		"of this connection": {conn.SlotOwner{Endpoint: "a", Confirmed: since, Epoch: "7"}, since + conn.SlotTrust},
		"from before it":     {conn.SlotOwner{Endpoint: "a", Confirmed: since - 1, Epoch: "7"}, trusted},
		"of another":         {conn.SlotOwner{Endpoint: "b", Confirmed: since, Epoch: "7"}, trusted},
		"of nobody":          {conn.SlotOwner{Endpoint: "a", Epoch: "7"}, trusted},
	} {
		m := &Mux{slots: []slot{{link: new(link), since: since, trustedUntil: trusted, known: conn.Server{Endpoint: "a", Epoch: "7"}}}}
		for range 2 {
			m.confirm(0, c.said)
			require.Equal(t, c.want, m.slots[0].trustedUntil, name)
		}
		m.slots[0].link = nil
		m.confirm(0, conn.SlotOwner{Endpoint: "a", Confirmed: since + time.Second, Epoch: "7"})
		require.Equal(t, c.want, m.slots[0].trustedUntil, "nobody is connected")
	}
}

// Sentinels that name another place before the dialer has begun its pause are heard all the same.
func TestADialerThatIsAboutToPauseDoesNot(t *testing.T) {
	t.Parallel()
	const long = 24 * time.Hour
	m, err := New(Config{Masters: []string{"sentinel://127.0.0.1:1/g"}, BackoffMin: long, BackoffMax: long, Conn: conn.Options{
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("out of reach") },
	}})
	require.NoError(t, err)
	defer m.Close()
	s := &m.slots[0]
	const was, is = "10.0.0.1:1", "10.0.0.2:1"
	for _, of := range [][2]string{{was, ""}, {"", was}, {is, was}, {"", ""}} { // the group itself may have said where the last dial went, or nothing
		known, dialled := of[0], of[1]
		m.mu.Lock()
		if s.known.Endpoint, s.moved, s.dialledAt, s.endDial = known, "", dialled, nil; dialled != "" {
			s.endDial = func() {}
		}
		m.startDial(0, long)
		m.named(0, is)
		m.mu.Unlock()
		require.Eventually(t, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return s.endDial != nil && s.dialledAt == ""
		}, time.Minute, time.Millisecond, "it dials: known %q, dialled %q", known, dialled)
	}
}

// The sentinels name another place while a dial goes on, and then the one that they had named before. The dial is at the other, so it
// ends, and its connection is not taken.
func TestADialAtAPlaceThatWasNamedMeanwhileEnds(t *testing.T) {
	t.Parallel()
	const place, other = "10.0.0.1:1", "10.0.0.2:1"
	ended := 0
	m := &Mux{slots: []slot{{moved: place, dialer: 1, endDial: func() { ended++ }, elsewhere: make(chan struct{}, 1)}}}
	began := m.slots[0].moves
	m.named(0, other)
	m.named(0, place)
	m.dialGoesOn(0, 1, began, place, nil)
	require.Zero(t, ended)
	m.dialGoesOn(0, 1, began, other, nil)
	require.Equal(t, 1, ended)
	require.ErrorIs(t, m.install(0, new(conn.Conn), 0, began, 1), ErrSwitched)
}
