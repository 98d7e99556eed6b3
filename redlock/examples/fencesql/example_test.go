package fencesql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	_ "modernc.org/sqlite"
)

// Each row has the fence of its last writer. A row is written only by an UPDATE that compares it.
const (
	schema = `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)`
	claim  = `UPDATE accounts SET fence = $1 WHERE id = $2 AND fence <= $1`
	write  = `UPDATE accounts SET balance = $3, fence = $1 WHERE id = $2 AND fence <= $1`
)

var errStale = errors.New("a later holder has written, or there is no such row")

// update runs one of these statements. It fails if no row has matched.
//
// The MySQL driver counts only rows that change, and so none if a holder writes the same twice:
// set clientFoundRows=true there.
func update(ctx context.Context, db *sql.DB, statement string, args ...any) error {
	result, err := db.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows == 0 {
		err = errStale
	}
	return err
}

// A holder that computes what it writes from what it reads claims the row first: then no late
// write comes between the two. It may write several times, since its number equals its own.
func Example() {
	masters, err := redlocktest.RunEmbedded(5)
	if err != nil {
		log.Fatal(err)
	}
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	if _, err := db.Exec(schema + `; INSERT INTO accounts (id, balance) VALUES (42, 100)`); err != nil {
		log.Fatal(err)
	}
	balance := func() (n int64) {
		if err := db.QueryRow(`SELECT balance FROM accounts WHERE id = 42`).Scan(&n); err != nil {
			log.Fatal(err)
		}
		return n
	}

	first := client.NewMutex("lock:account:42", 200*time.Millisecond, redlock.WithFence())
	if err := first.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("first claims:", update(ctx, db, claim, first.Fence(), 42))
	late := balance() - 30
	// Here the first holder stands still until its lock has expired, which the second waits for.
	second := client.NewMutex("lock:account:42", 10*time.Second, redlock.WithFence())
	if err := second.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("second claims:", update(ctx, db, claim, second.Fence(), 42))
	fmt.Println("first writes:", update(ctx, db, write, first.Fence(), 42, late))
	fmt.Println("second writes:", update(ctx, db, write, second.Fence(), 42, balance()+50))
	fmt.Println("second writes:", update(ctx, db, write, second.Fence(), 42, balance()+50))
	fmt.Println("first claims:", update(ctx, db, claim, first.Fence(), 42))
	fmt.Println("balance:", balance())
	// Output:
	// first claims: <nil>
	// second claims: <nil>
	// first writes: a later holder has written, or there is no such row
	// second writes: <nil>
	// second writes: <nil>
	// first claims: a later holder has written, or there is no such row
	// balance: 200
}
