//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/skew"
)

// A clientConfig is what a client process is told, in its environment.
type clientConfig struct {
	Name         string
	Masters      []string
	Prefix       string   // as in redlock.Config
	Durable      bool     // likewise
	Names        string   // the file that says where the masters' names lead; empty if they have none
	Direct       []string // other addresses of the masters, which lead past the traffic that is struck
	Doubled      bool     // the lock's client is given one master twice, and another not at all
	Runs         []string // the masters' identities, when the test began
	Locks        []lockable
	Dir          string        // of the counters
	Journal      string        // file
	RoundTimeout time.Duration // as in redlock.Config
	RestartGuard time.Duration // likewise
	Unguarded    bool          // the lock's client has no RestartGuard, and takes what goes without
	DriftFactor  float64       // likewise
	User         string        // likewise
	Password     string        // of all users, and of sentinels
	Skew         time.Duration // of the wall clock, for the fences
	Logs         bool          // into the file that it inherits
	Seed         uint64
	Place        int  // of the client, from 0; it goes to the next one when it is killed
	Workers      int  // goroutines that take locks
	Holder       bool // instead, take one lock once, and hold it until the finish
	Held         int  // ... which of Locks it is
	Fenced       bool // ... with a fence
	Everywhere   bool // ... once all masters are connected, so that all of them have it
}

const (
	clientEnv    = "REDBURST_CHAOS_CLIENT"
	flightSuffix = ".flight" // of a client's flight record, behind the name of its journal

	// The lines on standard input. After the first a client ends. Behind the second are a file to make, and two addresses.
	finish  = "finish"
	replace = "replace"

	// resourceFile is a client's connection to the resource: the first file that it inherits.
	resourceFile = 3

	// patience is how long a client tries what must succeed at last.
	patience = 30 * time.Second
)

// A client is a client process.
type client struct {
	clientConfig
	lock      *redlock.Client
	journal   *journal
	counters  map[string]fileCounter
	resource  *session
	log       *os.File // one for all that is opened: an os.File that nobody has any more closes what it stands for
	flight    *flight.Recorder
	holds     atomic.Int64
	opened    chan struct{}
	list      atomic.Pointer[[]string] // the masters, if one was replaced
	gone      sync.Map                 // of secondID: second locks whose contexts have ended by a loss
	finishing chan struct{}
}

// runAsClient makes this process a client, and does not return, if its
// environment says so.
func runAsClient() {
	text, isClient := os.LookupEnv(clientEnv)
	if !isClient {
		return
	}
	c := &client{counters: make(map[string]fileCounter), finishing: make(chan struct{}), opened: make(chan struct{}), log: os.NewFile(logFile, "log")}
	err := json.Unmarshal([]byte(text), &c.clientConfig)
	if err == nil {
		c.journal, err = openJournal(c.Journal)
	}
	if err == nil {
		c.resource, err = openSession(os.NewFile(resourceFile, "resource"))
	}
	if err == nil {
		c.flight, err = flight.New(flight.Options{File: c.Journal + flightSuffix})
	}
	if err != nil {
		panic(err)
	}
	skew.Set(c.Skew)
	if c.Names != "" {
		net.DefaultResolver = resolver(c.Names)
	}
	for _, key := range keysOf(c.Locks) {
		c.counters[key] = fileCounter{filepath.Join(c.Dir, key)}
	}
	go c.listen()
	c.run()
	os.Exit(exitFine)
}

// listen waits for the finish. If the input ends, so does the client: whoever
// started it is gone.
func (c *client) listen() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch words := strings.Fields(in.Text()); words[0] {
		case finish:
			close(c.finishing)
		case replace:
			go c.replace(words[1], words[2], words[3])
		}
	}
	os.Exit(exitUnknown)
}

func (c *client) run() {
	before := inUse()
	c.open()
	if c.Holder {
		c.hold()
	} else {
		var workers sync.WaitGroup
		for i := range c.Workers {
			w := newWorker(c, i)
			workers.Go(w.run)
		}
		workers.Wait()
		c.add(record{Op: opWhole, Outcome: c.whole(), Raised: c.lock.Stats().FenceRaised})
	}
	err := c.lock.Close()
	left := inUse()
	for deadline := clock.Now() + patience; left != before && clock.Now() < deadline; left = inUse() {
		time.Sleep(10 * time.Millisecond) // goroutines take a moment to end
	}
	outcome := name(context.Background(), err)
	if left != before {
		outcome = fmt.Sprintf("%+v in use, and %+v before", left, before)
	}
	c.add(record{Op: opEnd, Outcome: outcome})
}

func (c *client) add(r record) {
	if r.T == 0 {
		r.T = clock.Now()
	}
	c.journal.add(r)
}

// open tries to open the lock's client until it succeeds, which it does at last.
func (c *client) open() {
	guard := c.RestartGuard
	if c.Unguarded {
		guard = 0
	}
	for c.lock == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		config := redlock.Config{Masters: c.Masters, Prefix: c.Prefix, Durable: c.Durable, ClientName: c.Name, RoundTimeout: c.RoundTimeout,
			RestartGuard: guard, DriftFactor: c.DriftFactor, Username: c.User, Password: redlock.NewSecret(c.Password),
			SentinelPassword: redlock.NewSecret(c.Password)}
		if c.Logs {
			config.Observers = []redlock.Observer{c.logger()}
		}
		if c.flight != nil {
			var err error
			if config, err = c.flight.Attach(config); err != nil {
				panic(err)
			}
		}
		open := func() (*redlock.Client, error) { return redlock.Open(ctx, config) }
		if c.Doubled { // Open would refuse it
			config.Masters = doubled(c.Masters, c.Direct, c.Seed)
			open = func() (*redlock.Client, error) { return redlock.New(config) }
		}
		lock, err := open()
		c.add(record{Op: opOpen, Outcome: name(ctx, err)})
		cancel()
		if err == nil {
			c.lock = lock
			close(c.opened)
		} else {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// doubled returns the masters with the direct address of one of them in the place of another, as
// operators write who mistake two addresses for two servers.
func doubled(masters, direct []string, seed uint64) []string {
	order := rand.New(rand.NewPCG(seed, 3)).Perm(len(masters))
	list := slices.Clone(masters)
	list[order[1]] = direct[order[0]]
	return list
}

func (c *client) isFinishing() bool {
	select {
	case <-c.finishing:
		return true
	default:
		return false
	}
}

// hold takes one lock as soon as it is to be had.
func (c *client) hold() {
	w := newWorker(c, 0)
	defer w.stranger.close()
	// Another library's key that is set after it was given up keeps its own lock away, for as long as it lives.
	w.stranger.time = patience
	l := c.Locks[c.Held]
	for c.Everywhere && !c.isFinishing() && !c.allUp() {
		time.Sleep(10 * time.Millisecond)
	}
	for !c.isFinishing() {
		if h := w.acquire(context.Background(), l, c.Fenced, opTry); h != nil {
			for !c.isFinishing() && h.look() {
				if l.isWriter() {
					h.increment()
				}
				time.Sleep(h.upTo(10 * time.Millisecond))
			}
			h.leave(context.Background())
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// allUp reports whether all masters are connected.
func (c *client) allUp() bool {
	return !slices.ContainsFunc(c.lock.Stats().Masters, func(s redlock.MasterStats) bool { return s.Phase != "up" })
}

// atOnce is how often in turn a lock is taken at once when all is well again. A majority that has the key once
// may be luck.
const atOnce = 10

// whole waits until all masters are there and nothing is owed to any, and
// until locks that are taken are on all of them. Of a master that was given twice, one is enough.
func (c *client) whole() string {
	m := c.lock.NewMutex("own-"+c.Name, longestOf(c.Locks))
	problem := "no time"
	for deadline := clock.Now() + patience; clock.Now() < deadline; time.Sleep(20 * time.Millisecond) {
		problem = c.missing(m)
		for i := 1; problem == "" && i < atOnce; i++ {
			problem = c.refused(m)
		}
		if problem == "" {
			return ok
		}
	}
	return problem
}

func (c *client) missing(m *redlock.Mutex) string {
	double := "" // the one of two addresses of a server that is not connected
	for _, s := range c.lock.Stats().Masters {
		if c.Doubled && double == "" && strings.Contains(s.Err, mux.ErrDuplicate.Error()) {
			double = s.Addr
			continue
		}
		if s.Phase != "up" || behind.OfMaster(&s).Owed > 0 || s.Debts > 0 {
			return fmt.Sprintf("%+v", s)
		}
	}
	ctx := context.Background()
	if err := m.TryLock(ctx); err != nil {
		return err.Error()
	}
	token := m.Token()
	lock, err := c.lock.Holders(ctx, m.Key())
	has := []string{double}
	for _, h := range lock.Holders {
		if h.Token.Reveal() == token {
			has = append(has, h.Masters...)
		}
	}
	for _, s := range c.lock.Stats().Masters {
		if err == nil && !slices.Contains(has, s.Addr) {
			err = fmt.Errorf("%s does not have %q: %+v", s.Addr, token, lock)
		}
	}
	if released := m.Unlock(ctx); err == nil {
		err = released
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// refused says why a lock is not to be had at once, or not released. It is empty if it is.
func (c *client) refused(m *redlock.Mutex) string {
	err := m.TryLock(context.Background())
	if err == nil {
		err = m.Unlock(context.Background())
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// usage is what a process uses of what must be given back.
type usage struct{ Goroutines, Descriptors int }

func inUse() usage {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return usage{runtime.NumGoroutine(), len(files)}
}
