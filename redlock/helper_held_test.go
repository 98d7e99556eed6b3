package redlock

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// What package held keeps to itself, and tests of whole clients go by.
const (
	burstSize      = 256
	maxSending     = 4096
	maxMargin      = 10 * time.Millisecond
	minSweep       = 64
	minFirstGrace  = 50 * time.Millisecond
	notifyAfter    = 100 * time.Millisecond
	gatherFor      = 20 * time.Millisecond
	spreadEach     = 100 * time.Microsecond
	relayTurn      = 4 * time.Millisecond
	relayMostTrips = 30
)

// hidden returns a field that a package keeps to itself, such as the mutex that is to be held at some moment. It follows
// pointers, and returns nil behind one that is nil.
func hidden[T any](of any, path ...string) *T {
	v := reflect.ValueOf(of).Elem()
	for _, name := range path {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return nil
			}
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	return (*T)(v.Addr().UnsafePointer())
}

// ofHold returns a field of what a Mutex holds. The mutex mu is not locked.
func ofHold[T any](m *Mutex, path ...string) (t T) {
	mu := holdMu(m)
	mu.Lock()
	defer mu.Unlock()
	if at := hidden[T](&m.hold, path...); at != nil {
		t = *at
	}
	return t
}

func holdMu(m *Mutex) *sync.Mutex { return hidden[sync.Mutex](&m.hold, "mu") }

func renewerMu(c *Client) *sync.Mutex { return hidden[sync.Mutex](&c.held, "renewer", "mu") }

// secretly returns the token, which Mutex.Token would show.
func (m *Mutex) secretly() string {
	mu := holdMu(m)
	mu.Lock()
	defer mu.Unlock()
	token, _ := underMu(m)
	return token
}

// underMu returns the token, and the end of the validity. The hold's mutex is held.
func underMu(m *Mutex) (token string, until time.Duration) {
	return string(**hidden[*[]byte](&m.hold, "tokenText")), *hidden[time.Duration](&m.hold, "until")
}

func (m *Mutex) validUntil() time.Duration { return ofHold[time.Duration](m, "until") }

func (m *Mutex) pins() int32 { return ofHold[int32](m, "pins") }

// suspects are the masters whose yes does not count.
func suspects(m *Mutex) mux.Set {
	mu := holdMu(m)
	mu.Lock()
	defer mu.Unlock()
	sets := hidden[quorum.Sets](&m.hold, "relay", "sets")
	if sets == nil {
		sets = hidden[quorum.Sets](&m.hold, "sets")
	}
	suspect, unless := sets.Doubted()
	return suspect | unless.To
}

// keepAliveOf returns the KeepAlive of a lock's context, which is its own or a leader's.
func keepAliveOf(ctx context.Context) *held.KeepAlive {
	if l, is := ctx.(*leaderContext); is {
		ctx = l.keepAlive
	}
	return ctx.(*held.KeepAlive)
}

// holdOf returns the hold that a lock's context keeps alive.
func holdOf(ctx context.Context) *held.Lock { return *hidden[*held.Lock](keepAliveOf(ctx), "hold") }

// recheckedHolds returns the holds that a switch has rechecked.
func recheckedHolds(c *Client) []*held.Lock {
	return *hidden[[]*held.Lock](&c.held, "rechecker", "holds")
}

// switches has a group switch to another master, and waits until all locks were rechecked.
func switches(c *Client, group int) {
	c.held.Switched(group)
	hidden[sync.WaitGroup](&c.held, "rechecker", "running").Wait()
}

// asHeld returns the error of a round as package held knows it.
func asHeld(e *RoundError) held.Failure { return (*failed)(e) }
