package mux_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

type pooledOp struct {
	op      mux.Op
	pending atomic.Bool
	pool    *sync.Pool
	count   *atomic.Int64
	twice   *atomic.Int64
}

// Told operations are reused the moment they are decided, while everything fails, and until Close.
func TestOnDecidedIsCalledOnceThoughAllFails(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for round := range conntest.Many(2, 8) {
		m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 50 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
		waitUp(t, m, 3)
		var posted, decided, twice atomic.Int64
		var pool sync.Pool
		pool.New = func() any {
			p := &pooledOp{pool: &pool, count: &decided, twice: &twice}
			return p
		}
		var over atomic.Bool
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				for !over.Load() {
					p := pool.Get().(*pooledOp)
					key := fmt.Sprint("k", rnd.IntN(10))
					src := release(key, "t")
					p.op.Command, p.op.Fallback, p.op.Verdict = append(p.op.Command[:0], src.Command...), append(p.op.Fallback[:0], src.Fallback...), src.Verdict
					p.op.Timeout = time.Duration(rnd.IntN(30)) * time.Millisecond
					p.op.Persist = 0
					if rnd.IntN(2) == 0 {
						p.op.Persist = time.Second
					}
					p.op.Thorough = rnd.IntN(2) == 0
					p.op.All = rnd.IntN(4) == 0
					if p.pending.Swap(true) {
						twice.Add(1)
					}
					p.op.OnDecided = func(error) {
						if !p.pending.Swap(false) {
							p.twice.Add(1)
						}
						_ = granted(&p.op)
						p.count.Add(1)
						p.pool.Put(p)
					}
					posted.Add(1)
					m.Post(&p.op)
					switch rnd.IntN(4) {
					case 0:
						a := acquire(key, "t")
						a.Timeout = time.Duration(1+rnd.IntN(20)) * time.Millisecond
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(20))*time.Millisecond)
						m.Do(ctx, a)
						cancel()
					case 1:
						time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
					}
				}
			})
		}
		for range 12 {
			time.Sleep(30 * time.Millisecond)
			i := rand.IntN(3)
			switch rand.IntN(2) {
			case 0:
				masters.Pause(i)
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				masters.Resume(i)
			case 1:
				masters.Do(i, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
		}
		if round%2 == 0 {
			require.NoError(t, m.Close())
		}
		over.Store(true)
		wg.Wait()
		if round%2 == 1 {
			require.NoError(t, m.Close())
		}
		require.Equal(t, posted.Load(), decided.Load())
		require.Zero(t, twice.Load())
		t.Log(posted.Load())
	}
}
