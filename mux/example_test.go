package mux_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// One command goes to all masters in one burst. A judge says what each reply means, and a
// majority of yes decides.
func Example() {
	masters, err := redlocktest.RunEmbedded(5) // inside this process
	if err != nil {
		log.Fatal(err)
	}
	defer masters.Close()
	ctx := context.Background()
	m, err := mux.Open(ctx, mux.Config{Masters: masters.Addrs()})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	op := &mux.Op{
		Command: resp.AppendCommand(nil, "SET", "leader", "me", "NX", "PX", "60000"),
		Verdict: func(reply resp.Value) mux.Verdict {
			switch {
			case reply.Is("OK"):
				return mux.VerdictYes
			case reply.IsNull(): // the key is there already
				return mux.VerdictNo
			}
			return mux.VerdictFailed
		},
		Timeout: 5 * time.Second,
	}
	for range 2 { // an Op can be submitted again
		if err := m.Do(ctx, op); err != nil { // not decided: time is up, or the Mux is closed
			log.Fatal(err)
		}
		fmt.Println("a majority said yes:", op.Won())
	}
	// Output:
	// a majority said yes: true
	// a majority said yes: false
}
