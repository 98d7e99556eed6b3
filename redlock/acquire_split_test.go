package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// Contenders are hosts that want the same lock at about the same time, each with a client of its own that is not as far
// from each master as the others. The masters are simulated, and the clock is synctest's.
type contenders struct {
	t       *testing.T
	random  *rand.Rand
	clients []*Client
	rounds  []*fakeRounds
	periods int
}

func newContenders(t *testing.T, hosts, masters int) *contenders {
	s := &contenders{t: t, random: rand.New(rand.NewPCG(uint64(hosts), uint64(masters)))}
	c, r := newFake(t, masters, Config{})
	for s.add(c, r); len(s.clients) < hosts; {
		s.add(r.apart(t, Config{}))
	}
	return s
}

func (s *contenders) add(c *Client, r *fakeRounds) {
	s.clients, s.rounds = append(s.clients, c), append(s.rounds, r)
}

// set changes masters for all clients.
func (s *contenders) set(change func(m *fakeMaster), which ...int) {
	for _, r := range s.rounds {
		r.set(change, which...)
	}
}

// moveTo has the masters about so far away.
func (s *contenders) moveTo(rtt time.Duration) {
	for h, r := range s.rounds {
		r.mu.Lock()
		r.rtt = rtt
		for i, m := range r.masters {
			d := rtt/2 + time.Duration((h+i)%3)*rtt/20
			m.delay, m.back = s.about(d), s.about(d)
		}
		r.mu.Unlock()
	}
}

func (s *contenders) about(d time.Duration) time.Duration { return d - d/10 + s.moment(d/5) }

func (s *contenders) moment(most time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(most)))
}

// period has each host begin once within that time, and returns when all have ended.
func (s *contenders) period(within time.Duration, run func(host int, key string)) {
	s.periods++
	key := fmt.Sprint("k", s.periods)
	var all sync.WaitGroup
	for h := range s.clients {
		begins := s.moment(within)
		all.Go(func() {
			time.Sleep(begins)
			run(h, key)
		})
	}
	all.Wait()
	time.Sleep(time.Second) // until all is undone
}

// try has each host try once to take the lock that lock makes. It returns how many have it, and how many of these are readers.
func (s *contenders) try(within time.Duration, lock splitKind) (have, readers int) {
	var mu sync.Mutex
	var taken []*Mutex
	s.period(within, func(h int, key string) {
		m := lock(s.clients[h], h, key)
		err := m.TryLock(context.Background())
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil && !errors.Is(err, ErrHeld):
			s.t.Error(err)
		case err == nil:
			taken = append(taken, m)
			if m.spec().Reader {
				readers++
			}
		}
	})
	for _, m := range taken {
		m.Release()
	}
	time.Sleep(time.Second)
	for _, r := range s.rounds[:1] {
		require.Zero(s.t, r.keys(), "something is left")
	}
	return len(taken), readers
}

type splitKind func(c *Client, host int, key string) *Mutex

var splitKinds = map[string]splitKind{
	"plain": func(c *Client, _ int, key string) *Mutex { return c.NewMutex(key, time.Hour) },
	"fenced": func(c *Client, _ int, key string) *Mutex {
		return c.NewMutex(key, time.Hour, WithFence())
	},
	"the same keys": func(c *Client, _ int, key string) *Mutex {
		return c.NewMutex(key, time.Hour, WithKeys(key+"b"))
	},
	"keys, one in common": func(c *Client, host int, key string) *Mutex {
		return c.NewMutex(fmt.Sprint(key, host), time.Hour, WithKeys(key+"z"))
	},
	"keys, and one alone": func(c *Client, host int, key string) *Mutex {
		if host%2 == 0 {
			return c.NewMutex(key+"z", time.Hour)
		}
		return c.NewMutex(fmt.Sprint(key, host), time.Hour, WithKeys(key+"z"))
	},
}

// splitScale is how often each case is tried.
func splitScale(few int) int {
	if os.Getenv("REDLOCK_SCALE") == "full" {
		return 1000
	}
	return few
}

// However many try at about the same moment, however far away the masters are, and with a minority of them dead or
// hanging: one has the lock afterwards.
func TestOneOfThoseWhoTryAtOnceHasTheLock(t *testing.T) {
	t.Parallel()
	for name, lock := range splitKinds {
		for fault, change := range map[string]func(m *fakeMaster){"all well": nil, "one is dead": fail, "one hangs": freeze} {
			for _, hosts := range []int{3, 10} {
				t.Run(fmt.Sprintf("%s/%s/%d hosts", name, fault, hosts), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						s := newContenders(t, hosts, 3)
						for _, rtt := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond} {
							for _, within := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
								n := splitScale(3)
								nobody := 0
								for i := range n {
									s.moveTo(rtt)
									if change != nil {
										s.set(change, i%3)
									}
									have, _ := s.try(within, lock)
									require.LessOrEqual(t, have, 1)
									if have == 0 {
										nobody++
									}
									s.set(func(m *fakeMaster) { m.down, m.frozen = nil, false }, i%3)
									time.Sleep(time.Minute)
								}
								require.LessOrEqual(t, nobody, n/1000*map[string]int{"one hangs": 1}[fault], "RTT %v, within %v: nobody in so many of %d periods", rtt, within, n)
							}
						}
					})
				})
			}
		}
	}
}

// Who waits for a holder for a little while gets the lock, too, if nobody has it; and whoever does not wait beside them.
func TestOneOfThoseWhoWaitALittleHasTheLock(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newContenders(t, 10, 3)
				for i := range splitScale(6) {
					s.moveTo(2 * time.Millisecond)
					ran := make(chan int, 10)
					s.period(time.Millisecond, func(h int, key string) {
						d := wait
						if i%2 == 0 && h%2 == 0 {
							d = 0
						}
						err := s.clients[h].Do(t.Context(), key, 30*time.Second, func(context.Context) error { ran <- h; return nil },
							WithMinHold(time.Minute), WithWait(d))
						if err != nil && !errors.Is(err, ErrHeld) {
							t.Error(err)
						}
					})
					require.Len(t, ran, 1, "period %d", i)
				}
			})
		})
	}
}

// at has somebody else have the key on a master, for so long.
func at(r *fakeRounds, i int, token string, d time.Duration) {
	r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{token, r.clock() + d} }, i)
}

// timesSet counts how often a master was asked to set the keys of those who do not wait.
func timesSet(r *fakeRounds, i int) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.masters[i].sent {
		if c.f != nil && c.f.Lead {
			n++
		}
	}
	return n
}

func TestWhoHasTheFirstVoteAsksTheOthersAgain(t *testing.T) {
	var told []time.Duration // when it began, how long it took, and when the first two have voted
	note := func(_ context.Context, e *Event) {
		if e.Kind == EventRound && e.Op == opLock {
			told = []time.Duration{e.more.Started, e.Took, e.Votes[0].RTT, e.Votes[1].RTT}
		}
	}
	simulated(t, 3, Config{Observers: []Observer{note}}, func(t *testing.T, c *Client, r *fakeRounds) {
		at(r, 1, "q", 8*time.Millisecond)
		at(r, 2, "r", time.Hour)
		began := r.now()
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		took := r.now() - began
		synctest.Wait()
		require.Equal(t, []time.Duration{began, took, time.Millisecond, took}, told, "since the attempt began")
		require.Greater(t, took, 7*time.Millisecond)
		require.Equal(t, ttl-m.spec().Term.Drift-took, m.Remaining(), "the validity counts from the beginning")
		require.Less(t, timesSet(r, 1), splitAsks+2)
		require.Equal(t, 1, timesSet(r, 0), "whose vote it has is not asked again")
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(time.Second)
		require.Equal(t, 1, r.keys(), "r's")
	})
}

// Whoever has the lock by votes that were kept has them from the beginning: it has nothing if that is over.
func TestAVoteThatIsKeptLastsNoLonger(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Second}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, q := range []time.Duration{8 * time.Millisecond, 500 * time.Millisecond} {
			at(r, 1, "q", q)
			at(r, 2, "r", time.Hour)
			m := c.NewMutex("k", 10*time.Millisecond) // valid for less than 8 ms
			began := r.now()
			require.ErrorAs(t, m.TryLock(t.Context()), new(*RoundError))
			require.Less(t, r.now()-began, 10*time.Millisecond, "nor is anybody asked then")
			time.Sleep(time.Second)
			require.Equal(t, 1, r.keys(), "r's")
		}
	})
}

func TestWhoLacksTheFirstVoteGivesUpAtOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		at(r, 0, "q", time.Hour)
		at(r, 2, "r", time.Hour)
		r.set(func(m *fakeMaster) { m.delay /= 2 }, 1)
		began := r.now()
		err := c.NewMutex("k", ttl).TryLock(t.Context())
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, ErrSplit)
		require.EqualError(t, err, `redlock: lock "k": perhaps nobody has it: the votes are split (1 yes, 2 no, 0 failed, 0 not waited for; 2 of 3 needed)`)
		require.Equal(t, "held", Outcome(err))
		require.Equal(t, time.Millisecond, r.now()-began)
		time.Sleep(time.Second)
		require.Equal(t, 2, r.keys(), "the others'")
		for i := range 3 {
			require.Equal(t, 1, timesSet(r, i))
		}
	})
}

// A refusal by one holder is no split, and costs a command and its undoing. So does one of which a quorum says so, though
// the first master has lost the holder's key: that costs a question more, and then the holder is named, also if it holds
// a later one of several keys.
func TestARefusalByAHolderIsNoSplit(t *testing.T) {
	for name, opts := range map[string][]Option{"k": nil, "a": {WithKeys("k")}, "b": {WithKeys("k", "c")}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				holder := c.NewMutex("k", time.Hour, WithOwner("night-job"))
				require.NoError(t, holder.TryLock(t.Context()))
				time.Sleep(time.Second)
				m := c.NewMutex(name, ttl, opts...)
				began := r.now()
				err := m.TryLock(t.Context())
				require.ErrorIs(t, err, ErrHeld)
				require.NotErrorIs(t, err, ErrSplit)
				require.Equal(t, time.Millisecond, r.now()-began)
				for i := range 3 {
					require.Equal(t, 2, timesSet(r, i), "the holder's, and this one")
				}
				r.set(flush, 0)
				err = m.TryLock(t.Context())
				require.ErrorIs(t, err, ErrHeld)
				require.NotErrorIs(t, err, ErrSplit)
				require.ErrorContains(t, err, `held by night-job on 2 of 3 masters`)
				var e *RoundError
				require.ErrorAs(t, err, &e)
				require.Equal(t, "night-job", e.HeldBy)
				require.Greater(t, e.HeldFor, 50*time.Minute)
				require.Equal(t, 4, timesSet(r, 1), "it was asked once more")
				time.Sleep(time.Second)
				require.Equal(t, 2, r.keys(), "the holder's")
			})
		})
	}
}

// Who keeps its votes gives up in the end, and leaves nothing. It says of nobody that he has the lock, least of all of itself.
func TestASplitThatDoesNotEndIsGivenUp(t *testing.T) {
	for name, end := range map[string]func(c *Client, cancel context.CancelFunc) error{
		"after some questions": func(*Client, context.CancelFunc) error { return nil },
		"its context ends":     func(_ *Client, cancel context.CancelFunc) error { cancel(); return context.Canceled },
		"the client is closed": func(c *Client, _ context.CancelFunc) error { go c.Close(); return ErrClosed },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{Owner: "me"}, func(t *testing.T, c *Client, r *fakeRounds) {
				at(r, 1, "q", time.Hour)
				at(r, 2, "r", time.Hour)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ends := make(chan error, 1)
				go func() {
					time.Sleep(10500 * time.Microsecond) // in a pause
					ends <- end(c, cancel)
				}()
				began := r.now()
				err := c.NewMutex("k", ttl).TryLock(ctx)
				took := r.now() - began
				ended := <-ends
				if ended == nil {
					require.Greater(t, took, 60*time.Millisecond)
					require.Less(t, took, 200*time.Millisecond)
					require.Equal(t, 1+splitAsks, timesSet(r, 1))
				} else {
					require.ErrorIs(t, err, ended)
					require.Equal(t, 10500*time.Microsecond, took)
				}
				if ended != ErrClosed {
					require.ErrorIs(t, err, ErrSplit)
				}
				var e *RoundError
				require.ErrorAs(t, err, &e)
				require.Empty(t, e.HeldBy, "the first master names this attempt")
				require.NotContains(t, err.Error(), "held by")
				if time.Sleep(time.Second); ended != ErrClosed { // then the simulated masters serve nobody any more
					require.Equal(t, 2, r.keys(), "the others'")
				}
			})
		})
	}
}

// A set can come after its answer was waited for. Then a quorum names the attempt that gives up, and it does not say that it has
// the lock.
func TestAnAttemptThatGivesUpDoesNotNameItself(t *testing.T) {
	simulated(t, 3, Config{Owner: "me"}, func(t *testing.T, c *Client, r *fakeRounds) {
		for range 2 {
			at(r, 1, "q", time.Hour)
			at(r, 2, "r", time.Hour)
			asked := timesSet(r, 1)
			var changing sync.WaitGroup
			changing.Go(func() {
				time.Sleep(6 * time.Millisecond) // in the first pause
				r.set(func(m *fakeMaster) { delete(m.keys, "k"); m.delay = 52 * time.Millisecond }, 1)
				for timesSet(r, 1) < asked+3 {
					time.Sleep(time.Millisecond / 4)
				}
				time.Sleep(10 * time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = time.Millisecond }, 1)
			})
			err := c.NewMutex("k", ttl).TryLock(t.Context())
			changing.Wait()
			var e *RoundError
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrHeld)
			require.NotEqual(t, "me", e.HeldBy)
			require.NotContains(t, err.Error(), "held by me")
			time.Sleep(time.Second)
			require.Equal(t, 1, r.keys(), "the other's")
			r.set(flush, 0, 1, 2)
		}
	})
}

// The first master has refused it a while ago, and the round has gone on since as a master hangs. Who was faster there may
// have given up. But if the first hangs, too, by now, it is not waited for as long as that master was.
func TestAnOldRefusalOfTheFirstIsAskedForOnceMore(t *testing.T) {
	for name, q := range map[string]struct {
		held  time.Duration
		hangs bool
	}{"it has given up": {held: 50 * time.Millisecond}, "it has not": {held: time.Hour}, "the first hangs": {50 * time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{RoundTimeout: 100 * time.Millisecond}, func(t *testing.T, c *Client, r *fakeRounds) {
				at(r, 0, "q", q.held)
				r.set(freeze, 2)
				if q.hangs {
					time.AfterFunc(10*time.Millisecond, func() { r.set(freeze, 0) })
				}
				began := r.now()
				err := c.NewMutex("k", ttl).TryLock(t.Context())
				require.Equal(t, q.held < time.Minute && !q.hangs, err == nil, err)
				require.LessOrEqual(t, r.now()-began, 150*time.Millisecond)
				require.Equal(t, 2, timesSet(r, 0))
				require.Equal(t, 1, timesSet(r, 1))
			})
		})
	}
}

// A question is a set, and can come late. So a master that has not answered one is asked no other, and owes the answer
// when the lock was taken.
func TestAQuestionWithoutAnAnswerIsOwed(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for i := 1; i < 5; i++ {
			at(r, i, fmt.Sprint("q", i), 3*time.Millisecond)
		}
		m := c.NewMutex("k", ttl)
		mute := func(m *fakeMaster) { m.mute = true }
		r.set(func(m *fakeMaster) { m.delay /= 2 }, 4) // so that its answer is there when the others decide
		go func() {
			time.Sleep(1500 * time.Microsecond) // it has answered no
			r.set(mute, 3)
			at(r, 4, "for long", time.Hour)
		}()
		require.NoError(t, m.TryLock(t.Context()))
		require.Equal(t, 2, timesSet(r, 3), "the second was never answered")
		require.Equal(t, 1, Suspects(m))
		require.True(t, suspects(m).Has(3))
		time.Sleep(time.Second)
		require.NoError(t, m.Extend(t.Context()))
		require.Equal(t, 1, Suspects(m), "it owes the answer still")
	})
}

// So is the answer to the first set, which was sent long before the question that has got the lock.
func TestTheFirstSetOfASplitIsOwed(t *testing.T) {
	var extended []Vote
	note := func(_ context.Context, e *Event) {
		if e.Op == opExtend {
			extended = slices.Clone(e.Votes)
		}
	}
	simulated(t, 5, Config{Observers: []Observer{note}}, func(t *testing.T, c *Client, r *fakeRounds) {
		for i := 1; i < 4; i++ {
			at(r, i, fmt.Sprint("q", i), 60*time.Millisecond)
		}
		r.set(freeze, 4)
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		require.Equal(t, 1, timesSet(r, 4))
		require.True(t, suspects(m).Has(4))
		r.set(thaw, 4)
		time.Sleep(time.Second)
		require.NoError(t, m.Extend(t.Context()))
		synctest.Wait()
		require.ErrorIs(t, extended[4].Err, mux.ErrSuspect, "it has set the key late")
	})
}

// Where a master is dead, the one that has refused must say yes in the end. However late its answer is, it is waited for.
func TestAnAnswerWithoutWhichItGivesUpIsWaitedFor(t *testing.T) {
	for name, dead := range map[string]func(m *fakeMaster){"one is dead": fail, "one hangs": freeze} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{RoundTimeout: time.Second}, func(t *testing.T, c *Client, r *fakeRounds) {
				r.set(dead, 2)
				at(r, 1, "q", 3*time.Millisecond)
				m := c.NewMutex("k", ttl)
				go func() {
					time.Sleep(1500 * time.Microsecond) // it has answered no
					r.set(func(m *fakeMaster) { m.delay = 300 * time.Millisecond }, 1)
				}()
				require.NoError(t, m.TryLock(t.Context()))
				require.NoError(t, m.Unlock(t.Context()))
			})
		})
	}
}

// The masters that are asked again give the number that the others have given.
func TestAskedAgainTheMastersAgreeOnTheFence(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		r.set(func(m *fakeMaster) { m.counters["k"] = ahead }, 0)
		for i := 1; i < 3; i++ {
			at(r, i, fmt.Sprint("q", i), 3*time.Millisecond)
		}
		r.set(unscript, 1, 2) // which are told the number by text
		m := c.NewMutex("k", ttl, WithFence())
		require.NoError(t, m.TryLock(t.Context()))
		require.EqualValues(t, ahead+1, m.Fence())
		require.Zero(t, c.Stats().FenceRaised)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// The time that Do waits for a holder does not cut an attempt short; and one more follows it if perhaps nobody has the lock.
func TestTheEndOfAWaitCutsNoAttemptShort(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.delay = 30 * time.Millisecond }, all(3)...)
		require.NoError(t, c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil }, WithWait(time.Millisecond)))
		require.Equal(t, 1, timesSet(r, 0))
		time.Sleep(time.Second)
		r.set(func(m *fakeMaster) { m.delay = time.Millisecond }, all(3)...)
		at(r, 0, "q", 10500*time.Microsecond) // the first: so it gives up
		at(r, 1, "r", 10500*time.Microsecond)
		require.NoError(t, c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil }, WithWait(10*time.Millisecond)))
		r.gone(t, time.Second)
	})
}

// On real masters, each kind of lock: a split is resolved by who has the first master's vote, and by nobody else.
func TestASplitOfEachKind(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	first := c.round.Mux.Leading(1<<3 - 1)
	others := []int{(first + 1) % 3, (first + 2) % 3}
	for name, k := range map[string]struct {
		key  string
		opts []Option
	}{
		"plain":   {"%s", nil},
		"fenced":  {"%s", []Option{WithFence()}},
		"keys":    {"%s", []Option{WithKeys("other")}},
		"reader":  {"%s", []Option{WithShared()}},
		"permits": {"{%s}:permit:1/1", []Option{WithPermits(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprintf(k.key, name)
			m := c.NewMutex(name, term30, k.opts...)
			require.Eventually(t, func() bool { // on a busy machine the first may answer too late
				for _, i := range others {
					Says(t, masters, i, "SET", key, fmt.Sprint("another's", i), "PX", "5")
				}
				return m.TryLock(t.Context()) == nil
			}, hanging, time.Millisecond)
			require.NoError(t, m.Unlock(t.Context()))
			for _, i := range []int{first, others[0]} {
				Says(t, masters, i, "SET", key, fmt.Sprint("another's", i))
			}
			require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
			SoonSays(t, masters, others[1], int64(0), "EXISTS", key) // its vote is left there
		})
	}
}
