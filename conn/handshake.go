package conn

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/resp"
)

// Server is what a master said about itself in the handshake. What it did not say is zero.
type Server struct {
	Endpoint string // what the connection leads to: host:port, or the path of a Unix socket
	Remote   string // [Conn.RemoteAddr]: the same, after the name was looked up
	Group    string // the group whose master it is, or "cluster"; empty for a fixed place

	// Who it is, and since when. IDs are 40 hex digits.
	RunID     string        // new at every start of the server
	ReplID    string        // new whenever the server becomes a master, a start included
	ReplID2   string        // ReplID of the master that this server was a replica of before; empty if none is known
	Uptime    time.Duration // time since its start, at the handshake, in whole seconds
	MasterFor time.Duration // least time for which the agreeing sentinels have reported it as master; 0 if unknown
	Ahead     time.Duration // by how much its wall clock was ahead of ours, at the least; 0 if it did not say
	Within    time.Duration // ... and by how much more at the most: the time of the handshake

	// Of the master of a cluster's slot.
	Cluster   bool
	Epoch     string        // its config epoch, which grows whenever it is given a slot; empty if unknown
	Nodes     []string      // [SlotOwner.Nodes], when it was found
	SlotAsked time.Duration // [SlotOwner.Asked], when it was found

	Version string // such as "7.0.15"
	Mode    string // "standalone"
	Role    string // "master"

	// What it has forgotten, or may forget.
	Witness        string // the value of [Options.Witness]; empty if there is none
	Witnessed      bool   // Witness was read
	WitnessChanged bool   // ... and has changed since, or all keys were flushed
	Unexpected     bool   // this process has refused itself what clients had written (unexpected_error_replies above 0)
	NoAOF          bool   // it has said that it has no append-only file (aof_enabled:0)

	Commands Commands // that the server has ([Options.Probe]); whether the user may call them shows only then

	// This connection.
	Proto    int   // version of RESP: 3, or 2 if the server knows no HELLO
	ClientID int64 // id of the connection on the server; 0 over RESP2
	Tracking bool  // CLIENT TRACKING is on

	Missing []string // what the server does not offer or allow, and why, for people to read
}

// oldestVersion is the first one with SET NX PX, firstScripts the first one with scripts, and
// firstUsers the first one with users.
var oldestVersion, firstScripts, firstUsers = [3]int{2, 6, 12}, [3]int{2, 6, 0}, [3]int{6, 0, 0}

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
	if errors.Is(err, resp.TooLong) || errors.Is(err, resp.TooMany) {
		return fmt.Errorf("the answer to %s is too long (%w)", command, err)
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
			return s, strayedError("it is a " + s.Role + " in the cluster, and not a master")
		}
		return s, demotedError{s.Role, h.group}
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

// pairs returns the keys and values of a map, which is a flat array in RESP2.
func pairs(v resp.Value) iter.Seq2[string, resp.Value] {
	return func(yield func(string, resp.Value) bool) {
		it := v.Elems()
		for {
			key, ok := it.Next()
			value, ok2 := it.Next()
			if !ok || !ok2 || !yield(string(key.Bytes()), value) {
				return
			}
		}
	}
}

func (s *Server) fromHello(v resp.Value, told Secret) {
	s.Proto = 3
	for key, value := range pairs(v) {
		switch key {
		case "version":
			s.Version = word(value.Bytes(), told)
		case "mode":
			s.Mode = word(value.Bytes(), told)
		case "role":
			s.Role = word(value.Bytes(), told)
		case "id":
			s.ClientID, _ = value.Int()
		}
	}
}

func (s *Server) fromInfo(text []byte, told Secret) {
	for line := range bytes.Lines(text) {
		key, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		switch value := word(rest, told); string(key) {
		case "run_id":
			s.RunID = value
		case "master_replid":
			s.ReplID = value
		case "master_replid2":
			if strings.Trim(value, "0") != "" { // 40 zeros mean none
				s.ReplID2 = value
			}
		case "uptime_in_seconds":
			n, _ := strconv.ParseInt(value, 10, 64)
			s.Uptime = time.Duration(n) * time.Second
		case "server_time_usec":
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				s.Ahead = time.Until(time.UnixMicro(n))
			}
		case "unexpected_error_replies":
			s.Unexpected = value != "" && value != "0"
		case "aof_enabled":
			s.NoAOF = value == "0"
		case "redis_version":
			if s.Version == "" {
				s.Version = value
			}
		case "valkey_version": // stands behind redis_version, which is there what it is compatible with
			s.Version = value
		case "redis_mode", "server_mode": // Valkey's name
			if s.Mode == "" {
				s.Mode = value
			}
		case "role":
			if s.Role == "" {
				s.Role = value
			}
		}
	}
}

// Heed takes what the server says of itself later on the same connection, to INFO replication or to CLUSTER INFO: its role and
// its replication ids, or its config epoch. They are for comparisons: a password is not hidden in them.
func (s *Server) Heed(info []byte) {
	if bytes.HasPrefix(info, []byte("cluster_")) {
		s.Epoch = epochIn(info, Secret{})
		return
	}
	var now Server
	now.fromInfo(info, Secret{})
	s.Role, s.ReplID, s.ReplID2 = now.Role, now.ReplID, now.ReplID2
}

// epochIn returns the config epoch of a node from its answer to CLUSTER INFO; empty if there is none. It is 0 if a proxy
// stands in front of the nodes.
func epochIn(text []byte, told Secret) string {
	for line := range bytes.Lines(text) {
		if epoch, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("cluster_my_epoch:")); ok {
			return word(epoch, told)
		}
	}
	return ""
}

// notOwner says why a node does not serve the slot now.
func (h *handshake) notOwner(v resp.Value) error {
	switch code := ErrorCode(v); {
	case code == "NOPERM" || code == "NOAUTH":
		return h.replyError("GET", v)
	case stateOf(v) == slotDown:
		return errors.New(h.quote("GET", v))
	default:
		return strayedError(h.quote("GET", v))
	}
}

// refusal returns the reason why such a server cannot be a master of a lock; nil if it can.
// scripted says that it has taken a script, and cluster that it should be a node of a cluster.
func (s *Server) refusal(scripted, cluster bool) error {
	switch {
	case s.Mode == "cluster" && !cluster:
		return &RefusedError{
			Reason: "it is a node of a Redis Cluster",
			Remedy: "write cluster://host:port,host:port,host:port, with a prefix such as {locks}: for the keys, or use independent masters",
		}
	case s.Mode == "sentinel" || s.Role == "sentinel":
		return &RefusedError{
			Reason: "it is a Sentinel, which holds no keys",
			Remedy: "use the port of the master itself, or sentinel://host:port,host:port,host:port/group for the master of a group",
		}
	case s.Role != "" && s.Role != "master":
		return &RefusedError{
			Reason:  "it is a replica, which takes no writes",
			Remedy:  "use independent masters, without replication between them",
			replica: true,
		}
	case s.olderThan(oldestVersion) && !s.newerThanItSays(scripted):
		return &RefusedError{
			Reason: "Redis " + s.Version + " has no SET with NX and PX",
			Remedy: "use 2.6.12 or later",
		}
	}
	return nil
}

// newerThanItSays reports whether a server has what is younger than oldestVersion: some that
// emulate Redis have a version of their own. A SET that it does not understand after all is the
// error of each vote.
func (s *Server) newerThanItSays(scripted bool) bool {
	return s.Proto >= 3 || scripted && s.olderThan(firstScripts)
}

// hasUsers reports whether a server is known to have users: it speaks RESP3, which came with
// them, or says that it is Redis 6 or later.
func (s *Server) hasUsers() bool {
	return s.Proto >= 3 || s.Version != "" && !s.olderThan(firstUsers)
}

// olderThan is false for a version that is not numbers: what is unknown is not refused.
func (s *Server) olderThan(least [3]int) bool {
	parts := strings.SplitN(s.Version, ".", 3)
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n > least[i] {
			return false
		}
		if n < least[i] {
			return true
		}
	}
	return false
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
	return command + ": " + errorText(v, h.credentials.Password)
}
