//go:build linux

package main

import (
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/stretchr/testify/require"
)

func TestPartitionsFollowFromTheirSeed(t *testing.T) {
	one := partitions(7, time.Minute, 5, 4)
	require.Equal(t, one, partitions(7, time.Minute, 5, 4))
	require.NotEqual(t, one, partitions(8, time.Minute, 5, 4))
}

func TestPartitionsAreWhatTheyAreCalled(t *testing.T) {
	const duration, masters, clients = time.Minute, 5, 4
	seen := make(map[fault]int)
	for seed := range uint64(50) {
		free := time.Duration(0)
		for _, s := range partitions(seed, duration, masters, clients) {
			seen[s.Fault.by(s.Way)]++
			require.GreaterOrEqual(t, s.At, free, "one at a time")
			free = s.At + s.For
			require.LessOrEqual(t, free, duration)
			lost := make([][masters]bool, clients) // by client
			for _, p := range s.Pairs {
				require.False(t, lost[p.Client][p.Master], "each once")
				lost[p.Client][p.Master] = true
			}
			var struck []int // how many masters each client has lost that has lost any
			touched := make(map[[masters]bool]int)
			all := [masters]int{}
			for _, l := range lost {
				touched[l]++
				n := 0
				for master, gone := range l {
					if gone {
						n++
						all[master]++
					}
				}
				if n > 0 {
					struck = append(struck, n)
				}
			}
			switch s.Fault {
			case cutPair:
				require.Equal(t, []int{1}, struck)
			case cutMinority:
				require.Equal(t, []int{2}, struck)
			case cutMajority, answersLost, lateLost:
				require.Len(t, struck, 1)
				require.Greater(t, struck[0], masters/2)
			case split:
				require.Len(t, touched, 2, "two sides")
				for _, n := range all {
					require.Equal(t, clients/2, n, "each master is on one side")
				}
			case differ:
				require.Equal(t, []int{2, 2, 2, 2}, struck, "each has a majority")
				require.Len(t, touched, 2)
				require.Contains(t, all, 0, "all have one in common")
			default:
				require.Len(t, struck, clients)
			}
		}
	}
	for _, f := range partial {
		require.NotZero(t, seen[f], f)
		for _, w := range []way{requests, replies} {
			require.Equal(t, f.hasWays(), seen[f.by(w)] > 0, f.by(w))
		}
	}
}

func TestPartitionsFitAnyNumbers(t *testing.T) {
	for masters := 1; masters <= 7; masters++ {
		for clients := 1; clients <= 3; clients++ {
			for _, s := range partitions(1, time.Minute, masters, clients) {
				require.NotEmpty(t, s.Pairs)
			}
		}
	}
}

func TestAMajorityIsUpIfEachClientHasOne(t *testing.T) {
	n := &nemesis{harmed: make([]int, 5), clientTurn: make([]sync.Mutex, 4), apart: make(map[pair]int), since: clock.Now()}
	isUp := func() bool { return n.since != 0 }
	two := each([]int{1}, []int{0, 1})
	n.part(two, 1)
	require.True(t, isUp(), "client 1 has three")
	n.harm(0)
	require.True(t, isUp(), "it had lost this one already")
	n.harm(2)
	require.False(t, isUp(), "the others have three, and client 1 two")
	n.heal(2)
	require.True(t, isUp())
	n.part(each([]int{1}, []int{1, 2}), 1) // beside the first
	require.False(t, isUp())
	n.part(two, -1)
	require.False(t, isUp(), "1 and 2 are still cut off, and 0 is harmed")
	n.heal(0)
	require.True(t, isUp())
	n.part(append(each([]int{0, 1}, []int{3, 4}), each([]int{2, 3}, []int{0, 1})...), 1)
	require.False(t, isUp())
	n.part(each([]int{1}, []int{1, 2}), -1)
	require.True(t, isUp(), "each has a majority, if not the same")
	require.Len(t, n.majorityUp(), 4)
}
