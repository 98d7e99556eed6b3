package redlocktest

import (
	"errors"
	"time"
)

// WithLinks puts a link in front of each master, and Addr returns the link's
// address. A link carries what is sent both ways until [Masters.Delay],
// [Masters.Cut], [Masters.Break] and the like make it a bad network. [Masters.Do]
// goes past it. While a master is killed its link resets connections, which the
// master would have refused.
//
// There are no links in front of Unix domain sockets, nor of [Groups].
func WithLinks() Option {
	return func(o *options) { o.links = true }
}

// Delay makes everything that passes the link of master i arrive later by d, requests
// as well as replies, so that a round trip takes 2*d longer. Order is kept, and a
// mebibyte can be under way at once in each direction of a connection. A connection
// is made without delay. The delay is that of what is sent from now on; one of 0
// takes it away.
func (m *Masters) Delay(i int, d time.Duration) {
	m.helper()
	m.link(i, "delay").change(func(w *weather) { w.delay = d })
}

// Cut cuts the link of master i until Heal, as a network partition does: nothing
// arrives on either side, nor does the end of a connection. New connections can be
// made, but nobody answers. What is sent is kept, and arrives after Heal: late, as
// on networks. Who has sent a mebibyte over one connection has to wait. What was sent
// just before Cut may still arrive.
func (m *Masters) Cut(i int) {
	m.helper()
	m.link(i, "cut").change(func(w *weather) { w.cut = [2]bool{true, true} })
}

// CutRequests is [Masters.Cut] for what clients send: the master does not get it.
func (m *Masters) CutRequests(i int) {
	m.helper()
	m.link(i, "cut requests to").change(func(w *weather) { w.cut[toMaster] = true })
}

// CutReplies is [Masters.Cut] for what the master sends: it does what it is told, and
// nobody knows.
func (m *Masters) CutReplies(i int) {
	m.helper()
	m.link(i, "cut replies of").change(func(w *weather) { w.cut[toClients] = true })
}

// Break resets all connections to master i, and until Heal every new one as soon as
// it is made. What was under way is lost.
func (m *Masters) Break(i int) {
	m.helper()
	m.link(i, "break").change(func(w *weather) { w.broken = true })
}

// Reset resets all connections to master i once. New ones are carried.
func (m *Masters) Reset(i int) {
	m.helper()
	m.link(i, "reset").reset()
}

// Heal ends what Cut, CutRequests, CutReplies and Break have done to the link of
// master i. A Delay stays.
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
