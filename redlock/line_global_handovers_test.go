package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A client whose goroutines all want the lock waits in the queue once. While others are there, it has the
// lock no more often in a row than Config.Handovers says, and the first time.
func TestManyGoroutinesHaveNoMoreTurnsThanHandovers(t *testing.T) {
	t.Parallel()
	for handovers, most := range map[int]int{1: 2, 3: 4, 0: defaultHandovers + 1} {
		t.Run(fmt.Sprint(handovers), func(t *testing.T) {
			work := relayTurn / time.Duration(most+1) // its turn lasts for so many
			simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				p := newProcesses(t, r, nil)
				crowd := p.joinWith(Config{Handovers: handovers})
				others := []*Client{p.join(), p.join()}
				ctx, cancel := context.WithCancel(t.Context())
				var had []int
				wants := func(c *Client, who int) {
					p.running.Go(func() {
						m := c.NewMutex("k", time.Hour)
						for m.Lock(ctx) == nil {
							p.mu.Lock()
							had = append(had, who)
							p.mu.Unlock()
							time.Sleep(work)
							m.Unlock(context.Background())
							lap()
						}
					})
				}
				for range 30 {
					wants(crowd, 0)
				}
				for i, c := range others {
					wants(c, 1+i)
				}
				time.Sleep(time.Second) // until all wait
				p.mu.Lock()
				had = nil
				p.mu.Unlock()
				for range bearable(100) {
					time.Sleep(20 * time.Millisecond)
					require.LessOrEqual(t, len(p.entries("k")), 3, "one of each process")
				}
				cancel()
				p.running.Wait()
				turns, inRow, longest := map[int]int{}, 0, 0
				for i, who := range had {
					turns[who]++
					if i > 0 && who == had[i-1] {
						inRow++
					} else {
						inRow = 1
					}
					if who == 0 {
						longest = max(longest, inRow)
					} else {
						require.Equal(t, 1, inRow, "another is ahead of it")
					}
				}
				require.Equal(t, most, longest, "in a row")
				require.InDelta(t, turns[1], turns[2], float64(turns[1])/5+2)
				require.InDelta(t, turns[0], turns[1]*most, float64(turns[0])/5+2*float64(most))
				p.nothingIsLeft()
			})
		})
	}
}

// A client that always hands over keeps the lock until none of its own goroutines wants it. Then those in
// the queue have it.
func TestWhoAlwaysHandsOverComesToAnEnd(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		p := newProcesses(t, r, nil)
		crowd := p.joinWith(Config{Handovers: -1})
		p.join()
		m := crowd.NewMutex("k", time.Hour)
		require.NoError(t, m.Lock(t.Context()))
		p.wait(1, t.Context())
		time.Sleep(50 * time.Millisecond)
		for range 50 {
			p.wait(0, t.Context())
		}
		time.Sleep(50 * time.Millisecond)
		require.LessOrEqual(t, len(p.entries("k")), 2, "the first of each process")
		p.holder = m
		order, after := p.release(51)
		require.Equal(t, 1, order[50])
		require.Less(t, after[50]-after[49], 50*time.Millisecond)
		p.nothingIsLeft()
	})
}
