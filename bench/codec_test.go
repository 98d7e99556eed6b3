package main

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	tidwall "github.com/tidwall/resp"

	"github.com/redburst/redburst/resp"
)

// A frame is one reply, and how many leaves a reader finds in it.
type frame struct {
	name   string
	bytes  []byte
	leaves int
	resp3  bool // which tidwall/resp and redigo don't read
}

func frames() []frame {
	hello := resp.AppendMap(nil, 7)
	for _, field := range []struct{ name, value string }{
		{"server", "redis"}, {"version", "7.0.15"}, {"mode", "standalone"}, {"role", "master"},
	} {
		hello = resp.AppendBulkString(resp.AppendBulkString(hello, field.name), field.value)
	}
	hello = resp.AppendInt(resp.AppendBulkString(hello, "proto"), 3)
	hello = resp.AppendInt(resp.AppendBulkString(hello, "id"), 1234)
	hello = resp.AppendArray(resp.AppendBulkString(hello, "modules"), 0)

	array := resp.AppendArray(nil, 100)
	for range 100 {
		array = resp.AppendBulkString(array, "0123456789abcdef")
	}
	return []frame{
		{name: "ok", bytes: []byte("+OK\r\n"), leaves: 1},
		{name: "null", bytes: []byte("$-1\r\n"), leaves: 1},
		{name: "one", bytes: []byte(":1\r\n"), leaves: 1},
		{name: "error", bytes: []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n"), leaves: 1},
		{name: "hello3", bytes: hello, leaves: 13, resp3: true},
		{name: "array100", bytes: array, leaves: 100},
		{name: "bulk16k", bytes: resp.AppendBulk(nil, bytes.Repeat([]byte("x"), 16<<10)), leaves: 1},
	}
}

// A stream is a frame over and over, as much of it as a read has room for.
type stream struct {
	frame []byte
	at    int
}

func (s *stream) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := copy(p[n:], s.frame[s.at:])
		n += k
		s.at = (s.at + k) % len(s.frame)
	}
	return n, nil
}

// decoders take one frame from a stream and count its leaves, all of which
// they have looked at. go-redis's and rueidis's readers are in internal
// packages, and through their clients a frame costs far more than its reading.
var decoders = []struct {
	lib   string
	resp3 bool
	open  func(s *stream) func() (leaves int, err error)
}{
	{"redburst", true, func(s *stream) func() (int, error) {
		r := resp.NewReader(4096, resp.Limits{})
		return func() (int, error) {
			for {
				v, err := r.Next()
				if err == nil {
					return leaves(v), nil
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
			next := d.open(&stream{frame: f.bytes})
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
				next := d.open(&stream{frame: f.bytes})
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
