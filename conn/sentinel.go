package conn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/resp"
)

// What this file does is the procedure of "Guidelines for Redis clients with support
// for Redis Sentinel" (redis.io): ask the sentinels for the address, connect, check
// the role there; and listen to +switch-master.

const switchChannel = "+switch-master"

// The pause between two tries of a sentinel that cannot be listened to, at first and
// at most.
const (
	sentinelPauseMin = 50 * time.Millisecond
	sentinelPauseMax = 2 * time.Second
)

// A sentinel is a connection to one, off the path of the locks: its calls wait.
type sentinel struct {
	dialing
	ctx    context.Context
	conn   *Conn
	wait   func(Interest) error
	denied error // that it has not taken our password, which it may not need
}

// dialSentinel connects to a sentinel and authenticates. Whether a password that it
// does not take is a fault shows only later: one that wants none does not know the
// master's users, and before Redis 5 it does not know the command.
func dialSentinel(ctx context.Context, endpoint string, a Address, opt *Options) (*sentinel, error) {
	s := &sentinel{dialing: dialing{addr: a, opt: opt}, ctx: ctx}
	switch {
	case opt.SentinelPassword != "":
		s.username, s.password = opt.SentinelUsername, opt.SentinelPassword
	default:
		if err := s.authenticate(ctx); err != nil {
			return nil, err
		}
	}
	at := Address{tls: a.tls}
	if err := at.parseHostPort(endpoint); err != nil {
		return nil, err
	}
	var err error
	if s.poller, err = NewPoller(); err != nil {
		return nil, err
	}
	if s.conn, s.wait, _, err = s.open(ctx, at); err != nil {
		s.poller.Close()
		return nil, err
	}
	if s.password != "" {
		auth := []string{"AUTH", s.password}
		if s.username != "" {
			auth = []string{"AUTH", s.username, s.password}
		}
		v, err := s.do(auth...)
		if err != nil {
			s.close()
			return nil, err
		}
		if v.IsError() {
			s.denied = errors.New(s.quote("AUTH", v))
		}
	}
	return s, nil
}

func (s *sentinel) close() {
	s.conn.Abort()
	s.poller.Close()
}

// quote is the text of an error reply.
func (s *sentinel) quote(command string, v resp.Value) string {
	h := handshake{password: s.password}
	return h.quote(command, v)
}

// fault is an error reply as an error, if it is one.
func (s *sentinel) fault(command string, v resp.Value) error {
	if !v.IsError() {
		return nil
	}
	err := errors.New(s.quote(command, v))
	if s.denied != nil {
		err = fmt.Errorf("%w; %w", s.denied, err)
	}
	return err
}

// do sends one command and waits for its reply, which may be an error reply.
func (s *sentinel) do(args ...string) (resp.Value, error) {
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
func (s *sentinel) next() (resp.Value, error) {
	for {
		if s.ctx.Err() != nil { // it may send for ever
			return resp.Value{}, context.Cause(s.ctx)
		}
		v, err := s.conn.Next()
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

// texts returns the elements of an array of strings, however it is typed.
func texts(v resp.Value) (all []string) {
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			return all
		}
		all = append(all, string(e.Bytes()))
	}
}

// A place is where the master of a group may be.
type place struct {
	endpoint string        // empty if the group is not known
	votes    int           // sentinels that say so
	reign    time.Duration // how long each of them has known it as the master, at least
	epoch    int64         // the latest of the elections that they know of; 0 if they do not say
}

// ask asks one sentinel where the master of the group is, and since when.
func ask(ctx context.Context, endpoint string, a Address, opt *Options) (p place, err error) {
	s, err := dialSentinel(ctx, endpoint, a, opt)
	if err != nil {
		return p, err
	}
	defer s.close()
	v, err := s.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", a.group)
	if err == nil {
		err = s.fault("SENTINEL", v)
	}
	if err != nil || v.IsNull() {
		return p, err
	}
	at := texts(v)
	if len(at) != 2 {
		return p, errors.New("an answer that is no address")
	}
	p.endpoint = endpointOf(at[0], at[1])
	// Since when is of use to those who have a restart guard; it may be refused.
	if v, err = s.do("SENTINEL", "MASTER", a.group); err != nil {
		return place{}, err
	}
	for key, value := range pairs(v) {
		n, _ := strconv.ParseInt(string(value.Bytes()), 10, 64)
		switch key {
		case "role-reported-time":
			p.reign = time.Duration(n) * time.Millisecond
		case "config-epoch":
			p.epoch = n
		}
	}
	return p, nil
}

// endpointOf is the canonical spelling of what a sentinel says.
func endpointOf(host, port string) string {
	var a Address
	if s := net.JoinHostPort(host, port); a.parseHostPort(s) != nil {
		return s // to be refused by whoever connects
	}
	return a.Endpoint()
}

// candidates returns where the master of a group may be, likeliest first: what was
// preferred, then what those say that know of the latest election, or more than half of
// the sentinels, or if so many do not agree what any says. A master that was replaced,
// and that is cut off from its sentinels, says that it is one: that is why it must not be
// tried when they agree on another.
func (a Address) candidates(ctx context.Context, opt *Options) (places []place, err error) {
	all, total, failed := a.poll(ctx, opt, false)
	unknown := 0
	for _, p := range all {
		if p.endpoint == "" {
			unknown = p.votes
		} else {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, func(x, y place) int {
		if d := y.votes - x.votes; d != 0 {
			return d
		}
		return strings.Compare(x.endpoint, y.endpoint)
	})
	if i := latest(places); i >= 0 {
		places = places[i : i+1]
	} else if len(places) > 0 && 2*places[0].votes > total {
		places = places[:1]
	}
	if a.first != "" {
		first := place{endpoint: a.first}
		if i := slices.IndexFunc(places, func(p place) bool { return p.endpoint == a.first }); i >= 0 {
			first = places[i]
			places = slices.Delete(places, i, i+1)
		}
		places = slices.Insert(places, 0, first)
	}
	switch {
	case len(places) > 0:
		return places, nil
	case unknown > 0 && failed == nil:
		return nil, &RefusedError{"no sentinel knows a group named " + a.group,
			"correct the name; SENTINEL MASTERS lists them"}
	case unknown > 0:
		failed = join(fmt.Errorf("%d sentinels know no group named %s", unknown, a.group), failed)
	}
	return nil, failed
}

// latest returns the place that was elected after all others; -1 if none is known to be.
func latest(places []place) int {
	if len(places) < 2 {
		return -1
	}
	best, alone := 0, true
	for i, p := range places[1:] {
		switch e := places[best].epoch; {
		case p.epoch > e:
			best, alone = i+1, true
		case p.epoch == e:
			alone = false
		}
	}
	if !alone {
		return -1
	}
	return best
}

// poll counts the answers of all sentinels, which are total, and joins their errors. It
// asks them at once, and stops when more than half of them agree, unless it is to hear
// all; those that are down or that disagree do not matter then. Otherwise it waits for
// all of them, for half the time there is.
func (a Address) poll(ctx context.Context, opt *Options, hearAll bool) (places []place, total int, failed error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(opt.dialTimeout())
	}
	ctx, cancel := share(ctx, deadline, 2)
	defer cancel()
	sentinels := strings.Split(a.sentinels, ",")
	total = len(sentinels)
	type answer struct {
		from string
		place
		err error
	}
	answers := make(chan answer, total)
	var asking sync.WaitGroup
	for _, from := range sentinels {
		asking.Go(func() {
			p, err := ask(ctx, from, a, opt)
			answers <- answer{from, p, err}
		})
	}
	defer asking.Wait() // they end with the context
	for range sentinels {
		got := <-answers
		if got.err != nil {
			failed = join(failed, fmt.Errorf("sentinel %s: %w", got.from, unnamed(got.err)))
			continue
		}
		i := slices.IndexFunc(places, func(p place) bool { return p.endpoint == got.endpoint })
		if i < 0 {
			i = len(places)
			places = append(places, place{endpoint: got.endpoint, reign: got.reign})
		}
		p := &places[i]
		p.votes++
		p.reign = min(p.reign, got.reign)
		p.epoch = max(p.epoch, got.epoch)
		if !hearAll && p.endpoint != "" && 2*p.votes > total {
			cancel()
			return places, total, nil
		}
	}
	return places, total, failed
}

// Follow listens to the sentinels of a group until ctx ends, and calls tell with the
// endpoint of its master whenever a sentinel publishes that it has moved; and, when one
// is listened to anew, with what those say that know of the latest election, or more
// than half of all if nobody says otherwise. Calls do not overlap. One sentinel that can be reached is enough. It returns when
// nothing of it is left.
func Follow(ctx context.Context, a Address, opt Options, tell func(to string)) {
	var all sync.WaitGroup
	var telling sync.Mutex
	var published atomic.Int64 // messages
	for from := range strings.SplitSeq(a.sentinels, ",") {
		all.Go(func() {
			for pause := sentinelPauseMin; ctx.Err() == nil; pause = min(2*pause, sentinelPauseMax) {
				heard := listen(ctx, from, a, &opt, &published, func(to string, current func() bool) {
					telling.Lock()
					defer telling.Unlock()
					if current == nil || current() {
						tell(to)
					}
				})
				if heard {
					pause = sentinelPauseMin
				}
				select {
				case <-time.After(pause/2 + rand.N(pause)):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
}

// listen subscribes to one sentinel and reports whether that worked. It counts what is
// published; what it tells is of use if current, which may be nil, says so.
func listen(ctx context.Context, endpoint string, a Address, opt *Options, published *atomic.Int64, tell func(to string, current func() bool)) bool {
	dctx, cancel := context.WithTimeout(ctx, opt.dialTimeout())
	defer cancel()
	s, err := dialSentinel(dctx, endpoint, a, opt)
	if err != nil {
		return false
	}
	defer s.close()
	if v, err := s.do("SUBSCRIBE", switchChannel); err != nil || v.IsError() {
		return false
	}
	s.ctx = ctx
	s.wait = func(want Interest) error { return s.poller.await(ctx, s.conn.sock, want) }
	// What was published before is in the answers now. Just after a switch most
	// sentinels have not heard of it; but then one knows of a later election. What is
	// published while they are asked is later than their answers.
	before := published.Load()
	places, total, _ := a.poll(dctx, opt, true)
	i := latest(places)
	if i < 0 && len(places) == 1 && 2*places[0].votes > total {
		i = 0
	}
	if i >= 0 && places[i].endpoint != "" {
		tell(places[i].endpoint, func() bool { return published.Load() == before })
	}
	for {
		v, err := s.next()
		if err != nil {
			return true
		}
		message := texts(v)
		if len(message) != 3 || message[0] != "message" || message[1] != switchChannel {
			continue
		}
		// <group> <old ip> <old port> <new ip> <new port>
		if f := strings.Fields(message[2]); len(f) == 5 && f[0] == a.group {
			published.Add(1)
			tell(endpointOf(f[3], f[4]), nil)
		}
	}
}
