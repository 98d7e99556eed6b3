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
package flight
