// Package mux drives N connections to N independent masters as one.
//
// An operation ([Op]) is one command, encoded once and written to every master in one
// burst. Each reply is given a [Verdict] as it comes, which makes the master's [Vote]. The
// first of these decides the operation: a quorum of yes; so many no or failed votes that a
// quorum has become impossible; its timeout; its context. Its caller returns then. Replies
// that come later are stragglers: each is matched to the operation that it belongs to, and is
// never taken for another's.
//
// # Compatibility
//
// This package can be used by itself, and is not frozen: a minor version may change what it exports, and
// the changelog says what. What a server may send, and what the texts of errors say, can change in any version.
//
// # Who calls whom
//
//	   Do, Wait              Post, Send                        hang-up watcher, tick
//	      | drive, or wait       | write, if nobody else will       | read, if nobody
//	      | and be woken         |                                  | drives
//	      v                      v                                  v
//	+------------------------------- Mux.mu ---------------------------------+
//	|  operations that are not decided   who drives   who flushes            |
//	|  a slot for each master: connection, bytes to write, replies owed,     |
//	|  debts, state                                                          |
//	+------------------------------------------------------------------------+
//	      ^ install              ^ drop the connection              | changes
//	      |                      |                                  v
//	   dialer, one for each   follower, one for each         notifier -> OnState
//	   master not connected   group or cluster
//
//	without mu: the driver    Poller.Wait, Poller.Poll, Conn.Receive
//	            the flusher   Conn.Send, Conn.Flush
//	            the hang-up watcher
//	                          Poller.Wait, of a Poller that watches hang-ups only
//	            the dialers   conn.Dial
//	            the followers conn.FollowGroup, conn.FollowSlot
//	            the notifier  Config.OnState
//	            the authenticator
//	                          conn.Options.Credentials
//	            the callers   the methods of their contexts
//	with mu:    the driver    Conn.Next, Op.Verdict, Config.OnPush
//	            whoever decides  Op.OnDecided
//	            the dialers   the Keeper, Config.OnSwitch
//	            whoever drops a connection: Config.OnDisconnect, Config.OnSwitch
//
// # Who does the I/O
//
// One set of connections serves every goroutine of the process. No goroutine does I/O while
// nothing is in flight. Two tokens, both guarded by Mux.mu, say who may touch the sockets:
//
//   - The drive. Its holder, the driver, waits for the sockets, reads them and matches
//     replies. Only the driver calls Poller.Wait, Conn.Receive and Conn.Next.
//   - The flush. Its holder, the flusher, writes queued commands. Only the flusher calls
//     Conn.Send and Conn.Flush.
//
// A caller that finds nobody driving drives, so a lone caller pays for no hand-over. Every
// other caller appends its commands to the masters' output buffers, and parks on a channel of
// its own.
//
// The states of the drive:
//
//	             a caller finds nobody driving
//	 +--------+ ------------------------------> +---------+  nothing is ready  +--------+
//	 | nobody |                                 | running | -----------------> | parked |
//	 +--------+ <------------------------------ +---------+ <----------------- +--------+
//	   |    ^     releaseDrive, no caller waits:  |     ^    an event, a Wake,
//	   |    |     flush; arm the tick if          |     |    or the next deadline
//	   +----+     replies are owed                +-----+
//	tick, catchUp,                          releaseDrive, a caller waits:
//	hang-up watcher:                        the drive is given to the one
//	passes that do not park,                that has waited longest
//	then releaseDrive
//
// Close takes the drive from nobody, as the last one, and keeps it.
//
// The flush is free, or held by the driver between two parks, or held by another caller while
// the driver is parked. Who writes a caller's commands depends on the driver:
//
//	the drive is     who writes the caller's commands
//	running          the driver, in its next burst, before it parks
//	parked           the caller itself, unless somebody is flushing already:
//	                 a flusher goes on until nothing is queued
//	given on         the new driver, before it parks
//
// The caller of a lone Post writes it before Post returns, unless the operation is an awaited
// one ([Op.Awaited]). Then its Wait writes it, or a driver that runs, or who submits before that, or the tick if the context
// of the Wait blocks.
//
// # Hand-overs
//
//   - Driver to caller (releaseDrive): the driver's own operation is decided. Under mu it
//     gives the drive to the caller that has waited longest for replies, and wakes it. If no
//     caller waits for replies, one whose operation has no command gets the drive. A driver
//     whose operation is decided never serves another burst for somebody else.
//   - Driver to nobody (releaseDrive): no caller waits. The driver flushes what is queued
//     first. If replies are still owed, it arms the tick: a timer that makes a few passes that
//     do not block. So stragglers are read, unwritten bytes are written, and a silent master
//     is noticed although nobody calls.
//   - Driver that takes long, or only waits: it puts the drive down before it has its context
//     wake it, as a context may block when it is called. Then it waits for the drive as others do.
//   - A caller whose context ends returns at once. If the drive was given to it in that
//     moment, it hands it on.
//   - Dialer to slot (install): the dialer of a master hands over a connection whose
//     handshake is done.
//   - Slot to dialer (drop): a connection that failed or stalled is taken out of its slot.
//     Undecided operations get a failed vote, persistent ones become debts, and a dialer
//     starts.
//
// # Busy polling
//
// To park and to come back can take longer than a near master does to answer. With
// [Config.BusyPoll] the driver asks the sockets again and again for a while, and parks only then.
// Everybody else takes a driver that asks for a parked one.
//
// It asks for operations that a caller waits for, from their submission to their decision. It does
// not ask for what nobody waits for (pushes, stragglers, debts, a Send, a Release), nor for patient
// operations. Each operation opens a window when it is submitted. The driver asks until the last
// window is over, or until no such operation is undecided. So an operation has one window at most,
// however long the masters take. If the driver is parked when a window opens, it is woken. busyPoll
// says how long a window is.
//
// # A connection's end
//
// A descriptor is closed only when nobody is inside a call on it. The driver and the flusher
// pin a link while they work on it without mu. drop only takes the link out of its slot. The
// last one to unpin it closes it. So a descriptor's number is never reused under a write in
// progress.
//
// # Order
//
// Commands to one master stay in the order in which they were submitted, on one connection. A
// debt is delivered before anything else is written to a new connection. So a release that
// was submitted after an acquire cannot overtake it, however early the acquire's caller has
// returned. What a master has refused for a moment, as a script was running there, is sent again
// behind what was submitted meanwhile.
//
// # What a master owes
//
// A flight is what the Mux needs of an operation until all masters have answered it. The
// masters share it. It is reused when no master owes a reply to it and none is owed its
// delivery. So no late reply finds another operation in its flight. A master that hangs owes
// one more reply for each operation, until its connection is reset. Then the persistent
// operations become debts. Both are bounded: 32,768 replies, and 16,384 debts or 8 MiB of
// them. Flights are made in slabs until a bound is reached, so hardly an operation allocates.
// Beyond the bound they are reused. When the master has answered, all but 512 of them are
// freed.
//
// # What was carried out late
//
// A command can be carried out long after its connection has ended, and so after others that were
// sent later on the next one. [Mux.Heard] tells of commands which masters have answered them, soon or at
// all, and which never will. It costs four times for each master, and no memory for each command:
// see heard.go. [Op.Suspect] and [Op.Unless] leave masters out that may have carried out
// something late.
//
// # Quarantine and switches
//
// A master may have forgotten what it was told. The [Keeper] says which master, and for how long.
// Such a master is connected, but in quarantine until then: its vote is a failed
// one, only persistent operations and PINGs are sent to it, and its replies count for nothing. Where the Keeper does not
// know yet, and asks the master, a yes is withheld until it does. It says so under mu, before the next reply is read.
//
// A group of sentinels has switched to another master when more than half of its sentinels
// say so, when the old master says READONLY, or when a redial finds the new one. Then the
// connection to the old one is dropped and [Config.OnSwitch] is called, so that what relied
// on the old master's votes can be asked again. A master with a fixed place that says
// READONLY is dropped too. It is refused until it is a master again. The Keeper is
// told then that it was a replica.
//
// [Mux.Replace] gives a fixed place to another master, when the one before is down for good. The Keeper
// is told so. No call of OnSwitch follows: the old master's votes ended when it did, and
// what relied on them ends before the newcomer votes.
//
// The slot of a cluster has switched when more than half of the cluster's masters say so, and when
// the node that has it says so, or that the slot is on its way to another: MOVED, ASK, TRYAGAIN,
// READONLY. So it has when that node says another config epoch than when it was connected: then the
// slot may have been another's for a moment. CLUSTERDOWN is no switch: the connection is dropped, and the node votes again when the
// cluster serves, if it is the same node and the Keeper finds that nobody can have had the
// slot meanwhile. No redirection is followed.
//
// A node that is cut off from the others may not know yet that another has its slot. So its vote
// counts only if more than half of the cluster's masters, and itself, have confirmed it within
// [conn.SlotTrust] before the operation began; else it is a failed one, with [ErrUnconfirmed]. And a
// quarantine of its successor lasts for SlotTrust longer. Two such majorities have a master in common,
// which has named the one before the other. So when the successor may vote, no lock is left that
// rests on the predecessor.
//
// # Credentials that end
//
// [conn.Options].Credentials may say when credentials end. Before that, the authenticator
// asks for new ones, and tells them to the master on the connection that it has. The masters
// take turns: two are never told at once. A master that refuses the new credentials goes on
// serving with the old ones. Its State.Err shows the refusal, and it is tried again.
//
// The commands that tell a master its new credentials are a renewal. They must not be written
// while the master owes a reply: see [conn.Renewal]. A busy connection always owes one. So a
// renewal takes its place in the order at once, and is held back with all that comes after it:
//
//	      the authenticator            the replies from           the last reply
//	      has new credentials          before it have come        to it has come
//	none --------------------> held ----------------------> told ----------------> none
//
// This takes a round trip at most, for one master at a time. No vote fails for it. To drop
// the connection instead would fail the votes that are owed on it, and to leave the master
// out for that time would fail the next ones. If the connection ends meanwhile, the renewal
// ends with it: the next connection begins with new credentials. If the Mux is closed
// meanwhile, the persistent operations that are held back are sent all the same.
//
// # Locks
//
// There is one lock, Mux.mu. The whole order, first to last:
//
//  1. the locks that a caller holds while it calls the Mux
//  2. Mux.mu
//  3. the locks that a function of an Op takes, or a hook that runs under mu
//  4. the locks of a Poller and of a Conn
//
// So whoever calls the Mux must hold no lock that a function of an Op or a hook takes. Neither
// may call the Mux or block. Config.OnState and the callers' contexts are called without mu,
// because they may take the first of these locks. No system call that could block is made under mu.
//
// Every unexported method of the types in this package needs mu held, unless its comment
// says "takes mu" or "without mu". Some let it go meanwhile; their comments say "lets mu
// go". After a call of such a method, whatever was read under mu before must be read
// again.
//
// # Goroutines
//
//   - The hang-up watcher, one for each Mux, is parked until a connection hangs up. So a
//     master that restarts while nobody calls is redialled at once, and the next caller finds
//     it up.
//   - A dialer for each master that is not connected runs until it is.
//   - A follower for each group of sentinels, with one goroutine for each sentinel, is
//     parked in a read of what the sentinels publish. One for each cluster has a goroutine for
//     each node, which asks it every second.
//   - The authenticator, one for each Mux whose Config.Conn has Credentials, is parked until
//     those of a connection are to be renewed. It waits for that master's answer before it
//     turns to the next.
//   - The tick's goroutine runs for the time of a few passes.
//   - The alarm's goroutine runs for the time of a burst of PINGs when connections have been idle, or for a moment when a
//     quarantine ends or the Keeper wants to be asked.
//   - The notifier runs while there are state changes to tell OnState.
//
// All have ended when Close returns, but for calls of a Dialer that were given up: they end when it returns.
package mux
