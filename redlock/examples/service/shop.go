package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock"
)

// A shop sells one piece of an item for each request.
type shop struct {
	locks locks
	stock stock
}

// locks is what the shop needs of a *redlock.Client.
type locks interface {
	Do(ctx context.Context, key string, ttl time.Duration, fn func(context.Context) error, opts ...redlock.Option) error
}

// A stock is a database that can be read and written, and has no transactions.
type stock interface {
	Left(ctx context.Context, item int) (int, error)
	SetLeft(ctx context.Context, item, n int) error
}

var errSoldOut = errors.New("sold out")

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	item, err := strconv.Atoi(r.PathValue("item"))
	if err != nil {
		http.Error(w, "an item is a number", http.StatusBadRequest)
		return
	}
	err = s.locks.Do(r.Context(), "lock:stock:"+strconv.Itoa(item), 10*time.Second, func(ctx context.Context) error {
		return s.sell(ctx, item)
	}, redlock.WithWait(5*time.Second)) // as long as who asks has patience
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, errSoldOut):
		http.Error(w, err.Error(), http.StatusGone)
	case errors.Is(err, redlock.ErrHeld), errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrClosed):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "try again", http.StatusServiceUnavailable) // redlock_attempts_total tells which it was
	default: // among them ErrLost: another may have sold the same piece
		http.Error(w, "it failed", http.StatusInternalServerError)
	}
}

// sell has the lock until ctx ends.
func (s *shop) sell(ctx context.Context, item int) error {
	left, err := s.stock.Left(ctx, item)
	switch {
	case err != nil:
		return err
	case left == 0:
		return errSoldOut
	case ctx.Err() != nil: // look before each write
		return context.Cause(ctx)
	}
	return s.stock.SetLeft(ctx, item, left-1)
}

// memory is a stock that stands for a database.
type memory struct {
	mu   sync.Mutex
	left map[int]int
}

func newMemory(left map[int]int) *memory { return &memory{left: left} }

func (m *memory) Left(_ context.Context, item int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[item], nil
}

func (m *memory) SetLeft(_ context.Context, item, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[item] = n
	return nil
}
