package conn

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/resp"
)

// handshake makes a connected stream ready for commands.
//
// It sends everything in one write, before any answer has come: HELLO 3 with AUTH and
// SETNAME, SELECT, CLIENT TRACKING, SCRIPT LOAD, INFO. So a reconnect costs one round trip.
// A server that does not speak RESP3 refuses the HELLO; then another write says the same in
// RESP2. So that no server does without RESP3 because of the name, a HELLO without it comes before.
type handshake struct {
	ctx         context.Context
	conn        *Conn
	opt         *Options
	db          int
	group       string // as by Address.Group
	cluster     bool   // it should be the master of a cluster's slot
	credentials Credentials
	wait        func(Interest) error

	out   []byte   // the commands
	names []string // of the commands, in their order, for the errors
	ended string   // the command at which the connection has ended
	began time.Time

	pushed bool // something has come that is no reply, after the witness
}

func (h *handshake) run() (Server, error) {
	h.began = time.Now()
	for _, c := range []byte(h.opt.ClientName) {
		if c <= ' ' || c > '~' {
			return Server{}, &RefusedError{
				Reason: "the client name holds a space, a control character or non-ASCII text",
				Remedy: "choose another",
			}
		}
	}
	replies, err := h.exchangeRESP3(h.opt.ClientName)
	unnamed := ""
	if h.opt.ClientName != "" && err == nil {
		if v := replies[0].Value; ErrorCode(v) == "ERR" && !unsupported(v) && !IsTransient(v) { // it may know HELLO, and no names in it
			unnamed = h.quote("client name: HELLO", v)
			replies, err = h.exchangeRESP3("")
		}
	}
	if len(replies) == 0 {
		return h.broken(replies, err)
	}
	if v := replies[0].Value; v.IsError() {
		// What is transient or final in RESP3 is so in RESP2. On a connection that has
		// ended there is no second try.
		e := h.replyError("HELLO", v)
		if _, ended := err.(*Error); ended && unsupported(v) {
			e = &RefusedError{Reason: h.quote("HELLO", v) + ", and it ended the connection",
				Remedy: "use the master's own address, and not a proxy's"}
		}
		if err != nil || IsTransient(v) || errors.Is(e, ErrRefused) {
			return Server{}, e
		}
		return h.runRESP2()
	}
	if err != nil {
		return h.broken(replies, err)
	}
	s, err := h.evaluate(replies)
	if unnamed != "" {
		s.Missing = append(s.Missing, unnamed)
	}
	return s, err
}

// exchangeRESP3 says all in RESP3, with this name of the client; empty for none.
func (h *handshake) exchangeRESP3(name string) ([]reply, error) {
	h.out, h.names = h.out[:0], h.names[:0]
	hello := []string{"HELLO", "3"}
	if !h.credentials.none() {
		hello = append(hello, "AUTH", cmp.Or(h.credentials.Username, "default"), h.credentials.Password.Reveal())
	}
	if name != "" {
		hello = append(hello, "SETNAME", name)
	}
	h.add("HELLO", hello...)
	h.addSelect()
	if h.opt.Tracking {
		h.add("CLIENT TRACKING", "CLIENT", "TRACKING", "ON", "OPTIN")
		// Without this one nothing is tracked. What follows is: the witness, or no key at all.
		h.add("CLIENT CACHING", "CLIENT", "CACHING", "YES")
	}
	h.addWitness()
	h.addScripts()
	// Four sections have all that is needed. The whole INFO would be longer; and a miniredis,
	// which has none of them, would read for it what its Close is writing.
	h.add("INFO", "INFO", "server")
	h.add("INFO replication", "INFO", "replication")
	if h.opt.Witness != "" {
		h.add("INFO stats", "INFO", "stats")
		h.add("INFO persistence", "INFO", "persistence")
	}
	h.addCluster()
	if h.group != "" { // the sentinels may be behind, so the server itself must say what it is
		h.add("ROLE", "ROLE")
	}
	h.addProbes()
	return h.exchange()
}

// broken says why a handshake ended before all answers had come. What the server has refused
// until then is the reason if it will be refused again.
func (h *handshake) broken(replies []reply, err error) (Server, error) {
	if s, refused := h.evaluate(replies); errors.Is(refused, ErrRefused) {
		return s, refused
	}
	e, ended := err.(*Error)
	switch {
	case !ended:
		return Server{}, err
	case len(replies) > 0:
		return Server{}, fmt.Errorf("%w before the answer to %s", e.Err, h.names[len(replies)])
	case h.conn.tls != nil:
		return Server{}, fmt.Errorf("%w before any answer; a proxy that does not know HELLO cannot serve", e.Err)
	}
	// A TLS server that reads a HELLO closes the connection, mostly without a word.
	return Server{}, fmt.Errorf("%w before any answer; the address of a TLS port begins with rediss://; "+
		"a proxy that does not know HELLO cannot serve", e.Err)
}

func (h *handshake) runRESP2() (Server, error) {
	h.out, h.names = h.out[:0], h.names[:0]
	if !h.credentials.none() {
		h.add("AUTH", h.credentials.auth()...)
	}
	if h.opt.ClientName != "" {
		h.add("CLIENT SETNAME", "CLIENT", "SETNAME", h.opt.ClientName)
	}
	h.addSelect()
	h.addWitness()
	h.addScripts()
	h.add("INFO", "INFO")
	h.addCluster()
	h.add("ROLE", "ROLE") // INFO may be forbidden, and without HELLO nothing else tells the role
	h.addProbes()
	replies, err := h.exchange()
	if err != nil {
		return h.broken(replies, err)
	}
	return h.evaluate(replies)
}

// addCluster asks whether the node has the slot itself.
func (h *handshake) addCluster() {
	if h.cluster {
		h.add("CLUSTER INFO", "CLUSTER", "INFO")
		h.add("GET", "GET", h.opt.ClusterKey)
	}
}

const getWitness = "GET of the witness"

func (h *handshake) addWitness() {
	if h.opt.Witness != "" {
		h.add(getWitness, "GET", h.opt.Witness)
	}
}

func (h *handshake) addProbes() {
	if h.opt.Probe {
		for _, p := range probes {
			h.add(p.name, p.name)
		}
	}
}

func (h *handshake) addSelect() {
	if h.db != 0 {
		h.add("SELECT", "SELECT", strconv.Itoa(h.db))
	}
}

func (h *handshake) addScripts() {
	for _, s := range h.opt.Scripts {
		h.add("SCRIPT LOAD", "SCRIPT", "LOAD", s)
	}
}

func (h *handshake) add(name string, args ...string) {
	h.names = append(h.names, name)
	h.out = resp.AppendCommand(h.out, args...)
}

// reply is the answer to one command of the handshake.
type reply struct {
	name string
	resp.Value
}

// exchange sends what was added and waits for the replies. With an error it returns the
// replies that came before it.
func (h *handshake) exchange() (replies []reply, err error) {
	flushed, err := h.conn.Send(h.out)
	for err == nil {
		// Receive reads into this same space, as a second call of Free moves nothing. What
		// is no RESP can then be shown to the user.
		head := h.conn.reader.Free(minRead)
		var n int
		n, err = h.conn.Receive()
		for len(replies) < len(h.names) {
			v, nerr := h.conn.Next()
			if nerr == resp.ErrNeedMore {
				break
			}
			if nerr == resp.ErrSkipped {
				what := h.conn.Skipped()
				switch name := h.names[len(replies)]; {
				case what.Kind == resp.Push:
					h.pushed = h.pushed || h.has(replies, getWitness)
				case name == "GET" || name == getWitness: // whatever somebody keeps at that key
					replies = append(replies, reply{name: name})
				default:
					return replies, h.unreadable(name, what.Fault, nil)
				}
				continue
			}
			if nerr != nil {
				return replies, h.unreadable(h.names[len(replies)], nerr, head[:min(n, len(head))])
			}
			if v.Kind() == resp.Push { // of the witness, or of all keys
				h.pushed = h.pushed || h.has(replies, getWitness)
			} else {
				replies = append(replies, reply{h.names[len(replies)], v.Clone()})
			}
		}
		if len(replies) == len(h.names) {
			return replies, nil
		}
		if err == nil && !flushed {
			flushed, err = h.conn.Flush()
		}
		if err == nil && h.ctx.Err() != nil { // wait would see it, but pushes without end keep us from it
			err = context.Cause(h.ctx)
		}
		if err == nil && n == 0 {
			want := Readable
			if !flushed {
				want |= Writable
			}
			err = h.wait(want)
		}
	}
	if _, ended := err.(*Error); ended {
		h.ended = h.names[len(replies)]
	}
	return replies, err
}

// has reports whether a command was answered.
func (h *handshake) has(replies []reply, command string) bool {
	return slices.ContainsFunc(replies, func(r reply) bool { return r.name == command })
}

// unreadable says that the answer to a command is too long, or what it looks like, without our
// password in it.
func (h *handshake) unreadable(command string, err error, head []byte) error {
	if errors.Is(err, resp.TooLong) || errors.Is(err, resp.TooMany) || errors.Is(err, resp.TooDeep) {
		return fmt.Errorf("the answer to %s exceeds the limits (%w)", command, err)
	}
	hint := "is this the port of a Redis server?"
	if len(head) > 1 && head[0] == 0x15 && head[1] == 0x03 {
		hint = "is this a TLS port, so that the address has to begin with rediss://?"
	}
	shown := mask(string(head), h.credentials.Password.Reveal())
	shown = shown[:min(len(shown), maxHead)]
	return fmt.Errorf("the answer, beginning %q, is not the Redis protocol; %s (%w)", shown, hint, err)
}

// evaluate makes a Server of the replies, or returns the reason why it cannot serve.
func (h *handshake) evaluate(replies []reply) (Server, error) {
	s := Server{Proto: 2}
	var scripted, informed, timed bool // it has taken a script; INFO was answered, and had the uptime
	// First find out what it is, because that explains what else is wrong: a node of a cluster,
	// for example, refuses SELECT.
	for _, r := range replies {
		switch {
		case r.IsError():
		case r.name == "HELLO":
			s.fromHello(r.Value, h.credentials.Password)
		case r.name == getWitness && (r.Kind() == resp.BulkString || r.IsNull()):
			s.Witness, s.Witnessed, s.WitnessChanged = string(r.Bytes()), true, h.pushed
		case r.name == "INFO", strings.HasPrefix(r.name, "INFO "):
			s.fromInfo(r.Bytes(), h.credentials.Password)
			if s.Ahead != 0 {
				s.Within = time.Since(h.began)
			}
			informed = informed || r.name == "INFO"
			timed = timed || bytes.Contains(r.Bytes(), []byte("uptime_in_seconds:"))
		case r.name == "SCRIPT LOAD":
			scripted = true
		case r.name == "ROLE":
			it := r.Elems()
			if role, ok := it.Next(); ok {
				s.Role = word(role.Bytes(), h.credentials.Password)
			}
		case r.name == "CLUSTER INFO":
			s.Epoch = epochIn(r.Bytes(), h.credentials.Password)
		}
	}
	// A replica of a group is no refusal: the sentinels will name another server.
	if h.group != "" && s.Role != "" && s.Role != "master" {
		if h.cluster {
			return s, notMaster("it is a " + s.Role + " in the cluster, and not a master")
		}
		return s, notMaster("it is the " + s.Role + " of group " + h.group + ", and not its master")
	}
	for _, r := range replies {
		if r.name == "GET" && stateOf(r.Value) != slotHere {
			return s, h.notOwner(r.Value)
		}
	}
	if err := s.refusal(scripted, h.cluster); err != nil {
		return s, err
	}
	for _, r := range replies {
		if has := commandsOf(r.name); has != 0 {
			if lacksArguments(r.Value) {
				s.Commands |= has
			}
			continue
		}
		if !r.IsError() {
			s.Tracking = s.Tracking || r.name == "CLIENT TRACKING"
			continue
		}
		if r.name == "CLIENT CACHING" && !s.Tracking { // that was refused before
			continue
		}
		said, err := h.quote(r.name, r.Value), h.replyError(r.name, r.Value)
		switch {
		case r.name == "ROLE" && s.Role != "": // somebody else has told
		case ErrorCode(r.Value) == "NOAUTH":
			return s, err
		case r.name == "INFO":
			s.Missing = append(s.Missing, "run id and uptime: "+said)
		case r.name == "INFO replication":
			if s.RunID != "" { // if not, the other section has said it already
				s.Missing = append(s.Missing, "replication id: "+said)
			}
		case r.name == "INFO stats", r.name == "INFO persistence": // a server that has no such section
		case r.name == "CLUSTER INFO":
			s.Missing = append(s.Missing, "config epoch: "+said)
		case r.name == "GET": // a key of another type
		case r.name == getWitness:
			s.Missing = append(s.Missing, h.opt.WithoutWitness(said))
		case r.name == "CLIENT CACHING":
			s.Tracking = false
			s.Missing = append(s.Missing, said)
		case r.name == "CLIENT TRACKING", r.name == "CLIENT SETNAME", r.name == "ROLE":
			s.Missing = append(s.Missing, said)
		default:
			return s, err
		}
	}
	if informed && s.RunID == "" {
		s.Missing = append(s.Missing, "run id: INFO does not say it")
	}
	if informed && !timed {
		s.Missing = append(s.Missing, "uptime: INFO does not say it")
	}
	if h.opt.Tracking && s.Proto < 3 {
		s.Missing = append(s.Missing, "CLIENT TRACKING: the server does not speak RESP3")
	}
	return s, nil
}

// notOwner says why a node does not serve the slot now.
func (h *handshake) notOwner(v resp.Value) error {
	switch code := ErrorCode(v); {
	case code == "NOPERM" || code == "NOAUTH":
		return h.replyError("GET", v)
	case stateOf(v) == slotDown:
		return errors.New(h.quote("GET", v))
	default:
		return notMaster(h.quote("GET", v))
	}
}

const remedyAuth = "correct the username and password"

// replyError makes an error of an error reply. It is a RefusedError if the reply will be the
// same next time.
func (h *handshake) replyError(command string, v resp.Value) error {
	said := h.quote(command, v)
	refused := func(remedy string) error { return &RefusedError{Reason: said, Remedy: remedy} }
	switch code := ErrorCode(v); {
	case IsTransient(v):
	case command == "AUTH" && h.credentials.Username != "" && strings.Contains(said, "number of arguments"):
		return refused("give the password without a username: servers before Redis 6 have no users")
	case code == "WRONGPASS" || command == "AUTH":
		return refused(remedyAuth)
	case code == "NOAUTH" && h.credentials.none():
		return refused("give a username and password")
	case code == "DENIED":
		return refused("turn the master's protected mode off, or set a password there")
	case code == "NOPERM":
		return refused("let the user run " + command)
	case command == "SELECT":
		return refused("use a database that the master has")
	case command == "SCRIPT LOAD" && (code == "ERR" || unsupported(v)):
		return refused("use a master that can run Lua scripts (SCRIPT LOAD, EVALSHA and EVAL), and no proxy that cannot")
	}
	return errors.New(said)
}

// quote returns the text of an error reply to a command, without our password in it.
func (h *handshake) quote(command string, v resp.Value) string {
	return command + ": " + clip(mask(string(ownWords(v)), h.credentials.Password.Reveal()), maxErrorText)
}
