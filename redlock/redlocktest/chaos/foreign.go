//go:build linux

package main

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// A stranger takes locks as another library does, redsync for one: it sets a key on each master
// where it is free, and deletes it by a script. It knows nothing of readers and of several keys,
// and it shares no code with the library. One goroutine uses it at a time.
type stranger struct {
	masters []*foreignMaster
	time    time.Duration // that all masters together have for an answer
}

// A foreignMaster is a stranger's connection to a master, which is made when it is needed.
type foreignMaster struct {
	address  string
	password string        // that it demands; empty for none
	guard    time.Duration // for how long a master does not vote that was restarted, or a replica
	run      string        // the master's identity
	flushes  string        // how often its keys were flushed; empty if they never were, since it was started
	votes    time.Duration // since when its vote counts
	conn     net.Conn      // nil if there is none
	in       *bufio.Reader
}

const (
	foreignTime = 200 * time.Millisecond

	foreignRelease = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`
	foreignExtend  = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end`
)

// newStranger makes a stranger that knows the identities of the masters, none of which has forgotten
// anything yet. It has none that are roaming, as it would not find them. It does not count the vote of another before the guard has passed.
func newStranger(addresses, runs []string, guard time.Duration, password string) *stranger {
	s := &stranger{time: foreignTime}
	for i, run := range runs {
		s.masters = append(s.masters, &foreignMaster{address: addresses[i], password: password, guard: guard, run: run})
	}
	return s
}

// follow goes on with these addresses.
func (s *stranger) follow(addresses []string) {
	for i, m := range s.masters {
		if m.address != addresses[i] {
			m.close()
			m.address = addresses[i]
		}
	}
}

func (s *stranger) close() {
	for _, m := range s.masters {
		m.close()
	}
}

// ask sends a command to all masters. It returns how many have answered, and how many of those that
// may vote have answered with yes.
func (s *stranger) ask(yes string, command ...string) (answered, agreed int) {
	var asking sync.WaitGroup
	answers := make([]string, len(s.masters))
	deadline := time.Now().Add(s.time)
	for i, m := range s.masters {
		asking.Go(func() { answers[i] = m.ask(deadline, command) })
	}
	asking.Wait()
	for i, m := range s.masters {
		if answers[i] != "" {
			answered++
		}
		if answers[i] == yes && clock.Now() >= m.votes {
			agreed++
		}
	}
	return answered, agreed
}

func (s *stranger) quorum() int { return len(s.masters)/2 + 1 }

// ask returns the master's answer, or nothing if there is none in time.
func (m *foreignMaster) ask(deadline time.Time, command []string) string {
	err := m.open(deadline)
	answer := ""
	if err == nil {
		answer, err = m.do(deadline, command...)
	}
	if err == nil { // nothing else tells of a flush
		err = m.look(deadline, "commandstats")
	}
	if err != nil {
		m.close() // or the answer would be taken for that of the next command
		return ""
	}
	return answer
}

func (m *foreignMaster) open(deadline time.Time) (err error) {
	if m.conn != nil {
		return nil
	}
	d := net.Dialer{Deadline: deadline}
	if m.conn, err = d.Dial("tcp", m.address); err != nil {
		m.conn = nil
		return err
	}
	m.in = bufio.NewReader(m.conn)
	if m.password != "" {
		if said, err := m.do(deadline, "AUTH", m.password); err != nil || said != "+OK" {
			return fmt.Errorf("AUTH: %s, %v", said, err)
		}
	}
	return m.look(deadline, "default")
}

// look takes the vote from a master that may have forgotten something, as a section of INFO says.
func (m *foreignMaster) look(deadline time.Time, section string) error {
	info, err := m.do(deadline, "INFO", section)
	if err != nil {
		return err
	}
	run, flushes := m.run, m.flushes
	switch section {
	case "commandstats":
		flushes = flushesIn(info)
	default:
		if field(info, "role") != "master" {
			return errReplica
		}
		run = identity(info)
	}
	if run != m.run || flushes != m.flushes {
		m.run, m.flushes, m.votes = run, flushes, clock.Now()+m.guard
	}
	return nil
}

func (m *foreignMaster) close() {
	if m.conn != nil {
		m.conn.Close()
		m.conn = nil
	}
}

// do sends a command, and returns the line that answers it, or the text that it announces.
func (m *foreignMaster) do(deadline time.Time, command ...string) (string, error) {
	if err := m.conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	request := fmt.Sprintf("*%d\r\n", len(command))
	for _, arg := range command {
		request += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(m.conn, request); err != nil {
		return "", err
	}
	line, err := m.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	size, isText := strings.CutPrefix(line, "$")
	if n, err := strconv.Atoi(size); isText && err == nil && n >= 0 {
		text := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(m.in, text)
		return string(text[:n]), err
	}
	return line, nil
}

var errReplica = errors.New("it is no master")

// identity returns what INFO says of the server's run, and since when it is the master. A server that
// was a replica in between has another replication id.
func identity(info string) string { return field(info, "run_id") + " " + field(info, "master_replid") }

// flushesIn returns how often the keys were flushed, as INFO says.
func flushesIn(info string) string {
	flushes, _, _ := strings.Cut(field(info, "cmdstat_flushall"), ",")
	return flushes
}

// field returns a field of INFO.
func field(info, name string) string {
	_, after, _ := strings.Cut("\r\n"+info, "\r\n"+name+":")
	value, _, _ := strings.Cut(after, "\r\n")
	return value
}

// A foreignMutex is a stranger's lock. Its errors are named as those of a [redlock.Mutex].
type foreignMutex struct {
	*stranger
	key   string
	ttl   time.Duration
	token string
	until time.Duration
}

func (s *stranger) newMutex(l lockable) *foreignMutex {
	return &foreignMutex{stranger: s, key: l.Keys[0], ttl: l.TTL}
}

// TryLock does not look at ctx: it does not take long.
func (f *foreignMutex) TryLock(context.Context) error {
	began := clock.Now()
	f.token = crand.Text()
	answered, agreed := f.ask("+OK", "SET", f.key, f.token, "NX", "PX", strconv.FormatInt(f.ttl.Milliseconds(), 10))
	err := f.judge(began, answered, agreed)
	if err != nil {
		f.release()
	}
	return err
}

// judge says whether a majority has agreed, soon enough, to what was begun then.
func (f *foreignMutex) judge(began time.Duration, answered, agreed int) error {
	until := began + f.ttl - f.ttl/100 - 2*time.Millisecond
	switch {
	case agreed >= f.quorum() && until > clock.Now():
		f.until = until
		return nil
	case agreed >= f.quorum():
		return redlock.ErrExpired
	case answered >= f.quorum():
		return redlock.ErrHeld
	}
	return redlock.ErrNoQuorum
}

func (f *foreignMutex) release() (answered int) {
	answered, _ = f.ask(":1", "EVAL", foreignRelease, "1", f.key, f.token)
	return answered
}

// Lock tries now and then.
func (f *foreignMutex) Lock(ctx context.Context) error {
	for f.TryLock(ctx) != nil {
		if !sleep(ctx, rand.N(50*time.Millisecond)) {
			return ctx.Err()
		}
	}
	return nil
}

func (f *foreignMutex) Extend(context.Context) error {
	began := clock.Now()
	answered, agreed := f.ask(":1", "EVAL", foreignExtend, "1", f.key, f.token, strconv.FormatInt(f.ttl.Milliseconds(), 10))
	err := f.judge(began, answered, agreed)
	if err == redlock.ErrHeld {
		return redlock.ErrNoQuorum // it remains valid for as long as it was
	}
	return err
}

// Unlock does not say that the lock was lost: masters that were restarted have forgotten it.
func (f *foreignMutex) Unlock(context.Context) error {
	f.until = 0
	if f.release() < f.quorum() {
		return redlock.ErrNoQuorum
	}
	return nil
}

func (f *foreignMutex) Remaining() time.Duration { return max(f.until-clock.Now(), 0) }
