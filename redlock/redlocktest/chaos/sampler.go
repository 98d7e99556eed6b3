//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
)

const sampleEvery = 50 * time.Millisecond

// A sampler looks at the masters' keys now and then: none may live longer than
// its TTL.
type sampler struct {
	cancel  func()
	running sync.WaitGroup

	mu         sync.Mutex
	samples    int
	violations []string
}

func startSampler(masters *redlocktest.Masters, n *nemesis) *sampler {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sampler{cancel: cancel}
	for i := range masters.N() {
		s.running.Go(func() {
			for sleep(ctx, sampleEvery) {
				for _, key := range stormKeys {
					if n.isHarmed(i) {
						break
					}
					// An error is the nemesis': the master was struck meanwhile.
					if left, err := masters.Do(i, "PTTL", key.Name); err == nil {
						s.sample(i, key, left.(int64))
					}
				}
			}
		})
	}
	return s
}

// sample takes a reply of PTTL: -2 if there is no key.
func (s *sampler) sample(master int, key lockKey, left int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples++
	if left == -1 || left > key.TTL.Milliseconds() {
		s.violations = append(s.violations, fmt.Sprintf("%s lives for %d ms on master %d, with a TTL of %v", key.Name, left, master, key.TTL))
	}
}

func (s *sampler) stop() {
	s.cancel()
	s.running.Wait()
}
