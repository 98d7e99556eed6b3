package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/spf13/cobra"
)

func newList() *cobra.Command {
	var f mastersFlags
	var l lister
	cmd := &cobra.Command{
		Use:   "ls [flags] [PATTERN]",
		Short: "List the locks, who holds them, and who waits",
		Long: `ls lists the locks whose keys match the pattern: those that somebody holds, on
however few masters, and those that somebody waits for. In a PATTERN, * stands
for any characters, ? for one, and [a-z] for one of these; \* is a star. Quote
it, or the shell reads it. Without one, ls lists all locks.

If the PATTERN is a KEY, ls shows that one, with all its holders, and with those
who wait for it, in their order. A process waits in line once, however many of
its callers wait.

KIND is plain (one holder), shared (readers), permits, or foreign: a value that
looks like another library's lock. A dim line is held on too few masters: a
leftover, or an attempt under way. WAIT is how many wait in line. AGE is for how
long the holder has it, about, which only a fence can say: run, hold and lead
take one, and clients WithFence. Of others no master knows it.

ls asks for a page of keys at a time, so it keeps no master from its work. The
list is no snapshot. The name of a holder is a hint: whoever may write the key
can write any name.

--watch lists them again and again, until a signal ends it, and shows the first
1000.

--json writes one object on each line, as the locks are found, or once all are,
with --sort. A key that is not
UTF-8 is there as key_base64, too: 'redlock status --key-base64' takes that.

Exit status: 0 locks were listed, 1 there is none, 97 too few masters answered to
tell what is held, 64 wrong usage, 74 write error. If only some masters do not
answer, or one is much slower than the others, ls says on stderr what the list
lacks.
` + mastersHelp,
		Example: `  redlock ls
  redlock ls 'lock:*'
  redlock ls lock:report                       who waits for it?
  redlock ls --waiting --sort age              what has others wait longest?
  redlock ls --json | jq -r 'select(.waiting > 2) | .key'
  redlock ls --watch 'lock:*'`,
		Args: cobra.MaximumNArgs(1),
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "write JSON, one object on each line")
	cmd.Flags().StringVar(&l.sort, "sort", "", "`what` comes first: key, age (the oldest) or waiting (the most)")
	cmd.Flags().BoolVar(&l.waiting, "waiting", false, "list only locks that somebody waits for")
	cmd.Flags().BoolVar(&l.watch, "watch", false, "go on, and list them again and again")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if l.pattern = args[0]; l.pattern == "" {
				return usageError("without a PATTERN, all locks are listed", "the PATTERN is empty")
			}
		}
		if l.less = orders[l.sort]; l.less == nil {
			return usageError("it is key, age or waiting", "--sort %s is no order", l.sort)
		}
		set, err := f.masterSet()
		if err != nil {
			return err
		}
		return l.run(cmd.Context(), set)
	}
	return cmd
}

// A lister is a run of ls.
type lister struct {
	pattern string
	asJSON  bool
	watch   bool
	waiting bool
	sort    string
	less    func(a, b redlock.LockInfo) int
	out     *terminal
	rows    []redlock.LockInfo // that are to be written together
	count   int                // of the locks that were found
	unread  int                // of those left out of which it may not be read who waits
}

const (
	watched    = 1000        // locks that --watch shows
	watchPause = time.Second // between two lists
)

// orders are those of --sort, but for locks that are alike.
var orders = map[string]func(a, b redlock.LockInfo) int{
	"": byKey, "key": byKey,
	"age": func(a, b redlock.LockInfo) int {
		if a.Since.IsZero() || b.Since.IsZero() { // one is not known, and comes last
			return b.Since.Compare(a.Since)
		}
		return a.Since.Compare(b.Since)
	},
	"waiting": func(a, b redlock.LockInfo) int { return cmp.Compare(b.Waiting, a.Waiting) },
}

func byKey(a, b redlock.LockInfo) int {
	return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Kind, b.Kind))
}

func (l *lister) run(ctx context.Context, set masterSet) error {
	client, err := set.openAnyway(ctx, "ls")
	if err != nil {
		return err
	}
	defer client.Close()
	deliver(ctx, client, set.connect.DialTimeout)
	real := newTerminal(os.Stdout)
	for {
		begun := time.Now()
		l.out, l.count, l.unread, l.rows = real, 0, 0, l.rows[:0]
		var screen bytes.Buffer
		if l.watch {
			l.out = &terminal{Writer: &screen, colours: real.colours, columns: real.columns}
		}
		last := l.list(ctx, client, begun)
		var round *redlock.RoundError
		if last != nil && !errors.As(last, &round) { // of the pattern
			return usageError("", "%w", last)
		}
		if l.watch {
			l.refresh(real, screen.String(), begun, last)
			if err := real.failure(); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(max(watchPause, time.Since(begun))):
				continue
			}
		}
		switch err := l.out.failure(); {
		case err != nil:
			return err
		case errors.Is(last, redlock.ErrIncomplete):
			complain(last.Error(), "every lock that is held was listed; "+doctorRemedy)
		case last != nil:
			return &failure{exitNoQuorum, last, doctorRemedy}
		}
		if l.unread > 0 {
			complain(fmt.Sprintf("of %s it may not be read who waits", plural(l.unread, "lock")), "the user lacks rights to {KEY}:line*")
		}
		if l.count == 0 {
			if isTerminal(os.Stdout) {
				real.say("", plain, l.none())
			}
			return &failure{status: exitNo}
		}
		return nil
	}
}

// list writes the locks, and returns the error with which the list ends.
func (l *lister) list(ctx context.Context, client *redlock.Client, now time.Time) (last error) {
	for lock, err := range client.Locks(ctx, l.pattern) {
		if err != nil {
			last = err
			break
		}
		if l.waiting && lock.Waiting <= 0 {
			if lock.Waiting < 0 {
				l.unread++
			}
			continue
		}
		switch l.count++; {
		case l.asJSON && l.sort == "":
			if l.encode(lock, now); l.watch && l.count == watched {
				return nil
			}
		case isKey(l.pattern) && !l.asJSON:
			l.detail(lock)
		default:
			if !l.asJSON {
				lock.Waiters = nil // there can be many locks
			}
			l.rows = append(l.rows, lock)
		}
		if l.out.err != nil {
			break
		}
	}
	slices.SortFunc(l.rows, func(a, b redlock.LockInfo) int { return cmp.Or(l.less(a, b), byKey(a, b)) })
	if l.watch {
		l.rows = l.rows[:min(len(l.rows), watched)]
	}
	if !l.asJSON {
		l.table()
		return last
	}
	for _, lock := range l.rows {
		l.encode(lock, now)
	}
	return last
}

// none says that there is no lock.
func (l *lister) none() string {
	text := "no lock"
	if l.waiting {
		text = "nobody waits for a lock"
	}
	if l.pattern != "" {
		text += " that matches " + l.pattern
	}
	return text
}

// refresh writes a list in the place of the one before.
func (l *lister) refresh(real *terminal, text string, begun time.Time, last error) {
	if l.asJSON {
		real.printf("%s", text)
		if last != nil {
			complain(last.Error(), "")
		}
		return
	}
	head := terminal{Writer: new(bytes.Buffer), colours: real.colours, columns: real.columns}
	what := plural(l.count, "lock")
	if l.count > watched {
		what = fmt.Sprintf("the first %d of %s: a PATTERN makes them fewer", watched, what)
	}
	head.say("", plain, fmt.Sprintf("%s  %s", timeText(begun), what))
	if last != nil {
		head.say("", red, last.Error())
	}
	text = fmt.Sprint(head.Writer, "\n", text)
	if real.screen {
		text = "\x1b[H\x1b[2J" + text // home, and clear
	} else {
		text += "\n"
	}
	real.printf("%s", text)
}

func (l *lister) table() {
	if len(l.rows) == 0 {
		return
	}
	rows := [][]cell{header("OWNER", "KIND", "MASTERS", "LEFT", "AGE", "WAIT", "KEY")}
	for _, lock := range l.rows {
		rows = append(rows, rowOf(lock))
	}
	l.out.table("", 2, rows)
}

func rowOf(lock redlock.LockInfo) []cell {
	colour := plain
	if !lock.Held && lock.Used == 0 {
		colour = dim
	}
	masters, left, since := "-", "-", "-"
	if !lock.Since.IsZero() {
		since = ageOf(lock)
	}
	if h, ok := leaderOf(lock); ok {
		left = briefly(h.TTL)
		if lock.Permits == 0 {
			masters = fmt.Sprintf("%d of %d", len(h.Masters), lock.Masters)
		}
	}
	return []cell{
		{heldBy(lock), colour}, {cmp.Or(lock.Kind, "-"), colour}, {masters, colour}, {left, colour}, {since, colour},
		{waitText(lock), plain}, {lock.Key, colour},
	}
}

// ageOf is for how long somebody has a lock, by a clock that may be ahead of ours.
func ageOf(lock redlock.LockInfo) string { return age(max(0, time.Since(lock.Since))) }

// leaderOf returns the holder of which the row tells: of readers the last to end, of permits the first.
func leaderOf(lock redlock.LockInfo) (leader redlock.Holder, ok bool) {
	for _, h := range lock.Holders {
		switch longer := uint64(h.TTL) > uint64(leader.TTL); { // below 0 is the longest
		case !ok:
			leader, ok = h, true
		case h.Held != leader.Held || lock.Kind != "shared" && lock.Kind != "permits":
		case longer == (lock.Kind == "shared"):
			leader = h
		}
	}
	return leader, ok
}

// heldBy says who holds a lock.
func heldBy(lock redlock.LockInfo) string {
	switch {
	case lock.Kind == "":
		return "nobody"
	case lock.Kind == "other":
		return behind.OfHolder(&lock.Holders[0]).Other
	case lock.Kind == "permits":
		if lock.Used < 0 {
			return "not counted, of " + plural(lock.Permits, "permit")
		}
		return fmt.Sprintf("%d of %s", lock.Used, plural(lock.Permits, "permit"))
	case lock.Readers > 1:
		return plural(lock.Readers, "reader")
	}
	owner := cmp.Or(lock.Holders[0].Owner, "without a name")
	switch {
	case lock.Holders[0].Left:
		return "left by " + owner
	case lock.Holders[0].Revoked:
		return owner + ", revoked"
	}
	return owner
}

func waitText(lock redlock.LockInfo) string {
	switch {
	case lock.Waiting < 0:
		return "?"
	case lock.Waiting == 0:
		return "-"
	}
	return strconv.Itoa(lock.Waiting)
}

// holderText is ownerText of a lock in a list.
func holderText(h redlock.Holder) string {
	if other := behind.OfHolder(&h).Other; other != "" {
		return other
	}
	return ownerText(census.Holder{Token: h.Token})
}

// detail writes all that is known of one lock.
func (l *lister) detail(lock redlock.LockInfo) {
	if l.count > 1 {
		l.out.printf("\n")
	}
	text := fmt.Sprintf("%s: %s, held by %s", lock.Key, cmp.Or(lock.Kind, "free"), heldBy(lock))
	switch is := stateOfAll(lock); {
	case lock.Kind == "other":
		text = lock.Key + ": " + behind.OfHolder(&lock.Holders[0]).Other
	case is != held && lock.Permits == 0 && len(lock.Holders) > 0:
		text = fmt.Sprintf("%s: %s, %s: %d of %s name %s", lock.Key, lock.Kind, is, len(lock.Holders[0].Masters), plural(lock.Masters, "master"), heldBy(lock))
	case lock.Kind == "plain" && lock.Holders[0].Left:
		text = fmt.Sprintf("%s: %s, and nobody runs it", lock.Key, heldBy(lock))
	}
	if lock.Fence != 0 {
		text += fmt.Sprintf(", fence %d", lock.Fence)
	}
	l.out.say("", plain, text)
	if !lock.Since.IsZero() {
		l.out.say("", plain, fmt.Sprintf("taken at %s, %s ago, as its fence says", timeText(lock.Since), ageOf(lock)))
	}
	rows := [][]cell{header("MASTERS", "LEFT", "HOLDER")}
	for _, h := range lock.Holders {
		colour := plain
		if !h.Held {
			colour = dim
		}
		owner := holderText(h)
		if h.Revoked {
			owner += ", revoked: " + h.Reason
		}
		if h.Permit > 0 {
			owner = fmt.Sprintf("%d: %s", h.Permit, owner)
		}
		rows = append(rows, []cell{{fmt.Sprintf("%d of %d", len(h.Masters), lock.Masters), colour}, {briefly(h.TTL), colour}, {owner, colour}})
	}
	if len(rows) > 1 {
		l.out.printf("\n")
		l.out.table("", 0, rows)
	}
	writeWaiters(l.out, lock.Waiters, lock.Waiting)
	if len(lock.Silent) > 0 {
		l.out.printf("\n")
		l.out.say("", plain, "no answer: "+strings.Join(lock.Silent, ", "))
	}
}

// writeWaiters writes who waits for a lock, in their order. count is how many there are.
func writeWaiters(t *terminal, waiters []redlock.LockWaiter, count int) {
	if len(waiters) == 0 {
		return
	}
	t.printf("\n")
	rows := [][]cell{header("PLACE", "WAITED", "WAITER")}
	for i, w := range waiters {
		rows = append(rows, []cell{{strconv.Itoa(i + 1), plain}, {briefly(w.Waited), plain}, {waiterText(w), plain}})
	}
	t.table("", 0, rows)
	if more := count - len(waiters); more > 0 {
		t.say("", plain, fmt.Sprintf("and %d more", more))
	}
}

func waiterText(w redlock.LockWaiter) string {
	name := cmp.Or(w.Owner, nameless)
	if w.Reader {
		name += ", to read"
	}
	return name
}

// A waiterJSON is a waiter in line.
type waiterJSON struct {
	Owner    string `json:"owner,omitempty"`
	WaitedMS int64  `json:"waited_ms"`
	Reader   bool   `json:"reader,omitempty"`
}

func waitersJSON(waiters []redlock.LockWaiter) (all []waiterJSON) {
	for _, w := range waiters {
		all = append(all, waiterJSON{w.Owner, w.Waited.Milliseconds(), w.Reader})
	}
	return all
}

// stateOf is what can be said of a holder.
func stateOf(lock redlock.LockInfo, h redlock.Holder) state {
	switch {
	case h.Held:
		return held
	case len(h.Masters)+len(lock.Silent) >= quorum.Majority(lock.Masters):
		return unknown
	}
	return free
}

// stateOfAll is what can be said of a lock.
func stateOfAll(lock redlock.LockInfo) state {
	open := 0
	for _, h := range lock.Holders {
		if stateOf(lock, h) == unknown {
			open++
		}
	}
	switch {
	case lock.Held:
		return held
	case open > 0 && lock.Used+open >= lock.Permits: // of permits, all must be held
		return unknown
	}
	return free
}

func (l *lister) encode(lock redlock.LockInfo, now time.Time) {
	type holder struct {
		Owner   string   `json:"owner,omitempty"`
		State   state    `json:"state"`             // free: too few masters have it; unknown: it depends on those that are silent
		Lingers bool     `json:"lingers,omitempty"` // it is only left there (--min-hold), and nobody runs it
		Revoked string   `json:"revoked,omitempty"` // the reason; its holder has not let go yet
		Permit  int      `json:"permit,omitempty"`
		LeftMS  *int64   `json:"left_ms"` // null where it never expires
		Masters []string `json:"on"`
	}
	out := struct {
		Time *time.Time `json:"time,omitempty"` // with --watch
		keyJSON
		Kind    string       `json:"kind,omitempty"`
		State   state        `json:"state"`
		Holders []holder     `json:"holders"`
		Fence   uint64       `json:"fence,omitempty"`
		Since   *time.Time   `json:"since,omitempty"` // about when it was taken
		Readers int          `json:"readers_held,omitempty"`
		Permits int          `json:"permits_in_all,omitempty"`
		Used    int          `json:"permits_held,omitempty"`
		Waiting *int         `json:"waiting"` // null if it may not be read
		Waiters []waiterJSON `json:"waiters,omitempty"`
		Masters int          `json:"asked"` // of so many masters
		Silent  []string     `json:"silent,omitempty"`
	}{keyJSON: newKeyJSON(lock.Key), Kind: lock.Kind, State: stateOfAll(lock), Holders: []holder{}, Fence: lock.Fence, Readers: max(lock.Readers, 0),
		Permits: lock.Permits, Used: lock.Used, Waiters: waitersJSON(lock.Waiters), Masters: lock.Masters, Silent: lock.Silent}
	if l.watch {
		out.Time = &now
	}
	if !lock.Since.IsZero() {
		out.Since = new(lock.Since.UTC())
	}
	if lock.Waiting >= 0 {
		out.Waiting = &lock.Waiting
	}
	for _, h := range lock.Holders {
		out.Holders = append(out.Holders, holder{h.Owner, stateOf(lock, h), h.Left, h.Reason, h.Permit, leftMS(h.TTL), h.Masters})
	}
	encodeJSON(l.out, out, "")
}
