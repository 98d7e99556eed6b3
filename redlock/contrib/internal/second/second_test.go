package second

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock"
)

var takes = map[string]func(s *Second, ctx context.Context, key string) (redlock.SecondLock, error){
	"TryLock": (*Second).TryLock,
	"Lock":    (*Second).Lock,
}

// The end is counted from when the last answered renewal was sent, however late its answer came.
func TestContextEndsAtTheDeadline(t *testing.T) {
	for renewals := range 4 {
		simulated(t, func(t *testing.T, f *fake) {
			const late = time.Second // each answer
			f.open = func(context.Context) error { time.Sleep(late); return nil }
			f.renew = func(ctx context.Context, n int) error {
				if n > renewals {
					return silence(ctx)
				}
				time.Sleep(late)
				return nil
			}
			sent := time.Duration(0)
			if renewals > 0 { // the first is due after the answer to the opening
				sent = late + fakeEvery + time.Duration(renewals-1)*(fakeEvery+late)
			}
			l, err := f.second.Lock(t.Context(), "k")
			require.NoError(t, err)
			<-l.Context().Done()
			require.Equal(t, sent+fakeTTL-fakeTTL/100-12*time.Millisecond, f.now())
			cause := context.Cause(l.Context())
			require.ErrorIs(t, cause, errSilent)
			require.NotErrorIs(t, cause, context.DeadlineExceeded)
			require.NotErrorIs(t, cause, context.Canceled)
		})
	}
}

// A renewal that is answered when the term is over changes nothing.
func TestWhatIsOverIsNotRevived(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.renew = func(_ context.Context, n int) error {
			if n == 1 {
				time.Sleep(fakeTTL) // and does not care for its context
			}
			return nil
		}
		l, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(2 * fakeTTL)
		synctest.Wait()
		require.Error(t, l.Context().Err())
		require.True(t, f.opened[0].closed)
		again, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		require.Len(t, f.opened, 2)
		require.NoError(t, again.Context().Err())
	})
}

// Timers do not count a suspend. The contexts look at the clock.
func TestSuspendEndsTheContext(t *testing.T) {
	for name, ended := range map[string]func(context.Context) bool{
		"Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
		"who waits for Done": func(ctx context.Context) bool {
			time.Sleep(time.Second) // the context is not asked
			synctest.Wait()
			return ctx.(*held).Context.Err() != nil
		},
		"a new lock": nil,
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, f *fake) {
				l, err := f.second.Lock(t.Context(), "k")
				require.NoError(t, err)
				f.do(func() { f.asleep = fakeTTL })
				if ended != nil {
					require.True(t, ended(l.Context()))
					return
				}
				_, err = f.second.Lock(t.Context(), "other")
				require.NoError(t, err)
				require.Len(t, f.opened, 2)
				require.Error(t, context.Cause(l.Context()))
			})
		})
	}
}

// A renewal that is answered after a suspend, before the timer has run, does not revive what another may have had meanwhile.
func TestSuspendDuringARenewal(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.renew = func(_ context.Context, n int) error {
			if n == 1 { // it was sent in time, and would last
				f.do(func() { f.asleep += fakeTTL - fakeEvery + time.Second })
			}
			return nil
		}
		l, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(fakeEvery)
		synctest.Wait()
		require.Error(t, l.Context().Err())
	})
}

// What is over when it is taken is not taken.
func TestSuspendDuringALock(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, f *fake) {
				f.enter = func(context.Context) (error, error) {
					f.do(func() { f.asleep += fakeTTL })
					return nil, nil
				}
				_, err := take(f.second, t.Context(), "k")
				require.ErrorIs(t, err, errSilent)
				f.free()
			})
		})
	}
}

// A renewal that is not answered has waited already, and is repeated at once: three of them leave time for a fourth.
func TestRenewalThatIsNotAnsweredIsRepeatedAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.renew = func(ctx context.Context, n int) error {
			if n%4 != 0 {
				return silence(ctx)
			}
			return nil
		}
		l, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(5 * fakeTTL)
		require.NoError(t, l.Context().Err())
	})
}

// A renewal that fails is repeated, and one goroutine renews for all.
func TestRenewalsAreRepeated(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.renew = func(_ context.Context, n int) error {
			if n%3 != 0 {
				return errBroken
			}
			return nil
		}
		l, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		other, err := f.second.Lock(t.Context(), "other")
		require.NoError(t, err)
		time.Sleep(10 * fakeTTL)
		require.NoError(t, l.Context().Err())
		require.NoError(t, other.Context().Err())
		synctest.Wait()
		require.Less(t, f.opened[0].renewed, 3*30+1)
	})
}

func TestSessionThatIsOverEndsAtOnce(t *testing.T) {
	for name, end := range map[string]func(f *fake){
		"the store tells": func(f *fake) { f.opened[0].over(ErrOver) },
		"a renewal tells": func(f *fake) {
			f.do(func() { f.renew = func(context.Context, int) error { return ErrOver } })
			time.Sleep(fakeEvery)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, f *fake) {
				l, err := f.second.Lock(t.Context(), "k")
				require.NoError(t, err)
				waiting := make(chan error, 1)
				go func() {
					_, err := f.second.Lock(t.Context(), "k")
					waiting <- err
				}()
				synctest.Wait()
				end(f)
				synctest.Wait()
				require.ErrorIs(t, context.Cause(l.Context()), ErrOver)
				err = <-waiting
				require.ErrorIs(t, err, ErrOver)
				require.NotErrorIs(t, err, context.Canceled)
				f.free()
				f.do(func() { f.renew = nil })
				_, err = f.second.TryLock(t.Context(), "k")
				require.NoError(t, err)
			})
		})
	}
}

// Whatever a request has done when it fails, the entry is given up until that is sure.
func TestWhatFailsIsGivenUp(t *testing.T) {
	for name, take := range takes {
		for _, obeyed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				simulated(t, func(t *testing.T, f *fake) {
					f.enter = func(context.Context) (error, error) {
						if obeyed {
							return nil, errBroken
						}
						return errBroken, nil
					}
					failures := 0
					f.leave = func(context.Context) error {
						if failures++; failures < 5 {
							return errBroken
						}
						return nil
					}
					_, err := take(f.second, t.Context(), "k")
					require.ErrorIs(t, err, errBroken)
					time.Sleep(fakeTTL)
					f.free()
					require.Equal(t, 5, failures)
				})
			})
		}
	}
}

// A store that does not answer holds up nobody beyond the end of the context. What it says then leaves nothing.
func TestReturnsWhenTheContextEnds(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, f *fake) {
				slow := false
				f.enter = func(context.Context) (error, error) {
					if slow {
						time.Sleep(2 * time.Second) // it does not care for its context
					}
					return nil, nil
				}
				_, err := f.second.Lock(t.Context(), "other")
				require.NoError(t, err)
				slow = true
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = take(f.second, ctx, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Second, f.now())
				time.Sleep(2 * time.Second)
				synctest.Wait()
				f.do(func() { require.Empty(t, f.queues["k"]) })
			})
		})
	}
}

// A store that does not answer, or says that it has not in time, is no end of the caller's context.
func TestSilenceIsNoEndOfTheContext(t *testing.T) {
	for name, take := range takes {
		for _, waits := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				simulated(t, func(t *testing.T, f *fake) {
					f.enter = func(ctx context.Context) (error, error) {
						if waits {
							return silence(ctx), nil
						}
						return context.DeadlineExceeded, nil
					}
					_, err := take(f.second, t.Context(), "k")
					require.ErrorIs(t, err, errSilent)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					require.LessOrEqual(t, f.now(), fakeTTL/3)
				})
			})
		}
	}
	simulated(t, func(t *testing.T, f *fake) {
		f.open = silence
		_, err := f.second.Lock(t.Context(), "k")
		require.ErrorIs(t, err, errSilent)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, fakeTTL/3, f.now())
	})
}

// A lock and the end of a context that come at the same moment: either the caller has it, or nobody.
func TestLockOrNothing(t *testing.T) {
	for range 100 {
		simulated(t, func(t *testing.T, f *fake) {
			f.enter = func(context.Context) (error, error) {
				time.Sleep(time.Second)
				return nil, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			l, err := f.second.Lock(ctx, "k")
			if err == nil {
				f.do(func() { require.Len(t, f.queues["k"], 1) })
				require.NoError(t, l.Context().Err())
				require.NoError(t, l.Unlock(t.Context()))
			}
			f.free()
		})
	}
}

// A session whose opener has given up serves the next, and is opened once.
func TestOneSessionIsOpenedForAll(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.open = func(context.Context) error { time.Sleep(time.Second); return nil }
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := f.second.Lock(short, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		done := make(chan error, 5)
		for range cap(done) {
			go func() {
				l, err := f.second.Lock(t.Context(), "k")
				if err == nil {
					err = l.Unlock(t.Context())
				}
				done <- err
			}()
		}
		for range cap(done) {
			require.NoError(t, <-done)
		}
		require.Len(t, f.opened, 1)
	})
}

// A session whose answer took longer than it lasts is none.
func TestSessionThatIsOverBeforeItBeginsIsNone(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		f.open = func(context.Context) error { f.do(func() { f.asleep += fakeTTL }); return nil }
		_, err := f.second.Lock(t.Context(), "k")
		require.ErrorContains(t, err, "no session")
		require.True(t, f.opened[0].closed)
		f.open = func(context.Context) error { return errBroken }
		_, err = f.second.Lock(t.Context(), "k")
		require.ErrorIs(t, err, errBroken)
	})
}

func TestUnlock(t *testing.T) {
	lock := func(t *testing.T, f *fake) redlock.SecondLock {
		l, err := f.second.Lock(t.Context(), "k")
		require.NoError(t, err)
		return l
	}
	for name, test := range map[string]func(t *testing.T, f *fake){
		"nil": func(t *testing.T, f *fake) {
			l := lock(t, f)
			require.NoError(t, l.Unlock(t.Context()))
			require.Equal(t, context.Canceled, context.Cause(l.Context()))
			f.free()
		},
		"lost before": func(t *testing.T, f *fake) {
			l := lock(t, f)
			f.do(func() { f.set("k", nil) })
			require.ErrorIs(t, l.Unlock(t.Context()), redlock.ErrNotHeld)
		},
		"an answer that was lost": func(t *testing.T, f *fake) {
			l := lock(t, f)
			first := true
			f.leave = func(context.Context) error {
				if !first {
					return nil
				}
				first = false
				f.do(func() { f.set("k", nil) })
				return errBroken
			}
			require.NoError(t, l.Unlock(t.Context()))
		},
		"the release goes out whatever becomes of the context": func(t *testing.T, f *fake) {
			l := lock(t, f)
			n := 0
			f.leave = func(ctx context.Context) error {
				if n++; n < 3 {
					return silence(ctx)
				}
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBroken)
			defer cancel()
			err := l.Unlock(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errBroken)
			require.NotErrorIs(t, err, redlock.ErrNotHeld)
			require.Equal(t, time.Second, f.now())
			time.Sleep(fakeTTL)
			f.free()
		},
		"nobody knows": func(t *testing.T, f *fake) {
			l := lock(t, f)
			f.away()
			err := l.Unlock(t.Context())
			require.ErrorIs(t, err, errSilent)
			require.NotErrorIs(t, err, redlock.ErrNotHeld)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		},
		"over before, and the store is away": func(t *testing.T, f *fake) {
			l := lock(t, f)
			f.away()
			f.do(func() { f.closeSession = silence })
			<-l.Context().Done()
			require.ErrorIs(t, l.Unlock(t.Context()), redlock.ErrNotHeld)
		},
		"closed": func(t *testing.T, f *fake) {
			l := lock(t, f)
			require.NoError(t, f.second.Close())
			err := l.Unlock(t.Context())
			require.ErrorIs(t, err, redlock.ErrNotHeld)
			require.ErrorIs(t, err, redlock.ErrClosed)
		},
	} {
		t.Run(name, func(t *testing.T) { simulated(t, test) })
	}
}

// Close returns in time and leaves nothing, whatever is under way and however the store fails.
func TestClose(t *testing.T) {
	simulated(t, func(t *testing.T, f *fake) {
		require.NoError(t, f.second.Close()) // without a session
		_, err := f.second.Lock(t.Context(), "k")
		require.ErrorIs(t, err, redlock.ErrClosed)
	})
	for _, after := range []time.Duration{0, 2 * fakeTTL} { // that no store has heard of the end of a session
		simulated(t, func(t *testing.T, f *fake) {
			l, err := f.second.Lock(t.Context(), "k")
			require.NoError(t, err)
			f.away()
			f.do(func() { f.closeSession = silence })
			<-l.Context().Done()
			time.Sleep(after)
			if err = f.second.Close(); after == 0 {
				require.ErrorIs(t, err, errSilent)
			} else {
				require.NoError(t, err, "it has ended by itself")
			}
		})
	}
	for name, prepare := range map[string]func(f *fake){
		"while it opens":  func(f *fake) { f.open = silence },
		"while it enters": func(f *fake) { f.enter = func(ctx context.Context) (error, error) { return silence(ctx), nil } },
		"while it waits":  func(f *fake) { f.queues["k"] = []*fakeEntry{{}} },
		"while it leaves": func(f *fake) {
			f.enter, f.leave = func(context.Context) (error, error) { return nil, errBroken }, silence
		},
		"while it renews": func(f *fake) {
			f.renew = func(ctx context.Context, _ int) error { return silence(ctx) }
			f.queues["k"] = []*fakeEntry{{}}
		},
		"while all fails": func(f *fake) { f.leave = silence; f.queues["k"] = []*fakeEntry{{}}; f.closeSession = silence },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, f *fake) {
				prepare(f)
				failed := make(chan error, 1)
				go func() {
					_, err := f.second.Lock(t.Context(), "k")
					failed <- err
				}()
				time.Sleep(fakeTTL/3 - time.Millisecond)
				began := f.now()
				err := f.second.Close()
				if f.closeSession != nil {
					require.ErrorIs(t, err, errSilent)
				} else {
					require.NoError(t, err)
				}
				require.LessOrEqual(t, f.now()-began, fakeTTL/3)
				if err := <-failed; !errors.Is(err, errBroken) {
					require.ErrorIs(t, err, redlock.ErrClosed)
				}
			})
		})
	}
}
