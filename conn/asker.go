package conn

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/resp"
)

// An asker is a connection to a server that is asked where a master is. Its calls wait, which is no
// harm: it is not on the path of the locks.
type asker struct {
	dialing
	ctx  context.Context
	conn *Conn
	wait func(Interest) error
}

// dial connects to the server at an endpoint. With an error it leaves nothing behind.
func (s *asker) dial(ctx context.Context, endpoint string) (err error) {
	at := Address{tls: s.addr.tls}
	if err := at.parseHostPort(endpoint); err != nil {
		return err
	}
	if s.poller, err = NewPoller(); err != nil {
		return err
	}
	opt := *s.opt
	opt.Limits = resp.Limits{Frame: maxAnswer, Skip: maxSkipped}
	s.opt = &opt
	if s.conn, s.wait, _, err = s.open(ctx, at); err != nil {
		s.poller.Close()
		return err
	}
	s.ctx = ctx
	return nil
}

// The bytes of an answer that is read, and of one that is read past. Answers are short, but for the view of a cluster's node.
const (
	maxAnswer  = 64 << 10
	maxSkipped = 1 << 20
)

// A tempo is how fast a server is asked again on a new connection. One that did not answer in time may be at its limit:
// it is given more time from then on, and asked less often.
type tempo struct {
	pause time.Duration
	late  int // tries in a row that were not answered in time
}

const maxLate = 4 // how often the time and the longest pause double

// timeout is the time of the next try.
func (t *tempo) timeout(opt *Options) time.Duration { return opt.dialTimeout() << min(t.late, maxLate) }

// wait waits before the next try, until ctx ends. worthwhile says that the last one was, and err why it has ended.
func (t *tempo) wait(ctx context.Context, worthwhile bool, err error) {
	if worthwhile {
		*t = tempo{}
	}
	if errors.Is(err, ErrUnanswered) {
		t.late++
	}
	t.pause = min(max(2*t.pause, sentinelPauseMin), sentinelPauseMax<<min(t.late, maxLate))
	select {
	case <-time.After(t.pause/2 + rand.N(t.pause)):
	case <-ctx.Done():
	}
}

func (s *asker) close() {
	s.conn.Abort()
	s.poller.Close()
}

// within bounds the calls that follow by a context.
func (s *asker) within(ctx context.Context) {
	s.ctx = ctx
	s.wait = func(want Interest) error { return awaitAnswer(ctx, s.poller, s.conn.sock, want) }
}

// send sends commands in one write. Each has one reply, which next returns. A server can be far away, so what can be
// asked at once is.
func (s *asker) send(commands ...[]string) error {
	var all []byte
	for _, args := range commands {
		all = resp.AppendCommand(all, args...)
	}
	flushed, err := s.conn.Send(all)
	for err == nil && !flushed {
		if err = s.wait(Writable); err == nil {
			flushed, err = s.conn.Flush()
		}
	}
	return err
}

// next waits for the next frame.
func (s *asker) next() (resp.Value, error) {
	for pushes := 0; ; {
		if s.ctx.Err() != nil { // wait would see it, but messages without end keep us from it
			return resp.Value{}, context.Cause(s.ctx)
		}
		v, err := s.conn.Next()
		if err == resp.ErrSkipped && s.conn.Skipped().Kind == resp.Push {
			if pushes++; pushes == maxMessages {
				return resp.Value{}, errTooMuch
			}
			continue
		}
		if err != resp.ErrNeedMore {
			return v.Clone(), err
		}
		n, err := s.conn.Receive()
		if n == 0 && err == nil {
			err = s.wait(Readable)
		}
		if n == 0 && err != nil {
			return resp.Value{}, err
		}
	}
}

// texts returns the elements of an array as strings, whatever their types.
func texts(v resp.Value) (all []string) {
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			return all
		}
		all = append(all, string(e.Bytes()))
	}
}
