package redlock_test

import (
	"cmp"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// A fence protects only what looks at it. In each of these examples a first holder is late: its
// lock has expired, and a second one has written. The resource refuses the first one's number. It
// takes the second one's number again and again, since a holder may write more than once.
//
// A holder that computes what it writes from what it reads must write its number first, and then
// read. Else a late write can come between the two, and is lost.

// A Redis key that only a script writes. The script compares the fence with that of the last
// writer. The key can be on any server; it has nothing to do with the masters of the lock.
func ExampleWithFence_redis() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	data, err := redlocktest.RunEmbedded(1)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()

	const guarded = `if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
  return 0
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'status', ARGV[2])
return 1`
	write := func(fence uint64, status string) {
		// With a Redis client this is a call of EVALSHA.
		done, err := data.Do(0, "EVAL", guarded, "1", "order:42", strconv.FormatUint(fence, 10), status)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(status, done == int64(1))
	}

	first := client.NewMutex("lock:order:42", 200*time.Millisecond, redlock.WithFence())
	if err := first.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	// Here the first holder stands still until its lock has expired, which the second waits for.
	second := client.NewMutex("lock:order:42", 10*time.Second, redlock.WithFence())
	if err := second.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	write(second.Fence(), "paid")
	write(second.Fence(), "shipped")
	write(first.Fence(), "cancelled")
	status, err := data.Do(0, "HGET", "order:42", "status")
	fmt.Println("it is", status, err)
	// Output:
	// paid true
	// shipped true
	// cancelled false
	// it is shipped <nil>
}

// orders is a service that knows the fence of each order's last writer.
type orders struct {
	mu     sync.Mutex
	fences map[string]uint64 // by path; a real service keeps them with the orders
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fence, err := strconv.ParseUint(r.Header.Get("X-Fence"), 10, 64)
	if err != nil || fence == 0 {
		http.Error(w, "X-Fence must be the lock's fence", http.StatusBadRequest)
		return
	}
	o.mu.Lock() // from the comparison to the end of the write
	defer o.mu.Unlock()
	if last := o.fences[r.URL.Path]; fence < last {
		http.Error(w, fmt.Sprintf("fence %d is older than %d", fence, last), http.StatusConflict)
		return
	}
	o.fences[r.URL.Path] = fence
	// Here the order is written.
}

// An HTTP service that answers 409 to the number of an earlier holder. The client sends the
// number in a header, and has it from the context that Do's function gets.
func ExampleWithFence_http() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	service := httptest.NewServer(&orders{fences: map[string]uint64{}})
	defer service.Close()

	request := func(ctx context.Context, status string) *http.Request {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, service.URL+"/orders/42", strings.NewReader(status))
		if err != nil {
			log.Fatal(err)
		}
		if fence := redlock.FenceFrom(ctx); fence != 0 {
			r.Header.Set("X-Fence", strconv.FormatUint(fence, 10))
		}
		return r
	}
	send := func(r *http.Request) error {
		answer, err := service.Client().Do(r)
		if err != nil {
			return err
		}
		fmt.Println(answer.Status)
		return answer.Body.Close()
	}

	var late *http.Request
	err = client.Do(ctx, "lock:order:42", 10*time.Second, func(ctx context.Context) error {
		late = request(ctx, "cancelled") // a proxy holds it up
		return nil
	}, redlock.WithFence())
	fmt.Println(err)
	err = client.Do(ctx, "lock:order:42", 10*time.Second, func(ctx context.Context) error {
		return errors.Join(send(request(ctx, "paid")), send(request(ctx, "shipped")))
	}, redlock.WithFence())
	fmt.Println(err)
	fmt.Println(send(late.WithContext(ctx)))
	fmt.Println(send(request(ctx, "a writer without a lock")))
	// Output:
	// <nil>
	// 200 OK
	// 200 OK
	// <nil>
	// 409 Conflict
	// <nil>
	// 400 Bad Request
	// <nil>
}

// bucket keeps objects as S3 does: a PUT with If-Match needs the ETag that the object has, one
// with If-None-Match: * needs that there is no object, and the ETag is a hash of the content alone.
type bucket struct {
	mu      sync.Mutex
	objects map[string]s3object // by path
}

type s3object struct{ etag, fence, content string }

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	was, exists := b.objects[r.URL.Path]
	if match := r.Header.Get("If-Match"); !exists && (match != "" || r.Method != http.MethodPut) {
		w.WriteHeader(http.StatusNotFound)
		return
	} else if match != "" && match != was.etag || exists && r.Header.Get("If-None-Match") == "*" {
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	if r.Method == http.MethodPut {
		etag := fmt.Sprintf("%q", fmt.Sprintf("%x", md5.Sum(content)))
		b.objects[r.URL.Path] = s3object{etag, r.Header.Get("X-Amz-Meta-Fence"), string(content)}
		return
	}
	w.Header().Set("ETag", was.etag)
	w.Header().Set("X-Amz-Meta-Fence", was.fence)
	io.WriteString(w, was.content)
}

var errStale = errors.New("a later holder has written")

// An object is one that is written only under a lock.
type object struct{ url string }

// head returns the ETag of the object, which is empty if there is no object, and the fence of its
// last writer.
func (o object) head() (etag string, fence uint64, err error) {
	answer, err := http.Head(o.url)
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusNotFound:
		return "", 0, nil
	case http.StatusOK:
		fence, err = strconv.ParseUint(answer.Header.Get("X-Amz-Meta-Fence"), 10, 64)
		return answer.Header.Get("ETag"), fence, err
	}
	return "", 0, errors.New(answer.Status)
}

// put writes the object if it still has the ETag. It reports whether it had.
//
// The fence is in the metadata, where head finds it. It is in the content, too, or else two
// holders that write the same would leave the same ETag.
func (o object) put(etag string, fence uint64, content string) (done bool, err error) {
	number := strconv.FormatUint(fence, 10)
	r, err := http.NewRequest(http.MethodPut, o.url, strings.NewReader(number+"\n"+content))
	if err != nil {
		return false, err
	}
	r.Header.Set("X-Amz-Meta-Fence", number)
	if etag == "" {
		r.Header.Set("If-None-Match", "*")
	} else {
		r.Header.Set("If-Match", etag)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusPreconditionFailed, http.StatusNotFound, http.StatusConflict:
		// It was written or deleted since head, or is being written.
		return false, nil
	}
	return false, errors.New(answer.Status)
}

// write writes the object unless a later holder has.
func (o object) write(fence uint64, content string) error {
	for {
		etag, last, err := o.head()
		if err != nil {
			return err
		}
		if fence < last {
			return errStale
		}
		if done, err := o.put(etag, fence, content); done || err != nil {
			return err
		}
	}
}

// An object in a store that cannot compare numbers, but has conditional writes. A holder reads
// the number of the last writer, compares it itself, and writes only if nobody has written since.
func ExampleWithFence_objects() {
	masters := five()
	defer masters.Close()
	ctx := context.Background()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	store := httptest.NewServer(&bucket{objects: map[string]s3object{}})
	defer store.Close()
	report := object{store.URL + "/reports/2026"}

	first := client.NewMutex("lock:report", 200*time.Millisecond, redlock.WithFence())
	if err := first.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("first:", report.write(first.Fence(), "draft"))
	seen, _, err := report.head() // for its next write
	if err != nil {
		log.Fatal(err)
	}
	// Here the first holder stands still until its lock has expired, which the second waits for.
	second := client.NewMutex("lock:report", 10*time.Second, redlock.WithFence())
	if err := second.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("second:", report.write(second.Fence(), "draft"))

	done, err := report.put(seen, first.Fence(), "late")
	fmt.Println("first, with the ETag that it has seen:", done, err)
	fmt.Println("first, from the beginning:", report.write(first.Fence(), "late"))
	fmt.Println("second:", report.write(second.Fence(), "final"))
	_, last, err := report.head()
	fmt.Println("order of the numbers:", cmp.Compare(first.Fence(), last), cmp.Compare(second.Fence(), last), err)
	// Output:
	// first: <nil>
	// second: <nil>
	// first, with the ETag that it has seen: false <nil>
	// first, from the beginning: a later holder has written
	// second: <nil>
	// order of the numbers: -1 0 <nil>
}
