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
// and "%2F". Those who want a lock queue up by the create revisions of their keys, and the
// first has it. Its create revision is the fence. This is what concurrency.Mutex does, so a Mutex
// of another program, with [Second.Prefix] as its prefix, excludes us, and we it. NAME is the first lease of
// the session in hex, as with a Mutex, and a number, as one lease serves all locks of a Second. So two goroutines
// of a process exclude each other. The session has a key of its own, PREFIX + "%/" + LEASE.
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
// goroutine that is blocked in Done meanwhile is woken within a second after it.
//
// A leader that was replaced, and does not know it yet, still answers renewals. So a renewal counts only
// if a linearizable read confirms it, which is sent after it was answered and was answered in the
// same Raft term: all later leaders begin to count later than the renewal was sent.
//
// It also revokes leases, by what it knows of them. One that hangs, and goes on when another leads, takes the leases
// that were renewed meanwhile for over, and has them revoked, if it looks before it has heard of the other: so do etcd
// 3.6 and 3.7. That the new leader has renewed a lease, and a read has confirmed it, does not help. So a lease is relied
// on only in the Raft term in which it was granted. In a new term the session has a new lease, of which no former leader
// knows anything, and all its keys get it. Their create revisions stay. If that is not done before the old lease is over
// by our clock, all locks are lost.
//
// If the session's lease is revoked by hand, a watch on its key ends the contexts as soon as etcd tells it: others can
// have the locks a moment earlier. Of a lock's key that is deleted by hand nothing tells before Unlock.
//
// It is assumed that
//
//   - the leader's clock runs at most 1 % faster than ours,
//   - nobody deletes a key or revokes the lease by hand,
//   - a leader that renews a lease does not stand still for the rest of the TTL between two lines of its code, after it
//     has found the lease alive and before it has noted the renewal.
//
// A cluster that is restored from a backup does not know who has taken a lock since then, and who has released one.
// So let the longest TTL pass between the end of the last member and the start of the first that is restored:
// then all locks are over. The fence does not grow across a restore, unless that raises the revision (etcdutl
// snapshot restore --bump-revision). If no TTL has passed, and the revision has gone back, a session is over
// as soon as it takes a lock or is renewed. It cannot tell if others have written as much by then.
//
// When the session is over all locks of the Second are lost. The next lock has a new session.
//
// # Nothing is left behind
//
// A put whose answer was not waited for may be obeyed at any time later, also after a
// delete that was sent after it. This is so of each put but the last where one was repeated, as a member
// hung. So each put compares the version of the session's key, and what cleans up after it writes this key,
// in one transaction with the delete. A put that comes later fails. What cleans up is
// repeated in the background until it is answered, or the lease is over.
package etcd
