package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// Each quorum has masters of its own, and a name that stays when its masters are replaced.
type quorum struct {
	name   string
	client *redlock.Client
}

// of returns the quorum of a key, by rendezvous hashing. All processes must have the same names. If a quorum is added or
// removed, only its own keys move.
func of(quorums []quorum, key string) quorum {
	best, most := 0, uint64(0)
	for i, q := range quorums {
		h := fnv.New64a()
		h.Write([]byte(q.name + "\x00" + key))
		sum := h.Sum64() // FNV hardly mixes the last bytes: this does
		sum ^= sum >> 33
		sum *= 0xff51afd7ed558ccd
		sum ^= sum >> 33
		if i == 0 || sum > most {
			best, most = i, sum
		}
	}
	return quorums[best]
}

// open opens a client for the masters of each quorum.
func open(ctx context.Context, masters map[string]*redlocktest.Masters, names ...string) (quorums []quorum) {
	for _, name := range names {
		client, err := redlock.Open(ctx, redlock.Config{Masters: masters[name].Addrs()})
		if err != nil {
			log.Fatal(err)
		}
		quorums = append(quorums, quorum{name, client})
	}
	return quorums
}

// Two quorums share the keys. Each key belongs to one of them.
func Example_quorums() {
	ctx := context.Background()
	masters := map[string]*redlocktest.Masters{"red": five(), "blue": five()}
	for _, m := range masters {
		defer m.Close()
	}
	quorums := open(ctx, masters, "red", "blue")
	for _, q := range quorums {
		defer q.client.Close()
	}

	for _, key := range []string{"lock:orders:41", "lock:orders:42", "lock:orders:43", "lock:orders:44"} {
		q := of(quorums, key)
		err := q.client.Do(ctx, key, 10*time.Second, func(context.Context) error {
			fmt.Println(key, "is locked on", q.name)
			return nil
		})
		if err != nil {
			log.Print(err)
		}
	}
	// Output:
	// lock:orders:41 is locked on red
	// lock:orders:42 is locked on blue
	// lock:orders:43 is locked on red
	// lock:orders:44 is locked on red
}

// A third quorum is added while locks are held. Processes change to both one after the other, and then, again one after
// the other, to the new ones alone. Whoever needs both locks excludes those before and those after.
func Example_quorumIsAdded() {
	ctx := context.Background()
	masters := map[string]*redlocktest.Masters{"red": five(), "blue": five(), "green": five()}
	for _, m := range masters {
		defer m.Close()
	}
	old := open(ctx, masters, "red", "blue")
	all := append(old[:2:2], open(ctx, masters, "green")...)
	for _, q := range all {
		defer q.client.Close()
	}

	// both needs the lock of the key's old quorum, and of its new one if that is another.
	both := func(ctx context.Context, key string, ttl time.Duration, work func(context.Context) error) error {
		from, to := of(old, key), of(all, key)
		if from == to {
			return from.client.Do(ctx, key, ttl, work)
		}
		return from.client.Do(ctx, key, ttl, func(ctx context.Context) error {
			return to.client.Do(ctx, key, ttl, work) // its ctx ends with either lock
		})
	}

	moving := 0
	var key string
	for i := range 300 {
		if k := fmt.Sprint("lock:orders:", i); of(old, k) != of(all, k) {
			moving, key = moving+1, k
		}
	}
	fmt.Println("about a third of the keys move:", moving > 60 && moving < 140)

	err := both(ctx, key, 10*time.Second, func(context.Context) error {
		for _, q := range []quorum{of(old, key), of(all, key)} {
			err := q.client.NewMutex(key, 10*time.Second).TryLock(ctx)
			fmt.Println("held on an old one and on the new one:", errors.Is(err, redlock.ErrHeld))
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// about a third of the keys move: true
	// held on an old one and on the new one: true
	// held on an old one and on the new one: true
	// <nil>
}
