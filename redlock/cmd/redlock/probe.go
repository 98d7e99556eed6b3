package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/resp"
)

// patience is how long a master may take to answer.
const patience = 5 * time.Second

// A probe is a connection to one master alone. A redlock.Client speaks to all masters
// at once and needs a majority of them, which a doctor cannot expect.
type probe struct {
	*conn.Conn
	poller *conn.Poller
}

func dialProbe(ctx context.Context, address string, opt conn.Options) (*probe, error) {
	addr, err := conn.ParseAddress(address)
	if err != nil {
		return nil, err
	}
	opt.ClientName = cmp.Or(opt.ClientName, probeName("ask"))
	c, err := conn.Dial(ctx, addr, opt)
	if err != nil {
		return nil, err
	}
	poller, err := conn.NewPoller()
	if err == nil {
		err = poller.Add(c, 0, conn.Readable)
	}
	if err != nil {
		c.Abort()
		return nil, err
	}
	return &probe{c, poller}, nil
}

// probeName is the name of a connection that takes no locks.
func probeName(command string) string {
	host, _ := os.Hostname()
	return clientname.Name{Program: clientname.Command, Version: clientname.Version(),
		Owner: fmt.Sprintf("redlock-%s@%s:%d", command, host, os.Getpid())}.String()
}

func (p *probe) close() {
	p.poller.Close()
	p.Close()
}

// do sends commands in one write and returns a reply to each. Error replies are among
// them, also in the place of one that is too long. The replies belong to the caller.
func (p *probe) do(ctx context.Context, commands ...[]string) ([]resp.Value, error) {
	until := clock.Now() + patience
	defer context.AfterFunc(ctx, p.poller.Wake)()
	var out []byte
	for _, args := range commands {
		out = resp.AppendCommand(out, args...)
	}
	flushed, err := p.Send(out)
	replies, raised := make([]resp.Value, 0, len(commands)), 0
	for err == nil {
		if len(replies) == len(commands) {
			return replies, nil
		}
		if command := commands[len(replies)]; raised == len(replies) && slices.Equal(command, clientList) {
			p.Raise(listLimits)
			raised++
		}
		v, next := p.Next()
		kind := v.Kind()
		if next == resp.ErrSkipped {
			kind, v, next = p.Skipped().Kind, tooLong(p.Skipped()), nil
		}
		switch {
		case next == nil:
			if kind != resp.Push {
				replies = append(replies, v.Clone())
				raised = len(replies)
			}
			continue
		case !errors.Is(next, resp.ErrNeedMore):
			return nil, next
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case clock.Now() >= until:
			return nil, fmt.Errorf("%w: %v passed", conn.ErrUnanswered, patience)
		}
		if err = p.await(until, flushed); err == nil && !flushed {
			flushed, err = p.Flush()
		}
		if err == nil {
			_, err = p.Receive()
		}
	}
	return nil, err
}

// clientList is the one command whose reply may be long.
var clientList = []string{"CLIENT", "LIST"}

// listLimits are those of a list of clients. It has some 400 bytes for each, and its length is what others make it.
var listLimits = resp.Limits{Bulk: 16 << 20, Frame: 16<<20 + 1<<10, Skip: 1 << 30}

const tooLongCode = "TOOLONG"

// tooLong is the error in the place of a reply that was skipped.
func tooLong(s resp.Skipped) resp.Value {
	text := resp.AppendError(nil, fmt.Sprintf(tooLongCode+" the answer is too long: %s of %d bytes", s.Kind, s.Bytes))
	r := resp.NewReader(len(text), resp.Limits{})
	r.Advance(copy(r.Free(len(text)), text))
	v, _ := r.Next()
	return v
}

func (p *probe) await(until time.Duration, flushed bool) error {
	want := conn.Readable
	if !flushed {
		want |= conn.Writable
	}
	if err := p.poller.Modify(p.Conn, 0, want); err != nil {
		return err
	}
	_, err := p.poller.Wait(until)
	return err
}
