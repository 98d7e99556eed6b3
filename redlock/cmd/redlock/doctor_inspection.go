package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// An inspection is what was learnt of one master.
type inspection struct {
	address string
	user    string // with which it is spoken to
	prefix  string // in front of every key on the master
	err     error  // why it could not be examined; nil if it could
	speaks  string // "TLS" or "plain text" if we spoke the other; else ""
	server  conn.Server
	info    map[string]string  // what INFO says; nil if it was refused
	config  map[string]string  // what CONFIG GET says; nil if it was refused
	durable bool               // it was declared to persist every write (--durable)
	shows   []string           // settings with a password that we would not know otherwise
	mayShow bool               // the user is a limited one, and would be shown them if there were any
	replay  string             // "all" or "not all" that the append-only file has is replayed (see readDefaultUser); "" if that is unknown
	refusal map[string]refusal // the commands of the lock that the master refuses
	lacks   map[string]bool    // the rules of an ACL that the user lacks, where KEY stands for a lock's key
	on      connected          // who is connected to it, and why that is not known
	samples []sample           // of its clock
}

// inspect asks the master at address for all that matters to a lock. It takes about
// as long as span. It takes the lock of key there for a moment if it is free.
func inspect(ctx context.Context, address string, opt conn.Options, durable bool, key string, span time.Duration) *inspection {
	e := &inspection{address: conn.Redact(address), user: userOf(address, opt), prefix: opt.ClusterKey, durable: durable}
	e.on = connected{address: e.address, err: errors.New("not asked")}
	opt.ClientName, opt.Tracking = probeName("doctor"), true
	opt.Witness = kind.WitnessKey(opt.ClusterKey)
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
		e.readPasswords,
		e.readDefaultUser,
		e.readClients,
		func(ctx context.Context, p *probe) error { return e.tryLock(ctx, p, key) },
		func(ctx context.Context, p *probe) error { return e.tryRights(ctx, p, key) },
		func(ctx context.Context, p *probe) error { return e.watchClock(ctx, p, span) },
	} {
		if e.err = look(ctx, p); e.err != nil {
			break
		}
	}
	return e
}

// speaks tells whether an address was given with the wrong protocol. It is "TLS" if plain
// text was tried and the server speaks TLS, "plain text" if it is the other way round, and ""
// otherwise. The server learns none of our secrets.
func speaks(ctx context.Context, address string, opt conn.Options) string {
	addr, err := conn.ParseAddress(address)
	if err != nil || addr.Group() != "" {
		return ""
	}
	network := "tcp"
	if strings.HasPrefix(addr.Endpoint(), "/") {
		network = "unix"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, network, addr.Endpoint())
	if err != nil {
		return ""
	}
	defer c.Close()
	if until, ok := ctx.Deadline(); ok {
		c.SetDeadline(until)
	}
	if !strings.HasPrefix(addr.String(), "rediss:") && opt.TLS == nil {
		if tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) == nil { // nothing is said to it
			return "TLS"
		}
		return ""
	}
	var first [1]byte
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return ""
	}
	if _, err := c.Read(first[:]); err == nil && (first[0] == '+' || first[0] == '-') {
		return "plain text"
	}
	return ""
}

// A refusal is the error with which a master refuses a command.
type refusal struct{ code, text string }

// ofKey reports whether it is about the key, and not about the command.
func (r refusal) ofKey() bool { return r.code == "NOPERM" && strings.Contains(r.text, "key") }

// A busyError is what a master says that serves nobody for now, whatever it is asked.
type busyError struct{ refusal }

func (e *busyError) Error() string { return e.text }

// judged sends commands by whose answers a master is to be judged. If it serves nobody for now, what it refuses says
// nothing about it, and judged returns a busyError.
func judged(ctx context.Context, p *probe, commands ...[]string) ([]resp.Value, error) {
	replies, err := p.do(ctx, commands...)
	for _, v := range replies {
		if code := conn.ErrorCode(v); code == "LOADING" || code == "BUSY" {
			return nil, &busyError{p.refusalOf(v)}
		}
	}
	return replies, err
}

func (p *probe) refusalOf(v resp.Value) refusal { return refusal{conn.ErrorCode(v), p.ErrorText(v)} }

func (e *inspection) readConfiguration(ctx context.Context, p *probe) error {
	// One parameter at a time: older ones take no more.
	replies, err := judged(ctx, p, []string{"INFO"}, []string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"},
		[]string{"CONFIG", "GET", "maxmemory"}, []string{"CONFIG", "GET", "maxmemory-policy"},
		[]string{"CONFIG", "GET", "min-replicas-to-write"}, []string{"CONFIG", "GET", "no-appendfsync-on-rewrite"})
	if err != nil {
		return err
	}
	if info := replies[0]; !info.IsError() {
		e.info = map[string]string{}
		for line := range strings.Lines(p.Hide(string(info.Bytes()))) {
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
			e.config[string(name.Bytes())] = p.Hide(string(value.Bytes()))
		}
	}
	return nil
}

// readClients asks who is connected. Mostly the user may not ask, and that is no fault.
func (e *inspection) readClients(ctx context.Context, p *probe) error {
	e.on.err = e.on.read(ctx, p)
	return nil
}

// readDefaultUser finds out whether the user default may do all. As that user a server replays at its start what its
// append-only file has between MULTI and EXEC: what a script has written by several commands. The administrator
// alone may ask.
func (e *inspection) readDefaultUser(ctx context.Context, p *probe) error {
	replies, err := judged(ctx, p, []string{"ACL", "GETUSER", defaultUser})
	if err != nil || replies[0].IsError() {
		return err
	}
	e.replay = "not all"
	var commands, keys string
	for elems := replies[0].Elems(); ; {
		name, ok := elems.Next()
		value, more := elems.Next()
		if !ok || !more {
			break
		}
		switch string(name.Bytes()) {
		case "commands":
			commands = string(value.Bytes())
		case "keys": // a list before Redis 7
			keys = string(value.Bytes())
			for all := value.Elems(); keys == ""; {
				key, ok := all.Next()
				if !ok {
					break
				}
				keys = "~" + strings.TrimPrefix(string(key.Bytes()), "~")
			}
		}
	}
	if strings.TrimSpace(commands) == "+@all" && slices.Contains(strings.Fields(keys), "~*") {
		e.replay = "all"
	}
	return nil
}

// passwords are the settings that hold one. Older servers lack the last two.
var passwords = []string{"requirepass", "masterauth", "tls-key-file-pass", "tls-client-key-file-pass"}

// readPasswords finds out whether CONFIG GET shows passwords to the user. It keeps none. The user default
// has logged in with the requirepass, and often the masterauth is the same.
func (e *inspection) readPasswords(ctx context.Context, p *probe) error {
	var commands [][]string
	for _, name := range passwords {
		commands = append(commands, []string{"CONFIG", "GET", name})
	}
	replies, err := judged(ctx, p, commands...)
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
		if i == 0 && e.user == defaultUser {
			known = password
		}
		if password != "" && password != known {
			e.shows = append(e.shows, passwords[i])
		}
	}
	e.mayShow = e.user != defaultUser
	return nil
}

const defaultUser = "default"

// userOf is the user with which the master at address is spoken to.
func userOf(address string, opt conn.Options) string {
	addr, _ := conn.ParseAddress(address) // one that is none is not connected
	return cmp.Or(opt.CredentialsFor(addr).Username, defaultUser)
}

const trialScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return redis.call('DEL', KEYS[1])
end
return 0`

// tryLock does what a lock does: SET NX PX, and a script that checks whose the key is,
// extends it and deletes it. It leaves the key of another alone.
func (e *inspection) tryLock(ctx context.Context, p *probe, key string) error {
	token := "redlock-doctor/" + rand.Text()
	ms := "1000"
	commands := [][]string{
		{"SET", key, token, "NX", "PX", ms},
		{"EVAL", trialScript, "1", key, token, ms},
		{"SCRIPT", "LOAD", trialScript},
	}
	replies, err := judged(ctx, p, commands...)
	if err != nil {
		return err
	}
	if sha := replies[2]; !sha.IsError() {
		evalsha := []string{"EVALSHA", string(sha.Bytes()), "1", key, token, ms}
		again, err := judged(ctx, p, commands[0], evalsha)
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
			e.refusal[name] = p.refusalOf(reply)
		}
	}
	return nil
}

// setting is a value of CONFIG. If CONFIG is forbidden it is that of INFO, which has some
// of them under other names. It is empty if it is unknown.
func (e *inspection) setting(name, infoName string) string {
	if v, ok := e.config[name]; ok {
		return v
	}
	return e.info[infoName]
}

// aof is the master's appendfsync: "always", "everysec" or "no"; "off" if there is no
// append-only file, "declared" if we were told what it does not tell, "" if that is unknown.
func (e *inspection) aof() string {
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
func (e *inspection) refused() (all [][]string) {
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
