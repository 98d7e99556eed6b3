// Package zookeeper makes a ZooKeeper ensemble the second lock of redlock: redlock.WithSecond.
//
//	second, err := zookeeper.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"})
//	defer second.Close()
//
//	m := masters.NewMutex("orders:42", 10*time.Second, redlock.WithSecond(second))
//
// It needs ZooKeeper 3.5.3 or later.
//
// # What is in ZooKeeper
//
// A lock is an ephemeral sequential node ROOT/KEY/_c_GUID-lock-NUMBER. In KEY, each byte other than letters, digits
// and - _ ~ : @ = + , and . is written as % and two hex digits, as is the first byte of a key that is "." or "..", and the
// empty key is "%". Those who want a lock queue up by the numbers, and the first has it. Each watches the
// one before it. The zxid that created the node is the fence. This is the recipe of ZooKeeper's documentation, so
// zk.Lock of go-zookeeper and Curator's InterProcessMutex on [Second.Path] exclude us, and we them.
// Kazoo's Lock does if it is given extra_lock_patterns=["-lock-"].
//
// ROOT/KEY is a container, which ZooKeeper removes when it has been empty for about a minute. The numbers
// begin anew with a new one, but zxids do not.
//
// # When a lock is over
//
// One goroutine sends a heartbeat each quarter of the session's timeout: the timeout that the
// server has agreed to, not that which was asked for. The contexts of all locks end when the timeout has passed
// since a heartbeat was sent, less 1 % and 12 ms for clock drift and a late timer. It counts once the one
// after it was answered, too:
//
//   - A heartbeat is a transaction that only checks that ROOT is there. A quorum has to agree to it, so
//     neither a leader that was replaced answers it, nor a follower that lags behind. It costs a
//     write in ZooKeeper's log.
//   - A follower tells the leader of its clients' heartbeats when the leader asks it, each half of a tick. What
//     it has not told is lost if it dies. The next heartbeat goes to the leader behind what it has told. So if
//     that is answered, and there were half a tick or more in between, the leader knows of the one before.
//
// ZooKeeper counts the timeout from a later moment, so nobody else has the lock before that. The clock
// goes on while the machine is suspended. Wherever a context is asked for Done or Err, it looks at the clock; a
// goroutine that is blocked in Done meanwhile is woken within a second after it. If ZooKeeper says that the session
// is over, all contexts end at once.
//
// It is assumed that the servers' clocks run at most 1 % faster than ours, that a quarter of the timeout
// is more than half of the servers' tickTime, by as much as the leader may be late to ask (with the default tickTime of 2 s,
// take 8 s or more), and that nobody deletes the node by hand.
//
// When the session is over all locks of the Second are lost. The next lock has a new session, on
// a new connection.
//
// # Nothing is left behind
//
// A node whose creation was not waited for is looked for by its GUID, after a sync, and deleted. This
// is repeated in the background until it is answered, or the session is over. No request that was sent on an
// older connection is obeyed later: once a session has moved to another server, the leader refuses what comes
// from the one before.
package zookeeper
