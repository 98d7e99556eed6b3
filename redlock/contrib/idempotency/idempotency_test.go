package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/idempotency"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const (
	ttl      = 1500 * time.Millisecond // a busy machine renews late
	deadline = 30 * time.Second
)

// A service is one of several processes that share a store.
type service struct {
	*httptest.Server
	errs chan error // that the middleware has told
}

func serve(t *testing.T, masters *redlocktest.Masters, c idempotency.Config, handler http.HandlerFunc) *service {
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: deadline, RoundTimeout: deadline})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s := &service{errs: make(chan error, 100)}
	c.Client, c.TTL = client, ttl
	c.Error = func(_ *http.Request, err error) { s.errs <- err }
	if c.Store == nil {
		c.Store = &idempotency.Memory{}
	}
	s.Server = httptest.NewServer(idempotency.Handler(handler, c))
	t.Cleanup(s.Close)
	return s
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotency-Replayed") == "true" }

// request is safe to call in any goroutine.
func (s *service) request(ctx context.Context, method, path, body string, keys ...string) (reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for _, key := range keys {
		r.Header.Add("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, answer.Header, string(text)}, err
}

func (s *service) post(t *testing.T, body string, keys ...string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	r, err := s.request(ctx, http.MethodPost, "/orders", body, keys...)
	require.NoError(t, err)
	return r
}

// await is how a handler waits, which must end when the test has failed.
func await[T any](t *testing.T, from <-chan T) (v T) {
	select {
	case v = <-from:
	case <-t.Context().Done():
	}
	return v
}

// forget takes the locks away, as a failover that loses them does.
func forget(masters *redlocktest.Masters) {
	for i := range masters.N() {
		masters.Flush(i)
	}
}

func TestARequestTakesEffectOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	store := &idempotency.Memory{}
	orders := new(atomic.Int64)
	begun, done := make(chan struct{}), make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		n := orders.Add(1)
		if n == 1 {
			close(begun)
			await(t, done)
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/orders/1")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d of %s", n, body)
	}
	first := serve(t, masters, idempotency.Config{Store: store}, handler)
	second := serve(t, masters, idempotency.Config{Store: store}, handler)
	answers := make(chan reply, 1)
	go func() {
		r, err := first.request(t.Context(), http.MethodPost, "/orders", "7 apples", `"key-1"`)
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	<-begun
	for begun := time.Now(); time.Since(begun) < 2*ttl; time.Sleep(ttl / 10) { // it takes longer than the TTL
		for _, s := range []*service{first, second} {
			busy := s.post(t, "7 apples", `"key-1"`)
			require.Equal(t, http.StatusConflict, busy.status)
			require.Equal(t, "1", busy.header.Get("Retry-After"))
			require.Equal(t, "application/problem+json", busy.header.Get("Content-Type"))
			require.JSONEq(t, `{"status":409,"title":"A request with this Idempotency-Key is being worked on"}`, busy.body)
		}
	}
	close(done)
	original := <-answers
	require.Equal(t, http.StatusCreated, original.status)
	require.Equal(t, "order 1 of 7 apples", original.body)
	require.False(t, original.replayed())
	for _, s := range []*service{first, second} {
		again := s.post(t, "7 apples", "key-1") // without quotes
		require.True(t, again.replayed())
		require.Equal(t, original.status, again.status)
		require.Equal(t, original.body, again.body)
		require.Equal(t, "/orders/1", again.header.Get("Location"))
		require.Equal(t, []string{"a=1", "b=2"}, again.header.Values("Set-Cookie"))
	}
	require.EqualValues(t, 1, orders.Load())
	require.Equal(t, "order 2 of 7 apples", second.post(t, "7 apples", `"key-2"`).body)
	require.Empty(t, first.errs)
	require.Empty(t, second.errs)
}

func TestAKeyIsForOneRequest(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	s := serve(t, masters, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "done") })
	require.Equal(t, "done", s.post(t, "a", "key").body)
	require.Equal(t, http.StatusUnprocessableEntity, s.post(t, "b", "key").status)
	for _, other := range []struct{ method, path string }{
		{http.MethodPatch, "/orders"}, {http.MethodPost, "/payments"}, {http.MethodPost, "/orders?dry=1"},
	} {
		r, err := s.request(t.Context(), other.method, other.path, "a", "key")
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, r.status, other)
	}
	require.True(t, s.post(t, "a", "key").replayed())
}

func TestAKeyBelongsToItsScope(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	scope := new(atomic.Value)
	s := serve(t, masters, idempotency.Config{Scope: func(*http.Request) string { return scope.Load().(string) }},
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, scope.Load()) })
	for _, who := range []string{"ada", "bob"} {
		scope.Store(who)
		require.Equal(t, who, s.post(t, "a", "1key").body)
	}
	scope.Store("ada1")
	require.False(t, s.post(t, "a", "key").replayed(), "of ada")
}

func TestMalformedKeys(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {}
	required := serve(t, masters, idempotency.Config{Required: true}, handler)
	optional := serve(t, masters, idempotency.Config{}, handler)
	require.Equal(t, http.StatusBadRequest, required.post(t, "").status)
	require.Equal(t, http.StatusOK, optional.post(t, "").status)
	for _, keys := range [][]string{{""}, {`""`}, {`"a`}, {`a b`}, {"a,b"}, {`"a";b`}, {`"a\"b"`}, {"a", "b"}, {strings.Repeat("k", 256)}, {"schlüssel"}} {
		for _, s := range []*service{required, optional} {
			require.Equal(t, http.StatusBadRequest, s.post(t, "", keys...).status, keys)
		}
	}
	require.Equal(t, http.StatusOK, required.post(t, "", strings.Repeat("k", 255)).status)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		r, err := required.request(t.Context(), method, "/", "", "key")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.status)
		r, err = required.request(t.Context(), method, "/", "", "key")
		require.NoError(t, err)
		require.False(t, r.replayed(), method)
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	told := make(chan error, 10)
	s := serve(t, masters, idempotency.Config{MaxRequest: 10, MaxAnswer: 10}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/x")
		body, _ := io.ReadAll(r.Body)
		for _, c := range body {
			_, err := w.Write([]byte{c, c})
			told <- err
		}
	})
	require.Equal(t, http.StatusRequestEntityTooLarge, s.post(t, "12345678901", "key").status)
	require.Equal(t, "1122334455", s.post(t, "12345", "key-1").body)
	for range 5 {
		require.NoError(t, <-told)
	}
	large := s.post(t, "123456", "key-2")
	require.Equal(t, http.StatusInsufficientStorage, large.status)
	for range 5 {
		require.NoError(t, <-told)
	}
	require.ErrorIs(t, <-told, idempotency.ErrTooLarge)
	require.True(t, s.post(t, "123456", "key-2").replayed(), "it has taken effect")
}

func TestFailuresAreNotStored(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	tries := new(atomic.Int64)
	s := serve(t, masters, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch tries.Add(1) {
		case 1:
			w.WriteHeader(http.StatusBadGateway)
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.WriteHeader(http.StatusPaymentRequired)
		default:
			t.Error("a refusal was not stored")
		}
	})
	require.Equal(t, http.StatusBadGateway, s.post(t, "", "key").status)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", nil)
	r.Header.Set("Idempotency-Key", "key") // for which Go's client would repeat it by itself
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { s.Config.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	require.Equal(t, http.StatusPaymentRequired, s.post(t, "", "key").status)
	require.Equal(t, http.StatusPaymentRequired, s.post(t, "", "key").status)
}

// A request that stands still for longer than its lock is valid.
func TestALateAnswerIsNotStored(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{true, false} { // while the later request runs, or when it has been answered
		t.Run(fmt.Sprint(during), func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			store := &idempotency.Memory{}
			type visit struct {
				fence uint64
				ended context.Context
				goOn  chan string
			}
			visits := make(chan visit, 2)
			handler := func(w http.ResponseWriter, r *http.Request) {
				v := visit{redlock.FenceFrom(r.Context()), r.Context(), make(chan string)}
				visits <- v
				fmt.Fprint(w, await(t, v.goOn))
			}
			answers := map[*service]chan reply{}
			// What a renewal has given back to the masters is taken away again a moment after the loss: until then
			// a later request finds the lock held.
			begin := func(later bool) (*service, visit) {
				s := serve(t, masters, idempotency.Config{Store: store}, handler)
				answers[s] = make(chan reply, 1)
				go func(answers chan<- reply) {
					r, err := s.request(t.Context(), http.MethodPost, "/orders", "", "key")
					for later && err == nil && r.status == http.StatusConflict {
						r, err = s.request(t.Context(), http.MethodPost, "/orders", "", "key")
					}
					if err != nil {
						t.Error(err)
					}
					answers <- r
				}(answers[s])
				return s, await(t, visits)
			}
			first, early := begin(false)
			forget(masters)
			<-early.ended.Done()
			require.ErrorIs(t, context.Cause(early.ended), redlock.ErrLost)
			second, late := begin(true)
			require.Greater(t, late.fence, early.fence)
			if during {
				early.goOn <- "early"
				require.Equal(t, http.StatusConflict, (<-answers[first]).status)
				late.goOn <- "late"
				require.Equal(t, "late", (<-answers[second]).body)
			} else {
				late.goOn <- "late"
				require.Equal(t, "late", (<-answers[second]).body)
				early.goOn <- "early"
				require.Equal(t, http.StatusConflict, (<-answers[first]).status)
			}
			require.Equal(t, "late", first.post(t, "", "key").body)
		})
	}
}

func TestTheLockOutlivesTheClient(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	begun, done := make(chan struct{}, 10), make(chan struct{})
	s := serve(t, masters, idempotency.Config{Store: &failing{}}, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		await(t, done)
		fmt.Fprint(w, "done")
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-begun
		leave()
	}()
	_, err := s.request(ctx, http.MethodPost, "/orders", "", "key")
	require.ErrorIs(t, err, context.Canceled)
	for begun := time.Now(); time.Since(begun) < 2*ttl; time.Sleep(ttl / 10) {
		require.Equal(t, http.StatusConflict, s.post(t, "", "key").status)
	}
	close(done)
	require.Eventually(t, func() bool { return s.post(t, "", "key").replayed() }, deadline, time.Millisecond)
	require.Empty(t, begun)
}

func TestAHandlerThatGivesUpHasNotAnswered(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	begun, givesUp := make(chan struct{}, 10), new(atomic.Bool)
	givesUp.Store(true)
	s := serve(t, masters, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if givesUp.Load() {
			begun <- struct{}{}
			await(t, r.Context().Done())
			return
		}
		fmt.Fprint(w, "done")
	})
	answers := make(chan reply, 1)
	go func() {
		r, err := s.request(t.Context(), http.MethodPost, "/orders", "", "key")
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	<-begun
	forget(masters)
	require.Equal(t, http.StatusServiceUnavailable, (<-answers).status, "the lock was lost")

	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-begun
		givesUp.Store(false)
		leave()
	}()
	_, err := s.request(ctx, http.MethodPost, "/orders", "", "key")
	require.ErrorIs(t, err, context.Canceled, "the client is gone")
	require.Eventually(t, func() bool {
		r := s.post(t, "", "key")
		return r.body == "done" && !r.replayed()
	}, deadline, time.Millisecond)
	require.True(t, s.post(t, "", "key").replayed())
}

// failing is a store that fails when it is told to.
type failing struct {
	idempotency.Memory
	load, save atomic.Bool
}

var errStore = errors.New("the store is down")

func (f *failing) Load(ctx context.Context, id string, fence uint64) (*idempotency.Answer, error) {
	if f.load.Load() && fence > 0 {
		return nil, errStore
	}
	return f.Memory.Load(ctx, id, fence)
}

// Save minds its context, too.
func (f *failing) Save(ctx context.Context, id string, fence uint64, a *idempotency.Answer) error {
	if f.save.Load() {
		return errStore
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return f.Memory.Save(ctx, id, fence, a)
}

func TestWithoutStoreOrMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	store := &failing{}
	ran := new(atomic.Int64)
	s := serve(t, masters, idempotency.Config{Store: store}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, ran.Add(1)) })
	store.load.Store(true)
	require.Equal(t, http.StatusServiceUnavailable, s.post(t, "", "key").status)
	require.ErrorIs(t, <-s.errs, errStore)
	require.Zero(t, ran.Load(), "nothing was done")
	store.load.Store(false)
	store.save.Store(true)
	require.Equal(t, "1", s.post(t, "", "key").body, "it was done")
	require.ErrorIs(t, <-s.errs, errStore)
	store.save.Store(false)
	require.Equal(t, "2", s.post(t, "", "key").body)
	for i := range masters.N() {
		masters.Kill(i)
	}
	require.Equal(t, http.StatusServiceUnavailable, s.post(t, "", "other").status)
	require.ErrorIs(t, <-s.errs, redlock.ErrNoQuorum)
	require.Equal(t, "2", s.post(t, "", "key").body, "stored answers need no master")
}

func TestMemoryForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, m := t.Context(), &idempotency.Memory{Keep: time.Hour}
		load := func() *idempotency.Answer {
			a, err := m.Load(ctx, "id", 0)
			require.NoError(t, err)
			return a
		}
		answer := &idempotency.Answer{Status: 201}
		require.NoError(t, m.Save(ctx, "id", 5, answer))
		for range 2 {
			time.Sleep(59 * time.Minute)
			require.Same(t, answer, load(), "it was asked for, and kept")
		}
		time.Sleep(2 * time.Hour)
		require.Nil(t, load())
	})
}
