package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// An answer is what one master says of a key.
type answer struct {
	redlock.Holder
	readers []redlock.Holder     // that hold it; then the Holder itself has no token
	permits []redlock.Holder     // of each permit, if they were asked for
	waiters []redlock.LockWaiter // in line, in their order; on the queue master alone
	fenced  bool                 // who has set the key there has set the fence, too
	noFence bool                 // the fence's counter is no number that can be one
	agreed  int                  // how many permits there are, as their users have agreed; 0 if nothing says so
}

func answers(holders []redlock.Holder) (all []answer) {
	for _, h := range holders {
		all = append(all, answer{Holder: h})
	}
	return all
}

// holders asks every master who holds a key there, and writes nothing. Unlike
// [redlock.Client.Holders], it does not need a majority of the masters.
func (s *masterSet) holders(ctx context.Context, key string) []answer {
	return s.ask(ctx, func(p *probe, a *answer) error { return a.holder(ctx, p, s.key(key)) })
}

// ask has each master's answer made by a question, which is put to all of them at once.
func (s *masterSet) ask(ctx context.Context, question func(*probe, *answer) error) []answer {
	all := make([]answer, len(s.masters))
	for i, err := range s.askAll(ctx, func(i int, p *probe) error { return question(p, &all[i]) }) {
		if err != nil {
			all[i] = answer{Holder: redlock.Holder{Err: err}}
		}
		all[i].Addr = conn.Redact(s.masters[i])
	}
	return all
}

// askAll puts a question to all masters at once, and returns how each has failed.
func (s *masterSet) askAll(ctx context.Context, question func(i int, p *probe) error) []error {
	errs := make([]error, len(s.masters))
	var asking sync.WaitGroup
	for i, master := range s.masters {
		asking.Go(func() {
			p, err := dialProbe(ctx, master, s.connect)
			if err == nil {
				err = question(i, p)
				p.close()
			}
			errs[i] = err
		})
	}
	asking.Wait()
	return errs
}

// holder asks who holds the key. Most keys are those of one holder, so it asks for readers only
// where there is something else.
func (a *answer) holder(ctx context.Context, p *probe, key string) error {
	replies, err := p.read(ctx, get(key), []string{"PTTL", key}, get(kind.CounterKey(key)), get(kind.MarkKey(key)),
		[]string{"PTTL", kind.CounterKey(key)}, waiting(lineKey(key)))
	if err != nil {
		return err
	}
	if f := replies[2]; f.Kind() == resp.BulkString { // the user may lack the right to it
		if a.Fence, _ = strconv.ParseUint(string(f.Bytes()), 10, 64); a.Fence >= greatestFence {
			a.Fence = 0
		}
		a.noFence = newCounter(string(f.Bytes())).n >= greatestFence
	} else if _, long := f.Int(); long || conn.ErrorCode(f) == "WRONGTYPE" {
		a.noFence = true
	}
	a.agreed = agreed(replies[3])
	a.fenced = outlives(replies[4], replies[1])
	if a.waiters, err = waitersOf(ctx, p, lineKey(key), replies[5]); err != nil {
		return err
	}
	if err = p.lockOf(&a.Holder, replies[0], replies[1]); err != nil || a.Token != redlock.UnknownToken {
		noteRevoked(&a.Holder)
		return err
	}
	return a.shared(ctx, p, key)
}

// getScript is GET. In the place of a string that is too long for anything that a lock leaves, it returns how long that
// is: others may keep what they like under a lock's name.
const getScript = `local v = redis.pcall('GET', KEYS[1])
if type(v) == 'string' and #v > 5000 then
  return #v
end
return v`

func get(key string) []string { return []string{"EVAL", getScript, "1", key} }

// read is [probe.do] for commands that can be get and rangeOf. A user who may not call scripts is asked for more than is
// needed: what is too long is skipped.
func (p *probe) read(ctx context.Context, commands ...[]string) ([]resp.Value, error) {
	replies, err := p.do(ctx, commands...)
	var whole [][]string
	var at []int
	for i, v := range replies {
		if args := commands[i]; args[0] == "EVAL" && v.IsError() && conn.ErrorCode(v) != "WRONGTYPE" {
			if at = append(at, i); args[1] == getScript {
				whole = append(whole, []string{"GET", args[3]})
			} else {
				whole = append(whole, []string{"ZRANGE", args[3], args[4], args[5], "WITHSCORES"})
			}
		}
	}
	if len(whole) == 0 {
		return replies, err
	}
	again, err := p.do(ctx, whole...)
	for i, v := range again {
		replies[at[i]] = v
	}
	return replies, err
}

// lockOf notes the token in a key and how long it lives, from the replies to get and PTTL.
func (p *probe) lockOf(h *redlock.Holder, got, pttl resp.Value) error {
	ms, ok := pttl.Int()
	size, long := got.Int()
	switch {
	case got.IsNull(), ok && ms == -2: // it expired in between
		return nil
	case conn.ErrorCode(got) == "WRONGTYPE", conn.ErrorCode(got) == tooLongCode, long:
		h.Token, h.Size = redlock.UnknownToken, size // it is no lock, but blocks one
	case got.IsError():
		return errors.New("GET: " + p.ErrorText(got))
	default:
		h.Token = redlock.NewSecret(string(got.Bytes()))
	}
	if !ok {
		h.Token = redlock.Secret{}
		return errors.New("PTTL: " + p.ErrorText(pttl))
	}
	h.TTL = time.Duration(ms) * time.Millisecond
	return nil
}

// noteRevoked names the holder of a lock that was revoked.
func noteRevoked(h *redlock.Holder) {
	if token, reason, ok := kind.CutTombstone(h.Token.Reveal()); ok {
		h.Token, h.Revoked, h.Reason = redlock.NewSecret(token), true, reason
	}
}

// maxReaders is how many readers a master names.
const maxReaders = 1000

// shared asks for the readers that hold the key. They are the members of a sorted set, and the
// score of each is the end of its term by the master's clock.
func (a *answer) shared(ctx context.Context, p *probe, key string) error {
	replies, err := p.read(ctx, []string{"TIME"}, rangeOf(key, -maxReaders, -1))
	if err != nil {
		return err
	}
	members := flat(replies[1])
	switch conn.ErrorCode(replies[1]) {
	case "WRONGTYPE":
		return nil // a key that is no lock
	case "":
	default:
		return errors.New("ZRANGE: " + p.ErrorText(replies[1]))
	}
	if len(members) == 0 { // the last reader has left in between
		a.Token, a.TTL = redlock.Secret{}, 0
		return nil
	}
	clock := flat(replies[0])
	if len(clock) != 2 {
		return errors.New("TIME: " + p.ErrorText(replies[0]))
	}
	seconds, _ := clock[0].Float() // which reads the text that it is
	micros, _ := clock[1].Float()
	now := int64(seconds)*1000 + int64(micros)/1000
	named := map[redlock.Secret]bool{} // it can name one as often as it likes
	for i := 0; i+1 < len(members); i += 2 {
		if ends, ok := members[i+1].Float(); ok && int64(ends) >= now {
			left := time.Duration(int64(ends)-now) * time.Millisecond
			h := redlock.Holder{Token: redlock.NewSecret(string(members[i].Bytes())), TTL: left}
			if noteRevoked(&h); !named[h.Token] {
				named[h.Token] = true
				a.readers = append(a.readers, h)
			}
		}
	}
	if len(a.readers) > 0 {
		a.Token = redlock.Secret{}
	}
	return nil
}

// outlives reports whether a fence's counter was given its life together with the key. It then outlives the key by
// Config.FenceMemory, which nobody sets to a fraction of a minute. The two replies are a moment apart.
func outlives(counter, key resp.Value) bool {
	c, _ := counter.Int()
	k, _ := key.Int()
	const minute, moment = 60_000, 20
	rest := (c - k + moment) % minute
	return k > 0 && c-k > minute/2 && rest <= 2*moment
}

// maxWaiters is how many waiters a master names.
const maxWaiters = 100

func lineKey(key string) string { return string(kind.AppendQueueKey(nil, key)) }

// waiting is the command that asks who waits in line.
func waiting(line string) []string { return rangeOf(line, 0, maxWaiters) }

// rangeScript is ZRANGE WITHSCORES. It cuts members that are longer than those of locks: there may be a thousand.
const rangeScript = `local all = redis.pcall('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES')
for i = 1, #all, 2 do
  all[i] = string.sub(all[i], 1, 512)
end
return all`

func rangeOf(key string, first, last int) []string {
	return []string{"EVAL", rangeScript, "1", key, strconv.Itoa(first), strconv.Itoa(last)}
}

// waitersOf asks for those who wait in line, whose ids are in got. One that is dead has left nothing. It returns none if
// the user lacks the right to them. The ids are secrets: who knows one can end the waiter's place.
func waitersOf(ctx context.Context, p *probe, line string, got resp.Value) (all []redlock.LockWaiter, err error) {
	var ids []string
	var commands [][]string
	members := flat(got)
	for i := 0; i < len(members); i += 2 {
		if name := string(members[i].Bytes()); name != readersMark {
			ids = append(ids, name)
			commands = append(commands, get(line+":"+name+":alive"), []string{"PTTL", line + ":" + name + ":alive"})
		}
	}
	if len(ids) == 0 || got.IsError() {
		return nil, nil
	}
	replies, err := p.read(ctx, commands...)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		note, left := replies[2*i], replies[2*i+1]
		if ms, ok := left.Int(); ok && note.Kind() == resp.BulkString && !note.IsNull() {
			waited, owner, _ := strings.Cut(string(note.Bytes()), " ")
			since, _ := strconv.ParseInt(waited, 10, 40)
			since += max(0, entryLife.Milliseconds()-ms)
			all = append(all, redlock.LockWaiter{Owner: owner, Waited: time.Duration(since) * time.Millisecond, Reader: strings.HasPrefix(id, readersMark)})
		}
	}
	return all, nil
}

const (
	readersMark = "r:"            // begins the ids of readers, and is by itself the place where others can join them
	entryLife   = 3 * time.Second // of an entry in line that was just renewed
)

// flat returns what is in an array, and in the arrays in it: RESP3 has one for each member and its
// score, and RESP2 has not.
func flat(v resp.Value) (all []resp.Value) {
	elems := v.Elems()
	for e, more := elems.Next(); more; e, more = elems.Next() {
		if e.Kind() == resp.Array {
			all = append(all, flat(e)...)
		} else {
			all = append(all, e)
		}
	}
	return all
}
