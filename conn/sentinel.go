package conn

import (
	"cmp"
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

// This file follows the guidelines for clients of Sentinel,
// https://redis.io/docs/latest/develop/reference/sentinel-clients/: ask the sentinels for the
// address, connect, check the role there, and listen to +switch-master. It differs in one
// point. The guidelines trust the first sentinel that answers; here a majority of those that
// are listed must agree. One sentinel that is behind, or cut off, or hostile would otherwise
// lead a lock to another master, and nobody would notice that exclusion is gone. A hostile one
// would also be shown the master's password there.

const switchChannel = "+switch-master"

// The pause between two tries to listen to a sentinel: the first one, and the longest.
const (
	sentinelPauseMin = 50 * time.Millisecond
	sentinelPauseMax = 2 * time.Second
)

// maxMessages is how many messages of a sentinel are read before it is asked again. One that
// publishes without end, by fault or by intent, would keep a processor busy.
const maxMessages = 1000

// maxEndpoint bounds the host and port that a sentinel may name. A name has 253 bytes at most.
const maxEndpoint = 300

// askEvery is about how often a sentinel that publishes nothing is asked again. It is a
// variable for the tests.
var askEvery = 10 * time.Second

// A sentinel is a connection to a sentinel.
type sentinel struct {
	asker
	authenticated bool // it was told its credentials
}

// dialSentinel connects to a sentinel.
func dialSentinel(ctx context.Context, endpoint string, a Address, opt *Options) (*sentinel, error) {
	s := &sentinel{asker: asker{dialing: dialing{addr: a, opt: opt}}}
	s.credentials = Credentials{Username: opt.SentinelUsername, Password: opt.SentinelPassword}
	if err := s.dial(ctx, endpoint); err != nil {
		return nil, err
	}
	return s, nil
}

// replyError returns an error reply to a command as an error, without our password in it.
func (s *sentinel) replyError(command string, v resp.Value) error {
	h := handshake{credentials: s.credentials}
	said := h.quote(command, v)
	if needsAuth(v) && !s.authenticated {
		said = strings.TrimSuffix(said, ".") + "; set SentinelPassword, as sentinels are never shown the master's"
	}
	return errors.New(said)
}

// needsAuth reports whether a reply asks for credentials: all who have none are refused, or have
// too few rights.
func needsAuth(v resp.Value) bool {
	code := ErrorCode(v)
	return code == "NOAUTH" || code == "NOPERM"
}

// do sends commands and waits for their replies, which may be error replies. A sentinel that
// demands credentials is sent its own, and asked again. The others are not shown them: whoever
// poses as a sentinel should learn as little as can be.
func (s *sentinel) do(commands ...[]string) ([]resp.Value, error) {
	all, err := s.exchange(commands...)
	if err != nil || !slices.ContainsFunc(all, needsAuth) || s.authenticated || s.credentials.none() {
		return all, err
	}
	s.authenticated = true
	if all, err = s.exchange(append([][]string{s.credentials.auth()}, commands...)...); err != nil {
		return nil, err
	}
	if all[0].IsError() {
		return nil, s.replyError("AUTH", all[0])
	}
	return all[1:], nil
}

// exchange sends commands and waits for their replies.
func (s *sentinel) exchange(commands ...[]string) (all []resp.Value, err error) {
	if err := s.send(commands...); err != nil {
		return nil, err
	}
	for range commands {
		v, err := s.next()
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// A place is where the master of a group may be.
type place struct {
	endpoint  string        // empty if the sentinels do not know the group
	votes     int           // number of sentinels that name it
	masterFor time.Duration // least time for which each of them has reported it as the master
	epoch     int64         // number of the latest election that they report, for TrustAnySentinel
}

// ask asks one sentinel where the master of the group is, and since when. The place has no
// endpoint if the sentinel does not know the group.
func ask(ctx context.Context, endpoint string, a Address, opt *Options) (p place, err error) {
	s, err := dialSentinel(ctx, endpoint, a, opt)
	if err != nil {
		return p, err
	}
	defer s.close()
	said, err := s.do([]string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", a.group}, []string{"SENTINEL", "MASTER", a.group})
	if err != nil {
		return p, err
	}
	switch v := said[0]; {
	case v.IsError():
		return p, s.replyError("SENTINEL", v)
	case v.IsNull():
		return p, nil
	}
	at := texts(said[0])
	if len(at) != 2 || len(at[0])+len(at[1]) > maxEndpoint {
		return p, errors.New("an answer that is no address")
	}
	p.endpoint = endpointOf(at[0], at[1])
	// An error reply is no failure: only those who have a restart guard need to know since when.
	for key, value := range pairs(said[1]) {
		n, _ := strconv.ParseInt(string(value.Bytes()), 10, 64)
		switch key {
		case "role-reported-time":
			p.masterFor = max(0, time.Duration(n)*time.Millisecond)
		case "config-epoch":
			p.epoch = n
		}
	}
	return p, nil
}

// endpointOf returns the canonical spelling of a host and port that a sentinel has named.
func endpointOf(host, port string) string {
	var a Address
	if s := net.JoinHostPort(host, port); a.parseHostPort(s) != nil {
		return s // whoever connects there says what is wrong with it
	}
	return a.Endpoint()
}

// locate returns where the master of the group is.
//
// If more than half of the sentinels name one place, it is that, even if nobody answers there: a
// master that was replaced, and is cut off from the sentinels, still says that it is the master.
// If they do not agree, the known master stays the master, whatever the minority says. If none
// is known, there is nowhere to go, unless opt says that any sentinel is to be trusted.
//
// masterFor is set only if a majority vouches for the place. disagreement says why there is no majority,
// if there is none.
func (a Address) locate(ctx context.Context, opt *Options) (p place, disagreement, err error) {
	p, all, failed := a.poll(ctx, opt)
	if p.votes > 0 {
		if a.hint != "" && p.endpoint != a.hint {
			ctx, cancel := share(ctx, 4)
			defer cancel()
			if opt.Dialer == nil && ResolvesTo(ctx, p.endpoint, a.hint) {
				p.endpoint = a.hint // another spelling of the known place
			}
		}
		return p, nil, nil
	}
	disagreement = a.noMajority(all, failed, opt.SentinelPassword)
	named := slices.DeleteFunc(slices.Clone(all), func(p place) bool { return p.endpoint == "" })
	switch {
	case a.hint != "":
		return place{endpoint: a.hint}, disagreement, nil
	case len(named) > 0 && opt.TrustAnySentinel:
		latest := slices.MaxFunc(named, func(x, y place) int {
			return cmp.Or(cmp.Compare(x.epoch, y.epoch), cmp.Compare(x.votes, y.votes))
		})
		return place{endpoint: latest.endpoint}, disagreement, nil
	case len(named) == 0 && failed == nil:
		return p, nil, &RefusedError{Reason: "no sentinel knows a group named " + a.group,
			Remedy: "correct the name; SENTINEL MASTERS lists them"}
	}
	return p, nil, fmt.Errorf("%w (start the others or correct the list; with TrustAnySentinel one is enough, also one that lies)", disagreement)
}

// noMajority says why the sentinels have no majority. all is what they name, and failed the errors of
// those that did not answer. They may have been told a password, which is not in it.
func (a Address) noMajority(all []place, failed error, told Secret) error {
	total := strings.Count(a.sentinels, ",") + 1
	silent := total
	var said []string
	for _, p := range all {
		silent -= p.votes
		said = append(said, fmt.Sprintf("%s (%d of them)", cmp.Or(mask(p.endpoint, told.Reveal()), "no such group"), p.votes))
	}
	slices.Sort(said)
	if silent > 0 {
		said = append(said, fmt.Sprintf("nothing (%d of them)", silent))
	}
	err := fmt.Errorf("%d of %d sentinels must name the same master of group %s, but they say %s",
		total/2+1, total, a.group, strings.Join(said, ", "))
	if failed != nil {
		err = fmt.Errorf("%w: %w", err, failed)
	}
	return err
}

// ResolvesTo reports whether endpoint is a spelling of the place at addr: whether it resolves to every
// address that addr has. Both are a host and port: endpoint is what [FollowGroup] has reported, addr
// such as a [Conn.RemoteAddr]. ResolvesTo looks names up until ctx ends, and reports false for a name
// that it cannot find.
func ResolvesTo(ctx context.Context, endpoint, addr string) bool {
	addresses := addressesOf(ctx, endpoint)
	wanted := addressesOf(ctx, addr)
	for _, to := range wanted {
		if !slices.Contains(addresses, to) {
			return false
		}
	}
	return len(wanted) > 0
}

// poll asks all sentinels at once. As soon as more than half of them agree, it returns the place
// that they name, since the others do not matter then. Otherwise it waits for all of them, up to
// half of the time that is left; the rest is for the connect. Then it returns all places that
// they name, and their joined errors; agreed has no votes.
func (a Address) poll(ctx context.Context, opt *Options) (agreed place, all []place, failed error) {
	ctx, cancel := share(ctx, 2)
	sentinels := strings.Split(a.sentinels, ",")
	type answer struct {
		from string
		place
		err error
	}
	answers := make(chan answer, len(sentinels))
	var asking sync.WaitGroup
	for _, from := range sentinels {
		asking.Go(func() {
			p, err := ask(ctx, from, a, opt)
			answers <- answer{from, p, err}
		})
	}
	defer asking.Wait() // the context is canceled first, so this is short
	defer cancel()
	for range sentinels {
		got := <-answers
		if got.err != nil {
			failed = join(failed, fmt.Errorf("sentinel %s: %w", got.from, causeOf(got.err)))
			continue
		}
		all = count(all, got.place)
		if p, ok := agree(all, len(sentinels), a.hint, lookUp(ctx, opt)); ok {
			return p, nil, nil
		}
	}
	return place{}, all, failed
}

// count adds the answer of one sentinel to those of the others.
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
	p.masterFor = min(p.masterFor, q.masterFor)
	p.epoch = max(p.epoch, q.epoch)
}

// agree returns the place that more than half of all sentinels name; total is the number of
// sentinels. Some may give the address of a place, and others its name. So if no spelling has
// a majority, or if some use the known spelling and the majority another, agree looks up the
// addresses of all spellings and counts by address. The result has the known spelling if one
// of those who agree uses it, since the master has not moved then. Otherwise it has that of the
// majority, and if there is none, it is the address. It is never a name that only a minority uses:
// whoever has made that name up can have it lead elsewhere a moment later.
func agree(places []place, total int, known string, lookUp func(endpoint string) []netip.AddrPort) (place, bool) {
	var most place // the spelling that more than half use, if there is one
	named := 0
	respelled := false // some use the known spelling
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
	var looking sync.WaitGroup // all at once: a name that is hard to find must not delay the others
	for i, p := range places {
		if p.endpoint != "" {
			looking.Go(func() { leads[i] = lookUp(p.endpoint) })
		}
	}
	looking.Wait()
	var best []int // indexes of the places that share an address
	var shared netip.AddrPort
	votes := total / 2
	for _, to := range slices.SortedFunc(slices.Values(slices.Concat(leads...)), netip.AddrPort.Compare) {
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
			best, votes, shared = of, n, to
		case n == votes && !slices.Equal(of, best):
			best = nil // one says a name with two addresses, and two others one address each
		}
	}
	if best == nil {
		return most, most.votes > 0
	}
	agreed := places[best[0]]
	respelled = agreed.endpoint == known
	for _, i := range best[1:] {
		agreed.add(places[i])
		respelled = respelled || places[i].endpoint == known
	}
	switch {
	case respelled:
		agreed.endpoint = known
	case most.votes > 0:
		agreed.endpoint = most.endpoint
	default:
		agreed.endpoint = shared.String()
	}
	return agreed, true
}

// lookUp is addressesOf with a context, of which each call uses up half at most. Beside a Dialer it knows of none: what a
// name means there is the Dialer's.
func lookUp(ctx context.Context, opt *Options) func(endpoint string) []netip.AddrPort {
	return func(endpoint string) []netip.AddrPort {
		if opt.Dialer != nil {
			return nil
		}
		ctx, cancel := share(ctx, 2)
		defer cancel()
		return addressesOf(ctx, endpoint)
	}
}

// addressesOf returns the addresses of a host and port: none if it cannot find them before ctx
// ends.
func addressesOf(ctx context.Context, endpoint string) (all []netip.AddrPort) {
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

// FollowGroup subscribes to the sentinels of a group until ctx ends, and asks each of them again
// about every 10 s. It calls moved with the endpoint of the group's master as soon as more than
// half of the listed sentinels name it. It calls moved again when such a majority names another
// endpoint, and when a majority names the same endpoint after there was none. What a minority says
// moves nothing.
//
// FollowGroup uses the same Options as [Dial]. Calls of moved do not overlap. FollowGroup
// reports no errors: a sentinel that cannot be reached has no vote until it can. It returns
// when ctx has ended and nothing of it is left, or at once if a has no group.
func FollowGroup(ctx context.Context, a Address, opt Options, moved func(to string)) {
	if a.group == "" {
		return
	}
	sentinels := strings.Split(a.sentinels, ",")
	f := groupFollower{reported: make([]string, len(sentinels)), notify: moved, opt: &opt}
	var all sync.WaitGroup
	for i, from := range sentinels {
		all.Go(func() {
			for t := (tempo{}); ctx.Err() == nil; {
				worthwhile, err := subscribe(ctx, t.timeout(&opt), from, a, &opt, func(to string) { f.report(ctx, i, to) })
				f.report(ctx, i, "") // what it has said may have changed unheard
				t.wait(ctx, worthwhile, err)
			}
		})
	}
	all.Wait()
}

// A groupFollower has what the sentinels of a group say at the moment.
type groupFollower struct {
	notify func(to string)
	opt    *Options

	mu       sync.Mutex
	reported []string // by each sentinel; empty if it cannot be heard
	agreed   string   // what more than half of them say; empty if they do not agree
	notified string   // what notify was called with last
}

// report takes note of what sentinel i says. If a majority agrees on something new then, it
// calls notify.
func (f *groupFollower) report(ctx context.Context, i int, to string) {
	ctx, cancel := context.WithTimeout(ctx, f.opt.dialTimeout())
	defer cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reported[i] = to
	var places []place
	for _, one := range f.reported {
		places = count(places, place{endpoint: one})
	}
	p, ok := agree(places, len(f.reported), f.notified, lookUp(ctx, f.opt))
	if ok && p.endpoint != f.agreed {
		f.notified = p.endpoint
		f.notify(p.endpoint)
	}
	f.agreed = p.endpoint
}

// subscribe subscribes to one sentinel. It calls report with the place of the master now, and then
// with that of every switch that the sentinel publishes. It asks again now and then, since
// not everything that moves a master is published: a sentinel that is told to forget a group
// and to monitor it elsewhere says nothing. subscribe returns when the sentinel fails to answer within timeout, or
// publishes too much. It reports whether the sentinel is worth another try soon: it has answered,
// and not published too much.
func subscribe(ctx context.Context, timeout time.Duration, endpoint string, a Address, opt *Options, report func(to string)) (worthwhile bool, err error) {
	dctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if d := (dialing{addr: a, opt: opt}); opt.Credentials != nil && d.speaksTLS() { // for their TLS alone
		if err := d.authenticate(dctx); err != nil {
			return false, err
		}
		opt = d.opt
	}
	s, err := dialSentinel(dctx, endpoint, a, opt)
	if err != nil {
		return false, err
	}
	defer s.close()
	if said, err := s.do([]string{"SUBSCRIBE", switchChannel}); err != nil || said[0].IsError() {
		return false, err
	}
	for {
		// The answer includes what was published before. What is published meanwhile is read
		// after it, and its last message names the place that is right then.
		actx, cancel := context.WithTimeout(ctx, timeout)
		p, err := ask(actx, endpoint, a, opt)
		cancel()
		if err != nil {
			return worthwhile, err
		}
		worthwhile = true
		report(p.endpoint)
		if err := s.readSwitches(ctx, askEvery/2+rand.N(askEvery), report); err != nil {
			return err != errTooMuch, nil
		}
	}
}

var errTooMuch = errors.New("a sentinel publishes too much")

// readSwitches calls report with the switches of its group that a sentinel publishes, for as long as d.
// The error says why nothing more can be heard.
func (s *sentinel) readSwitches(ctx context.Context, d time.Duration, report func(to string)) error {
	hctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	s.within(hctx)
	for range maxMessages {
		v, err := s.next()
		if err == resp.ErrSkipped { // somebody has published it
			continue
		}
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
		if f := strings.Fields(message[2]); len(f) == 5 && f[0] == s.addr.group && len(f[3])+len(f[4]) <= maxEndpoint {
			report(endpointOf(f[3], f[4]))
		}
	}
	return errTooMuch
}
