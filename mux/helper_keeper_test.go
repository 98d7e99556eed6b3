package mux_test

import (
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A keeper has masters in quarantine from their connections on, for as long as its function says.
type keeper struct {
	says func(master int, before, now conn.Server) (d time.Duration, why string)

	mu     sync.Mutex
	at     map[int]time.Duration // when each was connected
	stands map[int]mux.Standing
	news   bool
	heard  func(master int, reply resp.Value) // may be nil

	answered time.Duration // when, as it was told last
}

func keeps(says func(master int, before, now conn.Server) (d time.Duration, why string)) *keeper {
	return &keeper{says: says, at: map[int]time.Duration{}, stands: map[int]mux.Standing{}}
}

// votesAtOnce is a Keeper of masters that are believed from their connections on.
func votesAtOnce() *keeper {
	return keeps(func(int, conn.Server, conn.Server) (time.Duration, string) { return 0, "" })
}

func (k *keeper) Connected(i int, before, now conn.Server, at time.Duration) {
	d, why := k.says(i, before, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at[i] = at
	k.stands[i] = mux.Standing{Why: why}
	if d > 0 {
		k.stands[i] = mux.Standing{Until: clock.After(at, d), Why: why}
	}
	k.news = true
}

func (k *keeper) Answered(i int, v resp.Value, at time.Duration) {
	k.mu.Lock()
	k.answered = at
	k.mu.Unlock()
	if k.heard != nil {
		k.heard(i, v)
	}
}

func (k *keeper) News() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer func() { k.news = false }()
	return k.news
}

func (k *keeper) Standing(i int) mux.Standing {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.stands[i]
	asked := st
	asked.Ask, asked.Missing = nil, ""
	k.stands[i] = asked
	return st
}

// stand gives a master another standing.
func (k *keeper) stand(m *mux.Mux, i int, st mux.Standing) {
	k.mu.Lock()
	k.stands[i], k.news = st, true
	k.mu.Unlock()
	m.Judge()
}

// lasts has a master's quarantine last for d after its connection.
func (k *keeper) lasts(m *mux.Mux, i int, d time.Duration) {
	k.mu.Lock()
	st := k.stands[i]
	st.Until = clock.After(k.at[i], d)
	k.mu.Unlock()
	k.stand(m, i, st)
}
