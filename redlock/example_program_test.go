package redlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redburst/redburst/redlock"
)

func Example_program() {
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{
		Masters: []string{"127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close() // one client serves the whole process

	if err := client.Do(ctx, "lock:orders:42", 10*time.Second, work); err != nil {
		log.Print(err)
	}
}

// work has the lock until ctx ends. Nobody else has it before that.
func work(ctx context.Context) error {
	fmt.Println("this process alone is at work")
	select {
	case <-time.After(5 * time.Second): // stands for long work
		return nil
	case <-ctx.Done(): // the lock is lost: stop
		return context.Cause(ctx)
	}
}
