package fuzz

import (
	"bytes"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

var record = flag.Bool("record", false, "record the replies of a redis-server as the corpus of FuzzNext")

// TestRecordedTrafficIsWellFormed reads what a redis-server said. It must be
// well-formed to the last byte, and show every type that the server knows.
func TestRecordedTrafficIsWellFormed(t *testing.T) {
	if *record {
		recordTraffic(t)
	}
	files, err := filepath.Glob(filepath.Join(corpus, "resp[23]-*"))
	require.NoError(t, err)
	require.Greater(t, len(files), 150)
	seen := map[resp.Kind]bool{}
	for _, file := range files {
		stream := readSeed(t, file)
		all, err := frames([]byte(stream), resp.Limits{})
		require.Equal(t, resp.ErrNeedMore, err, file)
		require.NotEmpty(t, all, file)
		size := 0
		for _, v := range all {
			note(seen, v)
			size += len(v.Raw())
		}
		if size < len(stream) {
			require.Equal(t, byte(resp.Attribute), stream[0], file)
			seen[resp.Attribute] = true
		}
	}
	for _, k := range []byte("+-:$*_#,(=%~>|") { // no command of Redis has a bulk error for an answer
		require.True(t, seen[resp.Kind(k)], "%q", k)
	}
}

func note(seen map[resp.Kind]bool, v resp.Value) {
	seen[v.Kind()] = true
	for _, e := range elems(v) {
		note(seen, e)
	}
}

// These commands are sent in this order. Spaces separate the words; a word in
// single quotes may hold spaces. Commands with long replies, or with replies that
// describe the machine, are left out.
const commands = `
PING
PING hello
ECHO 'hello world'
SET k v
SET k w NX
SET k w XX GET
SET n 10 PX 100000
GET k
GET missing
GETDEL missing
MGET k missing n
STRLEN k
APPEND k xyz
GETRANGE k 0 1
SETRANGE k 2 --
INCR n
INCRBY n 9223372036854775807
INCRBYFLOAT n 1.5
INCR k
DECRBY n 3
PTTL k
PTTL missing
PEXPIRE k 100000 NX
EXISTS k n missing
TYPE k
DEL missing
UNLINK missing
COPY k copy
OBJECT ENCODING k
OBJECT HELP
OBJECT FREQ k
LCS k copy
LCS k copy IDX WITHMATCHLEN
SETBIT bits 7 1
GETBIT bits 7
BITCOUNT bits
BITFIELD bits GET u8 0 OVERFLOW FAIL INCRBY u2 0 3
BITFIELD bits OVERFLOW FAIL INCRBY u2 100 3 INCRBY u2 100 3
PFADD hll a b c
PFCOUNT hll
RPUSH list a b c
LRANGE list 0 -1
LRANGE list 5 9
LPOP list 2
LPOP missing
LPOP missing 2
LPOS list c
LMPOP 1 list LEFT
BLPOP missing 0.01
LINDEX list 9
GET list
SADD set a b c
SMEMBERS set
SISMEMBER set a
SMISMEMBER set a x
SPOP missing
SRANDMEMBER missing 3
SSCAN set 0
HSET hash f1 v1 f2 v2
HGETALL hash
HGETALL missing
HGET hash f1
HMGET hash f1 x
HINCRBYFLOAT hash f3 0.1
HRANDFIELD missing
HRANDFIELD hash 9 WITHVALUES
HSCAN hash 0
ZADD zset 1 a 2.5 b inf c -inf d
ZADD zset INCR 1.5 a
ZADD zset NX INCR 1 a
ZSCORE zset a
ZSCORE zset c
ZSCORE zset missing
ZMSCORE zset a missing
ZRANGE zset 0 -1 WITHSCORES
ZRANK zset b
ZRANK zset missing
ZPOPMIN zset
ZPOPMIN missing
ZMPOP 1 zset MIN
ZMPOP 1 missing MIN
BZPOPMAX zset 1
ZINCRBY zset 1e300 a
ZUNION 1 zset WITHSCORES
ZSCAN zset 0
GEOADD geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
GEODIST geo Palermo Catania km
GEOPOS geo Palermo missing
GEOHASH geo Palermo missing
GEOSEARCH geo FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHCOORD WITHDIST WITHHASH
XADD stream 1-1 f v
XADD stream 1-1 f v
XRANGE stream - +
XREAD STREAMS stream 0
XREAD STREAMS stream $
XGROUP CREATE stream group 0
XREADGROUP GROUP group consumer STREAMS stream >
XPENDING stream group
XINFO STREAM stream FULL
XINFO GROUPS stream
XAUTOCLAIM stream group consumer 0 0
XINFO STREAM missing
MULTI
SET k v
INCR list
EXEC
MULTI
NOSUCHCOMMAND
EXEC
WATCH k
DISCARD
EVAL 'return 1' 0
EVAL 'return {1, 2, {3, "four", false, {ok="fine"}}}' 0
EVAL 'return {err="MY error"}' 0
EVAL 'return redis.error_reply("My Err")' 0
EVAL 'error("boom")' 0
EVAL 'return nil' 0
EVAL 'return 3.99' 0
EVAL 'redis.setresp(3); return {double=3.25}' 0
EVAL 'redis.setresp(3); return {map={a=1}}' 0
EVAL 'redis.setresp(3); return {set={a=true}}' 0
EVAL 'redis.setresp(3); return {big_number="123456789012345678901234567890"}' 0
EVAL 'redis.setresp(3); return {verbatim_string={format="mkd", string="# hello"}}' 0
EVAL 'redis.setresp(3); return {true, false}' 0
EVAL 'redis.setresp(3); return redis.call("HGETALL", KEYS[1])' 1 hash
EVALSHA 0123456789012345678901234567890123456789 0
EVALSHA short 0
EVAL 'if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end' 1 k other
SCRIPT LOAD 'return 1'
SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db short
FUNCTION LOAD '#!lua name=lib
redis.register_function("f", function() return 1 end)'
FUNCTION LIST
FCALL f 0
FUNCTION STATS
SORT list ALPHA
SCAN 0 COUNT 1
DBSIZE
DUMP missing
DUMP k
RESTORE k 0 nonsense REPLACE
WAIT 0 1
ROLE
REPLICAOF no one
CLUSTER INFO
CONFIG GET maxmemory*
CONFIG GET nosuch
CONFIG SET nosuch 1
COMMAND COUNT
COMMAND INFO get nosuch
COMMAND DOCS ping
COMMAND GETKEYS SET a b
COMMAND GETKEYSANDFLAGS SET a b
COMMAND LIST FILTERBY PATTERN xr*
ACL WHOAMI
ACL GETUSER default
ACL GETUSER nosuch
ACL LIST
ACL CAT nosuch
AUTH wrong password
AUTH password
CLIENT SETNAME 'with space'
CLIENT SETNAME name
CLIENT GETNAME
CLIENT NO-EVICT on
CLIENT TRACKINGINFO
CLIENT CACHING yes
CLIENT UNPAUSE
CLIENT KILL ID 999999
LATENCY HISTOGRAM get
LATENCY LATEST
MEMORY USAGE k
MEMORY DOCTOR
SLOWLOG GET 1
SLOWLOG LEN
LOLWUT VERSION 5 1 1 1
INFO replication
INFO nosuch
MODULE LIST
PUBLISH channel message
PUBSUB CHANNELS
PUBSUB NUMSUB channel
SPUBLISH channel message
SELECT 1
SELECT 99
SWAPDB 0 1
DEBUG PROTOCOL string
DEBUG PROTOCOL integer
DEBUG PROTOCOL double
DEBUG PROTOCOL null
DEBUG PROTOCOL array
DEBUG PROTOCOL set
DEBUG PROTOCOL map
DEBUG PROTOCOL attrib
DEBUG PROTOCOL push
DEBUG PROTOCOL verbatim
DEBUG PROTOCOL true
DEBUG PROTOCOL false
DEBUG PROTOCOL bignum
HELLO 4
HELLO 3 AUTH wrong password
RESET
GET
NOSUCHCOMMAND a b c
FLUSHALL`

func recordTraffic(t *testing.T) {
	old, err := filepath.Glob(filepath.Join(corpus, "resp[23]-*"))
	require.NoError(t, err)
	for _, file := range old {
		require.NoError(t, os.Remove(file))
	}
	require.NoError(t, os.MkdirAll(corpus, 0o755))
	addr := startServer(t)
	seen := map[string]bool{} // many replies are the same in both protocols, and to many commands
	for proto, hello := range []string{2: "HELLO 2", 3: "HELLO 3"} {
		if hello == "" {
			continue
		}
		p := dialPeer(t, addr)
		n := 0
		seed := func(command, said string) {
			require.Less(t, len(said), 16<<10, "%s: too long for a seed", command)
			n++
			if !seen[said] {
				seen[said] = true
				name := strings.Join(strings.FieldsFunc(strings.ToLower(command), func(r rune) bool {
					return (r < 'a' || r > 'z') && (r < '0' || r > '9')
				}), "-")
				writeSeed(t, fmt.Sprintf("resp%d-%03d-%.40s", proto, n, name), said)
			}
		}
		seed(hello, p.ask(hello))
		for _, command := range split(commands) {
			if command == "RESET" { // back to RESP2, and so not to be asked in between
				continue
			}
			seed(command, p.ask(command))
		}

		// A push comes in front of the reply to PING.
		other := dialPeer(t, addr)
		seed("CLIENT TRACKING ON", p.ask("CLIENT TRACKING ON"))
		p.ask("GET k")
		other.ask("SET k v")
		seed("PING and invalidation", p.ask("PING"))
		p.ask("GET k")
		other.ask("FLUSHALL")
		seed("PING and invalidation of all", p.ask("PING"))
		seed("SUBSCRIBE channel", p.askFrames("SUBSCRIBE channel", 1))
		seed("PSUBSCRIBE c*", p.askFrames("PSUBSCRIBE c*", 1))
		other.ask("PUBLISH channel hello")
		if proto == 2 { // the two messages and the answer are arrays alike
			seed("PING and messages", p.askFrames("PING", 3))
		} else {
			seed("PING and messages", p.ask("PING"))
		}
		seed("GET while subscribed", p.ask("GET k"))
		seed("UNSUBSCRIBE channel", p.askFrames("UNSUBSCRIBE channel", 1))
		seed("PUNSUBSCRIBE", p.askFrames("PUNSUBSCRIBE", 1))
		seed("RESET", p.ask("RESET"))
		seed("QUIT", p.ask("QUIT"))
	}
}

func startServer(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	server := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(),
		"--save", "", "--enable-debug-command", "yes", "--loglevel", "warning")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	return addr
}

// A peer is a connection that keeps what the server says to each command.
type peer struct {
	t *testing.T
	c net.Conn
	r *resp.Reader

	received int64 // bytes of the stream
}

func dialPeer(t *testing.T, addr string) *peer {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, c: c, r: resp.NewReader(4096, resp.Limits{})}
}

// ask sends a command and returns the bytes up to the end of its reply.
func (p *peer) ask(command string) string {
	return p.read(command, func(v resp.Value) bool { return v.Kind() != resp.Push })
}

// askFrames sends a command and returns the bytes up to the end of the nth frame.
func (p *peer) askFrames(command string, n int) string {
	return p.read(command, func(resp.Value) bool { n--; return n == 0 })
}

func (p *peer) read(command string, last func(resp.Value) bool) string {
	_, err := p.c.Write(resp.AppendCommand(nil, words(command)...))
	require.NoError(p.t, err)
	require.NoError(p.t, p.c.SetReadDeadline(time.Now().Add(10*time.Second)))
	var said bytes.Buffer
	for {
		v, err := p.r.Next()
		if err == nil {
			if last(v) {
				require.Equal(p.t, p.received, p.r.Offset(), "%s: more than was expected", command)
				return said.String()
			}
			continue
		}
		require.Equal(p.t, resp.ErrNeedMore, err, "%s: %q", command, said.String())
		free := p.r.Free(1024)
		n, err := p.c.Read(free)
		require.NoError(p.t, err, "%s: %q", command, said.String())
		said.Write(free[:n])
		p.r.Advance(n)
		p.received += int64(n)
	}
}

// split cuts commands at the line ends outside quotes.
func split(commands string) (all []string) {
	for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
		if n := len(all); n > 0 && strings.Count(all[n-1], "'")%2 == 1 {
			all[n-1] += "\n" + line
			continue
		}
		all = append(all, line)
	}
	return all
}

func words(command string) (all []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}
