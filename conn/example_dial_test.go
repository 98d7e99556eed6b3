package conn_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// One command to one master. A burst to several masters is the same with one [conn.Poller]
// and an id for each connection; package mux does that.
func ExampleDial() {
	addr, err := conn.ParseAddress("redis://10.0.0.1:6379")
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := conn.Dial(context.Background(), addr, conn.Options{ClientName: "example"})
	if errors.Is(err, conn.ErrRefused) {
		fmt.Println("somebody has to change something:", err)
		return
	} else if err != nil {
		fmt.Println("try again later:", err)
		return
	}
	defer c.Close()
	poller, err := conn.NewPoller()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer poller.Close()
	if err := poller.Add(c, 1, conn.Readable); err != nil {
		fmt.Println(err)
		return
	}

	reply, err := ask(c, poller, clock.Now()+time.Second, "PING")
	fmt.Printf("%s %v\n", reply.Bytes(), err)
}

// ask sends a command and waits for its reply. The reply is valid until the next Receive.
func ask(c *conn.Conn, poller *conn.Poller, deadline time.Duration, command ...string) (resp.Value, error) {
	flushed, err := c.Send(resp.AppendCommand(nil, command...))
	for err == nil {
		var reply resp.Value
		if reply, err = c.Next(); err == nil && reply.Kind() != resp.Push {
			return reply, nil
		} else if err == nil {
			continue // a message that answers no command
		} else if err != resp.ErrNeedMore {
			return resp.Value{}, err // the connection is of no more use
		}
		want := conn.Readable
		if !flushed {
			want |= conn.Writable
		}
		if err = poller.Modify(c, 1, want); err != nil {
			break
		}
		var events []conn.Event
		if events, err = poller.Wait(deadline); err != nil {
			break
		}
		if len(events) == 0 {
			return resp.Value{}, errors.New("no reply in time")
		}
		if !flushed {
			if flushed, err = c.Flush(); err != nil {
				break
			}
		}
		_, err = c.Receive()
	}
	return resp.Value{}, err
}
