//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// Ways to give a master's place to another server, which has been up for long and is empty. The server that had the place
// is down for good.
const (
	replaced fault = "master replaced"               // each client is told (Client.Replace), or ended
	renamed  fault = "master's name leads elsewhere" // nobody is told
)

// Places are the masters of the clients' lists. Each has one of the servers. One that is left over is the spare.
// In namespaces the first places have names.
type places struct {
	servers *redlocktest.Masters
	file    string // says where each name leads; empty if no place has a name

	mu    sync.Mutex
	list  []string
	at    []int // the server of each place
	spare int   // the server that has none; -1 if there is no such server
}

// named is in how many places there are names.
const named = 2

func newPlaces(servers *redlocktest.Masters, n int, file string) (*places, error) {
	p := &places{servers: servers, file: file, list: servers.Addrs()[:n], spare: -1}
	for i := range n {
		p.at = append(p.at, i)
		if file != "" && i < named {
			p.list[i] = fmt.Sprintf("m%d.chaos:6379", i)
		}
	}
	if servers.N() > n {
		p.spare = n
	}
	return p, p.write()
}

// write writes the file.
func (p *places) write() error {
	if p.file == "" {
		return nil
	}
	text := ""
	for i := range min(named, len(p.at)) {
		name, _, _ := strings.Cut(p.list[i], ":")
		ip, _, _ := strings.Cut(p.servers.Addr(p.at[i]), ":")
		text += name + " " + ip + "\n"
	}
	if err := os.WriteFile(p.file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(p.file+".new", p.file)
}

func (p *places) N() int { return len(p.at) }
func (p *places) Close() { p.servers.Close() }

// Addrs returns the addresses by which clients know the masters.
func (p *places) Addrs() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

func (p *places) Do(i int, args ...string) (any, error) { return p.servers.Do(p.server(i), args...) }

// server returns the server that has a place. If p is nil, each has its own.
func (p *places) server(i int) int {
	if p == nil {
		return i
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at[i]
}

// hasName reports whether a place has a name, so that nobody is told when it gets another server.
func (p *places) hasName(i int) bool { return p.file != "" && i < named }

// hasSpare reports whether there is a server for the next place.
func (p *places) hasSpare() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spare >= 0
}

// give gives a place to the spare. Another server is the spare when setSpare says so.
func (p *places) give(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[i], p.spare = p.spare, -1
	if !p.hasName(i) {
		p.list[i] = p.servers.Addr(p.at[i])
	}
	return p.write()
}

func (p *places) setSpare(server int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = server
}

// direct returns the address of a master that leads past the traffic: its Unix socket where it has a
// network to itself, and else its own port, behind the link.
func (p *places) direct(i int, alone bool) (string, error) {
	setting, address := "port", "127.0.0.1:"
	if alone {
		setting, address = "unixsocket", "unix://"
	}
	reply, err := p.Do(i, "CONFIG", "GET", setting)
	if err != nil {
		return "", err
	}
	pair, _ := reply.([]any)
	if len(pair) != 2 {
		return "", fmt.Errorf("master %d does not say its %s: %v", i, setting, reply)
	}
	return address + pair[1].(string), nil
}

// replace gives a master's place to the spare, if there is one. The server that had it is killed before, and is the next
// spare when all clients know of it: it must not serve anybody until then.
func (n *nemesis) replace(ctx context.Context, i int) {
	n.replacing.Lock()
	defer n.replacing.Unlock()
	if !n.places.hasSpare() {
		return
	}
	old := n.places.server(i)
	n.killServer(old)
	if err := n.places.give(i); err != nil {
		panic(err)
	}
	direct, err := n.places.direct(i, n.alone)
	if err != nil {
		panic(err)
	}
	told := n.fleet.replace(i, n.places.Addrs(), direct)
	if n.fleet.unlike && len(n.clientTurn) > doubledPlace { // it has two addresses of one server, perhaps
		func() {
			n.clientTurn[doubledPlace].Lock()
			defer n.clientTurn[doubledPlace].Unlock() // also if killClient panics
			n.killClient(doubledPlace)
		}()
	}
	for deadline := clock.Now() + 2*patience; slices.ContainsFunc(told, func(t telling) bool { return !t.isOver() }); {
		if clock.Now() > deadline {
			panic(errors.New("a client does not replace the master"))
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return
		}
	}
	if n.places.hasName(i) {
		n.count(renamed)
		sleep(ctx, 2*time.Second) // who has looked the name up before has given up
	} else {
		n.count(replaced)
	}
	n.restart(old)
	n.places.setSpare(old)
}

// A telling is that a client was told of a replacement.
type telling struct {
	client *process
	file   string // that it makes then
}

// isOver reports whether the client has heard of it, or is gone.
func (t telling) isOver() bool {
	select {
	case <-t.client.gone:
		return true
	default:
	}
	_, err := os.Stat(t.file)
	return err == nil
}

// replace gives a master another address, for all clients from now on, and tells those who are there if it is new.
func (f *fleet) replace(i int, masters []string, direct string) (told []telling) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.config.Masters[i]
	f.config.Masters, f.config.Direct = masters, slices.Clone(f.config.Direct)
	f.config.Direct[i] = direct
	if masters[i] == old {
		return nil
	}
	for place, p := range f.current {
		if f.unlike && place == doubledPlace {
			continue
		}
		f.replacements++
		file := p.journal + ".replaced" + strconv.Itoa(f.replacements)
		fmt.Fprintln(p.input, replace, file, old, masters[i]) // fails if it has ended
		told = append(told, telling{p, file})
	}
	return told
}

// replace carries out what the client was told.
func (c *client) replace(file, old, new string) {
	<-c.opened
	list := c.masters()
	list[slices.Index(list, old)] = new
	c.list.Store(&list)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := c.lock.Replace(ctx, old, new, redlock.ShutDown()) // it is: what is in front of it may say nothing
		cancel()
		switch {
		case errors.Is(err, redlock.ErrClosed):
			return
		case err != nil: // the network is bad
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			panic(err)
		}
		return
	}
}

// masters returns the addresses of the masters as they are now.
func (c *client) masters() []string {
	if list := c.list.Load(); list != nil {
		return slices.Clone(*list)
	}
	return slices.Clone(c.Masters)
}

// resolver finds the names in the file.
func resolver(file string) *net.Resolver {
	return conntest.Resolver(func(name string) (addr netip.Addr) {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		for line := range strings.Lines(string(text)) {
			if is, ip, _ := strings.Cut(strings.TrimSpace(line), " "); is == name {
				addr = netip.MustParseAddr(ip)
			}
		}
		return addr
	})
}
