package redlock_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// five starts masters inside this process.
func five() *redlocktest.Masters {
	masters, err := redlocktest.RunEmbedded(5)
	if err != nil {
		log.Fatal(err)
	}
	return masters
}

func Example() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()

	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "orders:42", 10*time.Second, func(ctx context.Context) error {
		fmt.Println("working") // until ctx ends: then the lock is not ours any more
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working
	// <nil>
}

func ExampleMutex_TryLock() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ours, theirs := client.NewMutex("orders:42", 10*time.Second), client.NewMutex("orders:42", 10*time.Second)
	fmt.Println(ours.TryLock(ctx))
	switch err := theirs.TryLock(ctx); {
	case err == nil:
		fmt.Println("taken")
	case errors.Is(err, redlock.ErrHeld):
		fmt.Println("somebody else is at it")
	case errors.Is(err, redlock.ErrNoQuorum):
		fmt.Println("the masters are away:", err)
	}
	fmt.Println(ours.Unlock(ctx))
	// Output:
	// <nil>
	// somebody else is at it
	// <nil>
}

// A lock is taken here and released by whoever finishes the work.
func ExampleWithToken() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	m := client.NewMutex("upload:7", time.Minute)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	token := m.Token() // sent along with the job

	heir := client.NewMutex("upload:7", time.Minute, redlock.WithToken(token)) // in another process
	fmt.Println(heir.Extend(ctx), heir.Remaining() > 50*time.Second)
	fmt.Println(heir.Unlock(ctx))
	// Output:
	// <nil> true
	// <nil>
}

// The statistics of a client, as a variable of expvar's page.
func ExampleClient_Stats() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	expvar.Publish("locks", expvar.Func(func() any { return client.Stats() }))

	m := client.NewMutex("orders:42", 10*time.Second)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	m.Unlock(ctx)
	s := client.Stats()
	fmt.Println(s.Acquired, s.Released, s.Acquire.P99 > 0, len(s.Masters))
	// Output: 1 1 true 5
}

// Every round as a line of a log.
func ExampleObserver() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), Observer: &redlock.Observer{
		Round: func(_ context.Context, r redlock.Round) {
			fmt.Println(r.Op, r.Key, r.Err, r.Took > 0, r.Validity > 0)
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	m := client.NewMutex("orders:42", 10*time.Second)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	m.Unlock(ctx)
	// Output:
	// lock orders:42 <nil> true true
	// unlock orders:42 <nil> true false
}
