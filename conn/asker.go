package conn

import (
	"context"

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
	if s.conn, s.wait, _, err = s.open(ctx, at); err != nil {
		s.poller.Close()
		return err
	}
	s.ctx = ctx
	return nil
}

func (s *asker) close() {
	s.conn.Abort()
	s.poller.Close()
}

// within bounds the calls that follow by a context.
func (s *asker) within(ctx context.Context) {
	s.ctx = ctx
	s.wait = func(want Interest) error { return s.poller.await(ctx, s.conn.sock, want) }
}

// call sends one command and waits for its reply.
func (s *asker) call(args ...string) (resp.Value, error) {
	flushed, err := s.conn.Send(resp.AppendCommand(nil, args...))
	for err == nil && !flushed {
		if err = s.wait(Writable); err == nil {
			flushed, err = s.conn.Flush()
		}
	}
	if err != nil {
		return resp.Value{}, err
	}
	return s.next()
}

// next waits for the next frame.
func (s *asker) next() (resp.Value, error) {
	for {
		if s.ctx.Err() != nil { // wait would see it, but messages without end keep us from it
			return resp.Value{}, context.Cause(s.ctx)
		}
		v, err := s.conn.Next()
		if err == resp.ErrSkipped && s.conn.Skipped().Kind == resp.Push {
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
