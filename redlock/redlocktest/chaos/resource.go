//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// A resource is what locks with a fence protect: a count for each key. The test's own process
// serves it, so it goes on while clients are frozen.
//
// A holder reads the count, and then writes the next one in two halves, as one writes what is
// large: the first brings it, the second makes it count. The lock's fence comes with the read and
// with the second half. The resource keeps the greatest fence that it has seen. A write with a
// lower one is late, and refused: a later holder has been there, and the write would undo what
// that one does.
//
// The fence must come with the read, too. A late write between a later holder's read and its
// write would be taken otherwise, and then overwritten.
type resource struct {
	unfenced bool // it looks at no fence: late writes are taken
	serving  sync.WaitGroup
	closed   chan struct{}

	mu       sync.Mutex
	counts   map[string]int    // by key
	greatest map[string]uint64 // by key: the greatest fence that was seen
	arrivals []arrival
	late     int
	traps    map[string]chan *caught // by client
}

// An arrival is the second half of a write, in the order in which they came.
type arrival struct {
	T      time.Duration
	Client string
	Hold   int
	Key    string
	Fence  uint64
	Count  int  // that was to be written
	Late   bool // a greater fence had been seen
	Taken  bool // the count was written
}

// A step is what a client asks of the resource.
type step struct {
	Do     string `json:"do"` // one of the following
	Client string `json:"client"`
	Hold   int    `json:"hold"`
	Key    string `json:"key"`
	Fence  uint64 `json:"fence"`
	Count  int    `json:"count,omitempty"` // to be written
}

const (
	stepRead   = "read"
	stepBegin  = "begin"
	stepCommit = "commit"
)

// An answer is what the resource says to a step.
type answer struct {
	Count int  `json:"count"`
	Taken bool `json:"taken"` // of a commit
}

func newResource(unfenced bool) *resource {
	return &resource{
		unfenced: unfenced, closed: make(chan struct{}),
		counts: make(map[string]int), greatest: make(map[string]uint64), traps: make(map[string]chan *caught),
	}
}

// connect returns a connection to the resource, for a client to inherit: the client's network is
// none of the resource's business.
func (r *resource) connect() (*os.File, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "resource"), os.NewFile(uintptr(ends[1]), "resource")
	c, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, err
	}
	r.serving.Go(func() { r.serve(c) })
	return theirs, nil
}

// close is to be called when the clients are gone.
func (r *resource) close() {
	close(r.closed)
	r.serving.Wait()
}

// serve answers a client until it is gone.
func (r *resource) serve(c net.Conn) {
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var s step
		if in.Decode(&s) != nil {
			return
		}
		if s.Do == stepBegin {
			r.spring(s)
		}
		if out.Encode(r.do(s)) != nil {
			return
		}
	}
}

// do carries out a step. It is atomic.
func (r *resource) do(s step) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := s.Fence < r.greatest[s.Key]
	taken := false
	switch s.Do {
	case stepRead:
		r.greatest[s.Key] = max(r.greatest[s.Key], s.Fence)
	case stepCommit:
		r.greatest[s.Key] = max(r.greatest[s.Key], s.Fence)
		if late {
			r.late++
		}
		if taken = !late || r.unfenced; taken {
			r.counts[s.Key] = s.Count
		}
		r.arrivals = append(r.arrivals, arrival{clock.Now(), s.Client, s.Hold, s.Key, s.Fence, s.Count, late, taken})
	}
	return answer{r.counts[s.Key], taken}
}

// result returns what has arrived, and the counts.
func (r *resource) result() ([]arrival, map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrivals, maps.Clone(r.counts)
}

// tested returns how many writes were late, but no more, where the fence is not looked at, than
// the increments that are lost.
func (r *resource) tested() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.unfenced {
		return r.late
	}
	lost := len(r.arrivals)
	for _, n := range r.counts {
		lost -= n
	}
	return min(r.late, lost)
}

// caught is a client in the middle of a write. It is not answered until it is released.
type caught struct {
	key      string
	fence    uint64
	released chan struct{}
}

// catch waits until the client is in the middle of a write. It returns nil if ctx ends before.
func (r *resource) catch(ctx context.Context, client string) *caught {
	trap := make(chan *caught, 1)
	r.mu.Lock()
	r.traps[client] = trap
	r.mu.Unlock()
	select {
	case c := <-trap:
		return c
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.traps, client)
	select {
	case c := <-trap:
		close(c.released)
	default:
	}
	return nil
}

// spring springs the trap that catch has set, if it has.
func (r *resource) spring(s step) {
	r.mu.Lock()
	trap := r.traps[s.Client]
	delete(r.traps, s.Client)
	c := &caught{s.Key, s.Fence, make(chan struct{})}
	if trap != nil {
		trap <- c
	}
	r.mu.Unlock()
	if trap != nil {
		select {
		case <-c.released:
		case <-r.closed:
		}
	}
}

// isLate reports whether a later holder has been there.
func (r *resource) isLate(c *caught) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.fence < r.greatest[c.key]
}

// A session is a client's connection to the resource.
type session struct {
	conn net.Conn
	mu   sync.Mutex
	in   *json.Decoder
	out  *json.Encoder
}

// openSession takes what connect has returned.
func openSession(inherited *os.File) (*session, error) {
	defer inherited.Close()
	c, err := net.FileConn(inherited)
	if err != nil {
		return nil, err
	}
	return &session{conn: c, in: json.NewDecoder(c), out: json.NewEncoder(c)}, nil
}

func (s *session) close() { s.conn.Close() }

func (s *session) do(what step) (a answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = s.out.Encode(what); err == nil {
		err = s.in.Decode(&a)
	}
	if err != nil {
		err = fmt.Errorf("the resource: %w", err)
	}
	return a, err
}

// A fencedCounter is a count of the resource, for the holder of a lock that has a fence.
type fencedCounter struct {
	*session
	holder step // who it is
}

func (c fencedCounter) read() (int, error) {
	a, err := c.do(c.step(stepRead, 0))
	return a.Count, err
}

func (c fencedCounter) increment(n int) (bool, error) {
	if _, err := c.do(c.step(stepBegin, n+1)); err != nil {
		return false, err
	}
	a, err := c.do(c.step(stepCommit, n+1))
	return a.Taken, err
}

func (c fencedCounter) step(do string, count int) step {
	s := c.holder
	s.Do, s.Count = do, count
	return s
}
