//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

const sampleEvery = 50 * time.Millisecond

// A sampler looks at the masters' keys now and then: none may live longer than
// its TTL. It also notes whose they are.
type sampler struct {
	cancel  func()
	running sync.WaitGroup

	mu         sync.Mutex
	samples    int
	violations []string
	seen       sightings
}

// sightings say when a token was last asked for on each master, and found. It was there then, or later.
type sightings map[string]map[int]time.Duration

func (s sightings) add(master int, token string, asked time.Duration) {
	if s[token] == nil {
		s[token] = make(map[int]time.Duration)
	}
	s[token][master] = asked
}

func startSampler(masters voters, n *nemesis, locks []lockable, prefix string) *sampler {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sampler{cancel: cancel, seen: make(sightings)}
	most := make(map[string]time.Duration) // by key
	for _, l := range locks {
		for _, key := range l.on(prefix) {
			most[key] = max(most[key], l.life())
		}
	}
	tokens := append([]string{"MGET"}, slices.Sorted(maps.Keys(most))...) // a key of readers has none
	for i := range masters.N() {
		s.running.Go(func() {
			for sleep(ctx, sampleEvery) {
				for key, ttl := range most {
					if n.isHarmed(i) {
						break
					}
					// An error is the nemesis': the master was struck meanwhile.
					if left, err := masters.Do(i, "PTTL", key); err == nil {
						s.sample(i, key, ttl, left.(int64))
					}
				}
				asked := clock.Now()
				if all, err := masters.Do(i, tokens...); err == nil && !n.isHarmed(i) {
					s.see(i, asked, all.([]any))
				}
			}
		})
	}
	return s
}

// sample takes a reply of PTTL: -2 if there is no key.
func (s *sampler) sample(master int, key string, ttl time.Duration, left int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples++
	if left == -1 || left > ttl.Milliseconds() {
		s.violations = append(s.violations, fmt.Sprintf("%s lives for %d ms on master %d, with a TTL of %v", key, left, master, ttl))
	}
}

func (s *sampler) see(master int, asked time.Duration, values []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range values {
		if token, is := v.(string); is {
			s.seen.add(master, token, asked)
		}
	}
}

func (s *sampler) stop() {
	s.cancel()
	s.running.Wait()
}
