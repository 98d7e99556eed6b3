package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"time"
)

// far is a process between the clients and the masters. It delays every byte on its
// way to a master, as masters at the distance of that round trip would.
type far struct {
	*child
	endpoints []Endpoint // in the masters' place
}

type farTask struct {
	Targets []string
	Delay   time.Duration
}

func startFar(masters []Endpoint, delay time.Duration) (*far, error) {
	var targets []string
	for _, e := range masters {
		targets = append(targets, e.Addr)
	}
	c, err := startChild("far", farTask{targets, delay})
	if err != nil {
		return nil, err
	}
	f := &far{child: c}
	for i := range targets {
		addr, err := c.hear()
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("start the delaying proxy: %w", err)
		}
		f.endpoints = append(f.endpoints, Endpoint{Network: "tcp", Addr: addr, Password: masters[i].Password})
	}
	return f, nil
}

func serveFar(in *bufio.Reader, out io.Writer) error {
	var task farTask
	if err := readTask(in, &task); err != nil {
		return err
	}
	for _, target := range task.Targets {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go relay(c, target, task.Delay)
			}
		}()
		fmt.Fprintln(out, l.Addr())
	}
	_, err := hear(in) // nothing more comes, but the end
	if err == io.EOF {
		return nil
	}
	return err
}

func relay(client net.Conn, target string, delay time.Duration) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer client.Close()
		io.Copy(client, server)
	}()

	type parcel struct {
		due   time.Time
		bytes []byte
	}
	road := make(chan parcel, 4096)
	defer close(road)
	go func() {
		defer server.Close()
		for p := range road {
			time.Sleep(time.Until(p.due))
			if _, err := server.Write(p.bytes); err != nil {
				client.Close() // ends the reading below
				break
			}
		}
		for range road {
		}
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		road <- parcel{time.Now().Add(delay), append([]byte(nil), buf[:n]...)}
	}
}
