package redlocktest

import (
	"errors"
	"time"
)

// WithLinks puts a link in front of each master, and Addr returns the link's
// address. A link carries traffic both ways until [Masters.Delay], [Masters.Cut],
// [Masters.Break] and the like make it a bad network. [Masters.Do] bypasses it.
// While a master is killed, its link accepts connections and resets them, where the
// master would have refused them.
//
// Unix domain sockets and [Groups] have no links.
func WithLinks() Option {
	return func(o *options) { o.links = true }
}

// Delay makes everything that passes the link of master i arrive later by d, requests
// and replies alike, so that a round trip takes 2*d longer. It applies to what is
// sent from now on. A d of 0 or less ends the delay. Order is kept, and up to a
// mebibyte can be under way in each direction of a connection. New connections are
// made without delay.
func (m *Masters) Delay(i int, d time.Duration) {
	m.helper()
	m.link(i, "delay").change(func(w *weather) { w.delay = d })
}

// Cut cuts the link of master i until Heal, as a network partition does: nothing
// arrives on either side, not even the end of a connection. New connections can be
// made, but nobody answers. What is sent meanwhile arrives late, after Heal, also if
// the connection was ended in between: a request may be carried out when nobody waits
// for it any more. A sender blocks after a mebibyte on one connection. What was sent
// just before Cut may still arrive.
func (m *Masters) Cut(i int) {
	m.helper()
	m.link(i, "cut").change(func(w *weather) { w.cut = [2]bool{true, true} })
}

// CutRequests is [Masters.Cut] for requests alone: the master does not get them.
func (m *Masters) CutRequests(i int) {
	m.helper()
	m.link(i, "cut requests to").change(func(w *weather) { w.cut[toMaster] = true })
}

// CutReplies is [Masters.Cut] for replies alone: the master executes what it is sent,
// but its clients do not learn of it. With a [Masters.Reset] before Heal they never do:
// the answers are lost together with their connections.
func (m *Masters) CutReplies(i int) {
	m.helper()
	m.link(i, "cut replies of").change(func(w *weather) { w.cut[toClients] = true })
}

// Break resets all connections to master i, and until Heal it resets every new one as
// soon as it is made. What was under way is lost.
func (m *Masters) Break(i int) {
	m.helper()
	m.link(i, "break").change(func(w *weather) { w.broken = true })
}

// Reset resets all connections to master i once. New connections work.
func (m *Masters) Reset(i int) {
	m.helper()
	m.link(i, "reset").reset()
}

// Heal ends what Cut, CutRequests, CutReplies and Break have done to the link of
// master i. It does not end a Delay.
func (m *Masters) Heal(i int) {
	m.helper()
	m.link(i, "heal").change(func(w *weather) { *w = weather{delay: w.delay} })
}

// link returns the link of master i, if it has one.
func (m *Masters) link(i int, op string) *link {
	m.helper()
	if m.links == nil {
		m.must(i, op, errNoLink)
	}
	return m.links[i]
}

var errNoLink = errors.New("it has no link: start the masters with WithLinks")
