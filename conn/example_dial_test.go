package conn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// Two commands are pipelined: one write sends both, and their replies come in the same order. A
// burst to several masters is the same with one [conn.Poller] and an id for each connection;
// package mux does that.
func ExampleDial() {
	masters, err := redlocktest.RunEmbedded(1) // inside this process
	if err != nil {
		log.Fatal(err)
	}
	defer masters.Close()
	addr, err := conn.ParseAddress(masters.Addr(0))
	if err != nil {
		log.Fatal(err)
	}
	c, err := conn.Dial(context.Background(), addr, conn.Options{ClientName: "example"})
	if errors.Is(err, conn.ErrRefused) {
		log.Fatal("somebody has to change something: ", err)
	} else if err != nil {
		log.Fatal("try again later: ", err)
	}
	defer c.Close()

	commands := resp.AppendCommand(nil, "SET", "lock", "token", "NX", "PX", "10000")
	commands = resp.AppendCommand(commands, "GET", "lock")
	err = pipeline(c, commands, 2, clock.Now()+10*time.Second, func(reply resp.Value) {
		fmt.Printf("%v %s\n", reply.Kind(), reply.Bytes())
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// simple string OK
	// bulk string token
}

// pipeline sends commands, and calls got with each of their replies. A reply is valid during the
// call. deadline is on the clock of [clock.Now].
func pipeline(c *conn.Conn, commands []byte, replies int, deadline time.Duration, got func(reply resp.Value)) error {
	poller, err := conn.NewPoller()
	if err != nil {
		return err
	}
	defer poller.Close()
	if err := poller.Add(c, 1, conn.Readable); err != nil {
		return err
	}
	defer poller.Remove(c)
	flushed, err := c.Send(commands)
	for err == nil && replies > 0 {
		reply, none := c.Next()
		switch {
		case none == nil && reply.Kind() != resp.Push: // a push answers no command
			got(reply)
			replies--
			continue
		case none == nil:
			continue
		case none != resp.ErrNeedMore:
			return none // the connection is of no more use
		}
		want := conn.Readable
		if !flushed {
			want |= conn.Writable
		}
		if err := poller.Modify(c, 1, want); err != nil {
			return err
		}
		events, err := poller.Wait(deadline)
		switch {
		case err != nil:
			return err
		case len(events) == 0:
			return errors.New("no reply in time")
		}
		if !flushed {
			if flushed, err = c.Flush(); err != nil {
				return err
			}
		}
		if _, err = c.Receive(); err != nil {
			return err
		}
	}
	return err
}
