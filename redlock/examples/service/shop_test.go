package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// alone stands for the locks where there is one process, or fails as they do.
type alone struct{ err error }

func (a alone) Do(ctx context.Context, _ string, _ time.Duration, fn func(context.Context) error, _ ...redlock.Option) error {
	if a.err != nil {
		return a.err
	}
	return fn(ctx)
}

func TestTheShopSaysWhatHasHappened(t *testing.T) {
	for _, c := range []struct {
		item string
		err  error
		want int
	}{
		{"1", nil, http.StatusNoContent},
		{"2", nil, http.StatusGone},
		{"x", nil, http.StatusBadRequest},
		{"1", redlock.ErrHeld, http.StatusServiceUnavailable},
		{"1", redlock.ErrNoQuorum, http.StatusServiceUnavailable},
		{"1", redlock.ErrLost, http.StatusInternalServerError},
	} {
		r, w := httptest.NewRequest("POST", "/", nil), httptest.NewRecorder()
		r.SetPathValue("item", c.item)
		(&shop{alone{c.err}, newMemory(map[int]int{1: 1})}).ServeHTTP(w, r)
		require.Equal(t, c.want, w.Code, "%+v", c)
	}
}

// A running is a process of the service.
type running struct {
	url   string
	stop  func()
	ended chan error
}

func start(t *testing.T, masters *redlocktest.Masters, stock stock) running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	s := running{"http://" + listener.Addr().String(), stop, make(chan error, 1)}
	go func() { s.ended <- serve(ctx, listener, configuration(masters.Addrs()), stock) }()
	t.Cleanup(stop)
	return s
}

func (s running) sell(item int) error {
	response, err := http.Post(fmt.Sprintf("%s/sell/%d", s.url, item), "", nil)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return errors.New(response.Status)
	}
	return nil
}

// Two processes sell pieces of one item, and one of the masters hangs. None is sold twice.
func TestNoPieceIsSoldTwice(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	stock := newMemory(map[int]int{42: 100})
	services := []running{start(t, masters, stock), start(t, masters, stock)}
	sold := make(chan error, 20)
	for i := range cap(sold) {
		go func() { sold <- services[i%2].sell(42) }()
		if i == 10 {
			masters.Pause(0)
		}
	}
	for range cap(sold) {
		require.NoError(t, <-sold)
	}
	left, err := stock.Left(t.Context(), 42)
	require.NoError(t, err)
	require.Equal(t, 80, left)

	response, err := http.Get(services[0].url + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `redlock_attempts_total{outcome="ok"} `)
	require.Contains(t, string(text), `redlock_master_phase{master="`+masters.Addr(0)+`",phase=`)
	for _, s := range services {
		s.stop()
		require.NoError(t, <-s.ended)
	}
}

// slow is a stock that says when it is asked, and answers when it is told to.
type slow struct {
	*memory
	asked, answer chan struct{}
	once          sync.Once
}

func (s *slow) Left(ctx context.Context, item int) (int, error) {
	s.once.Do(func() { close(s.asked) })
	<-s.answer
	return s.memory.Left(ctx, item)
}

// The page shows the code that is here.
func TestThePageShowsThisCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/service.md")
	require.NoError(t, err)
	var sources string
	for _, name := range []string{"main.go", "shop.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		sources += string(text)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1)
	require.Len(t, blocks, 5)
	for _, b := range blocks {
		require.Contains(t, sources, string(b[1]))
	}
}

// What is asked of the service before it is stopped is done, under its lock. The lock is free then.
func TestTheServiceStopsGracefully(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	stock := &slow{memory: newMemory(map[int]int{42: 100}), asked: make(chan struct{}), answer: make(chan struct{})}
	service := start(t, masters, stock)
	sold := make(chan error, 1)
	go func() { sold <- service.sell(42) }()
	<-stock.asked
	service.stop()

	other, err := redlock.Open(t.Context(), configuration(masters.Addrs()))
	require.NoError(t, err)
	defer other.Close()
	lock := other.NewMutex("lock:stock:42", 10*time.Second)
	require.ErrorIs(t, lock.TryLock(t.Context()), redlock.ErrHeld)
	select {
	case err := <-service.ended:
		require.Fail(t, "it did not wait", "%v", err)
	default:
	}
	close(stock.answer)
	require.NoError(t, <-sold)
	require.NoError(t, <-service.ended)
	require.NoError(t, lock.TryLock(t.Context()))
	require.NoError(t, lock.Unlock(t.Context()))
}
