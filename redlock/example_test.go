package redlock_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"expvar"
	"fmt"
	"log"
	"os"
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

	err = client.Do(ctx, "lock:orders:42", 10*time.Second, func(ctx context.Context) error {
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

	ours := client.NewMutex("lock:orders:42", 10*time.Second)
	theirs := client.NewMutex("lock:orders:42", 10*time.Second)
	fmt.Println(ours.TryLock(ctx))
	switch err := theirs.TryLock(ctx); {
	case err == nil:
		fmt.Println("taken")
	case errors.Is(err, redlock.ErrHeld):
		fmt.Println("somebody else is at it")
	case errors.Is(err, redlock.ErrRefused): // which is an ErrNoQuorum, too
		fmt.Println("the masters need other settings, or we other rights:", err)
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

	m := client.NewMutex("lock:upload:7", time.Minute)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	token := m.Token() // sent along with the job

	heir := client.NewMutex("lock:upload:7", time.Minute, redlock.WithToken(token)) // in another process
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

	m := client.NewMutex("lock:orders:42", 10*time.Second)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	m.Unlock(ctx)
	s := client.Stats()
	fmt.Println(s.Acquired, s.Released, s.AcquireP99 > 0, len(s.Masters))
	// Output: 1 1 true 5
}

// Every round as a line of a log.
func ExampleObserver() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), Observers: []redlock.Observer{
		func(_ context.Context, e *redlock.Event) {
			if e.Kind == redlock.EventRound {
				fmt.Println(e.Op, e.Key, e.Err, e.Took > 0, len(e.Votes))
			}
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	m := client.NewMutex("lock:orders:42", 10*time.Second)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	m.Unlock(ctx)
	// Output:
	// lock lock:orders:42 <nil> true 5
	// unlock lock:orders:42 <nil> true 5
}

// What a service does with each error of Lock. The lock's errors come first, and the
// context's after them: a Lock whose context has ended wraps both.
func ExampleMutex_Lock() {
	masters := five()
	defer masters.Close()
	client, err := redlock.Open(context.Background(), redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	lock := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return client.NewMutex("lock:orders:42", time.Minute).Lock(ctx)
	}
	report := func(err error) {
		switch {
		case err == nil:
			fmt.Println("we have it")
		case errors.Is(err, redlock.ErrHeld):
			fmt.Println("come back later") // RoundError.HeldBy says by whom, if it is known
		case errors.Is(err, redlock.ErrRefused): // before ErrNoQuorum, as it is both
			fmt.Println("no retry helps before somebody changes settings, or rights:", err)
		case errors.Is(err, redlock.ErrNoQuorum):
			fmt.Println("raise an alert, and retry with a pause:", err)
		case errors.Is(err, redlock.ErrExpired):
			fmt.Println("the masters are too slow for this TTL:", err)
		case errors.Is(err, context.DeadlineExceeded):
			fmt.Println("the masters had no time to answer: give it more")
		case errors.Is(err, context.Canceled), errors.Is(err, redlock.ErrClosed):
			fmt.Println("we are shutting down")
		}
	}
	report(lock())
	report(lock())
	// Output:
	// we have it
	// come back later
}

// A job of many steps looks at its context before each. The context ends when the lock
// does, here because somebody has deleted its key.
func ExampleMutex_KeepAlive() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	m := client.NewMutex("lock:orders:42", time.Second)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	held, stop := m.KeepAlive(ctx)
	defer stop()
	for step := 0; held.Err() == nil; step++ {
		if step == 3 {
			for i := range masters.N() {
				masters.Flush(i)
			}
		}
		time.Sleep(10 * time.Millisecond) // the work
	}
	fmt.Println("lost:", errors.Is(context.Cause(held), redlock.ErrLost))
	fmt.Println("lost:", errors.Is(m.Unlock(ctx), redlock.ErrNotHeld)) // Unlock clears up what is left of it
	// Output:
	// lost: true
	// lost: true
}

// A job that gives its lock the full TTL again before each step. Here somebody deletes the
// key during the last one.
func ExampleMutex_Extend() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	m := client.NewMutex("lock:orders:42", time.Minute)
	if err := m.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	defer m.Unlock(ctx)
	for step := range 5 {
		// After ErrNoQuorum there is time to try again, until m.Remaining() is 0.
		if err := m.Extend(ctx); err != nil {
			fmt.Println("the lock is lost:", errors.Is(err, redlock.ErrNotHeld))
			return
		}
		fmt.Println("step", step)
		if step == 2 {
			for i := range masters.N() {
				masters.Flush(i)
			}
		}
	}
	// Output:
	// step 0
	// step 1
	// step 2
	// the lock is lost: true
}

// A holder that hangs does not keep its lock for ever.
func ExampleWithMaxLifetime() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "lock:orders:42", 10*time.Second, func(ctx context.Context) error {
		<-ctx.Done() // it hangs
		return nil
	}, redlock.WithMaxLifetime(100*time.Millisecond))
	fmt.Println(errors.Is(err, redlock.ErrMaxLifetime))
	// Output: true
}

// Each master's part in a round that failed.
func ExampleRoundError() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	for i := range 3 {
		masters.Kill(i)
	}
	err = client.NewMutex("lock:orders:42", 10*time.Second).TryLock(ctx)
	var round *redlock.RoundError
	if errors.As(err, &round) {
		failed := 0
		for _, vote := range round.Votes {
			if vote.Verdict == "failed" {
				failed++ // vote.Addr is its address, and vote.Err the cause
			}
		}
		fmt.Println(round.Op, round.Key, "failed on a majority:", failed >= 3)
	}
	// Output: lock lock:orders:42 failed on a majority: true
}

// Who holds a lock, as a majority of the masters says.
func ExampleClient_Holders() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), Owner: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.NewMutex("lock:orders:42", 10*time.Second).Lock(ctx); err != nil {
		log.Fatal(err)
	}

	lock, err := client.Holders(ctx, "lock:orders:42")
	if err != nil {
		log.Fatal(err)
	}
	if lock.Held {
		fmt.Println("held by", lock.Holders[0].Owner, lock.Holders[0].TTL > 0)
	}
	// Output: held by billing true
}

// Masters that sentinels watch over, TLS, and a password that changes.
func ExampleConfig() {
	cfg := redlock.Config{
		Masters: []string{
			"sentinel://a1:26379,a2:26379,a3:26379/locks-a", // a master that its sentinels can replace
			"sentinel://b1:26379,b2:26379,b3:26379/locks-b",
			"rediss://redis-c:6380", // a master with a fixed place
		},
		SentinelUsername: "locker",
		SentinelPassword: redlock.NewSecret(os.Getenv("SENTINEL_PASSWORD")),
		TLS:              &tls.Config{MinVersion: tls.VersionTLS13},
		Credentials: func(ctx context.Context, _ string) (redlock.Credentials, error) {
			text, err := os.ReadFile("/run/secrets/redis") // asked at every connect, and before an Until
			return redlock.Credentials{Username: "locker", Password: redlock.NewSecret(string(bytes.TrimSpace(text)))}, err
		},
		RestartGuard: time.Minute, // the longest TTL, or WithMinHold, in use on these masters
	}
	client, err := redlock.New(cfg) // starts even while masters are down
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}

// A job that runs once in a period, whoever begins it, and however short it is.
func ExampleWithMinHold() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	report := func(context.Context) error {
		fmt.Println("the report is made")
		return nil
	}
	for range 3 { // as three hosts do whose clocks differ
		err := client.Do(ctx, "lock:report", 10*time.Second, report, redlock.WithMinHold(time.Hour), redlock.WithWait(0))
		if errors.Is(err, redlock.ErrHeld) {
			fmt.Println("it is made already")
		}
	}
	// Output:
	// the report is made
	// it is made already
	// it is made already
}

// A leader, and a process that wants to know where it is.
func ExampleClient_Lead() {
	masters := five()
	defer masters.Close()
	client, err := redlock.Open(context.Background(), redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	done := make(chan error)
	go func() {
		done <- client.Lead(ctx, "lock:scheduler", 10*time.Second, func(ctx context.Context) error {
			<-ctx.Done() // lead, and write redlock.FenceFrom(ctx) with whatever you write
			return nil
		}, redlock.WithOwner("10.0.0.7:8080"))
	}()
	for lock, err := range client.Watch(ctx, "lock:scheduler") {
		if err == nil && lock.Held {
			fmt.Println("led from", lock.Holders[0].Owner)
			cancel()
		}
	}
	fmt.Println(errors.Is(<-done, context.Canceled))
	// Output:
	// led from 10.0.0.7:8080
	// true
}

// A service that stops: work is told to end, and keeps its lock until it has.
func ExampleClient_Shutdown() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}

	works, done := make(chan struct{}), make(chan error)
	go func() {
		done <- client.Do(ctx, "lock:orders:42", 10*time.Second, func(ctx context.Context) error {
			close(works)
			<-ctx.Done()
			fmt.Println("the order is put back:", errors.Is(context.Cause(ctx), redlock.ErrClosed))
			return nil
		})
	}()
	<-works
	stop, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println(client.Shutdown(stop), <-done)
	fmt.Println(errors.Is(client.NewMutex("lock:orders:43", 10*time.Second).TryLock(ctx), redlock.ErrClosed))
	// Output:
	// the order is put back: true
	// <nil> <nil>
	// true
}
