package redlock

import (
	"fmt"
	"sync"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest"
)

// A pool has masters that a test has given back, for another. To start a server costs more than most tests
// ask of it.
var pool struct {
	sync.Mutex
	idle map[int][]*lent // by how many masters they are
}

// A lent is masters of the pool, and what they were like when they were new.
type lent struct {
	*redlocktest.Masters
	settings []string
}

// Borrow is [redlocktest.Start] for a test that needs no masters of its own: those that it gets may have served
// others. They are empty, with no script and no client, and have all settings and users that new ones have. What a
// test has changed of these, or has left paused or killed, serves no other test.
//
// If Pause, Resume, Kill, Restart or Flush fails, it panics.
func Borrow(t testing.TB, n int) *redlocktest.Masters {
	t.Helper()
	if redlocktest.Available() != nil {
		return redlocktest.Start(t, n) // which says so
	}
	l := takeIdle(n)
	if l == nil {
		masters, err := redlocktest.Run(n)
		if err != nil {
			t.Fatal(err)
		}
		l = &lent{Masters: masters}
		if l.settings, err = l.look(); err != nil {
			masters.Close()
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() || !l.reset() {
			l.Close()
			return
		}
		pool.Lock()
		defer pool.Unlock()
		if pool.idle == nil {
			pool.idle = map[int][]*lent{}
		}
		pool.idle[n] = append(pool.idle[n], l)
	})
	return l.Masters
}

func takeIdle(n int) (l *lent) {
	pool.Lock()
	defer pool.Unlock()
	if all := pool.idle[n]; len(all) > 0 {
		l, pool.idle[n] = all[len(all)-1], all[:len(all)-1]
	}
	return l
}

// reset makes them as new, and reports whether they are.
func (l *lent) reset() bool {
	for i := range l.N() {
		for _, args := range [][]string{
			{"CLIENT", "KILL", "TYPE", "normal"}, {"CLIENT", "KILL", "TYPE", "pubsub"}, // before what they have sent is gone
			{"FLUSHALL"}, {"SCRIPT", "FLUSH"}, {"SLOWLOG", "RESET"}, {"CONFIG", "RESETSTAT"},
		} {
			if _, err := l.Do(i, args...); err != nil {
				return false
			}
		}
	}
	now, err := l.look()
	return err == nil && fmt.Sprint(now) == fmt.Sprint(l.settings)
}

// look returns the settings and the users of all of them.
func (l *lent) look() (all []string, err error) {
	for i := range l.N() {
		for _, args := range [][]string{{"CONFIG", "GET", "*"}, {"ACL", "LIST"}} {
			v, err := l.Do(i, args...)
			if _, unknown := err.(redlocktest.ReplyError); err != nil && !unknown { // older ones have no users
				return nil, err
			}
			all = append(all, fmt.Sprint(v))
		}
	}
	return all, nil
}

// EmptyPool ends all masters that nobody has borrowed.
func EmptyPool() {
	pool.Lock()
	defer pool.Unlock()
	for _, all := range pool.idle {
		for _, l := range all {
			l.Close()
		}
	}
	pool.idle = nil
}
