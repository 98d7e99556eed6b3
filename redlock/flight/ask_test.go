package flight

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A stranger listens where a master was.
type stranger struct {
	net.Listener
	mu    sync.Mutex
	heard []string
}

func (s *stranger) listen() {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		s.mu.Lock()
		s.heard = append(s.heard, string(b[:n]))
		s.mu.Unlock()
		c.Close()
	}
}

// When a lock is lost, those are asked who are masters by then. Whoever has the address of a former one is told nothing.
func TestAFormerMasterIsAskedNothing(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-secret"
	masters := redlocktest.Start(t, 4, redlocktest.WithArgs("--requirepass", secret))
	rec := newRecorder(t, Options{Size: minSize})
	c := recorded(t, rec, redlock.Config{Masters: masters.Addrs()[:3], Password: redlock.NewSecret(secret)})
	old := masters.Addr(0)
	masters.Kill(0)
	require.NoError(t, c.Replace(t.Context(), old, masters.Addr(3)))
	l, err := net.Listen("tcp", old)
	require.NoError(t, err)
	s := &stranger{Listener: l}
	var listening sync.WaitGroup
	listening.Go(s.listen)
	m := c.NewMutex("k", ttl)
	require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, hanging, 10*time.Millisecond)
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	for i := 1; i < 4; i++ {
		masters.Flush(i)
	}
	<-held.Done()
	var asked []*record.Event
	require.Eventually(t, func() bool {
		asked = of(read(t, bytesOf(t, rec)), record.KindAsked)
		return len(asked) == 3
	}, hanging, 5*time.Millisecond)
	l.Close()
	listening.Wait()
	require.NotContains(t, strings.Join(s.heard, "\n"), secret)
	for _, e := range asked {
		require.Equal(t, masters.Addr([]int{3, 1, 2}[e.Place]), e.Key)
		require.NotEmpty(t, e.RunID, e.Err)
	}
	// What was seen of the newcomer says whose place it has.
	require.True(t, slices.ContainsFunc(of(read(t, bytesOf(t, rec)), record.KindMaster), func(e *record.Event) bool { return e.Key == masters.Addr(3) && e.Place == 0 }))
}

// Who ends because it has lost its lock asks the masters all the same: nobody else knows so well when it was.
func TestWhoEndsByALossAsksTheMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	rec := newRecorder(t, Options{Size: minSize})
	c := recorded(t, rec, redlock.Config{Masters: masters.Addrs()})
	m := c.NewMutex("k", ttl)
	require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, hanging, 10*time.Millisecond)
	for i := range 3 {
		masters.Flush(i)
	}
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	require.NoError(t, c.Close()) // it gives them a little time
	require.NoError(t, rec.Close())
	asked := of(read(t, bytesOf(t, rec)), record.KindAsked)
	require.Len(t, asked, 3)
	for _, e := range asked {
		require.NotEmpty(t, e.RunID, e.Err)
	}
}
