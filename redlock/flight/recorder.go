package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/record"
)

// Options say where a Recorder keeps its events. The zero Options keep 16 MiB in memory.
type Options struct {
	// Size is how many bytes are kept. Zero means 16 MiB, which is some 200,000 events of five masters. The least is
	// 256 KiB, the most 256 MiB.
	Size int
	// File, if set, is a file that has the record at any time, also after the process was killed. Where a name holds
	// %p, that is the process's id: two processes cannot record to one file. A record that is there already is
	// kept under the same name with .old behind it, in the place of the record that has this name; any other file is not overwritten.
	// A file of zeros is a record that was never begun. If the file cannot be
	// written any more, as the disk is full, recording ends, and Err says why.
	File string
	// DumpDir, if set, is the directory of dumps: redlock-HOST-PID-N.flight. One is made when a lock is lost, and not revoked, at most
	// once in a minute. Nobody deletes them.
	DumpDir string
	// DumpOnQuit makes a dump on SIGQUIT, too, before the process ends by it, where there is such a signal. Without
	// DumpDir, New refuses it.
	DumpOnQuit bool
	// NoQuestions says that masters are asked nothing when a lock was lost.
	NoQuestions bool

	clock readClocks
	lie   time.Duration // by how much the wall clock is ahead, in tests: then it is another host's
	mute  bool          // no master says what its clock says, in tests
}

const (
	defaultSize = 16 << 20
	minSize     = record.HeadBytes + 2*pageBytes

	minDumpPause = time.Minute
	minAskPause  = 10 * time.Second
	askTimeout   = 2 * time.Second
)

// A Recorder records. Any number of goroutines may use it at once.
type Recorder struct {
	opt  Options
	ring ring

	mu       sync.Mutex // comes before ring.mu
	about    record.About
	dumps    int
	dumpedAt time.Duration // when a loss made the last one
	dumpErr  error
	closed   bool

	ending  context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// New makes a Recorder, of which nothing is recorded yet. Close it when the clients are closed.
func New(opt Options) (*Recorder, error) {
	if opt.Size == 0 {
		opt.Size = defaultSize
	}
	switch {
	case opt.Size < minSize || opt.Size > record.MaxRing:
		return nil, fmt.Errorf("flight: a size of %d bytes: it must be from %d to %d", opt.Size, minSize, record.MaxRing)
	case opt.DumpOnQuit && opt.DumpDir == "":
		return nil, errors.New("flight: DumpOnQuit without DumpDir")
	}
	r := &Recorder{opt: opt}
	r.ring.clock = opt.clock
	if opt.clock == nil {
		r.ring.clock = systemClocks(opt.lie)
	}
	size := opt.Size - (opt.Size-record.HeadBytes)%pageBytes
	if opt.File == "" {
		r.ring.memory = make([]byte, size)
	} else {
		f, err := openFile(opt.File, size)
		if err != nil {
			return nil, fmt.Errorf("flight: %w", err)
		}
		r.ring.file, r.ring.memory = f, f.memory
	}
	if err := r.ring.access(func([]byte) { r.ring.init() }); err != nil {
		r.ring.file.close()
		return nil, err
	}
	host, _ := os.Hostname()
	boot, wall := r.ring.clock(0)
	r.about = record.About{
		Host: host, PID: os.Getpid(), Boot: bootID(), Program: filepath.Base(os.Args[0]), Version: clientname.Version(),
		System: runtime.GOOS + "/" + runtime.GOARCH, Began: time.Unix(0, int64(wall)).UTC(), BeganBoot: boot,
	}
	if opt.lie != 0 {
		r.about.Boot = opt.lie.String()
	}
	r.ring.about(&r.about)
	r.ending, r.end = context.WithCancel(context.Background())
	if opt.DumpOnQuit {
		r.dumpOnQuit()
	}
	return r, nil
}

// bootID says which boot the clock since boot is of, where the system says it.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}

// Attach returns the Config of a client that is recorded: the Recorder is one more of its Observers. A Recorder can record several clients of a process, up to 1,000.
func (r *Recorder) Attach(cfg redlock.Config) (redlock.Config, error) {
	c := record.Client{Name: cfg.ClientName, Owner: cfg.Owner, Prefix: cfg.Prefix, List: clientname.List(cfg.Masters), Masters: conn.RedactAll(cfg.Masters)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.about.Clients) == maxClients {
		return cfg, fmt.Errorf("flight: a Recorder records %d clients at most", maxClients)
	}
	n := len(r.about.Clients)
	r.about.Clients = append(r.about.Clients, c)
	r.ring.about(&r.about)
	a := &attached{recorder: r, place: n}
	cfg.Observers = append([]redlock.Observer{a.observe}, cfg.Observers...)
	return cfg, nil
}

const maxClients = 1000

// attached is a client that is recorded.
type attached struct {
	recorder *Recorder
	place    int // in About.Clients
	meet     atomic.Pointer[behind.Meet]

	mu      sync.Mutex
	askedAt time.Duration // when the masters were asked the last time
}

// observe is the Observer of the client. It is called by a goroutine of its own, so it may wait for a disk.
func (a *attached) observe(_ context.Context, e *redlock.Event) {
	more := behind.OfEvent(e)
	switch e.Kind {
	case behind.Opened:
		meet := more.Meet // which outlives the event
		a.meet.Store(&meet)
		return
	case redlock.EventMaster:
		a.met(record.KindMaster, more.Boot, e.Master.Addr, e.Master.Phase, e.Master.Err, *behind.OfMaster(e.Master))
		return
	}
	a.recorder.ring.record(a.place, e)
	switch outcome := redlock.Outcome(e.Err); {
	case e.Kind == redlock.EventLost && outcome != "closed" && outcome != "revoked",
		e.Kind == redlock.EventRound && outcome == "not_held" && more.Failures == 0 && e.Op != record.OpLock && e.Op != record.OpRevoke:
		a.lost()
	}
}

// lost makes a dump of the loss, and asks the masters what has become of them.
func (a *attached) lost() {
	r := a.recorder
	if !r.opt.NoQuestions {
		a.ask()
	}
	if r.opt.DumpDir == "" {
		return
	}
	now := clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.dumpedAt != 0 && now-r.dumpedAt < minDumpPause {
		return
	}
	r.dumpedAt = now
	r.running.Go(func() {
		select {
		case <-time.After(askTimeout + time.Second): // so that it has the masters' answers, and what came of the loss
		case <-r.ending.Done():
		}
		err := r.dump()
		r.mu.Lock()
		r.dumpErr = err
		r.mu.Unlock()
	})
}

// met writes down what was seen of a master.
func (a *attached) met(kind record.Kind, at time.Duration, addr, phase, why string, m behind.Master) {
	if opt := &a.recorder.opt; opt.mute {
		m.Ahead = 0
	} else if m.Ahead != 0 {
		m.Ahead -= opt.lie
	}
	a.recorder.ring.master(kind, a.place, at, addr, phase, why, &m)
}

// ask writes down who the masters are by now, and what their clocks say. The client asks them: it alone knows which masters it
// has, and what it may tell them.
func (a *attached) ask() {
	now := clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	meet := a.meet.Load()
	if meet == nil || a.askedAt != 0 && now-a.askedAt < minAskPause {
		return
	}
	a.askedAt = now
	r := a.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	ctx, cancel := context.WithTimeout(r.ending, askTimeout)
	wait := (*meet)(ctx, func(addr string, m behind.Master, why string) { a.met(record.KindAsked, 0, addr, "", why, m) })
	r.running.Go(func() {
		defer cancel()
		wait()
	})
}

// Err returns why nothing is recorded any more, or why the last dump of a loss could not be written.
func (r *Recorder) Err() error {
	r.ring.mu.Lock()
	err := r.ring.err
	r.ring.mu.Unlock()
	if err == nil || err == errClosed {
		r.mu.Lock()
		err = r.dumpErr
		r.mu.Unlock()
	}
	return err
}

var errClosed = errors.New("the Recorder is closed")

// Close ends the record, and returns when nothing of the Recorder is left. What the clients do from then on is not
// recorded. A record without a file can still be read.
func (r *Recorder) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	ended := time.Now().Add(r.opt.lie).UTC()
	r.about.Ended = &ended
	r.ring.about(&r.about)
	r.mu.Unlock()
	r.end()
	r.running.Wait()
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	failed := r.ring.err
	r.ring.err = errClosed
	if r.ring.file == nil {
		return nil
	}
	r.ring.memory = nil
	return errors.Join(failed, r.ring.file.close())
}

// WriteTo writes the record as it is now. Events that come meanwhile may be in it.
func (r *Recorder) WriteTo(w io.Writer) (n int64, err error) {
	buf := make([]byte, max(record.HeadBytes, pageBytes))[:record.HeadBytes]
	used := r.ring.used()
	if err := r.ring.access(func(memory []byte) { copy(buf, memory) }); err != nil {
		return 0, err
	}
	appendHead(buf[:0], used)
	for i := -1; ; {
		written, err := w.Write(buf)
		n += int64(written)
		if err != nil {
			return n, err
		}
		if i++; i >= used {
			return n, nil
		}
		buf = buf[:pageBytes]
		if err := r.ring.access(func(memory []byte) { copy(buf, memory[record.HeadBytes+i*pageBytes:]) }); err != nil {
			return n, err
		}
	}
}

// ServeHTTP returns the record, for GET and HEAD, as a file that no cache keeps. It changes nothing. It asks nobody who he
// is: the handler around it must. Whoever can read the record knows the names of all locks, and who takes them when (keys,
// owners, the host's name and the process's id); the addresses of the masters, and what is wrong with them; and why locks
// were revoked. He cannot take, extend or release a lock by it, as it has no token and no password. Each call
// copies up to Options.Size bytes.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "a record can only be read", http.StatusMethodNotAllowed)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s"`, r.fileName()))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if q.Method == http.MethodHead {
		return
	}
	if n, err := r.WriteTo(w); err != nil && n == 0 {
		h.Del("Content-Disposition")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// fileName is the name of the next dump.
func (r *Recorder) fileName() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dumps++
	return fmt.Sprintf("redlock-%s-%d-%d.flight", filepath.Base(r.about.Host), r.about.PID, r.dumps)
}

// dump writes the record to a new file in Options.DumpDir.
func (r *Recorder) dump() (err error) {
	var f *os.File
	for range 100 { // a former process may have had this id
		name := filepath.Join(r.opt.DumpDir, r.fileName())
		if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); !errors.Is(err, os.ErrExist) {
			break
		}
	}
	if err == nil {
		_, err = r.WriteTo(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("flight: dump: %w", err)
	}
	return nil
}

// dumpOnQuit makes a dump on SIGQUIT, and lets the signal do then what it does.
func (r *Recorder) dumpOnQuit() {
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, quitSignal)
	r.running.Go(func() {
		defer signal.Stop(quit)
		select {
		case <-quit:
		case <-r.ending.Done():
			return
		}
		if err := r.dump(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		signal.Stop(quit)
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			self.Signal(quitSignal)
		}
	})
}
