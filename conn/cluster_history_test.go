package conn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
)

// A history is of a cluster of three masters, whose slot changes hands. Each master learns of that when it likes. Masters
// hang and are cut off. A fourth node, which is listed, too, is a cluster of its own by now, and has the slot there.
type history struct {
	at []string // endpoints of the nodes

	mu   sync.Mutex
	now  moment
	past []moment // how it was until each moment's end
}

// A moment is a time in which nothing changes.
type moment struct {
	end   time.Duration
	owner [3]int // of the slot, as each master knows it
	epoch [3]int // of each master
	mood  [3]mood
}

type mood int

const (
	well mood = iota
	hung
	cut
)

const stranger = 3

func newHistory(t *testing.T) *history {
	h := &history{now: moment{epoch: [3]int{1, 2, 3}}}
	h.mu.Lock() // a client of another test may still look for whoever had the port before
	defer h.mu.Unlock()
	for i := range 4 {
		h.at = append(h.at, conntest.Listen(t, func(c net.Conn) {
			conntest.Answer(c, func(args []string) (string, bool) {
				h.mu.Lock()
				defer h.mu.Unlock()
				return h.answer(i, args)
			})
		}))
	}
	return h
}

func (h *history) answer(i int, args []string) (reply string, goOn bool) {
	owner, all, epoch := stranger, []string{h.at[stranger]}, 9
	if i != stranger {
		switch h.now.mood[i] {
		case hung:
			return "", true
		case cut:
			return "", false
		}
		owner, epoch = h.now.owner[i], h.now.epoch[i]
		all = append([]string{h.at[owner]}, slices.Delete(slices.Clone(h.at[:stranger]), owner, owner+1)...)
	}
	switch {
	case args[0] == "GET" && owner == i:
		return "$-1\r\n", true
	case args[0] == "GET":
		return "-MOVED 1236 " + h.at[owner] + "\r\n", true
	case args[0] == "CLUSTER" && args[1] == "SLOTS":
		return slotsAt(all...), true
	case args[0] == "CLUSTER":
		text := fmt.Sprintf("cluster_my_epoch:%d\r\n", epoch)
		return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text), true
	}
	return "+OK\r\n", true
}

// change ends a moment.
func (h *history) change(f func(m *moment)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now.end = clock.Now()
	h.past = append(h.past, h.now)
	f(&h.now)
}

// since returns the moments that have not ended before.
func (h *history) since(when time.Duration) []moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.past)
	for n > 0 && h.past[n-1].end >= when {
		n--
	}
	return append(slices.Clone(h.past[n:]), h.now)
}

// belies returns what is wrong with what is said; empty if nothing is.
func (h *history) belies(o conn.SlotOwner) string {
	if o.Endpoint == "" {
		return ""
	}
	owner, votes := slices.Index(h.at, o.Endpoint), 0
	for i := range 3 {
		if slices.ContainsFunc(h.since(o.Asked), func(m moment) bool { return m.owner[i] == owner }) {
			votes++
		}
	}
	switch {
	case votes < 2:
		return fmt.Sprintf("node %d is named, and %d of the masters have named it since then", owner, votes)
	case o.Confirmed > o.Asked:
		return "it is confirmed before it is named"
	case o.Confirmed > 0 && !slices.ContainsFunc(h.since(o.Confirmed), func(m moment) bool {
		return m.owner[owner] == owner && fmt.Sprint(m.epoch[owner]) == o.Epoch
	}):
		return fmt.Sprintf("node %d has not had the slot in epoch %s since then", owner, o.Epoch)
	}
	return ""
}

// Whatever becomes of a cluster, its slot's master is the one that most of its masters have named since they were asked, and
// what it says itself is as old as it is said to be.
func TestWhatIsSaidOfASlotHasBeenSoSinceItWasAsked(t *testing.T) {
	conn.AskSlotEvery(t, 5*time.Millisecond)
	h := newHistory(t)
	opt := ofLocks
	opt.DialTimeout = 30 * time.Millisecond // of a hung node
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	wrong, last := "", conn.SlotOwner{}
	silent := 0 // how often nobody was named
	told := make(chan struct{}, 10_000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn.FollowSlot(ctx, cluster(t, h.at...), opt, func(o conn.SlotOwner) {
			is := h.belies(o)
			told <- struct{}{}
			mu.Lock()
			defer mu.Unlock()
			if wrong == "" {
				wrong = is
			}
			if last = o; o.Endpoint == "" {
				silent++
			}
		})
	}()
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		h.change(func(m *moment) {
			switch i := random.IntN(3); random.IntN(6) {
			case 0: // it takes the slot over, and one other hears of it at once
				m.epoch[i] = max(m.epoch[0], m.epoch[1], m.epoch[2]) + 1
				m.owner[i], m.owner[(i+1)%3] = i, i
			case 1: // it hears of it
				m.owner[i] = m.owner[(i+1)%3]
			case 2: // for a moment the slot was another's
				m.epoch[i]++
			case 3, 4:
				m.mood[i] = mood(1 + random.IntN(2))
			default:
				m.mood = [3]mood{}
			}
		})
		for len(told) > 0 {
			<-told
		}
		for range random.IntN(10) {
			conntest.Soon(t, "an answer, or that there is none", told)
		}
	}
	for _, how := range []mood{hung, cut} { // the stranger is the only one who answers
		h.change(func(m *moment) { m.mood = [3]mood{how, how, how} })
		time.Sleep(5 * opt.DialTimeout)
	}
	for i := range 3 { // all are well, and see each switch
		h.change(func(m *moment) { *m = moment{owner: [3]int{i, i, i}, epoch: [3]int{1000, 1001, 1002}} })
		until(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			require.Empty(t, wrong)
			return last.Endpoint == h.at[i] && last.Epoch == fmt.Sprint(1000+i)
		})
	}
	cancel()
	conntest.Soon(t, "the end", ended)
	require.Empty(t, wrong)
	require.NotZero(t, silent)
}
