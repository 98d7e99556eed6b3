//go:build linux

package main

import (
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
)

// A pulse tells whether this process was stopped, or had no processor: then a lock may be taken in
// time, and its taker comes to look when it is over.
type pulse struct {
	last    atomic.Int64 // beat
	stopped atomic.Int64 // when the last pause has ended
}

const (
	beat  = 2 * time.Millisecond
	pause = 10 * time.Millisecond // a beat that is so late was held up

	// overAtOnce is for how long a lock has been over when its taker looks, so that something is wrong
	// with it, unless the process was stopped meanwhile.
	overAtOnce = 30 * time.Millisecond
)

// newPulse makes a pulse that beats as long as the process lives.
func newPulse() *pulse {
	p := &pulse{}
	p.last.Store(int64(conn.Now()))
	go func() {
		for ; ; time.Sleep(beat) {
			p.beat(conn.Now())
		}
	}()
	return p
}

func (p *pulse) beat(now time.Duration) {
	if now-time.Duration(p.last.Load()) > pause {
		p.stopped.Store(int64(now))
	}
	p.last.Store(int64(now))
}

// stoppedSince reports whether the process was stopped between then and now.
func (p *pulse) stoppedSince(then, now time.Duration) bool {
	return time.Duration(p.stopped.Load()) >= then || now-time.Duration(p.last.Load()) > pause
}
