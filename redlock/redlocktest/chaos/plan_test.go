//go:build linux

package main

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlanFollowsFromItsSeed(t *testing.T) {
	one := plan(7, time.Minute, 5, 4, time.Second, forgetting)
	require.Equal(t, one, plan(7, time.Minute, 5, 4, time.Second, forgetting))
	require.NotEqual(t, one, plan(8, time.Minute, 5, 4, time.Second, forgetting))
}

func TestPlanObeysRedlock(t *testing.T) {
	const duration, ttl = time.Minute, time.Second
	faults := make(map[fault]int)
	var majority, minority time.Duration // for how long so many were harmed
	moments := make(map[bool]int)        // demotions that are over at once, and others
	for seed := range uint64(50) {
		strikes := plan(seed, duration, 5, 4, ttl, forgetting)
		require.True(t, slices.IsSortedFunc(strikes, func(a, b strike) int { return cmp.Compare(a.At, b.At) }))
		harmed := make(map[int]time.Duration) // until when
		frozen, replica := time.Duration(0), time.Duration(0)
		type edge struct {
			at   time.Duration
			more int
		}
		var edges []edge
		for _, s := range strikes {
			faults[s.Fault]++
			require.LessOrEqual(t, s.At+s.For, duration)
			switch s.Fault {
			case freezeClient, freezeWriter, killClient, killEarly, blockLog:
				require.Less(t, s.Target, 4)
				require.GreaterOrEqual(t, s.At, frozen, "one client at a time")
				frozen = s.At + s.For
			case spoil, junk:
			case reset, flush, rewrite:
				require.Less(t, s.Target, 5)
				require.Zero(t, s.For)
				if s.Fault != reset {
					require.LessOrEqual(t, harmed[s.Target], s.At, "of a master that answers")
				}
			default:
				require.Less(t, s.Target, 5)
				require.LessOrEqual(t, harmed[s.Target], s.At, "one strike at a time")
				harmed[s.Target] = s.At + s.For
				edges = append(edges, edge{s.At, 1}, edge{s.At + s.For, -1})
				if s.Fault.forgets() {
					require.GreaterOrEqual(t, s.For, quarantine(ttl))
				}
				if s.Fault == demote {
					require.GreaterOrEqual(t, s.At, replica, "one replica at a time")
					replica = s.At + s.For - quarantine(ttl)
					moments[s.For == quarantine(ttl)]++
				}
			}
		}
		slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
		down, since := 0, time.Duration(0)
		for _, e := range edges {
			if down > 2 {
				majority += e.at - since
			} else {
				minority += e.at - since
			}
			down, since = down+e.more, e.at
		}
	}
	for _, f := range slices.Concat(lasting, passing, ofClients, forgetting) {
		require.NotZero(t, faults[f], f)
	}
	require.Len(t, moments, 2)
	require.NotZero(t, majority)
	require.Less(t, majority*2, minority)
}

func TestSiegeFollowsFromItsSeed(t *testing.T) {
	for _, masters := range []int{1, 3} {
		for _, roaming := range []roaming{&clusters{}, &groups{}} {
			siege := func(seed uint64) []strike { return siege(seed, time.Minute, masters, 4, time.Second, roaming.faults()) }
			require.Equal(t, siege(7), siege(7))
			require.NotEqual(t, siege(7), siege(8))
			faults := make(map[fault]int)
			for seed := range uint64(50) {
				strikes := siege(seed)
				require.True(t, slices.IsSortedFunc(strikes, byTime))
				for _, s := range strikes {
					faults[s.Fault]++
					require.LessOrEqual(t, s.At+s.For, time.Minute)
					if s.Fault == reset || slices.Contains(roaming.faults(), s.Fault) {
						require.Less(t, s.Target, masters)
					}
					require.False(t, s.Fault == strayAnswers && s.Target != 0, "only the first cluster has a stray node")
				}
			}
			for _, f := range slices.Concat(roaming.faults(), ofClients, []fault{reset, junk}) {
				require.NotZero(t, faults[f], f)
			}
		}
	}
}

func TestPlanFitsAnyNumberOfMasters(t *testing.T) {
	for masters := 1; masters <= 7; masters++ {
		require.NotEmpty(t, plan(1, 10*time.Second, masters, 1, time.Second, forgetting))
	}
}

func TestDriftsAreWhatIsPromised(t *testing.T) {
	require.Equal(t, drifts(7, 5), drifts(7, 5))
	most := 0 // at the limit
	for seed := range uint64(50) {
		for _, share := range drifts(seed, 5) {
			require.LessOrEqual(t, share, promised)
			require.GreaterOrEqual(t, share, -promised)
			if share == promised {
				most++
			}
		}
	}
	require.Greater(t, most, 50)
	require.Less(t, most, 200)
}
