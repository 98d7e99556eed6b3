package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
)

const readEvery = time.Second // how often the files are read

const keepRemedy = "the passwords and certificates stay what they were, until the file changes"

// A keyring has the passwords and certificates of our files, and reads them again while we run. What is new in them is
// tried with each master, on a connection of its own. A master that takes it is told it at each connect from then on. To
// one that does not, or that is not reached, the keyring goes on telling what it had before, and the new is tried again
// at the next connect.
//
// Its goroutine reads the files, alone, and ends with end. One that hangs in a read holds nobody up: no lock is held.
type keyring struct {
	given mastersFlags // frozen: what can be read once was read
	names []string     // of the files that can change
	note  func(format string, args ...any)
	ctx   context.Context
	end   context.CancelFunc
	looks chan look

	read, judged string // by the goroutine: the files as they were read last, and when their texts were last judged

	mu     sync.Mutex
	latest masterSet         // what the files said when they last made sense
	taken  map[string]access // what each master has taken, by its address
}

// A look at the files that somebody waits for.
type look struct {
	remedy string      // said if they make no sense; if it is empty, nothing is said of them
	done   chan<- bool // gets whether they make sense; has room
}

// An access is what one master is told.
type access struct {
	redlock.Credentials
	certificates string
}

func (a access) same(b access) bool {
	return a.Username == b.Username && a.Password.Reveal() == b.Password.Reveal() && a.certificates == b.certificates
}

// newKeyring returns a keyring that begins with what the flags have said, or nil if no file of theirs can change.
func newKeyring(given *mastersFlags, start masterSet) *keyring {
	k := &keyring{latest: start, looks: make(chan look), taken: map[string]access{}, note: func(string, ...any) {}}
	for _, name := range given.files() {
		if _, once := given.once[name]; !once {
			k.names = append(k.names, name) // even if it is gone by now: it may come back
		}
	}
	if len(k.names) == 0 {
		return nil
	}
	given.frozen = true
	k.given = *given
	for _, a := range start.masters {
		k.taken[bare(a)], _, _ = start.access(bare(a))
	}
	k.ctx, k.end = context.WithCancel(context.Background())
	go k.watch() // which judges what it finds first, too: that may be newer than the start
	return k
}

// access returns what a master is told, and its address with that.
func (s *masterSet) access(master string) (a access, at conn.Address, ok bool) {
	for _, text := range s.masters {
		if at, err := conn.ParseAddress(text); err == nil && at.String() == master {
			a := access{s.connect.CredentialsFor(at), s.certificates}
			a.TLS = s.connect.TLS
			return a, at, true
		}
	}
	return a, at, false
}

func (k *keyring) watch() {
	every := time.NewTicker(readEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			k.lookAgain()
		case l := <-k.looks:
			texts, err := k.look()
			if l.remedy != "" {
				err = k.judge(texts, err, l.remedy)
			} else if err == nil {
				err = k.take(texts)
			}
			l.done <- err == nil
		case <-k.ctx.Done():
			return
		}
	}
}

// lookAgain judges the files if they have changed, and nobody is writing them any more.
func (k *keyring) lookAgain() {
	before := k.read
	if texts, err := k.look(); k.read == before && k.read != k.judged {
		k.judge(texts, err, keepRemedy)
	}
}

// look reads the files, and returns what is in them, by their names. It notes all that as one text, with
// what cannot be read.
func (k *keyring) look() (texts map[string]string, err error) {
	texts = maps.Clone(k.given.once)
	if texts == nil {
		texts = map[string]string{}
	}
	var b strings.Builder
	for _, name := range k.names {
		text, failed := k.given.text(name)
		fmt.Fprintf(&b, "%q %v %d %s\n", name, failed, len(text), text)
		if texts[name] = text; failed != nil {
			err = failed
		}
	}
	k.read = b.String()
	return texts, err
}

// take notes what the files say, if that makes sense.
func (k *keyring) take(texts map[string]string) error {
	given := k.given
	given.once = texts
	set, err := given.masterSet()
	if err == nil {
		k.mu.Lock()
		k.latest = set
		k.mu.Unlock()
	}
	return err
}

// judge takes what the files say, tries it with the masters, and says what has come of it.
func (k *keyring) judge(texts map[string]string, err error, remedy string) error {
	k.judged = k.read
	if err == nil {
		err = k.take(texts)
	}
	if err != nil {
		complain(err.Error(), remedy)
		return err
	}
	type answer struct {
		master string
		err    error
	}
	answers := make(chan answer)
	asked := 0
	k.mu.Lock()
	set := k.latest
	for master, old := range k.taken {
		if fresh, at, ok := set.access(master); ok && !fresh.same(old) {
			asked++
			go func() { answers <- answer{master, k.try(k.ctx, &set, master, fresh, at)} }()
		}
	}
	k.mu.Unlock()
	var refused []string
	var why error
	for range asked {
		switch a := <-answers; {
		case a.err == nil:
			k.note("%s takes the new password or certificate", a.master)
		case unreached(a.err):
			k.note("%s is not reached, to try the new password or certificate: %v", a.master, a.err)
		default:
			refused, why = append(refused, a.master), a.err
		}
	}
	if len(refused) > 0 {
		complain(fmt.Sprintf("%s refused the new password or certificate: %v", strings.Join(refused, ", "), why),
			"what was there before goes on being used; the new is tried again at each connect")
	}
	return nil
}

// try tries what is new with a master, and notes it if the master takes it.
func (k *keyring) try(ctx context.Context, set *masterSet, master string, fresh access, at conn.Address) error {
	c, err := conn.Dial(ctx, at, set.connect)
	if err != nil {
		return err
	}
	c.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken[master] = fresh
	return nil
}

// unreached reports whether an error says nothing of a password or certificate.
func unreached(err error) bool {
	var e *conn.Error
	return errors.Is(err, conn.ErrUnanswered) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, conn.ErrNotMaster) || errors.As(err, &e) && (e.Op == "resolve" || e.Op == "connect")
}

// keep forgets what the masters have taken that are in no list any more.
func (k *keyring) keep(list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.taken, func(master string, _ access) bool { return !contains(list, master) })
}

// ask has the files read at once, and reports whether they make sense, unless ctx ends before that is known. With a remedy
// it has what becomes of them said, too.
func (k *keyring) ask(ctx context.Context, remedy string) bool {
	done := make(chan bool, 1)
	select {
	case k.looks <- look{remedy, done}:
	case <-ctx.Done():
		return false
	}
	select {
	case ok := <-done:
		return ok
	case <-ctx.Done():
		return false
	}
}

// credentials returns what a master is told now. It is the Credentials function of all connections.
func (k *keyring) credentials(ctx context.Context, master string) (redlock.Credentials, error) {
	k.refresh(ctx)
	k.mu.Lock()
	set := k.latest
	old, known := k.taken[master]
	k.mu.Unlock()
	fresh, at, ok := set.access(master)
	switch {
	case !known && ok: // a newcomer
		k.mu.Lock()
		k.taken[master] = fresh
		k.mu.Unlock()
		return fresh.Credentials, nil
	case !known:
		return redlock.Credentials{}, fmt.Errorf("%s is in no list that was read", master)
	case !ok || fresh.same(old):
		return old.Credentials, nil
	}
	half, cancel := partOf(ctx, 2)
	defer cancel()
	if k.try(half, &set, master, fresh, at) == nil {
		return fresh.Credentials, nil
	}
	return old.Credentials, nil
}

// partOf returns a context that has one of n parts of the time that is left.
func partOf(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(n))
}

// refresh has the files read, and waits for that for a quarter of the time: they may be on a disk that hangs.
func (k *keyring) refresh(ctx context.Context) {
	ctx, cancel := partOf(ctx, 4)
	defer cancel()
	k.ask(ctx, "")
}
