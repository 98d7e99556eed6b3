package fuzz

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A stranger shakes hands like a server. It answers the first command after that
// with the bytes that it was given, and closes the connection.
type stranger struct {
	addr  string
	mu    sync.Mutex
	bytes []byte
}

func newStranger(f *testing.F) *stranger {
	s := new(stranger)
	s.addr = conntest.Listen(f, s.serve)
	return s
}

func (s *stranger) serve(c net.Conn) {
	c.SetDeadline(time.Now().Add(time.Minute))
	conntest.Answer(c, func(args []string) (string, bool) {
		switch args[0] {
		case "HELLO":
			return "%6\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n" +
				"$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n", true
		case "INFO":
			return "$22\r\nredis_version:7.0.15\r\n\r\n", true
		case "ASK":
			s.mu.Lock()
			b := s.bytes
			s.mu.Unlock()
			c.Write(b)
			// A close with unread commands would be a reset, which can overtake the bytes. So
			// read them all first.
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
			return "", false
		}
		return "+OK\r\n", true
	})
}

// FuzzClient sends the fuzzer's bytes to a real client that has three requests in
// flight. The client must not panic or hang. The n-th reply must go to the n-th
// request, and a request without a reply must fail with a cause.
func FuzzClient(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n$-1\r\n:1\r\n", "+OK\r\n", "", "+OK\r\n+OK\r\n+OK\r\n+OK\r\n", ":1\r\n:2\r\n:3", "-ERR x\r\n_\r\n%1\r\n+a\r\n:1\r\n",
		">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n+OK\r\n>1\r\n+x\r\n:1\r\n", "|1\r\n+k\r\n+v\r\n:1\r\n", "$5\r\nhel", "HTTP/1.1 400 Bad Request\r\n\r\n",
		"*4611686018427387904\r\n", "%4611686018427387904\r\n", "$-2\r\n", "$?\r\n", "*1\r\n>1\r\n+x\r\n", ">0\r\n:1\r\n:1\r\n:1\r\n",
		"+OK\r\n>1\r\n$-1\r\n+OK\r\n", ">2\r\n|1\r\n+k\r\n+v\r\n:1\r\n+x\r\n:1\r\n", ":1\r\n,1e999\r\n:2\r\n",
	} {
		f.Add([]byte(s))
	}
	s := newStranger(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 32<<10 {
			return // what a socket takes at once
		}
		s.mu.Lock()
		s.bytes = b
		s.mu.Unlock()
		want := replies(b)

		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m, err := mux.Open(ctx, mux.Config{Masters: []string{s.addr},
			StallTime: time.Minute, Conn: conn.Options{DialTimeout: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		ops := make([]*mux.Op, 3)
		for i := range ops {
			ops[i] = &mux.Op{Command: resp.AppendCommand(nil, "ASK", string(rune('a'+i))), Keep: true,
				Verdict: func(resp.Value) mux.Verdict { return mux.VerdictYes }}
		}
		m.Post(ops...)
		for i, op := range ops {
			if err := m.Wait(ctx, op); err != nil {
				t.Fatalf("request %d hangs: %v", i, err)
			}
			v := op.Votes[0]
			switch {
			case i < len(want) && v.Verdict != mux.VerdictYes:
				t.Fatalf("request %d: %v (%v), want reply %q", i, v.Verdict, v.Err, want[i])
			case i < len(want) && !bytes.Equal(v.Reply.Raw(), want[i]):
				t.Fatalf("request %d: reply %q, want %q", i, v.Reply.Raw(), want[i])
			case i >= len(want) && (v.Verdict != mux.VerdictFailed || v.Err == nil):
				t.Fatalf("request %d: %v (%v), want a failure with its cause", i, v.Verdict, v.Err)
			}
		}
	})
}

// replies are the frames of b up to the first fault, without the pushes.
func replies(b []byte) (frames [][]byte) {
	r := resp.NewReader(64, resp.Limits{})
	n := copy(r.Free(len(b)), b)
	r.Advance(n)
	for {
		v, err := r.Next()
		if err != nil {
			return frames
		}
		if v.Kind() != resp.Push {
			frames = append(frames, bytes.Clone(v.Raw()))
		}
	}
}
