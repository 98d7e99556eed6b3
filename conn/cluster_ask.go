package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// SlotTrust is for how long a majority's word on who has a slot is relied on. A master that no
// majority has confirmed for so long has no vote. Its successor has none for so much longer: by then
// nobody relies on the predecessor any more.
const SlotTrust = 3 * time.Second

// askSlotEvery is about how often each node is asked who has the slot. It is a variable for the tests.
var askSlotEvery = time.Second

// viewLasts is how long a node's view of the cluster is believed to be complete, if the node does
// not name another master of our slot.
const viewLasts = 10 * time.Second

// A node's view of the cluster has maxView bytes, and all that are asked have maxViews together: for 500 masters with two
// ranges of slots each, or 50 with two hundred.
const (
	maxView  = 16 << 20
	maxViews = 128 << 20
)

// A clusterSurvey asks the nodes of a cluster who has the slot.
type clusterSurvey struct {
	addr        Address
	opt         Options
	credentials func(context.Context) (Credentials, *tls.Config, error)
	once        bool   // ask each node once
	changed     func() // called with mu after each answer

	mu      sync.Mutex
	tally   clusterTally
	running map[string]context.CancelFunc
	asking  sync.WaitGroup
}

func newSurvey(a Address, opt *Options) *clusterSurvey {
	s := &clusterSurvey{addr: a, opt: *opt, running: map[string]context.CancelFunc{}}
	s.tally.answers = map[string]clusterAnswer{}
	return s
}

// given are the nodes of the address.
func (a Address) given() []string {
	all := strings.Split(a.nodes, ",")
	for _, more := range strings.Split(a.known+","+a.hint, ",") {
		if more != "" && !slices.Contains(all, more) {
			all = append(all, more)
		}
	}
	return all
}

// ask begins to ask a node, if that is not under way. mu is held.
func (s *clusterSurvey) ask(ctx context.Context, at string) {
	if s.running[at] != nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.running[at] = cancel
	s.tally.answers[at] = clusterAnswer{pending: true}
	s.asking.Go(func() {
		if ctx.Err() != nil { // it has ended before we began
			s.answer(ctx, at, clusterAnswer{err: context.Cause(ctx)})
		}
		for t := (tempo{}); ctx.Err() == nil; {
			answered, err := s.askOn(ctx, t.timeout(&s.opt), at)
			if err != nil {
				s.answer(ctx, at, clusterAnswer{err: err})
			}
			if s.once {
				return
			}
			t.wait(ctx, answered, err)
		}
	})
}

// answer takes note of a node's answer.
func (s *clusterSurvey) answer(ctx context.Context, at string, a clusterAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil && !s.once { // it is not asked any more
		return
	}
	s.tally.answers[at] = a
	s.changed()
}

// only ends to ask all nodes but those. mu is held.
func (s *clusterSurvey) only(nodes ...[]string) {
	for at, cancel := range s.running {
		if !slices.ContainsFunc(nodes, func(some []string) bool { return slices.Contains(some, at) }) {
			cancel()
			delete(s.running, at)
			delete(s.tally.answers, at)
		}
	}
}

// askOn asks a node on one connection: again and again until that fails, or once. It reports whether
// the node has answered.
func (s *clusterSurvey) askOn(ctx context.Context, timeout time.Duration, at string) (answered bool, err error) {
	opt := s.opt
	q := asker{dialing: dialing{addr: s.addr, opt: &opt}}
	dctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if q.credentials, opt.TLS, err = s.credentials(dctx); err != nil {
		return false, err
	}
	if err := q.dial(dctx, at); err != nil {
		return false, err
	}
	defer q.close()
	v := nodeView{survey: s, asker: &q, at: at, timeout: timeout}
	for {
		a, err := v.ask(ctx)
		if err != nil {
			return answered && err != errTooMuch, err
		}
		answered = true
		s.answer(ctx, at, a)
		if s.once {
			return true, nil
		}
		select {
		case <-time.After(askSlotEvery/2 + rand.N(askSlotEvery/2)):
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}

// limits are those of a node's view now.
func (s *clusterSurvey) limits() resp.Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	return resp.Limits{Elements: 1 << 20, Frame: min(maxView, maxViews/max(1, len(s.running)))}
}

// A nodeView is what a node has said on a connection.
type nodeView struct {
	survey  *clusterSurvey
	asker   *asker
	at      string
	timeout time.Duration // of each question
	view    clusterView
	said    string        // when it gave the view: what it said of our slot
	viewed  time.Duration // when that was; 0 before
	has     bool          // it had the slot when it was last asked
}

// ask asks the node once: for all that is needed at once, as far as that is known before.
func (n *nodeView) ask(ctx context.Context) (a clusterAnswer, err error) {
	q, opt := n.asker, &n.survey.opt
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	q.within(ctx)
	a.asked = clock.Now()
	first := n.viewed == 0
	auth := first && !q.credentials.none()
	slots := first || a.asked-n.viewed >= viewLasts
	epoch := (first || n.has || slots) && !n.survey.once // the handshake asks for it, too. Nothing is sent behind the slots
	var commands [][]string
	if auth {
		commands = append(commands, q.credentials.auth())
	}
	commands = append(commands, []string{"GET", opt.ClusterKey})
	if epoch {
		commands = append(commands, clusterInfo)
	}
	if slots {
		commands = append(commands, clusterSlots)
	}
	if err = q.send(commands...); err == nil && auth {
		err = q.expect("AUTH", nil)
	}
	var text string
	if err == nil {
		text, err = q.state(&a)
	}
	if n.has = a.state.has(); err == nil && n.has && !n.survey.once && !epoch {
		epoch, err = true, q.send(clusterInfo)
	}
	if err == nil && epoch {
		err = q.expect("", func(v resp.Value) error { a.epoch = epochIn(v.Bytes(), q.credentials.Password); return nil })
	}
	if err == nil && text != n.said && !slots {
		slots, err = true, q.send(clusterSlots)
	}
	if err == nil && slots {
		q.conn.Raise(n.survey.limits())
		err = q.expect("", func(v resp.Value) error { return n.take(v, &a) })
		n.viewed, n.said = a.asked, text
	}
	a.view = n.view
	return a, err
}

var (
	clusterInfo  = []string{"CLUSTER", "INFO"}
	clusterSlots = []string{"CLUSTER", "SLOTS"}
)

// take takes an answer to CLUSTER SLOTS.
func (n *nodeView) take(v resp.Value, a *clusterAnswer) (err error) {
	switch addr := &n.survey.addr; {
	case a.state == slotHere && n.at == addr.nodes && knowsNoCluster(v):
		// An endpoint that has all slots and names nobody must be the only one of its address, and serve the keys of our slot:
		// nobody else can say who is their master.
		n.view = clusterView{masters: []clusterNode{{id: n.at, endpoint: n.at}}, owner: n.at}
		return nil
	case v.IsError():
		return n.asker.refusal("CLUSTER SLOTS", v)
	}
	n.view, err = parseView(v, HashSlot(n.survey.opt.ClusterKey), n.at)
	return err
}

// state reads a node's answer for a key of the slot. text changes whenever the node names another master.
func (s *asker) state(a *clusterAnswer) (text string, err error) {
	err = s.expect("", func(v resp.Value) error {
		a.state = stateOf(v)
		text = string(rune(a.state))
		if v.IsError() {
			text += string(v.Bytes())
		}
		if code := ErrorCode(v); code == "NOPERM" || code == "NOAUTH" {
			return s.refusal("GET", v)
		}
		return nil
	})
	if err == resp.ErrSkipped { // whatever somebody keeps at that key, the node has the slot
		a.state, text, err = slotHere, string(rune(slotHere)), nil
	}
	return text, err
}

// expect has the next reply read. An error reply is an error, unless command is empty.
func (s *asker) expect(command string, read func(resp.Value) error) error {
	v, err := s.next()
	switch {
	case err != nil:
		return err
	case v.IsError() && command != "":
		return s.refusal(command, v)
	case read != nil:
		return read(v)
	}
	return nil
}

// refusal returns an error reply of a node as an error.
func (s *asker) refusal(command string, v resp.Value) error {
	h := handshake{credentials: s.credentials}
	if strings.Contains(string(ownWords(v)), "cluster support disabled") {
		return &RefusedError{Reason: "it is no node of a cluster", Remedy: "write its address as redis://host:port"}
	}
	return h.replyError(command, v)
}

// locateSlot returns where the master of the slot is. The error says why there is no majority that
// names one.
func (d *dialing) locateSlot(ctx context.Context) (o SlotOwner, err error) {
	slot := HashSlot(d.opt.ClusterKey)
	if HashTag(d.opt.ClusterKey) == "" {
		return o, &RefusedError{Reason: "the keys of the locks have no hash tag in common, so they would be in many slots of the cluster",
			Remedy: "choose a prefix that has one, such as {locks}:"}
	}
	deadline, _ := ctx.Deadline()
	// The nodes, and the masters that they name, have two thirds of the time. The rest is for the connect.
	given := 2 * time.Until(deadline) / 3
	asking, cancel := context.WithTimeoutCause(ctx, given,
		fmt.Errorf("no answer within %v, two thirds of the dial timeout: %w", given.Round(time.Millisecond), os.ErrDeadlineExceeded))
	s := newSurvey(d.addr, d.opt)
	s.once = true
	s.credentials = func(context.Context) (Credentials, *tls.Config, error) { return d.credentials, d.opt.TLS, nil }
	defer s.asking.Wait() // the contexts are canceled first, so this is short
	defer cancel()
	done := make(chan struct{})
	over := false // done is closed
	var owner SlotOwner
	var disagreement error
	s.changed = func() {
		if over {
			return
		}
		masters := s.tally.masters()
		named, found := s.tally.owner(masters)
		if !found {
			for _, at := range masters.endpoints {
				if at != "" {
					s.ask(asking, at)
				}
			}
			for _, a := range s.tally.answers {
				if a.pending {
					return
				}
			}
			disagreement = s.tally.disagreement(slot, d.credentials.Password)
		}
		owner, over = named, true
		close(done)
	}
	s.mu.Lock()
	s.tally.sources = d.addr.given()
	for _, at := range s.tally.sources {
		s.ask(asking, at)
	}
	s.mu.Unlock()
	select {
	case <-done:
		o, err = owner, disagreement
	case <-ctx.Done():
		return o, context.Cause(ctx)
	}
	if d.addr.hint != "" && o.Endpoint != "" && o.Endpoint != d.addr.hint {
		ctx, cancel := share(ctx, 4)
		defer cancel()
		if d.opt.Dialer == nil && ResolvesTo(ctx, o.Endpoint, d.addr.hint) {
			o.Endpoint = d.addr.hint // another spelling of the known place
		}
	}
	return o, err
}

// runCluster connects to the master of the slot.
func (d *dialing) runCluster(ctx context.Context) (*Conn, string, error) {
	o, err := d.locateSlot(ctx)
	if err != nil {
		return nil, "cluster", err
	}
	var at Address
	if err := at.parseHostPort(o.Endpoint); err != nil {
		return nil, "cluster", errors.New("its nodes say it is at " + Printable(o.Endpoint) + ": " + err.Error())
	}
	at.tls, at.db = d.addr.tls, d.addr.db
	c, op, err := d.connectTo(ctx, at)
	if err != nil {
		return nil, op, errorAt(o.Endpoint, err)
	}
	c.server.Group, c.server.Cluster = d.addr.Group(), true
	c.server.Nodes, c.server.SlotAsked = o.Nodes, o.Asked
	return c, "", nil
}

// FollowSlot asks the nodes of a cluster about every second who has the slot of
// [Options.ClusterKey], until ctx ends. It calls said after each answer with what more than half of
// the cluster's masters say then, or with the zero SlotOwner if they do not agree. Who these masters are,
// more than half of the nodes must say: of those of the address together with [SlotOwner.Nodes] as they
// were agreed on last. One that is silent says nothing, and counts.
//
// FollowSlot uses the same Options as [Dial]. Calls of said do not overlap. FollowSlot reports no
// errors: a node that cannot be reached has no vote until it can. It returns when ctx has ended
// and nothing of it is left, or at once if a is not the address of a cluster.
func FollowSlot(ctx context.Context, a Address, opt Options, said func(o SlotOwner)) {
	if !a.Cluster() {
		return
	}
	s := newSurvey(a, &opt)
	s.credentials = func(ctx context.Context) (Credentials, *tls.Config, error) {
		d := dialing{addr: a, opt: &opt}
		err := d.authenticate(ctx)
		return d.credentials, d.opt.TLS, err
	}
	given := a.given()
	s.changed = func() {
		masters := s.tally.masters()
		o, ok := s.tally.owner(masters)
		if ok {
			s.tally.sources = given
			for _, at := range o.Nodes {
				if !slices.Contains(given, at) {
					s.tally.sources = append(s.tally.sources[:len(s.tally.sources):len(s.tally.sources)], at)
				}
			}
		}
		named := slices.DeleteFunc(slices.Sorted(maps.Values(masters.endpoints)), func(at string) bool { return at == "" })
		s.only(s.tally.sources, named) // who is named no more is asked no more
		for _, at := range slices.Concat(s.tally.sources, named) {
			s.ask(ctx, at)
		}
		said(o)
	}
	s.mu.Lock()
	s.tally.sources = given
	for _, at := range given {
		s.ask(ctx, at)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.asking.Wait()
}
