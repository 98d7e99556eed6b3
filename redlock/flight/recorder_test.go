package flight

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const (
	ttl     = 30 * time.Second
	hanging = 20 * time.Second
)

// recorded returns a client that is recorded, all of whose masters are up.
func recorded(t testing.TB, rec *Recorder, cfg redlock.Config) *redlock.Client {
	t.Helper()
	cfg, err := rec.Attach(cfg)
	require.NoError(t, err)
	return opened(t, cfg)
}

// opened returns a client, all of whose masters are up.
func opened(t testing.TB, cfg redlock.Config) *redlock.Client {
	t.Helper()
	cfg.RoundTimeout, cfg.DialTimeout, cfg.StallTime = 10*time.Second, 10*time.Second, 10*time.Second
	c, err := redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(c.Stats().Masters, func(m redlock.MasterStats) bool { return m.Phase != "up" })
	}, hanging, 5*time.Millisecond)
	return c
}

// allTold returns when the Recorder was told what a client has done.
func allTold(t testing.TB, c *redlock.Client) {
	t.Helper()
	require.Eventually(t, func() bool { return c.Stats().EventsWaiting == 0 }, hanging, time.Millisecond)
}

func newRecorder(t testing.TB, opt Options) *Recorder {
	t.Helper()
	rec, err := New(opt)
	require.NoError(t, err)
	t.Cleanup(func() { rec.Close() })
	return rec
}

// bytesOf is the record as it is handed out.
func bytesOf(t testing.TB, rec *Recorder) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := rec.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

func read(t testing.TB, text []byte) *record.Record {
	t.Helper()
	r, err := record.Read(bytes.NewReader(text))
	require.NoError(t, err)
	return r
}

// of returns the events of a kind.
func of(r *record.Record, kind record.Kind) (all []*record.Event) {
	for e := range r.Events() {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

func TestRecordSaysWhatAClientHasDone(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	rec := newRecorder(t, Options{})
	var told atomic.Int64
	c := recorded(t, rec, redlock.Config{Masters: masters.Addrs(), ClientName: "billing", Owner: "me", Prefix: "p:",
		Observers: []redlock.Observer{func(_ context.Context, e *redlock.Event) {
			if e.Kind == redlock.EventRound {
				told.Add(1)
			}
		}}})
	before := time.Now()
	m := c.NewMutex("k", ttl, redlock.WithFence(), redlock.WithKeys("l"))
	require.NoError(t, m.TryLock(t.Context()))
	sum := sha256.Sum256([]byte(m.Token()))
	fence := m.Fence()
	other := c.NewMutex("k", ttl)
	ended, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, other.Lock(ended), redlock.ErrHeld)
	require.NoError(t, m.Unlock(t.Context()))
	allTold(t, c)
	require.Equal(t, int64(3), told.Load(), "the Observer of the Config is told, too")

	r := read(t, bytesOf(t, rec))
	require.Zero(t, r.Overwritten()+r.Missing())
	require.Zero(t, r.Torn+r.BadPages)
	host, _ := os.Hostname()
	require.Equal(t, host, r.About.Host)
	require.Equal(t, os.Getpid(), r.About.PID)
	require.Nil(t, r.About.Ended)
	require.Len(t, r.About.Clients, 1)
	require.Equal(t, "billing", r.About.Clients[0].Name)
	require.Equal(t, "me", r.About.Clients[0].Owner)
	require.Equal(t, masters.Addrs(), r.About.Clients[0].Masters)
	rounds := of(r, record.KindRound)
	require.Len(t, rounds, 3)
	lock, refused, unlock := rounds[0], rounds[1], rounds[2]
	require.Equal(t, record.OpLock, lock.Op)
	require.Equal(t, "ok", lock.Outcome)
	require.Equal(t, "k", lock.Key)
	require.Equal(t, []string{"p:k", "p:l"}, lock.Keys)
	require.Equal(t, fence, lock.Fence)
	require.Equal(t, binary.BigEndian.Uint64(sum[:]), lock.Token)
	require.Equal(t, ttl, lock.TTL)
	require.Equal(t, 1, lock.Holders)
	require.Len(t, lock.Votes, 3)
	require.Positive(t, lock.Validity)
	require.Less(t, lock.Began, lock.Boot)
	require.WithinRange(t, lock.Wall, before.Add(-time.Millisecond), time.Now())
	require.Equal(t, "held", refused.Outcome)
	require.Equal(t, record.OpUnlock, unlock.Op)
	require.Equal(t, lock.Token, unlock.Token)
	waited := of(r, record.KindWaited)
	require.Len(t, waited, 1)
	require.Equal(t, "me", waited[0].Detail, "who has it")
	require.GreaterOrEqual(t, waited[0].Waited, 40*time.Millisecond)
	up := of(r, record.KindMaster)
	require.Len(t, up, 3)
	for _, e := range up {
		require.Contains(t, masters.Addrs(), e.Key)
		require.Equal(t, "up", e.Phase)
		require.Len(t, e.RunID, 40)
	}
	require.NoError(t, rec.Close())
	require.NotNil(t, read(t, bytesOf(t, rec)).About.Ended, "it can be read after Close")
}

// The ring keeps the last events, of any number of goroutines, and can be read meanwhile.
func TestRingKeepsTheLastEvents(t *testing.T) {
	t.Parallel()
	rec := newRecorder(t, Options{Size: minSize})
	cfg, err := rec.Attach(redlock.Config{})
	require.NoError(t, err)
	const each, workers = 4000, 4
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range workers {
		running.Go(func() {
			for n := range each {
				cfg.Observers[0](t.Context(), &redlock.Event{Kind: redlock.EventWaited, Key: fmt.Sprint("key ", i), Took: time.Duration(n), Err: nil})
				cfg.Observers[0](t.Context(), &redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: fmt.Sprint("key ", n), Votes: make([]redlock.Vote, 5)})
			}
		})
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			r := read(t, bytesOf(t, rec))
			last := uint64(0)
			for e := range r.Events() {
				if e.Number <= last {
					t.Errorf("%d after %d", e.Number, last)
				}
				last = e.Number
			}
			require.Zero(t, r.Torn+r.BadPages)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	running.Wait()
	close(stop)
	reading.Wait()
	r := read(t, bytesOf(t, rec))
	require.Positive(t, r.Overwritten())
	require.Zero(t, r.Missing())
	last := r.Overwritten()
	next := map[string]time.Duration{}
	for e := range r.Events() {
		last++
		if last != e.Number {
			require.Equal(t, last, e.Number)
		}
		if e.Kind == record.KindWaited {
			if before, ok := next[e.Key]; ok && before != e.Waited {
				require.Equal(t, before, e.Waited, "each goroutine's events are in its order")
			}
			next[e.Key] = e.Waited + 1
		}
	}
	require.EqualValues(t, 2*each*workers, last)
}

// A record is for people who may not take the locks.
func TestRecordHasNoTokenAndNoPassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2hunter2"
	masters := redlocktest.Start(t, 3, redlocktest.WithArgs("--requirepass", password))
	file := filepath.Join(t.TempDir(), "record")
	rec := newRecorder(t, Options{File: file})
	cfg := redlock.Config{Owner: "me"}
	for _, addr := range masters.Addrs() {
		cfg.Masters = append(cfg.Masters, "redis://:"+password+"@"+addr)
	}
	c := recorded(t, rec, cfg)
	var tokens []string
	for _, opts := range [][]redlock.Option{nil, {redlock.WithFence()}, {redlock.WithShared()}, {redlock.WithPermits(3)}, {redlock.WithKeys("other")}} {
		m := c.NewMutex("k"+fmt.Sprint(len(opts)), ttl, opts...)
		require.NoError(t, m.TryLock(t.Context()))
		tokens = append(tokens, m.Token())
		_, stop := m.KeepAlive(t.Context())
		require.NoError(t, m.Extend(t.Context()))
		stop()
		require.NoError(t, m.Unlock(t.Context()))
	}
	m := c.NewMutex("lost", ttl, redlock.WithToken("handed over "+password))
	require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld) // now the masters are asked who they are
	require.Eventually(t, func() bool { return len(of(read(t, bytesOf(t, rec)), record.KindAsked)) == 3 }, hanging, 5*time.Millisecond)
	for _, e := range of(read(t, bytesOf(t, rec)), record.KindAsked) {
		require.Empty(t, e.Err)
		require.Len(t, e.RunID, 40)
	}
	onDisk, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, text := range [][]byte{bytesOf(t, rec), onDisk} {
		require.NotContains(t, string(text), password)
		for _, token := range tokens {
			_, secret, _ := strings.Cut(token, "/")
			require.Greater(t, len(secret), 20)
			for i := 0; i+6 <= len(secret) && i < 27; i++ {
				require.NotContains(t, string(text), secret[i:i+6])
			}
		}
	}
}

func TestRecordIsServed(t *testing.T) {
	t.Parallel()
	rec := newRecorder(t, Options{})
	cfg, err := rec.Attach(redlock.Config{})
	require.NoError(t, err)
	cfg.Observers[0](t.Context(), &redlock.Event{Kind: behind.Wait, Key: "k"})
	get := func(method string) *http.Response {
		w := httptest.NewRecorder()
		rec.ServeHTTP(w, httptest.NewRequest(method, "/debug/redlock", nil))
		return w.Result()
	}
	answer := get(http.MethodGet)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	r, err := record.Read(answer.Body)
	require.NoError(t, err)
	require.Len(t, of(r, record.KindWait), 1)
	require.Regexp(t, `^attachment; filename="redlock-.*\.flight"$`, answer.Header.Get("Content-Disposition"))
	require.Equal(t, "application/octet-stream", answer.Header.Get("Content-Type"))
	require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
	require.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"))
	head := get(http.MethodHead)
	require.Equal(t, http.StatusOK, head.StatusCode)
	none, err := io.ReadAll(head.Body)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Equal(t, http.StatusMethodNotAllowed, get(http.MethodPost).StatusCode)
}

// Who is told too late of a loss can still read what came before it.
func TestLossIsDumped(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	dir := t.TempDir()
	rec := newRecorder(t, Options{DumpDir: dir})
	c := recorded(t, rec, redlock.Config{Masters: masters.Addrs()})
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	for i := range 3 {
		_, err := masters.Do(i, "FLUSHALL")
		require.NoError(t, err)
	}
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	allTold(t, c)
	require.NoError(t, rec.Close()) // which does not wait any longer
	files, err := filepath.Glob(filepath.Join(dir, "redlock-*.flight"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	info, err := os.Stat(files[0])
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "others cannot read it")
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	rounds := of(read(t, text), record.KindRound)
	require.Equal(t, "not_held", rounds[len(rounds)-1].Outcome)
}

// Why a dump could not be written is told until the next one is.
func TestADumpThatFailedIsToldUntilTheNext(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dumps")
	rec := newRecorder(t, Options{DumpDir: dir, NoQuestions: true})
	a := &attached{recorder: rec}
	for _, there := range []bool{false, true} {
		if there {
			require.NoError(t, os.Mkdir(dir, 0o700))
		} else {
			require.NoError(t, os.RemoveAll(dir))
		}
		rec.mu.Lock()
		rec.dumpedAt = 0 // as if a minute had passed
		rec.mu.Unlock()
		a.lost()
		require.Eventually(t, func() bool { return (rec.Err() == nil) == there }, hanging, time.Millisecond)
	}
}

// Who is refused has lost nothing, and what is revoked an operator has meant.
func TestWhatIsNoLossIsNotDumped(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	dir := t.TempDir()
	rec := newRecorder(t, Options{DumpDir: dir})
	c := recorded(t, rec, redlock.Config{Masters: masters.Addrs()})
	require.ErrorIs(t, c.Revoke(t.Context(), "k", "nobody has it", redlock.WithToken("another")), redlock.ErrNotHeld)
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), redlock.ErrHeld)
	require.NoError(t, m.Unlock(t.Context()))
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	require.NoError(t, c.Revoke(t.Context(), "k", "somebody wants it"))
	conntest.Soon(t, "the holder is told", held.Done())
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrRevoked)
	allTold(t, c)
	require.NoError(t, rec.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestSizesAndOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opt := range []Options{{Size: 1}, {Size: record.MaxRing + 1}, {DumpOnQuit: true}, {File: t.TempDir()}, {File: filepath.Join(t.TempDir(), "no", "such")}} {
		_, err := New(opt)
		require.Error(t, err, "%+v", opt)
	}
	rec := newRecorder(t, Options{})
	client := redlock.Config{Masters: []string{strings.Repeat("m", 100) + ":1"}}
	_, err := rec.Attach(client)
	require.NoError(t, err)
	rec.about.Clients = slices.Repeat(rec.about.Clients, maxClients-1) // each Attach writes all of them
	_, err = rec.Attach(client)
	require.NoError(t, err)
	_, err = rec.Attach(redlock.Config{})
	require.Error(t, err)
	about := read(t, bytesOf(t, rec)).About
	require.Equal(t, maxClients, len(about.Clients)+about.LeftOut)
	require.Positive(t, about.LeftOut)
	require.Positive(t, len(about.Clients))
}

// A file that has the record is kept when the next process begins, and no other file is harmed.
func TestFileIsPutAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "record")
	began := func(key string) *Recorder {
		rec := newRecorder(t, Options{File: name, Size: minSize})
		cfg, err := rec.Attach(redlock.Config{})
		require.NoError(t, err)
		cfg.Observers[0](t.Context(), &redlock.Event{Kind: behind.Wait, Key: key})
		return rec
	}
	keyIn := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return of(read(t, text), record.KindWait)[0].Key
	}
	first := began("first")
	require.Equal(t, "first", keyIn(name), "it is there before Close")
	require.NoError(t, first.Close())
	second := began("second")
	require.Equal(t, "first", keyIn(name+".old"))
	require.Equal(t, "second", keyIn(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "others cannot read it")
	require.NoError(t, second.Close())

	own := filepath.Join(dir, "own")
	require.NoError(t, os.WriteFile(own, []byte("a file of mine"), 0o600))
	_, err = New(Options{File: own})
	require.ErrorIs(t, err, errForeign)
	text, err := os.ReadFile(own)
	require.NoError(t, err)
	require.Equal(t, "a file of mine", string(text))
	for _, old := range [][]byte{[]byte("my notes"), []byte("my notes are longer than a record's mark")} { // also under the other name
		require.NoError(t, os.WriteFile(name+".old", old, 0o600))
		_, err = New(Options{File: name, Size: minSize})
		require.ErrorIs(t, err, errForeign)
		require.ErrorContains(t, err, "record.old")
		text, err = os.ReadFile(name + ".old")
		require.NoError(t, err)
		require.Equal(t, old, text)
		require.Equal(t, "second", keyIn(name))
	}
	require.NoError(t, os.Remove(name+".old"))
	require.NoError(t, os.Mkdir(name+".old", 0o700))
	_, err = New(Options{File: name, Size: minSize})
	require.ErrorIs(t, err, errForeign)

	// A file of zeros is a record that was never begun, whatever its size.
	for i, size := range []int{1, len(record.Magic), 4096, 1 << 20} {
		zeros := filepath.Join(dir, fmt.Sprint("zeros-", i))
		require.NoError(t, os.WriteFile(zeros, make([]byte, size), 0o600))
		newRecorder(t, Options{File: zeros, Size: minSize})
		info, err := os.Stat(zeros + ".old")
		require.NoError(t, err)
		require.EqualValues(t, size, info.Size())
	}
	newRecorder(t, Options{File: filepath.Join(dir, "of-%p")})
	_, err = os.Stat(filepath.Join(dir, fmt.Sprint("of-", os.Getpid())))
	require.NoError(t, err)
}

// Of processes that begin at the same time, one at most has the file, and the record of the former one is kept.
func TestOneRecorderAtMostHasTheFile(t *testing.T) {
	t.Parallel()
	if !mapped {
		t.Skip("files are not locked")
	}
	info := func(name string) os.FileInfo {
		info, err := os.Stat(name)
		require.NoError(t, err)
		return info
	}
	for range 100 {
		name := filepath.Join(t.TempDir(), "record")
		former, err := New(Options{File: name, Size: minSize})
		require.NoError(t, err)
		require.NoError(t, former.Close())
		old := info(name)
		begun := make(chan *Recorder, 4)
		var running sync.WaitGroup
		for range cap(begun) {
			running.Go(func() {
				if rec, err := New(Options{File: name, Size: minSize}); err == nil {
					begun <- rec
				}
			})
		}
		running.Wait()
		if len(begun) == 0 { // each has found the lock of another one, or of a program that is being started
			if now, err := os.Stat(name); err != nil || !os.SameFile(now, old) {
				require.True(t, os.SameFile(info(name+".old"), old))
			}
			continue
		}
		require.Len(t, begun, 1)
		rec := <-begun
		has, err := rec.ring.file.Stat()
		require.NoError(t, err)
		require.NoError(t, rec.Close())
		require.True(t, os.SameFile(info(name), has))
		require.True(t, os.SameFile(info(name+".old"), old))
	}
}

// Where a file cannot be mapped, each event is written.
func TestFileIsWrittenWithoutMapping(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "record")
	plain, err := os.Create(name)
	require.NoError(t, err)
	defer plain.Close()
	f := &file{File: plain, memory: make([]byte, minSize)}
	r := &ring{file: f, memory: f.memory, clock: func(time.Duration) (boot, wall time.Duration) { return 1, 1 }}
	require.NoError(t, plain.Truncate(minSize))
	require.NoError(t, r.access(func([]byte) { r.init() }))
	r.about(&record.About{Host: "here"})
	for i := range 5000 {
		r.record(0, &redlock.Event{Kind: behind.Wait, Key: fmt.Sprint("key ", i)})
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	got := read(t, text)
	require.Equal(t, "here", got.About.Host)
	require.Zero(t, got.Missing())
	waits := of(got, record.KindWait)
	require.Equal(t, "key 4999", waits[len(waits)-1].Key)
	require.NoError(t, plain.Close())
	r.record(0, &redlock.Event{Kind: behind.Wait, Key: "k"})
	r.record(0, &redlock.Event{Kind: behind.Wait, Key: "k"})
	require.True(t, errors.Is(r.err, os.ErrClosed), r.err)
}

// An errorFunc is an error whose text is what it returns.
type errorFunc func() string

func (f errorFunc) Error() string { return f() }

// An error may be of the program's own type. Its method may wait for a goroutine that records, or panic. Then nobody else
// waits, and the other events are right.
func TestErrorsOfTheProgramDoNoHarm(t *testing.T) {
	t.Parallel()
	rec, err := New(Options{}) // Close would wait, too
	require.NoError(t, err)
	cfg, err := rec.Attach(redlock.Config{})
	require.NoError(t, err)
	o := cfg.Observers[0]
	told := func(err error) []func() {
		return []func(){
			func() { o(t.Context(), &redlock.Event{Kind: redlock.EventWaited, Key: "its end", Took: 0, Err: err}) },
			func() { o(t.Context(), &redlock.Event{Kind: redlock.EventLost, Key: "its loss", Err: err}) },
			func() {
				o(t.Context(), &redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: "its round", Err: err})
			},
			func() {
				o(t.Context(), &redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: "its vote", Votes: []redlock.Vote{{Verdict: "failed", Err: err}}})
			},
		}
	}
	for _, tell := range told(errorFunc(func() string { panic("the program's") })) {
		require.PanicsWithValue(t, "the program's", tell)
		o(t.Context(), &redlock.Event{Kind: behind.Wait, Key: "k"})
	}
	for _, tell := range told(errorFunc(func() string {
		o(t.Context(), &redlock.Event{Kind: behind.Wait, Key: "l"})
		return "it has waited"
	})) {
		done := make(chan bool, 1)
		go func() { tell(); done <- true }()
		conntest.Soon(t, "the end", done)
	}
	var keys []string
	for e := range read(t, bytesOf(t, rec)).Events() {
		keys = append(keys, e.Key)
	}
	require.Equal(t, []string{"k", "k", "k", "k", "l", "its end", "l", "its loss", "l", "its round", "l", "its vote"}, keys)
}
