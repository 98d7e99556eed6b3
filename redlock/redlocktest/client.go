package redlocktest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/redburst/redburst/resp"
)

// A ReplyError is an error reply of a master, word for word: "NOSCRIPT No matching
// script.". The zero value is an empty reply, which no master sends.
type ReplyError string

// Error returns the reply.
func (e ReplyError) Error() string { return string(e) }

// askTime is how long a master may take to answer.
const askTime = 5 * time.Second

// do sends one command to a master, unless it is known that there is no answer.
func do(to master, args ...string) (any, error) {
	if err := to.state(); err != nil {
		return nil, err
	}
	return ask(to, time.Now().Add(askTime), args...)
}

// asking says in an error who was asked, unless it is the reply.
func asking(who string, err error) error {
	if _, replied := err.(ReplyError); err == nil || replied {
		return err
	}
	return fmt.Errorf("redlocktest: ask %s: %w", who, err)
}

// ask sends one command to a master on a connection of its own.
func ask(to master, deadline time.Time, args ...string) (any, error) {
	network, address, password := to.control()
	d := net.Dialer{Deadline: deadline}
	conn, err := d.Dial(network, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	c := &client{conn, resp.NewReader(4096, resp.Limits{Bulk: 512 << 20})}
	if password != "" {
		if _, err := c.do("AUTH", password); err != nil {
			return nil, err
		}
	}
	return c.do(args...)
}

// A client is one connection that sends a command and waits for its reply.
type client struct {
	net.Conn
	in *resp.Reader
}

func (c *client) do(args ...string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("no command")
	}
	if _, err := c.Write(resp.AppendCommand(nil, args...)); err != nil {
		return nil, err
	}
	for {
		v, err := c.in.Next()
		switch {
		case errors.Is(err, resp.ErrNeedMore):
			n, err := c.Read(c.in.Free(1))
			c.in.Advance(n)
			if n == 0 && err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
		case err != nil:
			return nil, err
		case v.Kind() != resp.Push:
			reply := native(v)
			if err, ok := reply.(ReplyError); ok {
				return nil, err
			}
			return reply, nil
		}
	}
}

// native is v as a Go value of its own, independent of the reader's buffer.
func native(v resp.Value) any {
	switch {
	case v.IsNull():
		return nil
	case v.IsError():
		return ReplyError(v.Bytes())
	}
	switch v.Kind() {
	case resp.Integer:
		n, _ := v.Int()
		return n
	case resp.Double:
		f, _ := v.Float()
		return f
	case resp.Boolean:
		b, _ := v.Bool()
		return b
	case resp.Array, resp.Set, resp.Map:
		all := []any{}
		for it := v.Elems(); ; {
			e, ok := it.Next()
			if !ok {
				return all
			}
			all = append(all, native(e))
		}
	}
	return string(v.Bytes())
}
