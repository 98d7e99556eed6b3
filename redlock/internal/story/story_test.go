package story_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	ttl     = 5 * time.Minute
	hanging = 20 * time.Second
)

// A scene is what a story is made in.
type scene struct {
	*testing.T
	masters *redlocktest.Masters
	actors  []*actor
}

// An actor is a client that is recorded.
type actor struct {
	*redlock.Client
	scene *scene
	name  string
	rec   *flight.Recorder
	held  *redlock.Mutex
}

func newScene(t *testing.T, n int, opts ...redlocktest.Option) *scene {
	t.Helper()
	t.Parallel()
	return &scene{T: t, masters: redlocktest.Start(t, n, opts...)}
}

// actor makes a client of the masters of that number that are up; all if none is given.
func (s *scene) actor(name string, change func(*redlock.Config)) *actor {
	s.Helper()
	rec, err := flight.New(flight.Options{Size: 1 << 20})
	require.NoError(s, err)
	cfg := redlock.Config{Masters: s.masters.Addrs(), Owner: name, DialTimeout: 10 * time.Second, RoundTimeout: 10 * time.Second, StallTime: 10 * time.Second}
	if change != nil {
		change(&cfg)
	}
	cfg, err = rec.Attach(cfg)
	require.NoError(s, err)
	c, err := redlock.Open(s.Context(), cfg)
	require.NoError(s, err)
	a := &actor{Client: c, scene: s, name: name, rec: rec}
	s.actors = append(s.actors, a)
	s.Cleanup(func() { c.Close(); rec.Close() })
	return a
}

// sees waits until the actor sees that so many masters are up.
func (a *actor) sees(up int) *actor {
	a.scene.Helper()
	require.Eventually(a.scene, func() bool {
		n := 0
		for _, m := range a.Stats().Masters {
			if m.Phase == redlock.PhaseUp {
				n++
			}
		}
		return n == up
	}, hanging, 5*time.Millisecond)
	return a
}

// takes takes a lock.
func (a *actor) takes(key string, ttl time.Duration, opts ...redlock.Option) {
	a.scene.Helper()
	a.held = a.NewMutex(key, ttl, opts...)
	require.Eventually(a.scene, func() bool { return a.held.TryLock(a.scene.Context()) == nil }, hanging, time.Millisecond)
}

func (a *actor) releases() {
	a.scene.Helper()
	require.NoError(a.scene, a.held.Unlock(a.scene.Context()))
}

// isTold is told by its release that it has lost the lock, and waits until the masters were asked who they are.
func (a *actor) isTold() {
	a.scene.Helper()
	require.ErrorIs(a.scene, a.held.Unlock(a.scene.Context()), redlock.ErrNotHeld)
	a.asked()
}

func (a *actor) asked() {
	a.scene.Helper()
	require.Eventually(a.scene, func() bool {
		n := 0
		for e := range a.record().Events() {
			if e.Kind == flight.KindAsked {
				n++
			}
		}
		return n >= a.scene.masters.N()
	}, hanging, 5*time.Millisecond)
}

func (a *actor) record() *flight.Record {
	a.scene.Helper()
	var b bytes.Buffer
	_, err := a.rec.WriteTo(&b)
	require.NoError(a.scene, err)
	r, err := flight.Read(&b)
	require.NoError(a.scene, err)
	return r
}

// tell tells the story.
func (s *scene) tell() *story.Story {
	s.Helper()
	var sources []story.Source
	for _, a := range s.actors {
		sources = append(sources, story.Source{Name: a.name + ".flight", Record: a.record()})
	}
	return story.Tell(sources, 300*time.Millisecond)
}

var (
	timeOfDay = regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`)
	duration  = regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(µs|ms|s|m|h)\b`)
	masters   = regexp.MustCompile(`master-.(, master-.)*( and master-.)?`)
	spite     = regexp.MustCompile(`, in spite of .*? \[masters\]\. It`)
	fence     = regexp.MustCompile(`fence \d+`)
)

// golden compares what is remarkable, and the story of the key, with a file. Times are of no interest there.
func (s *scene) golden(told *story.Story, key string) {
	s.Helper()
	var b strings.Builder
	b.WriteString("What is remarkable:\n\n")
	for _, f := range told.Findings {
		if f.Matter != story.Away && f.Matter != story.Refusal { // which are seen sooner or later
			b.WriteString(story.Line{At: f.At, Text: f.Text}.String() + "\n")
		}
	}
	fmt.Fprintf(&b, "\nThe story of %q:\n\n", key)
	for _, line := range told.Of(key) {
		if !line.Mark && !strings.Contains(line.Text, " refused") { // that comes as often as it likes
			b.WriteString(line.String() + "\n")
		}
	}
	text := b.String()
	for i, addr := range s.masters.Addrs() {
		text = strings.ReplaceAll(text, addr, fmt.Sprintf("master-%c", 'a'+i))
	}
	text = duration.ReplaceAllString(timeOfDay.ReplaceAllString(text, "hh:mm:ss"), "[time]")
	text = masters.ReplaceAllString(text, "[masters]")
	text = spite.ReplaceAllString(text, ". It")
	text = fence.ReplaceAllString(text, "fence [number]")
	host, _ := os.Hostname()
	text = strings.ReplaceAll(text, host+" (", "[host] (")
	name := filepath.Join("testdata", strings.TrimPrefix(s.Name(), "Test")+".txt")
	if *update {
		require.NoError(s, os.WriteFile(name, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(name)
	require.NoError(s, err)
	require.Equal(s, string(want), text)
}

// causes returns the causes of the findings of a matter.
func causes(told *story.Story, m story.Matter) (all []story.Cause) {
	for _, f := range told.Findings {
		if f.Matter == m {
			all = append(all, f.Cause)
		}
	}
	return all
}

// onThree has the first actor take the lock on masters 0 to 2, as the others cannot be reached.
func (s *scene) onThree() *actor {
	s.Helper()
	s.masters.Break(3)
	s.masters.Break(4)
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	return first
}

// A master of the quorum restarts without its keys, and votes at once for another.
func TestMasterForgets(t *testing.T) {
	s := newScene(t, 5, redlocktest.WithLinks())
	first := s.onThree()
	s.masters.Restart(2)
	s.masters.Heal(3)
	s.masters.Heal(4)
	second := s.actor("second", nil).sees(5)
	second.takes("k", ttl)
	second.releases()
	require.Error(t, first.held.Unlock(t.Context()))
	told := s.tell()
	require.Equal(t, []story.Cause{story.Forgot}, causes(told, story.Overlap))
	s.golden(told, "k")
}

// The clock of a master jumps, and the key ends before its time.
func TestClockJumps(t *testing.T) {
	s := newScene(t, 3, redlocktest.WithClocks())
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	second := s.actor("second", nil).sees(3)
	s.masters.Jump(0, time.Hour)
	s.masters.Jump(1, time.Hour)
	second.takes("k", ttl)
	first.isTold()
	told := s.tell()
	require.Equal(t, []story.Cause{story.ClockSet}, causes(told, story.Overlap))
	s.golden(told, "k")
}

// Somebody deletes the keys.
func TestKeysAreDeleted(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	second := s.actor("second", nil).sees(3)
	for i := range 3 {
		_, err := s.masters.Do(i, "FLUSHALL")
		require.NoError(t, err)
	}
	second.takes("k", ttl)
	second.releases()
	first.isTold()
	told := s.tell()
	require.Equal(t, []story.Cause{story.Deleted}, causes(told, story.Overlap))
	s.golden(told, "k")
}

// Two clients have two lists.
func TestListsDiffer(t *testing.T) {
	s := newScene(t, 6)
	first := s.actor("first", func(cfg *redlock.Config) { cfg.Masters = cfg.Masters[:3] }).sees(3)
	first.takes("k", ttl)
	second := s.actor("second", func(cfg *redlock.Config) { cfg.Masters = cfg.Masters[3:] }).sees(3)
	second.takes("k", ttl)
	second.releases()
	first.releases()
	told := s.tell()
	require.Equal(t, []story.Cause{story.TwoLists}, causes(told, story.Overlap))
	s.golden(told, "k")
}

// A holder goes on when its lock is over, as if it had been frozen.
func TestHolderIsFrozen(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", nil).sees(3)
	first.takes("k", 300*time.Millisecond)
	second := s.actor("second", nil).sees(3)
	second.takes("k", ttl)
	second.releases()
	first.isTold()
	told := s.tell()
	require.Empty(t, causes(told, story.Overlap))
	require.Equal(t, []story.Cause{story.Frozen}, causes(told, story.Late))
	s.golden(told, "k")
}

// A loss is that of the lock that was lost, and not of those that the client has had of the key before.
func TestLossIsOfOneLock(t *testing.T) {
	s := newScene(t, 3)
	first, second := s.actor("first", nil).sees(3), s.actor("second", nil).sees(3)
	first.takes("k", 100*time.Millisecond) // and does not release it
	second.takes("k", ttl)
	second.releases()
	first.takes("k", ttl)
	held, stop := first.held.KeepAlive(t.Context())
	defer stop()
	require.NoError(t, second.Revoke(t.Context(), "k", "it must not run at noon"))
	require.ErrorIs(t, first.held.Extend(t.Context()), redlock.ErrRevoked)
	<-held.Done()
	told := s.tell()
	require.Empty(t, causes(told, story.Late))
	require.Equal(t, []story.Cause{story.Revoked}, causes(told, story.Loss))
}

// An operator takes a lock away.
func TestLockIsRevoked(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	held, stop := first.held.KeepAlive(t.Context())
	defer stop()
	require.NoError(t, first.Revoke(t.Context(), "k", "it must not run at noon"))
	require.ErrorIs(t, first.held.Extend(t.Context()), redlock.ErrRevoked)
	<-held.Done()
	require.Error(t, first.held.Unlock(t.Context()))
	told := s.tell()
	require.Equal(t, []story.Cause{story.Revoked}, causes(told, story.Loss))
	s.golden(told, "k")
}

// A minority is restarted: nothing is lost.
func TestMinorityRestarts(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	s.masters.Restart(1)
	first.sees(2)
	require.NoError(t, first.held.Extend(t.Context()))
	first.releases()
	told := s.tell()
	for _, m := range []story.Matter{story.Overlap, story.Late, story.Loss} {
		require.Empty(t, causes(told, m))
	}
	require.NotEmpty(t, causes(told, story.Away))
}

// One waits for another.
func TestOneWaits(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", nil).sees(3)
	first.takes("k", ttl)
	second := s.actor("second", nil).sees(3)
	done := make(chan error, 1)
	second.held = second.NewMutex("k", ttl)
	go func() { done <- second.held.Lock(t.Context()) }()
	waiting := func() bool { return second.Stats().Waiting > 0 }
	require.Eventually(t, waiting, hanging, time.Millisecond)
	began := time.Now()
	require.Eventually(t, func() bool { return time.Since(began) > 400*time.Millisecond }, hanging, 10*time.Millisecond)
	first.releases()
	require.NoError(t, <-done)
	second.releases()
	told := s.tell()
	require.Len(t, causes(told, story.Waiting), 1)
	s.golden(told, "k")
}

// The masters are gone when a lock is to be had.
func TestMastersAreAway(t *testing.T) {
	s := newScene(t, 3)
	first := s.actor("first", func(cfg *redlock.Config) { cfg.RoundTimeout = 100 * time.Millisecond }).sees(3)
	s.masters.Kill(0)
	s.masters.Kill(1)
	first.sees(1)
	m := first.NewMutex("k", ttl)
	require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrNoQuorum)
	require.Eventually(t, func() bool { return len(causes(s.tell(), story.Away)) == 2 }, hanging, 5*time.Millisecond)
	told := s.tell()
	require.Len(t, causes(told, story.Refusal), 1)
	require.Contains(t, told.Remarkable()[0].Text, "was down")
}

// Nothing has happened.
func TestSoundRun(t *testing.T) {
	s := newScene(t, 3)
	first, second := s.actor("first", nil).sees(3), s.actor("second", nil).sees(3)
	for range 20 {
		first.takes("k", ttl, redlock.WithFence())
		require.Error(t, second.NewMutex("k", ttl).TryLock(t.Context()))
		first.releases()
		second.takes("k", ttl, redlock.WithFence())
		second.releases()
		for _, opt := range []redlock.Option{redlock.WithShared(), redlock.WithPermits(2)} {
			first.takes("many", ttl, opt)
			second.takes("many", ttl, opt)
			first.releases()
			second.releases()
		}
		ctx, cancel := context.WithTimeout(t.Context(), hanging)
		require.NoError(t, first.Do(ctx, "k", ttl, func(context.Context) error { return nil }))
		cancel()
	}
	told := s.tell()
	require.Empty(t, told.Findings, "%v", told.Findings)
	require.Len(t, told.Holds, 20*7)
	require.True(t, slices.IsSortedFunc(told.Holds, func(a, b *story.Hold) int { return a.Taken.Compare(b.Taken) }))
}
