// Package second is what the second locks of redlock/contrib have in common: sessions, their end by
// our clock, and that nothing is left behind. A store adds its own requests ([Store]).
//
// A lock is an entry in the queue of its key, and an entry belongs to a session. The store ends a session
// that was not renewed for its TTL, and gives up its entries. One session serves all locks of a Second.
// When it is over, all of its locks are lost, and the next lock opens another.
//
// # Safety
//
//  1. A session counts as alive until the TTL has passed since a request was SENT that the store has
//     answered, less 1 % and 12 ms for clock drift and a late timer. The deadline moves only
//     while it has not passed: a session that is over is not revived.
//  2. The clock is clock.Now, which counts a suspend. A timer ends the contexts at the deadline. As timers do
//     not count a suspend, it looks at the clock every second, and so do Done and Err.
//  3. An entry whose Enter has failed, for whatever reason, is given up in the background: again and
//     again, until the store says that it is not there and never will be, or the session is over. A
//     session that is over is renewed no more.
//  4. A caller gets a lock, or it is given up: the two meet in an unbuffered channel.
//  5. Close ends the session, and waits for all goroutines.
package second
