package zookeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// An entry is a node in a queue.
type entry struct {
	session *session
	queue   string // path of the node that has the queue below it
	guid    string // in the name of the node, which ends with its number
	first   bool   // it was seen to be the first
	creation
}

// A creation is a request to create a node.
type creation struct {
	done chan struct{} // closed when it has returned; nil if there is none
	path string        // of the node, if err is nil
	err  error
}

func (s *session) Entry(key string) second.Entry {
	var guid [16]byte
	rand.Read(guid[:])
	return &entry{session: s, queue: s.store.path(key), guid: fmt.Sprintf("%x", guid)}
}

// Enter creates the node. Where nobody knows what became of a creation, that is undone before the next.
func (p *entry) Enter(ctx context.Context, alone bool) (fence uint64, err error) {
	s := p.session
	for {
		err := p.create(ctx)
		switch {
		case err == nil:
			return p.created(ctx, alone)
		case errors.Is(err, zk.ErrNoNode):
			_, err := ask(ctx, s, func() (string, error) {
				return s.client.CreateContainer(p.queue, nil, zk.FlagContainer, s.store.acl)
			})
			if err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return 0, err
			}
		case answered(err) || errors.Is(err, second.ErrOver) || ctx.Err() != nil:
			return 0, err
		default:
			for {
				if !s.pause(ctx) {
					return 0, s.wire.reason(err)
				}
				if _, failed := p.Leave(ctx); failed == nil {
					break
				}
			}
		}
	}
}

// create creates the node, and waits for that until ctx ends.
func (p *entry) create(ctx context.Context) error {
	s, done := p.session, make(chan struct{})
	if !s.spawn(func() {
		defer close(done)
		p.path, p.err = s.client.Create(p.queue+"/_c_"+p.guid+"-lock-", nil, zk.FlagEphemeralSequential, s.store.acl)
	}) {
		return s.closedErr()
	}
	p.done = done
	select {
	case <-done:
		return s.ofSession(p.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// created reads the fence of the node, and whether it is the first, as it must be if alone. Both requests are sent at once.
func (p *entry) created(ctx context.Context, alone bool) (fence uint64, err error) {
	s := p.session
	type look struct {
		before string
		err    error
	}
	looks := make(chan look, 1)
	if !s.spawn(func() {
		before, err := p.before(ctx)
		looks <- look{before, err}
	}) {
		return 0, s.closedErr()
	}
	stat, err := ask(ctx, s, func() (*zk.Stat, error) {
		_, stat, err := s.client.Get(p.path)
		return stat, err
	})
	l := <-looks
	switch {
	case err != nil:
		return 0, err
	case l.err != nil:
		return 0, l.err
	case stat.EphemeralOwner != s.id:
		return 0, s.closedErr() // the client has another session by now
	}
	p.first = l.before == ""
	if alone && !p.first {
		p.Leave(ctx) // if that fails, it is called again
		return 0, redlock.ErrHeld
	}
	return uint64(stat.Czxid), nil
}

// before returns the path of the node that is before ours in the queue, or "" if that is the first.
func (p *entry) before(ctx context.Context) (string, error) {
	names, err := ask(ctx, p.session, func() ([]string, error) {
		names, _, err := p.session.client.Children(p.queue)
		return names, err
	})
	if err != nil {
		return "", err
	}
	before, there := nearestBefore(names, strings.TrimPrefix(p.path, p.queue+"/"))
	switch {
	case !there:
		return "", fmt.Errorf("its node %q was deleted while it waited", p.path)
	case before == "":
		return "", nil
	}
	return p.queue + "/" + before, nil
}

// nearestBefore returns the name before our own, or "" if that is the first, and whether ours is there.
func nearestBefore(names []string, own string) (before string, there bool) {
	ours, _ := number(own)
	nearest := int32(0)
	for _, name := range names {
		n, ok := number(name)
		// Numbers wrap around, so what counts is how far they are apart.
		switch distance := ours - n; {
		case name == own:
			there = true
		case ok && distance > 0 && (before == "" || distance < nearest):
			nearest, before = distance, name
		}
	}
	return before, there
}

// number is what the name of a sequential node ends with: ten characters or more, as %010d prints it.
func number(name string) (n int32, ok bool) {
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	rest := strings.TrimSuffix(name, digits)
	if strings.HasSuffix(rest, "--") || strings.HasSuffix(rest, "_-") {
		digits = "-" + digits
	}
	if len(digits) < 10 {
		return 0, false
	}
	long, err := strconv.ParseInt(digits, 10, 32)
	return int32(long), err == nil
}

// Wait waits until no node is before ours. It looks again now and then, whatever the watch tells.
func (p *entry) Wait(ctx context.Context) error {
	s := p.session
	for !p.first {
		before, err := p.before(ctx)
		if err != nil {
			return err
		}
		if before == "" {
			return nil
		}
		w, ok := s.watch(before)
		if !ok {
			return s.closedErr()
		}
		again := time.NewTimer(s.wire.sessionTimeout())
		select {
		case <-w.done:
			if w.err != nil && !errors.Is(w.err, zk.ErrNoNode) {
				s.pause(ctx)
			}
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// A watch waits for a node to be deleted. All who wait for the node share it, as the client keeps each watch until the
// node is deleted, also if nobody waits any more.
type watch struct {
	done chan struct{} // closed when the node was deleted, or changed, or there is nothing more to learn
	err  error         // of the request to watch
}

func (s *session) watch(path string) (w *watch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[path]; w != nil {
		return w, true
	}
	if s.closed {
		return nil, false
	}
	w = &watch{done: make(chan struct{})}
	s.watches[path] = w
	s.running.Go(func() {
		_, _, events, err := s.client.GetW(path)
		if err == nil {
			<-events
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		w.err = err
		delete(s.watches, path)
		close(w.done)
	})
	return w, true
}

// Leave deletes the node. Where nobody knows whether it was created, it looks for it first. What was sent on another
// connection before is obeyed before the sync, or never.
func (p *entry) Leave(ctx context.Context) (found bool, err error) {
	s := p.session
	if p.done == nil {
		return false, nil
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	path := p.path
	if p.err != nil && !answered(p.err) {
		if path, err = p.find(ctx); err != nil {
			return false, p.left(err)
		}
	}
	if path != "" {
		_, err = call(ctx, s, func() (none, error) { return none{}, s.client.Delete(path, -1) })
	}
	if found = path != "" && err == nil; found || path == "" {
		p.creation = creation{}
		return found, nil
	}
	return false, p.left(err)
}

// left is nil if the error says that the node is not there any more.
func (p *entry) left(err error) error {
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, second.ErrOver) {
		p.creation = creation{}
		return nil
	}
	return err
}

// find returns the path of the node by its GUID, or "" if there is none.
func (p *entry) find(ctx context.Context) (string, error) {
	s := p.session
	names, err := call(ctx, s, func() ([]string, error) {
		if _, err := s.client.Sync(p.queue); err != nil {
			return nil, err
		}
		names, _, err := s.client.Children(p.queue)
		return names, err
	})
	for _, name := range names {
		if strings.Contains(name, p.guid) {
			return p.queue + "/" + name, nil
		}
	}
	return "", err
}
