// Package flight records what the clients of a process do to their locks, so that one can say afterwards what has
// happened. It keeps the last events in a ring of 16 MiB. It is meant to be always on: an event is about a microsecond,
// and nothing is allocated in the steady state.
//
//	rec, err := flight.New(flight.Options{})
//	cfg, err = rec.Attach(cfg)                // one more Observer of the client
//	client, err := redlock.Open(ctx, cfg)
//	mux.Handle("/debug/redlock", rec)         // GET returns the record: see Recorder.ServeHTTP
//
// 'redlock explain' tells from the records of one or more processes what has happened. A Recorder hands out its record
// by [Recorder.WriteTo], by HTTP, in a dump when a lock is lost or on SIGQUIT ([Options.DumpDir]), or in a file that is
// the ring itself, and so is there even if the process is killed ([Options.File]).
//
// An event is written by a goroutine of its own, a moment after it has happened, with the time when it happened. So a disk
// that hangs delays no lock. What happened in that moment is not in the file of a process that is killed. If the disk is too
// slow for long, events are left out, and the record says how many and when.
//
// # What is in a record
//
// Each attempt, extension, release and revocation with the vote of each master, waits, hand-overs, who lets go, and losses, with their errors; what
// the masters were seen to do; and who the process is. Keys, owners and the masters' addresses are in it, and what the
// masters' errors say. So show a record to those who may know these. There is no password, and no token, but only a hash of
// it: the first 8 bytes of its SHA-256.
//
// Each event has the time by two clocks: the wall clock, which is read once in 10 ms, and the one since boot ([clock.Now]).
// So a record shows by how much the wall clock was set.
//
// When a lock was lost, the client connects once more to each master that it has by then and that has a fixed address, to write down who it is by then, and what its clock says. That shows whether it was restarted, or
// its clock was set. It does so at most once in 10 s ([Options.NoQuestions]). It does not ask for the master of a group that
// Sentinel watches over, nor those of a cluster: of them, the record has what the client itself has seen.
//
// # Format
//
// This is version 1. All fixed numbers are little-endian. CRC is CRC-32C. A reader refuses a version that it does not know.
//
//	at      bytes  what
//	0       8      "redlock\xf1"
//	8       4      the version: 1
//	12      4      P, the bytes of a page: 4,096 to 1,048,576
//	16      4      N, the number of pages: P * N is 256 MiB at most
//	20      4      CRC of the first 20 bytes
//	64      32,736 who wrote it, first copy
//	32,800  32,736 who wrote it, second copy
//	65,536  P * N  pages
//
// A copy of who wrote it is a number that grows with each write (8 bytes), the length of the text (4), CRC of these 12
// bytes and the text (4), and the text: an [About] as JSON. The copy that is whole and has the greater number is
// right.
//
// A page begins with the number of its first event, from 1 on (8 bytes; 0 means that it is not used), the time since boot and
// that of the wall clock since 1970 from which the times of its first event count (8 and 8, in nanoseconds), CRC of these 24
// bytes (4), and 4 bytes that are 0. Events follow, one after the other, without gaps in their numbers. An event is the length of its
// body (2 bytes; 0 ends the page), CRC of the number of the page's first event (8 bytes), the event's own number (8 bytes) and the
// body (4), and the body. A page whose next event is not whole ends there: it was being written when the process was killed, or
// it is a former page's.
//
// A body is written in varints as those of encoding/binary. u is an unsigned one, s a signed one (zigzag). A text is
// u: 0 for the empty text; 1, followed by the length (u) and the bytes, for one that is new in this page; n+1 for the
// nth one of this page that was new. Texts have 1,024 bytes at most. Durations are in nanoseconds.
//
//	kind        one byte: see Kind
//	client      u: the place in About.Clients
//	boot        s: time since boot, less that of the event before
//	wall        s: by how much the wall clock has moved against the one since boot since the event before
//	key         text: the lock's; of a master's event, its address
//
//	round       op (text), outcome (text, as redlock.Outcome has it), detail (text), whether masters were asked (one byte),
//	            took (u; the event is at its end), validity (u), held (u), ttl (u), failures (u), asked (u), holders (u), fence (u), hash of the token
//	            (8 bytes), number of keys (u) and each (text), number of votes (u), and each: verdict (one byte), and RTT (u), or if
//	            it has failed, why (text)
//	wait        nothing
//	wake        why (text)
//	waited      outcome (text), detail (text), for how long (u)
//	handed over fence (u), validity (u), hash of the token (8 bytes)
//	let go      whether it was given back by the client itself (one byte), hash of the token (8 bytes)
//	lost        outcome (text), detail (text)
//	left out    how many events of this client are missing (u), and how long before this the first of them happened (u)
//	master,     phase (text), error (text), run id (text), by how much its clock is ahead (s), and how much more at
//	asked       the most (u), its uptime (u), its place in Client.Masters plus 1 (u; older records do not have it)
//
// What follows these in a body is of a later version that a reader may ignore.
package flight
