//go:build linux

package network

import (
	"container/heap"
	"sync"
	"time"
)

// A post keeps packets until they are due.
type post struct {
	added chan struct{} // has one element if there is something new
	ended chan struct{}

	mu    sync.Mutex
	queue parcels
}

// A parcel is a packet that arrives later.
type parcel struct {
	due   time.Time // no two are due in the same nanosecond
	to    *Node
	bytes []byte
}

func newPost() *post {
	return &post{added: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (p *post) close() { close(p.ended) }

func (p *post) add(later time.Duration, to *Node, bytes []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	heap.Push(&p.queue, parcel{time.Now().Add(later), to, bytes})
	select {
	case p.added <- struct{}{}:
	default:
	}
}

// run delivers what is due, until the post is closed.
func (p *post) run() {
	for {
		next := p.deliver()
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-p.added:
		case <-p.ended:
			return
		}
		timer.Stop()
	}
}

// deliver delivers what is due, and returns after how long there is more to do.
func (p *post) deliver() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		if left := time.Until(p.queue[0].due); left > 0 {
			return left
		}
		one := heap.Pop(&p.queue).(parcel)
		one.to.deliver(one.bytes)
	}
	return time.Hour // it is told of what is new
}

// parcels is a heap.
type parcels []parcel

func (q parcels) Len() int           { return len(q) }
func (q parcels) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q parcels) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *parcels) Push(x any)        { *q = append(*q, x.(parcel)) }

func (q *parcels) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = parcel{}
	*q = old[:len(old)-1]
	return last
}
