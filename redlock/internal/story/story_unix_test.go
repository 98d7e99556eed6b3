//go:build unix

package story_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

const holderEnv = "REDBURST_STORY_HOLDER"

// TestMain can be a process that holds the lock until it is told of its loss.
func TestMain(m *testing.M) {
	file, masters, is := strings.Cut(os.Getenv(holderEnv), "=")
	if !is {
		os.Exit(m.Run())
	}
	if err := hold(context.Background(), file, strings.Split(masters, ",")); err != nil {
		panic(err)
	}
}

func hold(ctx context.Context, file string, masters []string) error {
	rec, err := flight.New(flight.Options{File: file, Size: 1 << 20})
	if err != nil {
		return err
	}
	cfg, err := rec.Attach(redlock.Config{Masters: masters, Owner: "web-1"})
	if err != nil {
		return err
	}
	c, err := redlock.Open(ctx, cfg)
	if err != nil {
		return err
	}
	m := c.NewMutex(key, frozenTTL)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	held, stop := m.KeepAlive(ctx)
	defer stop()
	fmt.Println("it has the lock")
	<-held.Done()
	c.Close()
	return rec.Close()
}

// frozenTTL is long enough for a busy machine to renew the lock.
const frozenTTL = 3 * time.Second

func TestHolderIsFrozen(t *testing.T) {
	s := newScene(t, 3)
	file := filepath.Join(t.TempDir(), "web-1.flight")
	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), holderEnv+"="+file+"="+strings.Join(s.addrs, ","))
	first.Stderr = os.Stderr
	out, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	t.Cleanup(func() { first.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "it has the lock\n", line)
	require.NoError(t, first.Process.Signal(syscall.SIGSTOP))
	second := s.actor("web-2", nil).sees(3)
	second.takes(key, ttl)
	second.releases()
	require.NoError(t, first.Process.Signal(syscall.SIGCONT))
	require.NoError(t, first.Wait())
	s.files = append(s.files, file)
	told := s.tell()
	require.Empty(t, causes(told, story.Overlap))
	require.Equal(t, []story.Cause{story.Frozen}, causes(told, story.Late))
	s.golden(told, "web-1 is frozen (SIGSTOP) while it holds the lock, until its lock has ended and web-2 has had it.")
}
