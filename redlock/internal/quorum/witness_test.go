package quorum

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

func TestAWitnessIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, w := range []witness{
		{run: "a", repl: "b", epoch: "-", since: stamp{1, 2}, number: 3, birth: "c", born: stamp{4, 5}},
		{run: "a", repl: "-", epoch: "7", birth: "c", first: true},
		{run: "a", repl: "-", epoch: "7", birth: "c", used: true},
		{run: "a", repl: "-", epoch: "7", birth: "c", first: true, used: true},
	} {
		read, ok := parseWitness(w.String())
		require.True(t, ok)
		require.Equal(t, w, read)
	}
	for _, text := range []string{"", "1", "2 a b - 1 2 3 c 4 5 -", "1 a b - 1 2 3 c 4 5", "1 a b - 1 2 3 c 4 5 - -", "1 a b - x 2 3 c 4 5 -", "1 a b - 1 -2 3 c 4 5 -"} {
		_, ok := parseWitness(text)
		require.False(t, ok, text)
	}
}

// Another replication id says that the process was a replica in between only beside a second one: redis-cli --rdb gives
// a master a new one. In a group, and in a cluster, the second one may be lost again.
func TestWhomAWitnessNames(t *testing.T) {
	t.Parallel()
	s := conn.Server{RunID: "a", ReplID: "r"}
	var w witness
	w.setProcess(s)
	require.True(t, w.names(s))
	with := func(change func(*conn.Server)) conn.Server { c := s; change(&c); return c }
	for name, c := range map[string]struct {
		is   bool
		said conn.Server
	}{
		"another process":            {false, with(func(s *conn.Server) { s.RunID = "b" })},
		"it was copied":              {true, with(func(s *conn.Server) { s.ReplID = "q" })},
		"it was promoted":            {false, with(func(s *conn.Server) { s.ReplID, s.ReplID2 = "q", "p" })},
		"it was promoted, before":    {true, with(func(s *conn.Server) { s.ReplID2 = "p" })},
		"of a group, again a master": {false, with(func(s *conn.Server) { s.ReplID, s.Group = "q", "g" })},
		"of a cluster, likewise":     {false, with(func(s *conn.Server) { s.ReplID, s.Cluster = "q", true })},
		"of a cluster, with slots":   {false, with(func(s *conn.Server) { s.Epoch, s.Cluster = "8", true })},
	} {
		require.Equal(t, c.is, w.names(c.said), name)
	}
}

// Either clock may be wrong, or set later: what has passed is the lesser of two differences.
func TestTheAgeOfAStampIsTheLesserOfTwo(t *testing.T) {
	t.Parallel()
	const wall = 20000 * 24 * time.Hour
	at := clocks{wall: wall, ahead: time.Millisecond, within: time.Millisecond, known: true}
	s := at.stamp(0)
	after := func(d, master, client time.Duration) time.Duration {
		c := at
		c.wall += d + client
		c.ahead += master - client
		return c.age(s)
	}
	require.InDelta(t, time.Minute, after(time.Minute, 0, 0), float64(2*time.Millisecond))
	require.InDelta(t, time.Minute, after(time.Minute, time.Hour, 0), float64(2*time.Millisecond), "the master's was set forward")
	require.InDelta(t, time.Minute, after(time.Minute, 0, time.Hour), float64(2*time.Millisecond), "the client's is ahead")
	require.Zero(t, after(time.Minute, -time.Hour, 0))
	require.Zero(t, after(time.Minute, 0, -time.Hour))
	require.InDelta(t, time.Minute, at.age(at.stamp(time.Minute)), float64(2*time.Millisecond))
	silent := at
	silent.known = false
	require.Equal(t, time.Minute, silent.age(silent.stamp(time.Minute)), "Redis 6.0 does not tell its time")
	require.Zero(t, silent.stamp(0).master)

	require.False(t, s.off())
	wrong := at
	wrong.wall, wrong.ahead = wall+time.Hour, -time.Hour
	require.True(t, wrong.stamp(0).off())
	require.False(t, wrong.agree())
	require.True(t, at.agree())
	require.False(t, silent.agree())
}
