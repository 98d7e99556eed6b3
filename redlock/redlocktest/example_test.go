package redlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// A lock still works while a minority of the masters is frozen or dead, and fails with
// ErrNoQuorum when a majority is.
func ExampleStart() {
	var t *testing.T // the test's own
	masters := redlocktest.Start(t, 5)
	ctx := t.Context()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	orders := client.NewMutex("orders:42", 10*time.Second)

	masters.Pause(0)
	masters.Kill(1)
	if err := orders.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	orders.Unlock(ctx)

	masters.Kill(2)
	if err := orders.TryLock(ctx); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatal("two of five masters gave a lock:", err)
	}
}

// A lock can be taken through a partition that cuts off a minority of the masters,
// but not through one that cuts off a majority.
func ExampleMasters_Cut() {
	masters, err := redlocktest.RunEmbedded(5, redlocktest.WithLinks())
	if err != nil {
		log.Fatal(err)
	}
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	orders := client.NewMutex("orders:42", 10*time.Second)

	masters.Cut(0)
	masters.Cut(1)
	// Lock tries again should the client not be connected to the others yet.
	fmt.Println("two of five are cut off:", orders.Lock(ctx), orders.Unlock(ctx))

	masters.Cut(2)
	err = orders.TryLock(ctx)
	fmt.Println("three of five are cut off:", errors.Is(err, redlock.ErrNoQuorum))

	for i := range 3 {
		masters.Heal(i)
	}
	fmt.Println("all are healed:", orders.Lock(ctx))
	// Output:
	// two of five are cut off: <nil> <nil>
	// three of five are cut off: true
	// all are healed: <nil>
}
