package redlockotel_test

import (
	"context"
	"log"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	redlockotel "github.com/redburst/redburst/redlock/contrib/otel"
)

func Example() {
	ctx := context.Background()
	telemetry, err := redlockotel.New(redlockotel.WithKeyLabel(func(key string) string {
		kind, _, _ := strings.Cut(key, ":") // "orders" of "orders:42": there are few
		return kind
	}))
	if err != nil {
		log.Fatal(err)
	}
	client, err := redlock.Open(ctx, redlock.Config{
		Masters:   []string{"a:6379", "b:6379", "c:6379"},
		Observers: []redlock.Observer{telemetry.Observer()},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	watched, err := telemetry.Watch(client)
	if err != nil {
		log.Fatal(err)
	}
	defer watched.Unregister()

	err = telemetry.Do(ctx, client, "orders:42", 10*time.Second, func(ctx context.Context) error {
		return nil // work whose spans are children of redlock.hold
	})
	if err != nil {
		log.Print(err)
	}
}

// A Mutex that is locked and unlocked by hand.
func ExampleTelemetry_Lock() {
	var telemetry *redlockotel.Telemetry // as in the example of the package
	var client *redlock.Client

	work := func(ctx context.Context) error {
		m := client.NewMutex("orders:42", 10*time.Second)
		ctx, unlock, err := telemetry.Lock(ctx, m)
		if err != nil {
			return err
		}
		defer unlock(ctx)
		ctx, stop := m.KeepAlive(ctx)
		defer stop()
		return ctx.Err() // the work
	}
	_ = work
}
