package line

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// states are the masters of a mux that does nothing.
type states struct {
	round.Mux
	all []mux.State
}

func (s *states) Post(...*mux.Op) {}

func (s *states) AppendMasters(dst []mux.State) []mux.State { return append(dst, s.all...) }

// All clients that see the same masters up have one queue master for a name: the first in an order by the servers' own
// identities, whatever their addresses are to a client.
func TestQueueMasterIsTheFirstThatIsUp(t *testing.T) {
	masters := new(states)
	c := coreOf(masters, 5)
	var gq GlobalQueues
	gq.Init(c)
	for i := range c.Masters {
		s := mux.State{Addr: fmt.Sprint("here:", i), Phase: mux.Up}
		s.Server.RunID, s.Server.Tracking = fmt.Sprint("run", i), true
		masters.all = append(masters.all, s)
	}
	used := map[int]bool{}
	for n := range 100 {
		name := fmt.Sprint("k", n)
		order := []int{0, 1, 2, 3, 4}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(weight(name, &masters.all[a]), weight(name, &masters.all[b])) })
		for lost := range c.Masters {
			master, ok := gq.QueueMaster(name)
			require.True(t, ok)
			require.Equal(t, order[lost], master)
			masters.all[master].Addr = "there" + masters.all[master].Addr
			again, _ := gq.QueueMaster(name)
			require.Equal(t, master, again)
			used[master] = used[master] || lost == 0
			masters.all[master].Phase = mux.Down
		}
		_, ok := gq.QueueMaster(name)
		require.False(t, ok)
		for i := range masters.all {
			masters.all[i].Phase = mux.Up
		}
	}
	require.Len(t, used, c.Masters)
	for i := range c.Masters {
		require.True(t, used[i], "master %d has no queue", i)
	}
}

// Who waits for several keys stands in the queue that it entered last, and is told of its place there.
func TestThePlaceIsThatInTheLastQueue(t *testing.T) {
	c := coreOf(new(states), 3)
	var gq GlobalQueues
	gq.Init(c)
	var w Waiter
	require.Nil(t, gq.AskPlace(&w, time.Second), "it is in no queue")
	for range 2 { // the second time, in the memory of the first
		w.ticket.reset()
		w.ticket.id = append(w.ticket.id, "me"...)
		for i, name := range []string{"a", "b", "c"} {
			w.ticket.addEntry(name, 2-i)
			k := gq.AskPlace(&w, time.Second)
			require.Equal(t, mux.Set(0).With(2-i), k.Op.Only)
			require.Contains(t, string(k.Request.Command), string(kind.AppendQueueKey(nil, name)))
			c.Round.Put(k)
		}
	}
}
