package flight_test

import (
	"context"
	"log"
	"net/http"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
)

// A service records what its client does, and hands the record out beside its profiles.
func ExampleRecorder_Attach() {
	rec, err := flight.New(flight.Options{DumpDir: "/var/tmp"})
	if err != nil {
		log.Fatal(err)
	}
	defer rec.Close()
	cfg, err := rec.Attach(redlock.Config{Masters: []string{"redis-a:6379", "redis-b:6379", "redis-c:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/debug/redlock", rec) // for who may see keys and owners
	client, err := redlock.Open(context.Background(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}
