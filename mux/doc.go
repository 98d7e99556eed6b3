// Package mux drives N connections to N independent masters as one.
//
// An operation ([Op]) is one command, encoded once and written to every
// master in one burst. The masters' replies are judged as they come, and the
// operation is decided by the first of: a quorum of yes, so many no or failed
// that a quorum cannot come any more, its timeout, its context. Its caller
// returns then. Replies that come later are stragglers: they are matched to
// the operation they belong to, and never taken for another's.
//
// # Who does the I/O
//
// One set of connections serves every goroutine of the process, and no
// goroutine does I/O while nothing is in flight. Two tokens, both guarded by
// Mux.mu, say who may touch the sockets:
//
//   - The drive. Its holder, the driver, waits for the sockets, reads them and
//     matches replies. Only the driver calls Poller.Wait, Conn.Receive and
//     Conn.Next.
//   - The flush. Its holder writes queued commands. Only the flusher calls
//     Conn.Send and Conn.Flush.
//
// A caller that finds nobody driving drives; so a lone caller pays for no
// hand-over. The others are riders: their commands are appended to the
// masters' output buffers, and they park on a channel of their own. Who writes
// a rider's commands depends on what the driver does at that moment:
//
//	driver is                 who flushes the rider's commands
//	running (not parked)      the driver, in its next burst, before it parks
//	parked in Poller.Wait     the rider itself, unless somebody is flushing
//	                          already: a flusher goes on until nothing is queued
//	handing over              the new driver, before it parks
//
// # Hand-overs
//
//   - Driver to rider (leave): the driver's own operation is decided or its
//     context has ended. It gives the drive to the rider that has waited
//     longest, under mu, and wakes it. A driver whose answer is there never
//     serves another burst for somebody else's sake.
//   - Driver to nobody: no rider waits. What is queued is flushed first. If
//     replies are still owed the tick is armed: a timer that makes one
//     non-blocking pass, so that stragglers are read, unwritten bytes are
//     written and a silent master is noticed although nobody calls.
//   - A rider whose context ends leaves at once. If the drive was given to it
//     in that moment it hands it on.
//   - Dialer to slot (install): a dial goroutine, one for each master that is
//     not up, hands over a connection whose handshake is done.
//   - Slot to dialer (drop): a connection that failed or stalled is taken out
//     of its slot; its undecided operations get a failed vote, its persistent
//     ones become debts, and a dial goroutine starts.
//
// # A connection's end
//
// A descriptor is closed only when nobody is inside a call on it: the driver
// and the flusher pin a link while they work on it outside mu, drop only takes
// it out of its slot, and the last one to unpin closes it. So a descriptor
// number is never reused under a write in progress.
//
// # Order
//
// Commands to one master stay in the order in which they were submitted, on
// one connection, and a debt is delivered before anything else is written to
// a new connection. So a release that was submitted after an acquire cannot
// overtake it, however early the acquire's caller has returned.
//
// # Quarantine
//
// A master that may have forgotten what it was told (Config.Quarantine says which)
// is connected, and barred until a time: an operation is not sent there, and counts
// a failed vote, except that one that persists is sent all the same. A reply from
// there is nobody's vote. If it turns out later that it may have forgotten more, Doubt
// bars it again. When a group switches to another master (more than half of its
// sentinels say so, the old one says READONLY, or the new one is what a redial finds)
// the connection is dropped, and Config.OnSwitch is told, so that what relied on the
// old master's votes can be asked again. A master with a fixed place that says READONLY
// is dropped, too, and refused until it is a master again: then the hook is told that it
// was none.
//
// # Locks
//
// There is one lock, Mux.mu. No system call that could block is made under it.
// Judges and OnPush run under it: they must not call the Mux and must not
// block. Locks of the Poller and of a Conn are leaves below it.
//
// # Goroutines
//
//   - the sentry, one for a Mux, parked until some connection hangs up: a
//     master that restarts while nobody calls is redialled at once, and the
//     next caller finds it up;
//   - a dialer for each master that is not up, until it is, and if it must not vote
//     at first until it may;
//   - a follower for each master that is a group's, with one goroutine for each of
//     the group's sentinels, which is parked in a read of what they publish;
//   - the tick's, for the time of one pass;
//   - the notifier, while there are state changes to tell OnState.
//
// All have ended when Close returns.
package mux
