package story_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

// brokenSecond is a second system whose answer is an error, or a lock that ends when told to.
type brokenSecond struct {
	err  error
	ctx  context.Context
	over context.CancelFunc
}

func (s *brokenSecond) TryLock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.Lock(ctx, key)
}

func (s *brokenSecond) Lock(context.Context, string) (redlock.SecondLock, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.ctx, s.over = context.WithCancel(context.Background())
	return s, nil
}

func (s *brokenSecond) Context() context.Context     { return s.ctx }
func (s *brokenSecond) Fence() uint64                { return 1 }
func (s *brokenSecond) Unlock(context.Context) error { return nil }

// A lock that was given back without an Unlock was not had by two.
func TestALockThatIsGivenBackOverlapsNone(t *testing.T) {
	for name, second := range map[string]*brokenSecond{"not to be had": {err: errors.New("it is down")}, "lost": {}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 3)
			first, next := s.actor("first", nil).sees(3), s.actor("next", nil).sees(3)
			m := first.NewMutex("k", ttl, redlock.WithSecond(second))
			err := m.TryLock(t.Context())
			if second.err != nil {
				require.ErrorIs(t, err, redlock.ErrSecond)
			} else {
				require.NoError(t, err)
				second.over()
			}
			next.takes("k", ttl)
			require.NoError(t, first.NewMutex("other", ttl).TryLock(t.Context())) // its record goes on
			told := s.tell()
			require.Empty(t, causes(told, story.Overlap), told.Findings)
		})
	}
}

// A holder relied on its lock until it called Unlock, also where its record does not say how the release has ended.
func TestAHolderThatLetsGoOverlapsNone(t *testing.T) {
	first := forgery{name: "first", boot: "one"}.of(t, took(1, 1), letGo(2, 1))
	next := forgery{name: "next", boot: "one"}.of(t, took(3, 2))
	told := tellOf(first, next)
	require.Empty(t, causes(told, story.Overlap), told.Findings)
	require.Equal(t, story.Released, told.Holds[0].End)
	require.WithinRange(t, told.Holds[0].Ended, told.Holds[0].Taken, told.Holds[1].Taken)
}
