package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A uiState is what the page shows, and the browsers that are told of its changes. Nobody asks the masters while no
// browser looks.
type uiState struct {
	server  *uiServer
	working sync.WaitGroup

	mu       sync.Mutex
	streams  int // of all kinds
	browsers map[*browser]bool
	rows     map[string]*uiLock // by their IDs
	latest   map[string][]byte  // the last message of each event but locks
	listed   int64              // when the last list began that has all that is held; 0 before it
}

// A browser is one that looks. Its messages are closed if it is too slow for them.
type browser struct{ messages chan []byte }

// A uiLock is a row of the page. Times are in milliseconds since 1970, by the clock of this machine: a row whose lock
// does not change does not change.
type uiLock struct {
	ID      string     `json:"id"`
	Key     string     `json:"key"`
	Kind    string     `json:"kind"`
	Held    bool       `json:"held"`
	Holder  string     `json:"holder"` // for people
	Masters string     `json:"masters"`
	Ends    *int64     `json:"ends"`  // null if it never ends, or nobody holds it
	Since   *int64     `json:"since"` // null if nothing says when it was taken
	Waiting int        `json:"waiting"`
	Fence   uint64     `json:"fence,omitempty"`
	Holders []uiHolder `json:"holders"`
	Waiters []uiWaiter `json:"waiters"`
	Silent  []string   `json:"silent,omitempty"`

	info redlock.LockInfo
}

type uiHolder struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Masters int    `json:"masters"`
	Ends    *int64 `json:"ends"`
	Permit  int    `json:"permit,omitempty"`
	Revoked bool   `json:"revoked,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

type uiWaiter struct {
	Name  string `json:"name"`
	Since int64  `json:"since"`
}

// rowID tells rows apart. A key need not be UTF-8, as JSON is, and can be longer than an address.
func rowID(kind, key string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(kind+" "+key)))
}

// holderID tells holders apart, and is no token.
func holderID(h redlock.Holder) string {
	sum := sha256.Sum256([]byte(h.Token.Reveal()))
	return fmt.Sprintf("%x-%d", sum[:8], h.Permit)
}

func newUILock(lock redlock.LockInfo, now time.Time) *uiLock {
	ends := func(ttl time.Duration) *int64 {
		if ttl < 0 {
			return nil
		}
		return new(now.Add(ttl).UnixMilli())
	}
	row := &uiLock{ID: rowID(lock.Kind, lock.Key), Key: conn.Printable(lock.Key) /* before JSON, which is UTF-8 */, Kind: lock.Kind, Held: lock.Held || lock.Used > 0, Holder: heldBy(lock),
		Waiting: lock.Waiting, Fence: lock.Fence, Holders: []uiHolder{}, Waiters: []uiWaiter{}, Silent: lock.Silent, info: lock}
	if h, ok := leaderOf(lock); ok {
		row.Ends = ends(h.TTL)
		row.Masters = fmt.Sprintf("%d of %d", len(h.Masters), lock.Masters)
	}
	if !lock.Since.IsZero() {
		row.Since = new(lock.Since.UnixMilli())
	}
	for _, h := range lock.Holders {
		row.Holders = append(row.Holders, uiHolder{holderID(h), holderText(h), h.Held, len(h.Masters), ends(h.TTL), h.Permit, h.Revoked, h.Reason})
	}
	for _, w := range lock.Waiters {
		row.Waiters = append(row.Waiters, uiWaiter{waiterText(w), now.Add(-w.Waited).UnixMilli()})
	}
	return row
}

// settle takes times over from the last row that differ by no more than what an answer takes, and reports whether
// nothing else has changed.
func (l *uiLock) settle(last *uiLock) bool {
	const close = 300 // ms
	near := func(t *int64, was *int64) {
		if d := *t - *was; -close <= d && d <= close {
			*t = *was
		}
	}
	if l.Ends != nil && last.Ends != nil {
		near(l.Ends, last.Ends)
	}
	for i := range min(len(l.Holders), len(last.Holders)) {
		if a, b := l.Holders[i].Ends, last.Holders[i].Ends; a != nil && b != nil {
			near(a, b)
		}
	}
	for i := range min(len(l.Waiters), len(last.Waiters)) {
		near(&l.Waiters[i].Since, &last.Waiters[i].Since)
	}
	a, b := *l, *last
	a.info, b.info = redlock.LockInfo{}, redlock.LockInfo{}
	return reflect.DeepEqual(a, b)
}

// begin starts what asks the masters, until ctx ends.
func (u *uiState) begin(ctx context.Context, s *uiServer) {
	u.server = s
	u.browsers, u.rows, u.latest = map[*browser]bool{}, map[string]*uiLock{}, map[string][]byte{}
	cfg := s.set.clientConfig("ui")
	u.latest["about"] = uiMessage("about", map[string]any{
		"revoke": s.allowRevoke, "pattern": s.pattern, "prefix": cfg.Prefix, "version": versionText(), "quorum": quorum.Majority(len(cfg.Masters)),
	})
	for _, look := range []struct {
		pause time.Duration // from the begin of one look to that of the next
		at    func(context.Context)
	}{{500 * time.Millisecond, u.listLocks}, {250 * time.Millisecond, u.readMasters}, {time.Minute, u.examine}, {10 * time.Second, u.readClients}} {
		u.working.Go(func() { u.repeat(ctx, look.pause, look.at) })
	}
}

func (u *uiState) wait() { u.working.Wait() }

// repeat looks again and again while a browser is there. It is idle for as long as a look takes, at least.
func (u *uiState) repeat(ctx context.Context, pause time.Duration, look func(context.Context)) {
	var last time.Time
	for {
		if u.watched() && time.Since(last) >= pause {
			last = time.Now()
			look(ctx)
			last = last.Add(max(0, 2*time.Since(last)-pause))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(pause, 100*time.Millisecond)):
		}
	}
}

func (u *uiState) watched() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.browsers) > 0
}

// enter takes the place of a stream, if there is one left.
func (u *uiState) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.streams == uiWatches {
		return false
	}
	u.streams++
	return true
}

func (u *uiState) exit() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.streams--
}

// join adds a browser, and returns what it is to be told first.
func (u *uiState) join() (b *browser, first [][]byte, ok bool) {
	if !u.enter() {
		return nil, nil, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	b = &browser{make(chan []byte, 64)}
	u.browsers[b] = true
	for _, event := range []string{"about", "masters", "findings", "clients", "list"} {
		if m := u.latest[event]; m != nil {
			first = append(first, m)
		}
	}
	return b, append(first, lockMessages(true, slices.Collect(maps.Values(u.rows)), nil)...), true
}

func (u *uiState) leave(b *browser) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.browsers, b)
	u.streams--
}

// tell sends a message to all browsers. u.mu is held.
func (u *uiState) tell(messages ...[]byte) {
	for b := range u.browsers {
		for _, m := range messages {
			select {
			case b.messages <- m:
				continue
			default:
			}
			close(b.messages)
			delete(u.browsers, b)
			break
		}
	}
}

// say tells all browsers of an event if it says something else than the last one.
func (u *uiState) say(event string, v any) {
	m := uiMessage(event, v)
	u.mu.Lock()
	defer u.mu.Unlock()
	if string(u.latest[event]) != string(m) {
		u.latest[event] = m
		u.tell(m)
	}
}

// lockMessages are the messages for rows that have changed, and for those that are gone. reset says that there are no
// others.
func lockMessages(reset bool, set []*uiLock, gone []string) (all [][]byte) {
	type message struct {
		Reset bool      `json:"reset,omitempty"`
		Now   int64     `json:"now"`
		Set   []*uiLock `json:"set"`
		Gone  []string  `json:"gone"`
	}
	for part := range slices.Chunk(set, 1000) {
		all = append(all, uiMessage("locks", message{reset && len(all) == 0, time.Now().UnixMilli(), part, nil}))
	}
	if len(gone) > 0 || reset && len(all) == 0 {
		all = append(all, uiMessage("locks", message{reset && len(all) == 0, time.Now().UnixMilli(), []*uiLock{}, gone}))
	}
	return all
}

// listLocks lists the locks, and tells of what has changed.
func (u *uiState) listLocks(ctx context.Context) {
	found, begun := map[string]*uiLock{}, time.Now()
	var problem error
	for lock, err := range u.server.client.Locks(ctx, u.server.pattern) {
		if err != nil {
			problem = err
			break
		}
		row := newUILock(lock, time.Now())
		found[row.ID] = row
	}
	if ctx.Err() != nil {
		return
	}
	text, round := "", new(redlock.RoundError)
	// What was not found may be on the masters that did not answer.
	blind := problem != nil && !errors.Is(problem, redlock.ErrIncomplete)
	switch {
	case blind:
		text = strings.TrimPrefix(problem.Error(), "redlock: ")
	case errors.As(problem, &round):
		text = "Every lock that is held is listed. Not listed is all or some of what these masters alone have: " + strings.Join(silent(round), ", ")
	}
	if !blind {
		u.listed = begun.UnixMilli()
	}
	u.say("list", map[string]any{"error": text, "complete": !blind, "now": time.Now().UnixMilli(), "listed": u.listed})
	u.mu.Lock()
	defer u.mu.Unlock()
	var set []*uiLock
	var gone []string
	for id, row := range found {
		last := u.rows[id]
		if u.rows[id] = row; last == nil || !row.settle(last) {
			set = append(set, row)
		}
	}
	for id := range u.rows {
		if found[id] == nil && !blind {
			delete(u.rows, id)
			gone = append(gone, id)
		}
	}
	u.tell(lockMessages(false, set, gone)...)
}

// silent are the masters that did not answer.
func silent(e *redlock.RoundError) (all []string) {
	for _, v := range e.Votes {
		if v.Err != nil {
			all = append(all, v.Addr)
		}
	}
	return all
}

// lock returns the lock of a row as it was listed last.
func (u *uiState) lock(id string) (redlock.LockInfo, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if row := u.rows[id]; row != nil {
		return row.info, true
	}
	return redlock.LockInfo{}, false
}

func (u *uiState) readMasters(context.Context) {
	type master struct {
		Master   string `json:"master"`
		Phase    string `json:"phase"`
		Error    string `json:"error,omitempty"`
		RTT      string `json:"rtt"`
		Failures uint64 `json:"failures"`
		Owed     int    `json:"owed"`
		Debts    int    `json:"debts"`
		Notifies bool   `json:"notifies"`
	}
	var all []master
	for _, m := range u.server.client.Stats().Masters {
		rtt := ""
		if m.RTT > 0 {
			rtt = brief(m.RTT)
		}
		more := behind.OfMaster(&m)
		all = append(all, master{m.Addr, m.Phase, m.Err, rtt, more.Failures, more.Owed, m.Debts, m.Notifies})
	}
	u.say("masters", all)
}

// examine does what doctor does.
func (u *uiState) examine(ctx context.Context) {
	inspections := inspectAll(ctx, u.server.set, trialKey(), time.Second)
	if ctx.Err() == nil {
		u.say("findings", append([]finding{}, findings(inspections, 10*time.Second)...))
	}
}

// readClients does what clients does.
func (u *uiState) readClients(ctx context.Context) {
	type client struct {
		Name    string   `json:"name"`
		Program string   `json:"program"`
		Version string   `json:"version"`
		List    string   `json:"list"`
		Odd     bool     `json:"odd"` // most have another list of masters
		Masters int      `json:"masters"`
		From    []string `json:"from"`
	}
	on := u.server.set.connected(ctx)
	if ctx.Err() != nil {
		return
	}
	most := ""
	if lists := usages(on, clientname.List(u.server.set.masters)); len(lists) > 0 {
		most = lists[0].list
	}
	found, from := map[string]*client{}, map[string]bool{}
	var silent []string
	for _, c := range on {
		if c.err != nil {
			silent = append(silent, c.address)
		}
		here := map[*client]bool{}
		for _, cl := range c.clients {
			id := cl.who() + "\n" + cl.List
			if found[id] == nil {
				found[id] = &client{cl.who(), cl.Program, cl.Version, cl.List, cl.List != "" && cl.List != most, 0, nil}
			}
			here[found[id]] = true
			if at := id + "\n" + cl.from; !from[at] {
				from[at] = true
				found[id].From = append(found[id].From, cl.from)
			}
		}
		for cl := range here {
			cl.Masters++
		}
	}
	all := make([]*client, 0, len(found))
	for _, cl := range found {
		all = append(all, cl)
	}
	slices.SortFunc(all, func(a, b *client) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.List, b.List))
	})
	u.say("clients", map[string]any{"clients": all, "masters": len(on), "silent": silent})
}
