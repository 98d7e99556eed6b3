//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
)

// endTime is how long clients have for their end. It is far beyond what they
// need, which is the longest operation and then their own patience twice.
const endTime = 4 * patience

// clientName is what the names of all clients begin with.
const clientName = "client-"

// A fleet is the client processes of a test. One that is killed is replaced.
type fleet struct {
	config   clientConfig  // what all have in common
	spread   time.Duration // that the wall clocks of three neighbours differ by
	unlike   bool          // not all clients are alike: see blindPlace
	dir      string
	resource *resource
	places   []*network.Node // of the clients; nil if they are where we are

	mu           sync.Mutex
	all          []*process // that were ever started
	current      []*process
	replacements int
}

// These places are unlike the others, if the fleet is. The client in blindPlace is not told who the masters are, and that in
// doubledPlace is given one twice. In the places before, every second client has no RestartGuard, from the first on that follows
// another.
const (
	blindPlace   = 2
	doubledPlace = 3
)

// A process is one client process.
type process struct {
	name      string
	journal   string // file
	cmd       *exec.Cmd
	input     io.WriteCloser
	errors    bytes.Buffer // what it has written to standard error; to be read when it is gone
	gone      chan struct{}
	unguarded bool
	unread    sync.Mutex // while somebody else has it, its log is not read
	killed    bool       // by us
	hung      bool       // until we made it say where
}

// start starts a client in the place of number i, or as the next one.
func (f *fleet) start(i int) (*process, error) { return f.startAs(i, false) }

// startUnguarded starts one without a RestartGuard.
func (f *fleet) startUnguarded(i int) (*process, error) { return f.startAs(i, true) }

func (f *fleet) startAs(i int, unguarded bool) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := fmt.Sprintf("%s%d", clientName, len(f.all)+1)
	p := &process{name: name, journal: filepath.Join(f.dir, name), gone: make(chan struct{})}
	config := f.config
	config.Name, config.Journal = name, p.journal
	config.Seed += uint64(len(f.all))
	config.Place, config.Logs = i, true
	if i%2 == 1 { // the others have the default
		config.RoundTimeout = 200 * time.Millisecond
	}
	if f.unlike && i == blindPlace {
		config.User = blindUser
	}
	config.Doubled = f.unlike && i == doubledPlace
	if f.unlike && i < blindPlace && i < len(f.current) {
		config.Unguarded = !f.current[i].unguarded
	}
	config.Unguarded = config.Unguarded || unguarded
	p.unguarded = config.Unguarded
	config.Skew -= f.spread * time.Duration(i%3) / 2
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	p.cmd.Stderr = &p.errors
	// A group of its own, so that Ctrl-C is ours to handle. And whatever becomes
	// of us, the client ends: also while it is frozen and cannot see that its
	// input has ended. (The signal comes when the thread that started the client
	// ends. The runtime ends threads only together with a goroutine that is still
	// locked to one, and there is none.)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	resource, err := f.resource.connect()
	if err != nil {
		return nil, err
	}
	defer resource.Close()
	log, err := p.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.ExtraFiles = []*os.File{resource, log}
	start := p.cmd.Start
	if f.places != nil {
		start = func() error { return f.places[i].Do(p.cmd.Start) }
	}
	if err := start(); err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait() // how it ended is in the ProcessState
		close(p.gone)
	}()
	f.all = append(f.all, p)
	if i < len(f.current) {
		f.current[i] = p
	} else {
		f.current = append(f.current, p)
	}
	return p, nil
}

func (f *fleet) client(i int) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current[i]
}

// signal does nothing if the process has ended.
func (p *process) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// kill returns when the process is gone.
func (p *process) kill() {
	p.killed = true
	p.signal(syscall.SIGKILL)
	<-p.gone
}

// finish tells all clients to end and waits until they have, or ctx has. Those
// who do not are made to say where they hang.
func (f *fleet) finish(ctx context.Context) {
	f.mu.Lock()
	current := slices.Clone(f.current)
	f.mu.Unlock()
	for _, p := range current {
		p.signal(syscall.SIGCONT)
		fmt.Fprintln(p.input, finish) // fails if it has ended
	}
	patient, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	for _, p := range current {
		select {
		case <-p.gone:
			continue
		case <-patient.Done():
		}
		if ctx.Err() != nil {
			return
		}
		p.hung = true
		p.signal(syscall.SIGQUIT)
		<-p.gone
	}
}

// close kills what is left of the clients. It returns when they are gone.
func (f *fleet) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.all {
		p.signal(syscall.SIGKILL)
		<-p.gone
	}
}

// logs returns what the clients have recorded. All must be gone.
func (f *fleet) logs() ([]clientLog, error) {
	var all []clientLog
	for _, p := range f.all {
		<-p.gone
		records, err := readJournal(p.journal)
		if err != nil {
			return nil, err
		}
		l := clientLog{Client: p.name, Killed: p.killed, Records: records}
		if !p.killed && !p.cmd.ProcessState.Success() {
			l.Death = fmt.Sprintf("%v\n%s", p.cmd.ProcessState, &p.errors)
			if p.hung {
				l.Death = "it did not end by itself: " + l.Death
			}
		}
		all = append(all, l)
	}
	return all, nil
}
