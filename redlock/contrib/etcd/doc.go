// Package etcd makes an etcd cluster the second lock of redlock: redlock.WithSecond.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: time.Second})
//	second, err := etcd.New(client)
//	defer second.Close()
//
//	m := masters.NewMutex("orders:42", 10*time.Second, redlock.WithSecond(second))
//
// # What is in etcd
//
// A lock is a key PREFIX + KEY + "/" + NAME with a lease, where "%" and "/" in KEY are written as "%25"
// and "%2F". Those who want a lock stand in line by the create revisions of their keys, and the
// first has it. Its create revision is the fence. This is what concurrency.Mutex does, so a Mutex
// of another program, with [Second.Prefix] as its prefix, excludes us, and we it. NAME is the lease in
// hex, as with a Mutex, and a number, as one lease serves all locks of a Second. So two goroutines of
// a process exclude each other.
//
// No other keys may begin with PREFIX + KEY + "/". So no prefix of a Second begins with that of another.
//
// # When a lock is over
//
// One goroutine renews the lease, each third of its TTL. The contexts of all locks end when
// the TTL has passed since a renewal was sent that was answered, less 1 % and 12 ms for clock
// drift and a late timer. etcd counts the TTL from a later moment, so nobody else has the lock before
// that. (The Done channel of concurrency.Session closes later than that.) The clock goes on while the machine
// is suspended. Wherever a context is asked for Done or Err, it looks at the clock; a
// goroutine that is blocked in Done meanwhile is woken by a timer that did not go on.
//
// A leader that was replaced, and does not know it yet, still answers renewals. So a renewal counts only
// if a linearizable read confirms it, which is sent after it was answered and was answered in the
// same Raft term: all later leaders begin to count later than the renewal was sent.
//
// It is assumed that the leader's clock runs at most 1 % faster than ours, and that nobody deletes the
// key or revokes the lease by hand.
//
// A cluster that is restored from a backup does not know who has taken a lock since then, and who has released one.
// So let the longest TTL pass between the end of the last member and the start of the first that is restored:
// then all locks are over. The fence does not grow across a restore, unless that raises the revision (etcdutl
// snapshot restore --bump-revision). If no TTL has passed, and the revision has gone back, a session is over
// as soon as it takes a lock or is renewed. It cannot tell if others have written as much by then.
//
// When the lease is over all locks of the Second are lost. The next lock has a new lease.
//
// # Nothing is left behind
//
// A put whose answer was not waited for may be obeyed at any time later, also after a
// delete that was sent after it. This is so of each put but the last where one was repeated, as a member
// hung. So each put compares the version of a key of the session, PREFIX + "%/" + LEASE, and what
// cleans up after it writes this key, in one transaction with the delete. A put that comes later fails. It is
// repeated in the background until it is answered, or the lease is over.
package etcd
