package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/resp"
	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var f fleet
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags] KEY...",
		Short: "Show who holds a lock, and for how long",
		Long: `status asks every master who holds the lock, and changes nothing.

The lock is held if one holder has its key on a majority of the masters. On
fewer masters the key is a leftover, or an attempt under way, and the lock is
free. If so few masters answer that it could be either, the state is unknown.

A shared lock is held if one reader is there on a majority of the masters. Each
reader is listed, with what is left of its own time, those with most of it if a
master has more than 1000.

A key that holds anything else is no lock, but blocks it: the lock is shown as
held.

With --permits N status asks who holds each of N permits instead. They are locks
by themselves: the lock as a whole is free if one of them is, and held if none
is. Those that are not listed are free. N must be that of those who use them.

The name of a holder is a hint: whoever may write the key can write any name.

FENCE is the number of the last lock that was taken with one, also if the key is
free now.

--watch writes a line for each key at once, and another whenever its holder or
fence changes, until a signal ends it. The masters tell of changes. What came
and went within a few milliseconds is left out. It is to find a leader and to
look at locks, and no proof that one is still held. It does not tell readers
apart.

--json writes one object for each key, and with --watch one on each line.

Exit status: 0 held, 1 free, 97 unknown, 64 wrong usage, 74 write error. Of
several keys it is 97 if one is unknown, and otherwise 1 if one is free.
` + mastersHelp,
		Example: `  redlock status nightly-report
  redlock status --json nightly-report | jq -r .owner
  if redlock status -q nightly-report; then echo "still running"; fi
  redlock status --watch scheduler backup              # who leads?
  redlock status --permits 4 gpu
  redlock status --permits 4 --json gpu | jq .free`,
		Args:              someKeys,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	n := cmd.Flags().Int("permits", 0, "ask for the `N` permits of the key, 1 to 1000")
	watch := cmd.Flags().Bool("watch", false, "go on, and write a line when something changes")
	quiet := cmd.Flags().BoolP("quiet", "q", false, "write nothing, only exit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		permitted := cmd.Flags().Changed("permits")
		if permitted {
			if err := checkPermits(*n); err != nil {
				return err
			}
		}
		if *watch && (permitted || *quiet) {
			return usageError("", "--watch goes neither with --permits nor with --quiet")
		}
		masters, err := f.addresses()
		if err != nil {
			return err
		}
		opt, err := f.options()
		if err != nil {
			return err
		}
		if *watch {
			return watchAll(cmd.Context(), masters, opt, args, asJSON)
		}
		type outcome struct {
			s   *standing
			r   report
			err error
		}
		all := make([]outcome, len(args))
		var asking sync.WaitGroup
		for i, key := range args {
			asking.Go(func() {
				if permitted {
					a := newAllotment(key, *n, permits(cmd.Context(), masters, opt, key, *n))
					all[i] = outcome{a.standing, a, a.check()}
				} else {
					s := newStanding(key, holders(cmd.Context(), masters, opt, key))
					all[i] = outcome{s, s, nil}
				}
			})
		}
		asking.Wait()
		out, result := newTerminal(os.Stdout), error(nil)
		var unsure *standing // the first
		for i, o := range all {
			if o.err != nil {
				return o.err
			}
			switch {
			case *quiet:
			case asJSON:
				err = o.r.writeJSON(out)
			default:
				if i > 0 {
					out.printf("\n")
				}
				o.r.write(out)
				err = out.err
			}
			if err != nil {
				return &failure{exitIO, err, ""}
			}
			switch o.s.state {
			case free:
				result = cmp.Or[error](result, &failure{status: exitNo})
			case unknown:
				unsure = cmp.Or(unsure, o.s)
			}
		}
		if s := unsure; s != nil {
			return &failure{exitNoQuorum, fmt.Errorf("%s to tell who holds %q", s.tooFew(), s.key), doctorRemedy}
		}
		return result
	}
	return cmd
}

// A report is what status writes.
type report interface {
	write(t *terminal)
	writeJSON(t *terminal) error
}

const doctorRemedy = "'redlock doctor' says what is wrong with the masters"

// someKeys wants one KEY or more.
func someKeys(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usageError("usage: "+cmd.UseLine(), "the KEY is missing")
	case slices.Contains(args, ""):
		return usageError("", "the KEY is empty")
	}
	return nil
}

func keyOnly(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return usageError("usage: "+cmd.UseLine(), "one KEY is wanted, %d were given", len(args))
	case args[0] == "":
		return usageError("", "the KEY is empty")
	}
	return nil
}

// An answer is what one master says of a key.
type answer struct {
	redlock.Holder
	readers []redlock.Holder // that hold it; then the Holder itself has no token
	permits []redlock.Holder // of each permit, if they were asked for
	agreed  int              // how many permits there are, as their users have agreed; 0 if nothing says so
}

func answers(holders []redlock.Holder) (all []answer) {
	for _, h := range holders {
		all = append(all, answer{Holder: h})
	}
	return all
}

// holders asks every master who holds a key there, and writes nothing. Unlike
// [redlock.Client.Holders], it does not need a majority of the masters.
func holders(ctx context.Context, masters []string, opt conn.Options, key string) []answer {
	return ask(ctx, masters, opt, func(p *probe, a *answer) error { return a.holder(ctx, p, key) })
}

// ask has each master's answer made by a question, which is put to all of them at once.
func ask(ctx context.Context, masters []string, opt conn.Options, question func(*probe, *answer) error) []answer {
	all := make([]answer, len(masters))
	for i, err := range askAll(ctx, masters, opt, func(i int, p *probe) error { return question(p, &all[i]) }) {
		if err != nil {
			all[i] = answer{Holder: redlock.Holder{Err: err}}
		}
		all[i].Master = conn.Redact(masters[i])
	}
	return all
}

// askAll puts a question to all masters at once, and returns how each has failed.
func askAll(ctx context.Context, masters []string, opt conn.Options, question func(i int, p *probe) error) []error {
	errs := make([]error, len(masters))
	var asking sync.WaitGroup
	for i, master := range masters {
		asking.Go(func() {
			p, err := dialProbe(ctx, master, opt)
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
	replies, err := p.do(ctx, []string{"GET", key}, []string{"PTTL", key}, []string{"GET", fenceKey(key)}, []string{"GET", agreement(key)})
	if err != nil {
		return err
	}
	if f := replies[2]; !f.IsError() { // the user may lack the right to it
		a.Fence, _ = strconv.ParseUint(string(f.Bytes()), 10, 64)
	}
	a.agreed = agreed(replies[3])
	if a.Token, a.TTL, err = lockOf(replies[0], replies[1]); err != nil || a.Token != redlock.UnknownToken {
		return err
	}
	return a.shared(ctx, p, key)
}

// lockOf returns the token in a key and how long it lives, from the replies to GET and PTTL.
func lockOf(got, pttl resp.Value) (token redlock.Secret, ttl time.Duration, err error) {
	ms, ok := pttl.Int()
	switch {
	case got.IsNull(), ok && ms == -2: // it expired in between
		return redlock.Secret{}, 0, nil
	case conn.ErrorCode(got) == "WRONGTYPE":
		token = redlock.UnknownToken // a key that is not a string is no lock, but blocks it
	case got.IsError():
		return redlock.Secret{}, 0, errors.New("GET: " + conn.ErrorText(got))
	default:
		token = redlock.NewSecret(string(got.Bytes()))
	}
	if !ok {
		return redlock.Secret{}, 0, errors.New("PTTL: " + conn.ErrorText(pttl))
	}
	return token, time.Duration(ms) * time.Millisecond, nil
}

// maxReaders is how many readers a master names.
const maxReaders = 1000

// shared asks for the readers that hold the key. They are the members of a sorted set, and the
// score of each is the end of its term by the master's clock.
func (a *answer) shared(ctx context.Context, p *probe, key string) error {
	replies, err := p.do(ctx, []string{"TIME"}, []string{"ZRANGE", key, strconv.Itoa(-maxReaders), "-1", "WITHSCORES"})
	if err != nil {
		return err
	}
	members := flat(replies[1])
	switch conn.ErrorCode(replies[1]) {
	case "WRONGTYPE":
		return nil // a key that is no lock
	case "":
	default:
		return errors.New("ZRANGE: " + conn.ErrorText(replies[1]))
	}
	if len(members) == 0 { // the last reader has left in between
		a.Token, a.TTL = redlock.Secret{}, 0
		return nil
	}
	clock := flat(replies[0])
	if len(clock) != 2 {
		return errors.New("TIME: " + conn.ErrorText(replies[0]))
	}
	seconds, _ := clock[0].Float() // which reads the text that it is
	micros, _ := clock[1].Float()
	now := int64(seconds)*1000 + int64(micros)/1000
	for i := 0; i+1 < len(members); i += 2 {
		if ends, ok := members[i+1].Float(); ok && int64(ends) >= now {
			left := time.Duration(int64(ends)-now) * time.Millisecond
			a.readers = append(a.readers, redlock.Holder{Token: redlock.NewSecret(string(members[i].Bytes())), TTL: left})
		}
	}
	if len(a.readers) > 0 {
		a.Token = redlock.Secret{}
	}
	return nil
}

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

// A state is what can be said of a lock.
type state string

const (
	held    state = "held"
	free    state = "free"
	unknown state = "unknown" // it depends on the masters that did not answer
)

// A claim is the count of the masters that name a holder.
type claim struct {
	redlock.Holder
	votes int
	left  time.Duration // until it is over unless it is renewed; below 0: never
}

// A standing is the count of what the masters say about a lock.
type standing struct {
	key      string
	state    state
	leader   claim // of those that most masters name, the first
	answered int
	quorum   int
	fence    uint64 // the greatest that a majority remembers, be it another on some; 0 if none does
	answers  []answer

	readers []claim       // all that a master names, by their names
	sharing int           // those of them that hold the lock
	shared  time.Duration // until the last of these is gone
}

func newStanding(key string, all []answer) *standing {
	s := &standing{key: key, answers: all, quorum: len(all)/2 + 1}
	var holders, readers tally
	var fences []uint64
	for _, a := range all {
		if a.Err != nil {
			continue
		}
		s.answered++
		fences = append(fences, a.Fence)
		if !a.Token.IsZero() {
			holders.count(a.Holder)
		}
		for _, r := range a.readers {
			readers.count(r)
		}
	}
	if slices.Sort(fences); len(fences) > 0 { // the last that was given: one that somebody wrote is on fewer masters
		s.fence = fences[max(0, len(fences)-s.quorum)]
	}
	s.readers = readers.claims(s.quorum)
	for _, c := range slices.Concat(holders.claims(s.quorum), s.readers) {
		if c.votes > s.leader.votes {
			s.leader = c
		}
	}
	slices.SortFunc(s.readers, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.Owner(), b.Owner()), cmp.Compare(a.Token.Reveal(), b.Token.Reveal()))
	})
	for _, r := range s.readers {
		if r.votes >= s.quorum {
			s.sharing++
			s.shared = max(s.shared, r.left)
		}
	}
	switch silent := len(all) - s.answered; {
	case s.leader.votes >= s.quorum:
		s.state = held
	case s.leader.votes+silent >= s.quorum:
		s.state = unknown
	default:
		s.state = free
	}
	return s
}

// left is for how long the lock is held unless it is renewed; it is below 0 for ever.
func (s *standing) left() time.Duration {
	switch {
	case s.state != held:
		return 0
	case s.sharing > 0:
		return s.shared
	}
	return s.leader.left
}

// holder says who holds the lock.
func (s *standing) holder() string {
	if s.sharing > 0 {
		return readersText(s.sharing)
	}
	return ownerText(s.leader.Holder)
}

func readersText(n int) string {
	if n >= maxReaders {
		return fmt.Sprintf("at least %d readers", n)
	}
	return plural(n, "reader")
}

// A tally counts the masters that name each holder.
type tally struct {
	order []redlock.Holder // as they were first named
	ttls  map[redlock.Secret][]time.Duration
}

func (t *tally) count(h redlock.Holder) {
	if t.ttls == nil {
		t.ttls = map[redlock.Secret][]time.Duration{}
	}
	if t.ttls[h.Token] == nil {
		t.order = append(t.order, h)
	}
	t.ttls[h.Token] = append(t.ttls[h.Token], h.TTL)
}

func (t *tally) claims(quorum int) (all []claim) {
	for _, h := range t.order {
		ttls := t.ttls[h.Token]
		all = append(all, claim{h, len(ttls), lasting(ttls, min(quorum, len(ttls)))})
	}
	return all
}

// tooFew says that the masters that answered leave it open who holds the lock.
func (s *standing) tooFew() string {
	are := "are"
	if s.quorum == 1 {
		are = "is"
	}
	return fmt.Sprintf("%d of %s answered; %d %s needed", s.answered, plural(len(s.answers), "master"), s.quorum, are)
}

// lasting is for how long at least quorum of the keys live; it is below 0 for ever.
func lasting(ttls []time.Duration, quorum int) time.Duration {
	for i, ttl := range ttls {
		if ttl < 0 {
			ttls[i] = math.MaxInt64
		}
	}
	slices.Sort(ttls)
	if left := ttls[len(ttls)-quorum]; left < math.MaxInt64 {
		return left
	}
	return -1
}

func ownerText(h redlock.Holder) string {
	if h.Token == redlock.UnknownToken {
		return "a key that is no lock"
	}
	if owner := h.Owner(); owner != "" {
		return owner
	}
	return "somebody who left no name"
}

func leftText(left time.Duration) string {
	switch {
	case left < 0:
		return "without expiry"
	case left >= 100*time.Second:
		return left.Round(time.Second).String() + " left"
	}
	return fmt.Sprintf("%.1fs left", left.Seconds())
}

func (s *standing) write(t *terminal) {
	text := fmt.Sprintf("%s is %s", s.key, s.state)
	switch {
	case s.state == unknown:
		text = fmt.Sprintf("%s: unknown, %d of %s answered", s.key, s.answered, plural(len(s.answers), "master"))
	case s.sharing > 0:
		text += fmt.Sprintf(" by %s, %s", s.holder(), leftText(s.left()))
	case s.state == held:
		text += fmt.Sprintf(" by %s, on %d of %s, %s", s.holder(), s.leader.votes, plural(len(s.answers), "master"), leftText(s.left()))
	}
	t.say("", plain, text)
	t.printf("\n")
	if len(s.readers) > 0 {
		rows := [][]cell{header("MASTERS", "LEFT", "READER")}
		for _, r := range s.readers {
			rows = append(rows, s.claimed(r))
		}
		t.table("", 1, rows)
		t.printf("\n")
	}
	rows := [][]cell{header("MASTER", "LEFT", "HOLDER")}
	if s.fence != 0 {
		rows[0] = slices.Insert(rows[0], 2, header("FENCE")...)
	}
	for _, a := range s.answers {
		row := []cell{{a.Master, plain}, {"-", dim}, {"-", dim}}
		switch {
		case a.Err != nil:
			row[2] = cell{without(a.Err, a.Master), red}
		case a.Token == redlock.UnknownToken:
			row[2] = cell{ownerText(a.Holder), red}
		case len(a.readers) > 0:
			row[1] = cell{leftText(a.TTL), plain}
			row[2] = cell{readersText(len(a.readers)), plain}
		case !a.Token.IsZero():
			row[1] = cell{leftText(a.TTL), plain}
			row[2] = cell{ownerText(a.Holder), plain}
		}
		switch {
		case a.Fence != 0:
			row = slices.Insert(row, 2, cell{strconv.FormatUint(a.Fence, 10), plain})
		case s.fence != 0:
			row = slices.Insert(row, 2, cell{"-", dim})
		}
		rows = append(rows, row)
	}
	t.table("", 1, rows)
	for _, a := range s.answers {
		if a.agreed > 0 {
			t.printf("\n")
			t.say("", plain, fmt.Sprintf("There are %s of it, too: see --permits %d.", plural(a.agreed, "permit"), a.agreed))
			break
		}
	}
}

// claimed is how many masters name a holder, for how long, and who it is. It is dim if they are
// too few.
func (s *standing) claimed(c claim) []cell {
	colour := plain
	if c.votes < s.quorum {
		colour = dim
	}
	return []cell{
		{fmt.Sprintf("%d of %d", c.votes, len(s.answers)), colour}, {leftText(c.left), colour}, {ownerText(c.Holder), colour},
	}
}

// without is an error's text without the master's name, which stands beside it.
func without(err error, master string) string {
	s := strings.TrimPrefix(err.Error(), "conn: ")
	if prefix := master + ": "; len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}

func (s *standing) writeJSON(t *terminal) error {
	type reader struct {
		Token  string `json:"token"`
		Owner  string `json:"owner,omitempty"`
		LeftMS *int64 `json:"left_ms,omitempty"`
		Votes  int    `json:"votes,omitempty"` // not in what one master says
	}
	type master struct {
		Master  string   `json:"master"`
		Token   string   `json:"token,omitempty"`
		Owner   string   `json:"owner,omitempty"`
		LeftMS  *int64   `json:"left_ms,omitempty"`
		Fence   uint64   `json:"fence,omitempty"`
		Readers []reader `json:"readers,omitempty"`
		Error   string   `json:"error,omitempty"`
	}
	out := struct {
		Key      string   `json:"key"`
		State    state    `json:"state"`
		Token    string   `json:"token,omitempty"`   // not of readers
		Owner    string   `json:"owner,omitempty"`   // likewise
		LeftMS   *int64   `json:"left_ms,omitempty"` // null where it never expires
		Fence    uint64   `json:"fence,omitempty"`
		Readers  []reader `json:"readers,omitempty"`
		Votes    int      `json:"votes"`
		Answered int      `json:"answered"`
		Quorum   int      `json:"quorum"`
		Masters  []master `json:"masters"`
	}{Key: s.key, State: s.state, Votes: s.leader.votes, Answered: s.answered, Quorum: s.quorum, Fence: s.fence}
	if s.state == held {
		out.LeftMS = leftMS(s.left())
		if s.sharing == 0 {
			out.Token, out.Owner = s.leader.Token.Reveal(), s.leader.Owner()
		}
	}
	for _, r := range s.readers {
		out.Readers = append(out.Readers, reader{r.Token.Reveal(), r.Owner(), leftMS(r.left), r.votes})
	}
	for _, a := range s.answers {
		m := master{Master: a.Master, Token: a.Token.Reveal(), Owner: a.Owner(), Fence: a.Fence}
		if !a.Token.IsZero() || len(a.readers) > 0 {
			m.LeftMS = leftMS(a.TTL)
		}
		for _, r := range a.readers {
			m.Readers = append(m.Readers, reader{r.Token.Reveal(), r.Owner(), leftMS(r.TTL), 0})
		}
		if a.Err != nil {
			m.Error = without(a.Err, a.Master)
		}
		out.Masters = append(out.Masters, m)
	}
	return writeJSON(t, out)
}

// leftMS is nil for a key that does not expire.
func leftMS(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func writeJSON(t *terminal, v any) error { return encodeJSON(t, v, "  ") }

// encodeJSON writes v as JSON, in which everything is escaped that could harm a terminal, as
// [conn.Printable] has it. encoding/json leaves what lies behind ASCII as it is.
func encodeJSON(t *terminal, v any, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out []byte
	for _, r := range text.String() {
		switch {
		case r == '\n' || strconv.IsPrint(r): // such a line end is none of a string's
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	_, err := t.Write(out)
	return err
}
