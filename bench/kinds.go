package main

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"strconv"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/redburst/redburst/redlock"
)

// Names of what the cases of the kinds measure besides, in Sample.Extra. Their operations are those
// of one caller.
const (
	apartP50     = "ns/p50, many keys" // of kindCallers with a key each
	apartTime    = "ns/pair, many keys"
	togetherP50  = "ns/p50, one key" // ... with one key for all, where the kind lets them in
	togetherTime = "ns/pair, one key"
)

const (
	kindCallers = 64
	kindPermits = 1000 // far more than callers
)

// kinds returns redburst with locks of each kind and, on one master, what users write instead.
//
// On a quorum there is no Go library with locks of these kinds, so nothing to compare with.
// Redisson, which has readers and permits, is for Java, and keeps each lock on one master.
func kinds() []Contestant {
	ours := func(kind string, more int, opts ...redlock.Option) Contestant {
		return Contestant{Name: ours + "-" + kind, Open: openKind(more, opts...), quick: true, group: groupKinds}
	}
	together := func(c Contestant) Contestant { c.plural = true; return c }
	all := []Contestant{
		ours("2keys", 1),
		ours("8keys", 7),
		together(ours("shared", 0, redlock.WithShared())),
		together(ours("permits", 0, redlock.WithPermits(kindPermits))),
	}
	for _, client := range []struct {
		name string
		open poolOpener
	}{
		{"goredis", openGoRedis},
		{"rueidis", openRueidis},
	} {
		for _, s := range []handmade{handmadeShared, handmadePermits} {
			all = append(all, together(Contestant{Name: client.name + "-" + s.name, Open: s.opener(client.open),
				single: true, quick: true, group: groupKinds}))
		}
	}
	return all
}

// openKind opens redburst for locks of a kind that have more further keys.
func openKind(more int, opts ...redlock.Option) func(f *Fleet, goroutines int) (Locker, error) {
	open := openRedburst(opts...)
	return func(f *Fleet, goroutines int) (Locker, error) {
		l, err := open(f, goroutines)
		if err != nil || more == 0 {
			return l, err
		}
		return manyKeys{l.(redburstLocker), more}, nil
	}
}

type manyKeys struct {
	redburstLocker
	more int
}

func (l manyKeys) Mutex(key string) (Mutex, error) {
	var more []string
	for i := range l.more {
		more = append(more, fmt.Sprintf("%s:%d", key, i))
	}
	return redburstMutex{l.client.NewMutex(key, l.ttl, redlock.WithKeys(more...))}, nil
}

// A handmade lock is a pair of scripts on one master. KEYS key, ARGV token, TTL in ms, the
// caller's clock in ms. Each returns 1 if it has worked.
//
// Neither has a quorum, so a master that dies takes all locks with it, and a failover can give them
// to others. Neither is extended or waited for here.
type handmade struct{ name, acquire, release string }

var (
	// A reader of a hash with the mode and a field for each reader, in the way of Redisson's read lock
	// but without its key for each reader's timeout. The hash lives for the longest TTL. So a reader
	// that has died stays in it, and keeps writers out, for as long as others come. A writer needs a
	// script of its own: a plain lock cannot be one. It does not ask for its turn, so readers starve it.
	handmadeShared = handmade{"shared",
		`local mode = redis.call('HGET', KEYS[1], 'mode')
if mode and mode ~= 'read' then
  return 0
end
redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
return 1`,
		`local there = redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
end
return there`}

	// A permit of a sorted set of holders, scored by the callers' wall clocks, in the way of "Redis in
	// Action" and of Redisson's expirable semaphore. Callers whose clocks differ take permits that are
	// held. Nobody finds out that they differ in the number of permits. All have one TTL.
	handmadePermits = handmade{"permits",
		`redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= ` + strconv.Itoa(kindPermits) + ` then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[3] + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`,
		`return redis.call('ZREM', KEYS[1], ARGV[1])`}
)

func (h handmade) opener(open poolOpener) func(f *Fleet, goroutines int) (Locker, error) {
	return func(f *Fleet, goroutines int) (Locker, error) {
		pool, closePool, err := open(f.endpoints[0], goroutines)
		if err != nil {
			return nil, err
		}
		return &handmadeLocker{
			pool: pool, close: closePool, ttl: f.ttl(),
			acquire: script(h.acquire), release: script(h.release),
		}, nil
	}
}

func script(text string) *redsyncredis.Script {
	return redsyncredis.NewScript(1, text, fmt.Sprintf("%x", sha1.Sum([]byte(text))))
}

type handmadeLocker struct {
	pool             redsyncredis.Pool
	close            func() error
	ttl              time.Duration
	acquire, release *redsyncredis.Script
	tokens           int
}

func (l *handmadeLocker) Close() error { return l.close() }

func (l *handmadeLocker) Mutex(key string) (Mutex, error) {
	l.tokens++
	return &handmadeMutex{l: l, key: key, token: fmt.Sprintf("handmade-%032d", l.tokens)}, nil
}

// A handmadeMutex has one token for all its locks, which is nothing that it can lose by: nobody
// draws random numbers here.
type handmadeMutex struct {
	l          *handmadeLocker
	key, token string
}

var errHandmade = errors.New("handmade: it cannot do this")

func (m *handmadeMutex) TryLock(ctx context.Context) error {
	return m.do(ctx, m.l.acquire, m.key, m.token, m.l.ttl.Milliseconds(), time.Now().UnixMilli())
}
func (m *handmadeMutex) Unlock(ctx context.Context) error {
	return m.do(ctx, m.l.release, m.key, m.token)
}
func (m *handmadeMutex) Lock(context.Context) error   { return errHandmade }
func (m *handmadeMutex) Extend(context.Context) error { return errHandmade }

func (m *handmadeMutex) do(ctx context.Context, s *redsyncredis.Script, keysAndArgs ...any) error {
	c, err := m.l.pool.Get(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if v, err := c.Eval(s, keysAndArgs...); err != nil || v != int64(1) {
		return errors.Join(err, fmt.Errorf("handmade: the master says %v", v))
	}
	return nil
}

// compareKinds measures what a kind of lock costs: one caller, many with a key each, and many with
// one key.
func compareKinds(r *slice) error {
	if err := measure(r); err != nil {
		return err
	}
	if err := r.callers(kindCallers, apartP50, apartTime); err != nil || !r.contestant.plural {
		return err
	}
	return r.callers(1, togetherP50, togetherTime)
}

// callers measures kindCallers, on so many keys.
func (r *slice) callers(keys int, p50, pair string) error {
	many := *r
	many.Goroutines, many.Keys, many.sample = kindCallers, keys, newSample()
	if err := measure(&many); err != nil {
		return err
	}
	r.sample.Extra[p50] = float64(many.sample.Quantile(0.50))
	r.sample.Extra[pair] = float64(many.sample.Wall) / float64(max(many.sample.Ops(), 1))
	r.sample.addErrors(many.sample)
	return nil
}

func (r Result) writeKinds(b *bytes.Buffer) {
	fmt.Fprintf(b, "The first columns are of one caller, the next of %d with a key each, and the last of %d on one key. "+
		"\"Per pair\" is the time over the pairs of acquire and release. Times are the medians of the rounds, and ÷ plain "+
		"compares figures of the same round with redburst's plain lock; that of one key with plain locks on a key each. There are %d permits.\n\n"+
		"| contestant | p50 | ÷ plain | p50 of %d | ÷ plain | per pair | ÷ plain | p50, one key | ÷ plain | per pair | ÷ plain | CPU/op | failed |\n"+
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n", kindCallers, kindCallers, kindPermits, kindCallers)
	for i, c := range r.Contestants {
		fmt.Fprintf(b, "| %s |", c.Name)
		r.writeAgainst(b, i, r.Case.metric.of, r.Case.metric.of)
		for _, what := range [][2]string{{apartP50, apartP50}, {apartTime, apartTime}, {togetherP50, apartP50}, {togetherTime, apartTime}} {
			r.writeAgainst(b, i, extra(what[0]), extra(what[1]))
		}
		total := r.Total(i)
		fmt.Fprintf(b, " %s | %s |\n", short(time.Duration(total.Per(float64(total.CPU)))), failedCell(total))
	}
}
