package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"time"
	"unsafe"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	tidwall "github.com/tidwall/resp"

	"github.com/redburst/redburst/resp"
)

// A frame is one reply, and how many leaves a reader finds in it.
type frame struct {
	name   string
	bytes  []byte
	leaves int
	resp3  bool // which tidwall/resp and redigo do not read
}

func frames() []frame {
	hello := []byte("%7\r\n")
	for _, field := range []struct{ name, value string }{
		{"server", "redis"}, {"version", "7.0.15"}, {"mode", "standalone"}, {"role", "master"},
	} {
		hello = resp.AppendBulkString(resp.AppendBulkString(hello, field.name), field.value)
	}
	hello = append(resp.AppendBulkString(hello, "proto"), ":3\r\n"...)
	hello = append(resp.AppendBulkString(hello, "id"), ":1234\r\n"...)
	hello = resp.AppendArray(resp.AppendBulkString(hello, "modules"), 0)

	array := resp.AppendArray(nil, 100)
	for range 100 {
		array = resp.AppendBulkString(array, "0123456789abcdef")
	}
	return []frame{
		{name: "ok", bytes: []byte("+OK\r\n"), leaves: 1},
		{name: "null", bytes: []byte("$-1\r\n"), leaves: 1},
		{name: "one", bytes: []byte(":1\r\n"), leaves: 1},
		{name: "fence", bytes: []byte(":1763812345678901\r\n"), leaves: 1},
		{name: "token", bytes: resp.AppendBulkString(nil, "bNw9a0cX3mJ5hQZk2fTg7A"), leaves: 1},
		{name: "error", bytes: []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n"), leaves: 1},
		{name: "hello3", bytes: hello, leaves: 13, resp3: true},
		{name: "array100", bytes: array, leaves: 100},
		{name: "bulk16k", bytes: resp.AppendBulk(nil, bytes.Repeat([]byte("x"), 16<<10)), leaves: 1},
	}
}

// A stream is a frame over and over, as much of it as a read has room for. A
// read is mostly one copy, as it is from a socket: what is measured is what a
// decoder does with the bytes.
type stream struct {
	frames []byte
	at     int
}

func newStream(frame []byte) *stream {
	return &stream{frames: bytes.Repeat(frame, 1+64<<10/len(frame))}
}

func (s *stream) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := copy(p[n:], s.frames[s.at:])
		n += k
		if s.at += k; s.at == len(s.frames) {
			s.at = 0
		}
	}
	return n, nil
}

// The readers of go-redis and rueidis are their own affair, and through their
// clients a frame costs far more than its reading. So they are called by their
// names in the linker. That needs a file in assembly here, see linkname.s.

//go:linkname newGoRedisReader github.com/redis/go-redis/v9/internal/proto.NewReaderSize
func newGoRedisReader(r io.Reader, size int) unsafe.Pointer

//go:linkname goRedisReadReply github.com/redis/go-redis/v9/internal/proto.(*Reader).ReadReply
func goRedisReadReply(r unsafe.Pointer) (any, error)

//go:linkname rueidisReadMessage github.com/redis/rueidis.readNextMessage
func rueidisReadMessage(r *bufio.Reader) (rueidis.RedisMessage, error)

// readSize is the buffer that each decoder reads into.
const readSize = 4096

// decoders take one frame from a stream and count its leaves, all of which
// they have looked at.
var decoders = []struct {
	lib   string
	resp3 bool
	open  func(s *stream) func() (leaves int, err error)
}{
	{"redburst", true, func(s *stream) func() (int, error) {
		r := resp.NewReader(readSize, resp.Limits{})
		return func() (int, error) {
			for {
				v, err := r.Next()
				if err == nil {
					if v.Kind().IsAggregate() {
						return leaves(v), nil
					}
					return 1, nil
				}
				if err != resp.ErrNeedMore {
					return 0, err
				}
				n, err := s.Read(r.Free(1024))
				if err != nil {
					return 0, err
				}
				r.Advance(n)
			}
		}
	}},
	{"tidwall", false, func(s *stream) func() (int, error) {
		r := tidwall.NewReader(s)
		return func() (int, error) {
			v, _, err := r.ReadValue()
			if v.Type() == tidwall.Array {
				return len(v.Array()), err
			}
			return 1, err
		}
	}},
	{"redigo", false, func(s *stream) func() (int, error) {
		c := redis.NewConn(replies{s}, 0, 0)
		return func() (int, error) {
			v, err := c.Receive()
			if _, ok := err.(redis.Error); ok {
				err = nil
			}
			if a, ok := v.([]any); ok {
				return len(a), err
			}
			return 1, err
		}
	}},
	{"goredis", true, func(s *stream) func() (int, error) {
		r := newGoRedisReader(s, readSize)
		return func() (int, error) {
			v, err := goRedisReadReply(r)
			if _, ok := err.(goredis.Error); ok { // Nil, too
				err = nil
			}
			return goLeaves(v), err
		}
	}},
	{"rueidis", true, func(s *stream) func() (int, error) {
		r := bufio.NewReaderSize(s, readSize)
		return func() (int, error) {
			m, err := rueidisReadMessage(r)
			return rueidisLeaves(&m), err
		}
	}},
}

// goLeaves counts what contains nothing in a reply of go-redis.
func goLeaves(v any) (n int) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += goLeaves(e)
		}
	case map[any]any:
		for key, e := range v {
			n += goLeaves(key) + goLeaves(e)
		}
	default:
		return 1
	}
	return n
}

// rueidisLeaves counts what contains nothing in a reply of rueidis.
func rueidisLeaves(m *rueidis.RedisMessage) (n int) {
	switch {
	case m.IsArray():
		all, _ := m.ToArray()
		for i := range all {
			n += rueidisLeaves(&all[i])
		}
	case m.IsMap():
		all, _ := m.ToMap()
		for _, e := range all {
			n += 1 + rueidisLeaves(&e)
		}
	default:
		return 1
	}
	return n
}

// leaves counts the values in v that contain none, down to the last.
func leaves(v resp.Value) (n int) {
	if !v.Kind().IsAggregate() {
		return 1
	}
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			return n
		}
		n += leaves(e)
	}
}

// replies is a connection that a stream comes from.
type replies struct{ io.Reader }

func (replies) Write(p []byte) (int, error)      { return len(p), nil }
func (replies) Close() error                     { return nil }
func (replies) LocalAddr() net.Addr              { return nil }
func (replies) RemoteAddr() net.Addr             { return nil }
func (replies) SetDeadline(time.Time) error      { return nil }
func (replies) SetReadDeadline(time.Time) error  { return nil }
func (replies) SetWriteDeadline(time.Time) error { return nil }

func TestDecodersReadTheSameFrames(t *testing.T) {
	for _, f := range frames() {
		for _, d := range decoders {
			if f.resp3 && !d.resp3 {
				continue
			}
			next := d.open(newStream(f.bytes))
			for range 1000 {
				n, err := next()
				require.NoError(t, err, "%s, %s", f.name, d.lib)
				require.Equal(t, f.leaves, n, "%s, %s", f.name, d.lib)
			}
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, f := range frames() {
		for _, d := range decoders {
			if f.resp3 && !d.resp3 {
				continue
			}
			b.Run("frame="+f.name+"/lib="+d.lib, func(b *testing.B) {
				next := d.open(newStream(f.bytes))
				b.SetBytes(int64(len(f.bytes)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := next(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
