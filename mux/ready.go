package mux

import (
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// errWithheld is why a master that is up cannot vote before it has answered what the Keeper asks.
var errWithheld = errors.New("mux: connected, and has not answered yet whether it may vote")

// Ready waits until a majority of the masters can vote: they are connected, and their Keeper has them vote. It returns
// nil then, also if ctx has ended by now. So with a context that has ended it only looks. It asks the masters nothing.
//
// Otherwise it returns ctx's error when that ends, or ErrClosed when the Mux is closed or drained. The states are those
// of that moment, in which Err says why a master cannot vote. It is nil for those that can.
func (m *Mux) Ready(ctx context.Context) ([]State, error) {
	return m.awaitThat(ctx, func() ([]State, bool) {
		now, states, votes := clock.Now(), m.appendStates(nil), 0
		for i := range states {
			if states[i].Err = m.slots[i].silenced(now); states[i].Err == nil {
				votes++
			}
		}
		return states, votes >= m.majority
	})
}

// Met waits while the first dials are under way, or Keepers are still asking, of masters without which there is no majority
// that can vote. It returns nil when there is one, or when nothing of that is under way any more; and otherwise as Ready.
func (m *Mux) Met(ctx context.Context) error {
	_, err := m.awaitThat(ctx, func() ([]State, bool) {
		now, votes, asked, barred := clock.Now(), 0, 0, 0
		for i := range m.slots {
			switch s := &m.slots[i]; {
			case s.link == nil && s.state.Err == nil, s.barred(now) == nil && s.withheld:
				asked++
			case s.silenced(now) == nil:
				votes++
			case s.link != nil: // what another master says may change that
				barred++
			}
		}
		return nil, votes >= m.majority || asked == 0 || votes+asked+barred < m.majority
	})
	return err
}

// awaitThat waits until is says yes, which is asked whenever the state of a master has changed. It takes mu.
func (m *Mux) awaitThat(ctx context.Context, is func() ([]State, bool)) ([]State, error) {
	for done := ctx.Done(); ; {
		m.lock()
		states, ready := is()
		news, over := m.awaitNews(), m.closed || m.draining
		m.mu.Unlock()
		switch err := ctx.Err(); {
		case over:
			return states, ErrClosed
		case ready:
			return states, nil
		case err != nil:
			return states, err
		}
		select {
		case <-news:
		case <-done:
		}
	}
}

// silenced is why a master has no vote as it stands now; nil if it has one. One that lags has.
func (s *slot) silenced(now time.Duration) error {
	err := s.barred(now)
	if err == nil && s.withheld {
		err = errWithheld
	}
	return err
}

// awaitNews returns what is closed when a master may vote from then on, or may not any more; also when the Mux is closed.
func (m *Mux) awaitNews() <-chan struct{} {
	if m.news == nil {
		m.news = make(chan struct{})
	}
	return m.news
}

func (m *Mux) tellNews() {
	if m.news != nil {
		close(m.news)
		m.news = nil
	}
}
