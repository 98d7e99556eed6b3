package conn

import (
	"bytes"
	"iter"
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

// oldestVersion is the first one with SET NX PX, firstScripts the first one with scripts, and
// firstUsers the first one with users.
var oldestVersion, firstScripts, firstUsers = [3]int{2, 6, 12}, [3]int{2, 6, 0}, [3]int{6, 0, 0}

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
