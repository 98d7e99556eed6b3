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

// One command goes to all masters in one burst, and a majority decides. Verdict says what each
// reply means.
func Example() {
	masters, err := redlocktest.RunEmbedded(3) // inside this process
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

	set := &mux.Op{
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
		if err := m.Do(ctx, set); err != nil { // not decided: time is up, or the Mux is closed
			log.Fatal(err)
		}
		fmt.Println("a majority said yes:", granted(set))
	}

	// This one waits for every master, and keeps the replies.
	get := &mux.Op{
		Command: resp.AppendCommand(nil, "GET", "leader"),
		Verdict: func(reply resp.Value) mux.Verdict {
			if reply.IsError() {
				return mux.VerdictFailed
			}
			return mux.VerdictYes
		},
		All:     true,
		Keep:    true,
		Timeout: 5 * time.Second,
	}
	if err := m.Do(ctx, get); err != nil {
		log.Fatal(err)
	}
	for i, vote := range get.Votes {
		fmt.Printf("master %d: %s, %q\n", i, vote.Verdict, vote.Reply.Bytes())
	}
	// Output:
	// a majority said yes: true
	// a majority said yes: false
	// master 0: yes, "me"
	// master 1: yes, "me"
	// master 2: yes, "me"
}
