package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/idempotency"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// A table is a Store over database/sql, for PostgreSQL and SQLite. Rows that are older than any
// repetition are deleted by a job of its own.
type table struct{ db *sql.DB }

const (
	schema = `CREATE TABLE answers (id TEXT PRIMARY KEY, fence BIGINT NOT NULL, answer TEXT, begun TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)`
	claim  = `INSERT INTO answers (id, fence) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET fence = excluded.fence WHERE answers.fence <= excluded.fence AND answers.answer IS NULL`
	look = `SELECT answer FROM answers WHERE id = $1 AND answer IS NOT NULL`
	save = `UPDATE answers SET fence = $2, answer = $3 WHERE id = $1 AND fence <= $2`
)

func (s table) Load(ctx context.Context, id string, fence uint64) (*idempotency.Answer, error) {
	claimed := true
	if fence > 0 {
		result, err := s.db.ExecContext(ctx, claim, id, fence)
		if err != nil {
			return nil, err
		}
		rows, err := result.RowsAffected()
		if err != nil {
			return nil, err
		}
		claimed = rows > 0
	}
	var text string
	switch err := s.db.QueryRowContext(ctx, look, id).Scan(&text); {
	case err == sql.ErrNoRows && !claimed:
		return nil, idempotency.ErrStale
	case err == sql.ErrNoRows:
		return nil, nil
	case err != nil:
		return nil, err
	}
	a := new(idempotency.Answer)
	return a, json.Unmarshal([]byte(text), a)
}

func (s table) Save(ctx context.Context, id string, fence uint64, a *idempotency.Answer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	result, err := s.db.ExecContext(ctx, save, id, fence, string(text))
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows == 0 {
		err = idempotency.ErrStale
	}
	return err
}

func openTable() (table, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return table{}, err
	}
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	_, err = db.Exec(schema)
	return table{db}, err
}

// The store is a table, so all processes of the service have the same answers.
func Example() {
	masters, err := redlocktest.RunEmbedded(3)
	if err != nil {
		log.Fatal(err)
	}
	defer masters.Close()
	client, err := redlock.Open(context.Background(), redlock.Config{Masters: masters.Addrs(), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	answers, err := openTable()
	if err != nil {
		log.Fatal(err)
	}
	defer answers.db.Close()

	orders := 0
	handler := idempotency.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		orders++ // written with redlock.FenceFrom(r.Context()), where that can be compared
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", orders)
	}), idempotency.Config{Client: client, Store: answers})

	for _, order := range []string{"7 apples", "7 apples", "8 apples"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(order))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotency-Replayed"), strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// 201  order 1
	// 201 true order 1
	// 422  {"status":422,"title":"Idempotency-Key was used for another request"}
}

// What every Store does.
func TestStores(t *testing.T) {
	t.Parallel()
	answers, err := openTable()
	require.NoError(t, err)
	defer answers.db.Close()
	for name, s := range map[string]idempotency.Store{"Memory": &idempotency.Memory{}, "table": answers} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			load := func(fence uint64) *idempotency.Answer {
				a, err := s.Load(ctx, "id", fence)
				require.NoError(t, err)
				return a
			}
			answer := &idempotency.Answer{Fingerprint: "f", Status: 201, Header: http.Header{"A": {"1", "2"}}, Body: []byte{0, 255}}
			for _, fence := range []uint64{0, 5, 5} {
				require.Nil(t, load(fence))
			}
			_, err := s.Load(ctx, "id", 4)
			require.ErrorIs(t, err, idempotency.ErrStale)
			require.ErrorIs(t, s.Save(ctx, "id", 4, &idempotency.Answer{}), idempotency.ErrStale)
			require.Nil(t, load(0))
			require.NoError(t, s.Save(ctx, "id", 5, answer))
			require.ErrorIs(t, s.Save(ctx, "id", 4, &idempotency.Answer{}), idempotency.ErrStale)
			for fence := range uint64(7) {
				require.Equal(t, answer, load(fence))
			}
			other, err := s.Load(ctx, "other", 1)
			require.NoError(t, err)
			require.Nil(t, other)
		})
	}
}
