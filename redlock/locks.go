package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// ErrIncomplete: some masters were not looked through to the end, and a majority was. So [Client.Locks] has listed every
// lock that is held, but not all that is on the other masters alone.
var ErrIncomplete = errors.New("redlock: some masters are not in the list")

// Locks lists the locks on the masters whose keys match a pattern, in no order. A pattern is that of SCAN: * stands for
// any characters, ? for one, [a-z] for one of these, and a backslash has the next one stand for itself. The empty
// pattern is *.
//
//	for lock, err := range client.Locks(ctx, "lock:*") {
//		switch {
//		case errors.Is(err, redlock.ErrIncomplete): // the last; what is held was listed
//		case err != nil:
//			return err
//		case lock.Held:
//			fmt.Println(lock.Key, lock.Holders[0].Owner)
//		}
//	}
//
// What is listed: each lock that somebody holds on some master, be it on few of them; and each that somebody waits for.
// The keys that are kept beside locks are not listed. Permits have a row of their own, beside that of a lock with the
// same key. They are found by their mark ({key}:permits), which lives longer than they do.
//
// Redis may hold other things. Of the other keys Locks lists those that look like another library's lock: a string of
// 16 to 128 letters, digits and +/=_-, which expires (foreign). So give a pattern where there is a cache. If the
// pattern matches one key only, that key is listed whatever it holds (other), and no other key is looked at.
//
// The list is no snapshot. Each row was true when the masters answered for it, as that of [Client.Holders] is. A lock
// that is held the whole time is in the list, once. One that comes or goes meanwhile may be, and so may a lock that is
// renamed.
//
// A master is asked for a page of 200 keys, and then for 50 locks or fewer, at a time: that keeps it for less than a
// millisecond. The masters are looked through a page of each at a time, so the list takes a round trip for 200 keys of
// each, and some for 200 locks. The client holds one page, and 16 to 40 bytes for each lock that was listed, to list none twice. Nothing runs
// while the loop's body does, or after the loop was left.
//
// No master decides when the list ends, or how large it is. One that takes twice as long as a majority, and three times
// the round timeout more, is left out: so can be one that is far away, or has far more keys than the others. None has more
// than ten minutes, or 262,144 pages. Of what fewer masters say than are a majority, 4 MiB of each master's words are
// listed. The permits of a key are as many as a majority says, or most masters. 100,000 are counted in one list: of a key
// beyond, Used is -1.
//
// A master that is down, does not answer within Config.RoundTimeout (500 ms if that is zero), or is left out, is not asked
// again. The rows say which masters are missing (LockInfo.Silent). At the end, Locks yields an error: a *RoundError with
// the reason of each master, also of one whose words were not all listed. It wraps ErrIncomplete if a majority has answered
// all, and ErrNoQuorum if not: then locks may be missing, and it is not known whether those that were listed are held. If ctx ends or the client is closed, Locks
// yields that error, and ends. If the pattern is malformed, the error is no *RoundError.
//
// Locks needs the rights to SCRIPT LOAD, EVAL, EVALSHA, SCAN, GETRANGE, PTTL, TYPE, TIME, ZCOUNT and ZRANGE, for the keys that match.
// A key that it may not read ends the list of that master, so give a pattern that the user may read. For the line it
// needs ZCARD, ZSCORE, ZRANGE, GET and PTTL of {key}:line*, and of {key}:permit* for permits; for the fence GET of
// {key}:fence. Without these rights, there is none in the list.
func (c *Client) Locks(ctx context.Context, pattern string) iter.Seq2[LockInfo, error] {
	mustContext(ctx)
	c.check()
	return func(yield func(LockInfo, error) bool) {
		l := newLister(c, pattern)
		if err := l.check(); err != nil {
			yield(LockInfo{}, fmt.Errorf("redlock: locks: %w", err))
			return
		}
		if l.run(ctx, yield) {
			if e := l.lacks(ctx); e != nil {
				yield(LockInfo{}, e)
			}
		}
	}
}

// A lockName is what a row is about: a key, or its permits.
type lockName struct {
	key     string
	permits bool
}

func newLister(c *Client, p string) *lister {
	l := &lister{client: c, asked: cmp.Or(p, "*"), whose: -1, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}}
	l.pattern = pattern(escaped.Replace(c.cfg.Prefix) + l.asked)
	l.call = new(round.Call) // it has large replies, so it does not go into the pool
	for i := range c.masters {
		l.up = l.up.With(i)
		l.votes = append(l.votes, Vote{Addr: c.masters.at(i), Verdict: votedYes})
		l.looks = append(l.looks, look{cursor: "0"})
	}
	return l
}

// check returns what is wrong with the pattern.
func (l *lister) check() error {
	if err := l.pattern.check(); err != nil {
		return err
	}
	switch key, literal := l.pattern.literal(); {
	case literal && len(key) > maxKey:
		return checkKey(key)
	case literal && kind.Reserved(key):
		return errReserved
	}
	return nil
}

// run returns false if the loop was left.
func (l *lister) run(ctx context.Context, yield func(LockInfo, error) bool) bool {
	l.charged = l.client.now()
	key, literal := l.pattern.literal()
	if l.literal = literal; literal {
		return l.list(ctx, []lockName{{key, false}, {key, true}}, yield)
	}
	for l.whose = l.next(); l.whose >= 0; l.whose = l.next() {
		if !l.list(ctx, l.page(ctx), yield) {
			return false
		}
	}
	return true
}

// lacks is the error that ends the list; nil if nothing is missing.
func (l *lister) lacks(ctx context.Context) error {
	e := unasked(opLocks, l.asked, nil, "")
	capped := false
	for i := range l.looks {
		if l.looks[i].capped && l.up.Has(i) {
			capped, l.votes[i].Verdict, l.votes[i].Err = true, voteFailed, errAlone
		}
	}
	switch answered := l.up.Len(); {
	case errors.Is(l.ended, mux.ErrClosed):
		e.reason = ErrClosed
		return e
	case l.ended != nil:
		e.cut, e.Votes = true, l.votes
		return e.endedBy(ctx, l.ended)
	case answered == len(l.votes) && !capped:
		return nil
	case answered >= quorum.Majority(len(l.votes)):
		e.reason = ErrIncomplete
	default:
		e.reason = ErrNoQuorum
	}
	e.Votes = l.votes
	return e
}

// ask asks the masters of a set, and returns those that have answered. Those that have not are not asked again.
func (l *lister) ask(ctx context.Context, of mux.Set, s script.Script, judge mux.VerdictFunc, args ...string) (answered mux.Set) {
	if of &= l.up; of == 0 || l.ended != nil {
		return 0
	}
	l.call.Ask(s, judge, l.client.cfg.questionTimeout(), false, nil, args...)
	l.call.Op.Only, l.call.Op.Quorum = of, 1
	err := l.client.round.Mux.Do(ctx, &l.call.Op)
	if err != nil && err != mux.ErrTimeout {
		l.ended = err
		return 0
	}
	l.call.ExplainRefusals()
	for i := range l.votes {
		switch v := &l.call.Op.Votes[i]; {
		case !of.Has(i):
		case v.Verdict == mux.VerdictYes:
			answered = answered.With(i)
		default:
			l.leave(i, cmp.Or(v.Err, error(mux.ErrTimeout)))
		}
	}
	l.charge(answered)
	return answered & l.up
}

func (l *lister) reply(master int) resp.Value { return l.call.Op.Votes[master].Reply }

// page returns the locks of the next page of a master's keys, but for those that were yielded.
func (l *lister) page(ctx context.Context) (names []lockName) {
	const longest = maxKey + 64 // with what may stand around a lock's key
	look, only := &l.looks[l.whose], mux.Set(0).With(l.whose)
	for count := pageCount; ; count = max(count/20, 1) {
		if l.ask(ctx, only, census.Page, kind.JudgeArray, look.cursor, l.around(), strconv.Itoa(count), strconv.Itoa(longest)) == 0 {
			return nil
		}
		look.pages++
		elems := l.reply(l.whose).Elems()
		first, more := elems.Next()
		if !more && count > 1 {
			continue // the names were too long
		}
		look.cursor = string(first.Bytes())
		if _, err := strconv.ParseUint(look.cursor, 10, 64); err != nil || first.Kind() != resp.BulkString {
			l.leave(l.whose, mux.ErrUnexpected)
			return nil
		}
		look.done = look.cursor == "0"
		found := map[lockName]bool{} // SCAN may return a key twice
		for v, more := elems.Next(); more; v, more = elems.Next() {
			name, ok := lockOf(string(v.Bytes()))
			if ok && !found[name] && len(name.key) > len(l.client.cfg.Prefix) && l.pattern.matches(name.key) {
				found[name] = true
				if _, seen := l.seen[l.hash(name)]; !seen {
					names = append(names, name)
				}
			}
		}
		return names
	}
}

// around is the pattern for SCAN. If the prefix has a hash tag, all names begin with it, also those beside a lock. The
// pattern then says in which slot they are, and newer servers look at no others.
func (l *lister) around() string {
	text := l.pattern.around()
	if conn.HashTag(l.client.cfg.Prefix) != "" {
		text = strings.TrimPrefix(text, "*")
	}
	return text
}

// lockOf returns the lock that a key on a master belongs to. ok is false for a key that says nothing of its own.
func lockOf(key string) (name lockName, ok bool) {
	name.key = key
	if kind.Reserved(key) {
		if name.key, name.permits, ok = kind.CutQueueKey(key); !ok {
			name.key, ok = kind.CutMarkKey(key)
			name.permits = true
		}
		if !ok || kind.Reserved(name.key) {
			return lockName{}, false
		}
	}
	return name, name.key != "" && len(name.key) <= maxKey
}

func (l *lister) hash(name lockName) uint64 { return maphash.Comparable(l.seed, name) }

// list asks all masters about the locks, and yields those that are there. It returns false if the loop was left.
func (l *lister) list(ctx context.Context, names []lockName, yield func(LockInfo, error) bool) bool {
	for len(names) > 0 && (l.whose < 0 || l.up.Has(l.whose)) {
		rows := l.rows(ctx, names)
		if len(rows) == 0 { // no master is left
			return true
		}
		l.askSlots(ctx, rows)
		if l.ended != nil {
			return true
		}
		for i := range rows {
			info, there := rows[i].info(l)
			if !there {
				continue
			}
			if !l.literal {
				l.seen[l.hash(names[i])] = struct{}{}
			}
			if !yield(info, nil) {
				return false
			}
			l.charged = l.client.now() // what the loop's body takes is nobody's
		}
		names = names[len(rows):]
	}
	return true
}

// A listed is a lock, and what each master says of it.
type listed struct {
	lockName
	*census.Tally
	marks map[int]mux.Set // how many permits there are, as these masters say
	slots int             // how many there are
	blind bool            // and they are not to be asked for
}

// rows asks all masters about the first of the locks: as many as a majority has answered. One that has answered fewer is
// asked for the rest.
func (l *lister) rows(ctx context.Context, names []lockName) []listed {
	var args []string
	size := 0
	for i, name := range names {
		if size += 2 * len(name.key); i == rowsAtOnce || i > 0 && size > askedBytes {
			names = names[:i]
			break
		}
		if key := name.key; name.permits {
			args = append(args, kind.MarkKey(key), string(kind.AppendQueueKey(nil, kind.SlotPrefix(key))))
		} else {
			args = append(args, key, string(kind.AppendQueueKey(nil, key)))
		}
	}
	all := make([][]census.Row, len(l.votes))
	ask := func(of mux.Set, args []string) {
		answered := l.ask(ctx, of, census.Rows, census.JudgeRows, append([]string{everything}, args...)...)
		for i := range all {
			if answered.Has(i) {
				all[i] = append(all[i], census.ReadRows(l.reply(i))...)
			}
		}
	}
	ask(l.up, args)
	var counts []int
	for i := range all {
		if l.up.Has(i) {
			counts = append(counts, len(all[i]))
		}
	}
	if len(counts) == 0 || l.ended != nil {
		return nil
	}
	slices.Sort(counts)
	out := make([]listed, min(counts[max(0, len(counts)-quorum.Majority(len(all)))], len(names)))
	for master := range all {
		for l.up.Has(master) && len(all[master]) < len(out) {
			if ask(mux.Set(0).With(master), args[2*len(all[master]):2*len(out)]); l.ended != nil {
				return nil
			}
		}
	}
	for i := range out {
		out[i] = listed{lockName: names[i], Tally: census.NewTally(len(all)), marks: map[int]mux.Set{}}
		for master := range all {
			if l.up.Has(master) {
				out[i].add(master, all[master][i], l.literal)
			}
		}
	}
	return out
}

// everything is what is asked for of each lock.
const everything = census.Short + census.Fence + census.Line + census.Readers

// add notes what a master says of the lock.
func (r *listed) add(master int, row census.Row, literal bool) {
	if r.permits {
		for _, mark := range row.Holders {
			if n := mark.Permits(); n != 0 {
				r.marks[n] = r.marks[n].With(master)
			}
		}
		row.Holders = nil
	} else if row.Readers < 0 && !literal {
		row.Holders = nil // it is not listed
	}
	r.Add(master, row)
}

// count decides how many permits there are. All masters that have one have the mark, too: so a majority has that of those
// which are held.
func (l *lister) count(r *listed) {
	var by mux.Set
	for n, on := range r.marks {
		if on.Len() > by.Len() || on.Len() == by.Len() && n < r.slots {
			r.slots, by = n, on
		}
	}
	switch {
	case l.literal:
	case by.Len() < quorum.Majority(len(l.votes)):
		if !l.affords(by, r.slots*slotWords) {
			r.slots = 0
		}
	case l.slots+r.slots > maxSlots:
		r.blind = true
	default:
		l.slots += r.slots
	}
}

// askSlots asks for the permits of the locks.
func (l *lister) askSlots(ctx context.Context, rows []listed) {
	type slot struct {
		row    *listed
		number int
	}
	var slots []slot
	var names []string
	size := 0
	flush := func() {
		if len(slots) == 0 {
			return
		}
		answered := l.ask(ctx, l.up, census.Values, kind.JudgeArray, names...)
		for master := range l.votes {
			if !answered.Has(master) {
				continue
			}
			for _, h := range census.ReadPermits(l.reply(master)).Holders {
				if h.Permit <= len(slots) {
					s := slots[h.Permit-1]
					h.Permit = s.number
					s.row.Count(master, h, false)
				}
			}
		}
		slots, names, size = slots[:0], names[:0], 0
	}
	for i := range rows {
		l.count(&rows[i])
		for number := 1; number <= rows[i].slots && !rows[i].blind; number++ {
			slots = append(slots, slot{&rows[i], number})
			names = append(names, kind.SlotKey(rows[i].key, number, rows[i].slots))
			if size += len(rows[i].key); len(slots) == slotsAtOnce || size > askedBytes {
				flush()
			}
		}
	}
	flush()
}

// info returns what is known of the lock. there is false if it is none that is to be listed.
func (r *listed) info(l *lister) (info LockInfo, there bool) {
	info.Key = strings.TrimPrefix(r.key, l.client.cfg.Prefix)
	var on mux.Set // the masters that have anything of it
	listable := false
	for master, row := range r.Rows {
		if l.up.Has(master) && row.Waiting > 0 {
			on = on.With(master)
		}
	}
	info.sumUp(r.Tally, l.up, l.client.masters, func(c *census.Claim, h *Holder) (string, bool) {
		var by mux.Set
		for _, master := range c.On {
			by = by.With(master)
		}
		if on |= by; !h.Held && !l.affords(by, len(c.Token.Reveal())+len(c.Reason)) {
			return "", false
		}
		looks := looksLike(c.Token.Reveal(), h.TTL)
		switch {
		case c.Reader && looks == kindPlain:
			looks = kindShared
		case c.Reader:
			looks = kindOther
		}
		listable = listable || looks != kindOther
		return looks, true
	})
	r.line(l, &info)
	if r.permits {
		info.permitted(r.slots)
		if r.blind {
			info.Used, listable = -1, true
		}
		if !listable && len(info.Holders) == 0 && info.Waiting <= 0 {
			info.Kind = ""
		}
	}
	switch {
	case l.literal:
		return info, info.Kind != "" || info.Waiting > 0
	case !listable && info.Waiting <= 0:
		return info, false
	}
	agreed := r.blind || slices.ContainsFunc(info.Holders, func(h Holder) bool { return h.Held })
	return info, agreed || l.affords(on, len(r.key))
}

// line adds the waiters. They stand in the queue of one master. For a moment some can stand in that of another, and then
// those come last.
func (r *listed) line(l *lister, info *LockInfo) {
	var masters []int
	listed, unread := map[string]bool{}, false
	for master, row := range r.Rows {
		if row != nil {
			masters = append(masters, master)
		}
	}
	slices.SortStableFunc(masters, func(a, b int) int { return cmp.Compare(len(r.Rows[b].Waiters), len(r.Rows[a].Waiters)) })
	for _, master := range masters {
		row := r.Rows[master]
		info.Waiting, unread = max(info.Waiting, row.Waiting), unread || row.Waiting < 0
		for _, w := range row.Waiters {
			if listed[w.ID] || len(info.Waiters) == census.Listed || !l.affords(mux.Set(0).With(master), len(w.Owner)) {
				continue
			}
			listed[w.ID] = true
			info.Waiters = append(info.Waiters, LockWaiter{w.Owner, w.Waited, w.Reader})
		}
	}
	info.Waiting = max(info.Waiting, len(info.Waiters))
	if info.Waiting == 0 && unread {
		info.Waiting = -1
	}
}
