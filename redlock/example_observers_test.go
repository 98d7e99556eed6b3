package redlock_test

import (
	"context"
	"log"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/redlock"
)

// A service logs losses and failures.
func ExampleSlogObserver() {
	client, err := redlock.New(redlock.Config{
		Masters:   []string{"a:6379", "b:6379", "c:6379"},
		Observers: []redlock.Observer{redlock.SlogObserver(slog.Default())},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}

// A service logs losses and failures, and counts the rounds, too.
func ExampleObserver_counts() {
	var rounds sync.Map
	count := func(_ context.Context, e *redlock.Event) {
		if e.Kind == redlock.EventRound {
			n, _ := rounds.LoadOrStore(e.Op+" "+redlock.Outcome(e.Err), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
	}
	client, err := redlock.Open(context.Background(), redlock.Config{
		Masters:   []string{"a:6379", "b:6379", "c:6379"},
		Observers: []redlock.Observer{redlock.SlogObserver(slog.Default()), count},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}
