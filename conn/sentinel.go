package conn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// How often a sentinel that publishes nothing is asked again, about. A variable for the
// sake of the tests.
var askEvery = 10 * time.Second

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

// candidates returns where the master of a group may be, in the order in which these
// places are to be tried, and how many of them come before the known one has said that it
// is no master any more.
//
// What more than half of the sentinels say is tried alone, be it of use or not: a master
// that was replaced, and that is cut off from them, says that it is one. Where so many do
// not agree, a master that is known stays the master: one sentinel that is wrong must not
// move it. Only its own word counts as much as theirs. If none is known, what those say
// comes first that know of the latest election, or else what most say.
func (a Address) candidates(ctx context.Context, opt *Options) (places []place, sure int, err error) {
	all, total, failed := a.poll(ctx, opt)
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
	agreed := len(places) > 0 && 2*places[0].votes > total
	if agreed {
		places = places[:1]
		if p := &places[0]; a.first != "" && p.endpoint != a.first {
			deadline, _ := ctx.Deadline()
			sctx, cancel := share(ctx, deadline, 4)
			if LeadsTo(sctx, p.endpoint, a.first) {
				p.endpoint = a.first // it has not moved: it is only called otherwise
			}
			cancel()
		}
	} else if i := latest(places); i >= 0 {
		places = places[i : i+1]
	}
	sure = len(places)
	if a.first != "" && !agreed {
		first := place{endpoint: a.first}
		if i := slices.IndexFunc(all, func(p place) bool { return p.endpoint == a.first }); i >= 0 {
			first = all[i]
		}
		places = slices.DeleteFunc(places, func(p place) bool { return p.endpoint == a.first })
		places = slices.Insert(places, 0, first)
		sure = 1
	}
	switch {
	case len(places) > 0:
		return places, sure, nil
	case unknown > 0 && failed == nil:
		return nil, 0, &RefusedError{Reason: "no sentinel knows a group named " + a.group,
			Remedy: "correct the name; SENTINEL MASTERS lists them"}
	case unknown > 0:
		failed = join(fmt.Errorf("%d sentinels know no group named %s", unknown, a.group), failed)
	}
	return nil, 0, failed
}

// LeadsTo reports whether an endpoint that [FollowGroup] has told leads to another one, such
// as a [Conn.RemoteAddr]: whether it has all addresses that the other one has. Then they are
// two spellings of one place. Names are looked up until ctx ends; one that cannot be found
// leads nowhere.
func LeadsTo(ctx context.Context, endpoint, other string) bool {
	addresses := lookUp(ctx)(endpoint)
	wanted := lookUp(ctx)(other)
	for _, to := range wanted {
		if !slices.Contains(addresses, to) {
			return false
		}
	}
	return len(wanted) > 0
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
// asks them at once, and stops when more than half of them agree, with the place that they
// agree on: those that are down or that disagree do not matter then. Otherwise it waits for
// all of them, for half the time there is.
func (a Address) poll(ctx context.Context, opt *Options) (places []place, total int, failed error) {
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
		places = count(places, got.place)
		if p, ok := agree(places, total, a.first, lookUp(ctx)); ok {
			cancel()
			return []place{p}, total, nil
		}
	}
	return places, total, failed
}

// count adds one sentinel's answer to those of the others.
func count(places []place, p place) []place {
	p.votes = 1
	for i := range places {
		if places[i].endpoint == p.endpoint {
			places[i].add(p)
			return places
		}
	}
	return append(places, p)
}

// add counts the votes for another place as votes for this one.
func (p *place) add(q place) {
	p.votes += q.votes
	p.reign = min(p.reign, q.reign)
	p.epoch = max(p.epoch, q.epoch)
}

// agree returns the place that more than half of all sentinels, which are total, name. Some
// may spell it otherwise than others, such as by its address and by its name: where their
// spellings make no majority, or not that which is known, what these lead to is looked up and
// counted. The place keeps the known spelling, if one of those who agree uses it: it has not
// moved. Otherwise it has that of most.
func agree(places []place, total int, known string, lookUp func(endpoint string) []netip.AddrPort) (place, bool) {
	var most place // what more than half of them spell alike
	named := 0
	respelled := false // some say what is known
	for _, p := range places {
		if p.endpoint == "" {
			continue
		}
		if 2*p.votes > total {
			most = p
		}
		named += p.votes
		respelled = respelled || p.endpoint == known
	}
	if most.votes > 0 && (most.endpoint == known || !respelled) || 2*named <= total {
		return most, most.votes > 0
	}
	leads := make([][]netip.AddrPort, len(places))
	for i, p := range places {
		if p.endpoint != "" {
			leads[i] = lookUp(p.endpoint)
		}
	}
	var best []int // of places
	votes := total / 2
	for _, to := range slices.Concat(leads...) {
		var of []int
		n := 0
		for i := range places {
			if slices.Contains(leads[i], to) {
				of = append(of, i)
				n += places[i].votes
			}
		}
		switch {
		case n > votes:
			best, votes = of, n
		case n == votes && !slices.Equal(of, best):
			best = nil // a name with two addresses, and others who say one of them each
		}
	}
	if best == nil {
		return most, most.votes > 0
	}
	agreed := places[best[0]]
	spelled := agreed
	for _, i := range best[1:] {
		p := places[i]
		agreed.add(p)
		switch {
		case spelled.endpoint == known:
		case p.endpoint == known, p.votes > spelled.votes, p.votes == spelled.votes && p.endpoint < spelled.endpoint:
			spelled = p
		}
	}
	agreed.endpoint = spelled.endpoint
	return agreed, true
}

// lookUp returns a function that says which addresses a place has: none if it cannot be
// found before ctx ends.
func lookUp(ctx context.Context) func(endpoint string) []netip.AddrPort {
	return func(endpoint string) (all []netip.AddrPort) {
		var a Address
		if a.parseHostPort(endpoint) != nil {
			return nil
		}
		targets, _ := resolve(ctx, a)
		for _, to := range targets {
			all = append(all, to.addr)
		}
		return all
	}
}

// FollowGroup listens to the sentinels of a group until ctx ends, and asks each of them again
// about every 10 s. It calls tell with the endpoint of the group's master as soon as more than
// half of the sentinels name it, and again whenever they come to name another, or the same
// one after so many had not agreed: what one sentinel says alone moves nothing. Calls do not
// overlap. FollowGroup returns when nothing of it is left.
func FollowGroup(ctx context.Context, a Address, opt Options, tell func(to string)) {
	if a.group == "" {
		return
	}
	sentinels := strings.Split(a.sentinels, ",")
	f := following{said: make([]string, len(sentinels)), tell: tell, timeout: opt.dialTimeout()}
	var all sync.WaitGroup
	for i, from := range sentinels {
		all.Go(func() {
			for pause := sentinelPauseMin; ctx.Err() == nil; pause = min(2*pause, sentinelPauseMax) {
				heard := listen(ctx, from, a, &opt, func(to string) { f.says(ctx, i, to) })
				if heard {
					pause = sentinelPauseMin
				}
				f.says(ctx, i, "") // what it said is of the past
				select {
				case <-time.After(pause/2 + rand.N(pause)):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
}

// A following is what the sentinels of a group say at the moment.
type following struct {
	tell    func(to string)
	timeout time.Duration // of looking up what they say

	mu     sync.Mutex
	said   []string // by each sentinel; empty if it is not heard
	agreed string   // what more than half of them say; empty if nothing is
	told   string   // what was told last
}

// says takes note of what sentinel i says, and tells of what most agree on, if that is
// news.
func (f *following) says(ctx context.Context, i int, to string) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said[i] = to
	var places []place
	for _, one := range f.said {
		places = count(places, place{endpoint: one})
	}
	p, ok := agree(places, len(f.said), f.told, lookUp(ctx))
	if ok && p.endpoint != f.agreed {
		f.told = p.endpoint
		f.tell(p.endpoint)
	}
	f.agreed = p.endpoint
}

// listen subscribes to one sentinel, and reports what it says: where the master is now,
// and then every switch that it publishes. It asks again now and then, as not all that moves
// a master is published: a sentinel that is told to forget a group and to watch it elsewhere
// says nothing. It returns when the sentinel fails to answer, and whether it ever has.
func listen(ctx context.Context, endpoint string, a Address, opt *Options, says func(to string)) (heard bool) {
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
	for {
		// What was published before is in the answer. What is published meanwhile is read
		// after it, and leads to the same place at the latest with its last message.
		actx, cancel := context.WithTimeout(ctx, opt.dialTimeout())
		p, err := ask(actx, endpoint, a, opt)
		cancel()
		if err != nil {
			return heard
		}
		heard = true
		says(p.endpoint)
		if err := s.hear(ctx, askEvery/2+rand.N(askEvery), says); err != nil {
			return heard
		}
	}
}

// hear reports the switches of its group that a sentinel publishes, for a while. The error
// says why nothing more can be heard.
func (s *sentinel) hear(ctx context.Context, d time.Duration, says func(to string)) error {
	hctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	s.ctx = hctx
	s.wait = func(want Interest) error { return s.poller.await(hctx, s.conn.sock, want) }
	for {
		v, err := s.next()
		if err != nil {
			if hctx.Err() != nil {
				err = ctx.Err()
			}
			return err
		}
		message := texts(v)
		if len(message) != 3 || message[0] != "message" || message[1] != switchChannel {
			continue
		}
		// <group> <old ip> <old port> <new ip> <new port>
		if f := strings.Fields(message[2]); len(f) == 5 && f[0] == s.addr.group {
			says(endpointOf(f[3], f[4]))
		}
	}
}
