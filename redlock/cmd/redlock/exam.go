package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// An exam is what was learnt of one master.
type exam struct {
	address string
	err     error  // why it could not be examined; nil if it could
	speaks  string // "TLS" or "plain text" if we spoke the other; else ""
	server  conn.Server
	info    map[string]string  // what INFO says; nil if it was refused
	config  map[string]string  // what CONFIG GET says; nil if it was refused
	durable bool               // it was declared to persist every write (--durable)
	shows   []string           // settings with a password that we would not know otherwise
	mayShow bool               // the user is a limited one, and would be shown them if there were any
	refusal map[string]refusal // the commands of the lock that the master refuses
	samples []sample           // of its clock
}

// A refusal is the error with which a master refuses a command.
type refusal struct{ code, text string }

func refusalOf(v resp.Value) refusal { return refusal{conn.ErrorCode(v), conn.ErrorText(v)} }

// A sample is a look at a master's clock.
type sample struct {
	sent, received time.Duration // on our clock
	server         time.Duration // on the master's, since 1970
	wall           time.Duration // our wall clock, when it was received
}

func (s sample) rtt() time.Duration { return s.received - s.sent }

const (
	ticks       = 40      // looks at the clock
	infoLimit   = 1 << 20 // bytes of an INFO; those of real masters have some KiB
	trialScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return redis.call('DEL', KEYS[1])
end
return 0`
)

// examine asks the master at address for all that matters to a lock. It takes about
// as long as span. It takes the lock of key there for a moment if it is free.
func examine(ctx context.Context, address string, opt conn.Options, key string, span time.Duration) *exam {
	e := &exam{address: conn.Redact(address), durable: !opt.Persistence}
	opt.ClientName, opt.Tracking, opt.Limits = "redlock-doctor", true, resp.Limits{Bulk: infoLimit}
	p, err := dialProbe(ctx, address, opt)
	if err != nil {
		e.err = err
		if !errors.Is(err, conn.ErrRefused) {
			e.speaks = speaks(ctx, address, opt)
		}
		return e
	}
	defer p.close()
	e.server = p.Server()
	for _, look := range []func(context.Context, *probe) error{
		e.readConfiguration,
		func(ctx context.Context, p *probe) error { return e.readPasswords(ctx, p, userOf(address, opt)) },
		func(ctx context.Context, p *probe) error { return e.tryLock(ctx, p, key) },
		func(ctx context.Context, p *probe) error { return e.watchClock(ctx, p, span) },
	} {
		if e.err = look(ctx, p); e.err != nil {
			break
		}
	}
	return e
}

func (e *exam) readConfiguration(ctx context.Context, p *probe) error {
	// One parameter at a time: older ones take no more.
	replies, err := p.do(ctx, []string{"INFO"}, []string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"},
		[]string{"CONFIG", "GET", "maxmemory"}, []string{"CONFIG", "GET", "maxmemory-policy"},
		[]string{"CONFIG", "GET", "min-replicas-to-write"}, []string{"CONFIG", "GET", "no-appendfsync-on-rewrite"})
	if err != nil {
		return err
	}
	if info := replies[0]; !info.IsError() {
		e.info = map[string]string{}
		for line := range strings.Lines(string(info.Bytes())) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				e.info[name] = value
			}
		}
	}
	for _, reply := range replies[1:] {
		if reply.IsError() {
			continue
		}
		if e.config == nil {
			e.config = map[string]string{}
		}
		elems := reply.Elems()
		name, _ := elems.Next()
		if value, ok := elems.Next(); ok {
			e.config[string(name.Bytes())] = string(value.Bytes())
		}
	}
	return nil
}

// passwords are the settings that hold one. Older servers lack the last two.
var passwords = []string{"requirepass", "masterauth", "tls-key-file-pass", "tls-client-key-file-pass"}

// readPasswords finds out whether CONFIG GET shows passwords to the user. It keeps none. The user default
// has logged in with the requirepass, and often the masterauth is the same.
func (e *exam) readPasswords(ctx context.Context, p *probe, user string) error {
	var commands [][]string
	for _, name := range passwords {
		commands = append(commands, []string{"CONFIG", "GET", name})
	}
	replies, err := p.do(ctx, commands...)
	if err != nil || replies[0].IsError() {
		return err
	}
	known := ""
	for i, reply := range replies {
		if reply.IsError() {
			continue
		}
		elems := reply.Elems()
		elems.Next()
		value, _ := elems.Next()
		password := string(value.Bytes())
		if i == 0 && user == defaultUser {
			known = password
		}
		if password != "" && password != known {
			e.shows = append(e.shows, passwords[i])
		}
	}
	e.mayShow = user != defaultUser
	return nil
}

const defaultUser = "default"

// userOf is the user with which the master at address is spoken to.
func userOf(address string, opt conn.Options) string {
	user := opt.Username
	_, rest, _ := strings.Cut(address, "://")
	// A password may hold a /, and the path of a Unix socket an @.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && !strings.HasPrefix(rest, "/") {
		user, _, _ = strings.Cut(rest[:i], ":")
	}
	return cmp.Or(user, defaultUser)
}

// tryLock does what a lock does: SET NX PX, and a script that checks whose the key is,
// extends it and deletes it. It leaves the key of another alone.
func (e *exam) tryLock(ctx context.Context, p *probe, key string) error {
	token := "redlock-doctor/" + rand.Text()
	ms := "1000"
	commands := [][]string{
		{"SET", key, token, "NX", "PX", ms},
		{"EVAL", trialScript, "1", key, token, ms},
		{"SCRIPT", "LOAD", trialScript},
	}
	replies, err := p.do(ctx, commands...)
	if err != nil {
		return err
	}
	if sha := replies[2]; !sha.IsError() {
		evalsha := []string{"EVALSHA", string(sha.Bytes()), "1", key, token, ms}
		again, err := p.do(ctx, commands[0], evalsha)
		if err != nil {
			return err
		}
		commands, replies = append(commands, evalsha), append(replies, again[1])
	}
	e.refusal = map[string]refusal{}
	for i, reply := range replies {
		if reply.IsError() {
			name := commands[i][0]
			if name == "SCRIPT" {
				name = "SCRIPT LOAD"
			}
			e.refusal[name] = refusalOf(reply)
		}
	}
	return nil
}

// watchClock samples the master's clock for as long as span.
func (e *exam) watchClock(ctx context.Context, p *probe, span time.Duration) error {
	pause := time.NewTicker(max(span/ticks, time.Microsecond))
	defer pause.Stop()
	for range ticks {
		sent := clock.Now()
		replies, err := p.do(ctx, []string{"TIME"})
		if err != nil {
			return err
		}
		elems := replies[0].Elems()
		seconds, _ := elems.Next()
		micros, _ := elems.Next()
		s, ok1 := number(seconds)
		us, ok2 := number(micros)
		if replies[0].IsError() || !ok1 || !ok2 {
			e.refusal["TIME"] = refusalOf(replies[0])
			return nil
		}
		received := clock.Now()
		e.samples = append(e.samples, sample{sent, received,
			time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond, time.Duration(time.Now().UnixNano())})
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func number(v resp.Value) (n int64, ok bool) {
	text := v.Bytes()
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<52 {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, len(text) > 0
}

// latency is the median and the longest of the round trips; 0 if there are none.
func (e *exam) latency() (median, longest time.Duration) {
	if len(e.samples) == 0 {
		return 0, 0
	}
	rtts := make([]time.Duration, len(e.samples))
	for i, s := range e.samples {
		rtts[i] = s.rtt()
	}
	slices.Sort(rtts)
	return rtts[len(rtts)/2], rtts[len(rtts)-1]
}

// clockRate is the share by which the master's clock is faster than ours, and how far
// off that can be: nobody knows when within the round trip the master read its clock.
// It compares the shortest round trip of the first quarter with that of the last.
func clockRate(samples []sample) (rate, uncertainty float64, ok bool) {
	n := len(samples) / 4
	if n == 0 {
		return 0, 0, false
	}
	shorter := func(a, b sample) int { return int(a.rtt() - b.rtt()) }
	first := slices.MinFunc(samples[:n], shorter)
	last := slices.MinFunc(samples[len(samples)-n:], shorter)
	ours := (last.sent+last.received)/2 - (first.sent+first.received)/2
	if ours <= 0 {
		return 0, 0, false
	}
	rate = float64(last.server-first.server)/float64(ours) - 1
	return rate, float64(first.rtt()+last.rtt()) / 2 / float64(ours), true
}

// leastJump is how far a clock must be set between two looks to be taken for one that was set,
// beyond half of the time between them. What is less shows in the rate.
const leastJump = 20 * time.Millisecond

// clockJumps returns the greatest steps by which the master's clock was set while we looked. They
// are 0 if there were none.
func clockJumps(samples []sample) (forward, back time.Duration) {
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		gained := b.server - a.server
		most, least := b.received-a.sent, b.sent-a.received // what has passed between its two readings
		if gained-most > leastJump+most/2 {
			forward = max(forward, gained-(most+least)/2)
		}
		if least-gained > leastJump+most/2 {
			back = max(back, (most+least)/2-gained)
		}
	}
	return forward, back
}

// rate is [clockRate], which is unknown if the clock was set meanwhile.
func (e *exam) rate() (rate, uncertainty float64, ok bool) {
	if forward, back := clockJumps(e.samples); forward+back > 0 {
		return 0, 0, false
	}
	return clockRate(e.samples)
}

// ahead is by how much the master's clock is at least ahead of our wall clock, or behind it if it
// is below 0. It is 0 if both may say the same.
func (e *exam) ahead() time.Duration {
	if len(e.samples) == 0 {
		return 0
	}
	last := e.samples[len(e.samples)-1]
	least := last.server - last.wall
	switch most := least + last.rtt(); {
	case least > 0:
		return least
	case most < 0:
		return most
	}
	return 0
}

// setting is a value of CONFIG. If CONFIG is forbidden it is that of INFO, which has some
// of them under other names. It is empty if it is unknown.
func (e *exam) setting(name, infoName string) string {
	if v, ok := e.config[name]; ok {
		return v
	}
	return e.info[infoName]
}

// aof is the master's appendfsync: "always", "everysec" or "no"; "off" if there is no
// append-only file, "declared" if we were told what it does not tell, "" if that is unknown.
func (e *exam) aof() string {
	switch e.setting("appendonly", "aof_enabled") {
	case "no", "0":
		return "off"
	case "yes", "1":
		if fsync, ok := e.config["appendfsync"]; ok {
			return fsync
		}
	}
	if e.durable {
		return "declared"
	}
	return ""
}

// refused are the commands that are refused, in order. Those that are refused with the
// same error stand together.
func (e *exam) refused() (all [][]string) {
	for _, command := range slices.Sorted(maps.Keys(e.refusal)) {
		same := func(group []string) bool { return e.refusal[group[0]] == e.refusal[command] }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i] = append(all[i], command)
		} else {
			all = append(all, []string{command})
		}
	}
	return all
}
