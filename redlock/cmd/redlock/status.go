package main

import (
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

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var f fleet
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [flags] KEY",
		Short: "Show who holds a lock, and for how long",
		Long: `status asks every master who holds the lock, and changes nothing.

The lock is held if one holder has its key on a majority of the masters. On
fewer masters the key is a leftover, or an attempt under way, and the lock is
free. If so few masters answer that it could be either, the state is unknown.

A key that is not a string is no lock, but blocks it: the lock is shown as held.

FENCE is the number of the last lock that was taken with one, also if the key is
free now.

Exit status: 0 held, 1 free, 97 unknown, 64 wrong usage, 74 write error.
` + mastersHelp,
		Example: `  redlock status nightly-report
  redlock status --json nightly-report | jq -r .owner
  if redlock status -q nightly-report; then echo "still running"; fi`,
		Args:              keyOnly,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	quiet := cmd.Flags().BoolP("quiet", "q", false, "write nothing, only exit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		masters, err := f.addresses()
		if err != nil {
			return err
		}
		opt, err := f.options()
		if err != nil {
			return err
		}
		s := newStanding(args[0], holders(cmd.Context(), masters, opt, args[0]))
		switch out := newTerminal(os.Stdout); {
		case *quiet:
		case asJSON:
			err = s.writeJSON(out)
		default:
			s.write(out)
			err = out.err
		}
		if err != nil {
			return &failure{exitIO, err, ""}
		}
		switch s.state {
		case free:
			return &failure{status: exitNo}
		case unknown:
			return &failure{exitNoQuorum, fmt.Errorf("%s to tell who holds %q", s.tooFew(), s.key), doctorRemedy}
		}
		return nil
	}
	return cmd
}

const doctorRemedy = "'redlock doctor' says what is wrong with the masters"

func keyOnly(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return usageError("usage: "+cmd.UseLine(), "one KEY is wanted, %d were given", len(args))
	case args[0] == "":
		return usageError("", "the KEY is empty")
	}
	return nil
}

// holders asks every master who holds a key there, and writes nothing. Unlike
// [redlock.Client.Holders], it does not need a majority of the masters.
func holders(ctx context.Context, masters []string, opt conn.Options, key string) []redlock.Holder {
	all := make([]redlock.Holder, len(masters))
	var asking sync.WaitGroup
	for i, master := range masters {
		asking.Go(func() {
			h := &all[i]
			h.Master = conn.Redact(master)
			h.Token, h.TTL, h.Fence, h.Err = holder(ctx, master, opt, key)
		})
	}
	asking.Wait()
	return all
}

func holder(ctx context.Context, master string, opt conn.Options, key string) (token string, ttl time.Duration, fence uint64, err error) {
	p, err := dialProbe(ctx, master, opt)
	if err != nil {
		return "", 0, 0, err
	}
	defer p.close()
	replies, err := p.do(ctx, []string{"GET", key}, []string{"PTTL", key}, []string{"GET", "{" + key + "}:fence"})
	if err != nil {
		return "", 0, 0, err
	}
	if f := replies[2]; !f.IsError() { // the user may lack the right to it
		fence, _ = strconv.ParseUint(string(f.Bytes()), 10, 64)
	}
	ms, ok := replies[1].Int()
	switch got := replies[0]; {
	case got.IsNull():
		return "", 0, fence, nil
	case conn.ErrorCode(got) == "WRONGTYPE":
		token = "?" // a key that is not a string is no lock, but blocks it
	case got.IsError():
		return "", 0, 0, errors.New("GET: " + conn.ErrorText(got))
	case ok && ms == -2: // it expired in between
		return "", 0, fence, nil
	default:
		token = string(got.Bytes())
	}
	if !ok {
		return "", 0, 0, errors.New("PTTL: " + conn.ErrorText(replies[1]))
	}
	return token, time.Duration(ms) * time.Millisecond, fence, nil
}

// A state is what can be said of a lock.
type state string

const (
	held    state = "held"
	free    state = "free"
	unknown state = "unknown" // it depends on the masters that did not answer
)

// A standing is the count of what the masters say about a lock.
type standing struct {
	key      string
	state    state
	leader   redlock.Holder // a holder with the token that most masters have
	votes    int            // how many masters have that token
	left     time.Duration  // until it is free unless it is renewed; below 0: for ever
	answered int
	quorum   int
	fence    uint64 // the greatest that a master remembers; 0 if none does
	holders  []redlock.Holder
}

func newStanding(key string, all []redlock.Holder) *standing {
	s := &standing{key: key, holders: all, quorum: len(all)/2 + 1}
	ttls := map[string][]time.Duration{}
	for _, h := range all {
		if h.Err != nil {
			continue
		}
		s.answered++
		s.fence = max(s.fence, h.Fence)
		if h.Token == "" {
			continue
		}
		ttls[h.Token] = append(ttls[h.Token], h.TTL)
		if n := len(ttls[h.Token]); n > s.votes {
			s.leader, s.votes = h, n
		}
	}
	switch silent := len(all) - s.answered; {
	case s.votes >= s.quorum:
		s.state = held
		s.left = lasting(ttls[s.leader.Token], s.quorum)
	case s.votes+silent >= s.quorum:
		s.state = unknown
	default:
		s.state = free
	}
	return s
}

// tooFew says that the masters that answered leave it open who holds the lock.
func (s *standing) tooFew() string {
	are := "are"
	if s.quorum == 1 {
		are = "is"
	}
	return fmt.Sprintf("%d of %s answered; %d %s needed", s.answered, plural(len(s.holders), "master"), s.quorum, are)
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
	if h.Token == "?" {
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
	switch s.state {
	case held:
		text += fmt.Sprintf(" by %s, on %d of %s, %s", ownerText(s.leader), s.votes, plural(len(s.holders), "master"), leftText(s.left))
	case unknown:
		text = fmt.Sprintf("%s: unknown, %d of %s answered", s.key, s.answered, plural(len(s.holders), "master"))
	}
	t.say("", plain, text)
	t.printf("\n")
	rows := [][]cell{header("MASTER", "LEFT", "HOLDER")}
	if s.fence != 0 {
		rows[0] = slices.Insert(rows[0], 2, header("FENCE")...)
	}
	for _, h := range s.holders {
		row := []cell{{h.Master, plain}, {"-", dim}, {"-", dim}}
		switch {
		case h.Err != nil:
			row[2] = cell{without(h.Err, h.Master), red}
		case h.Token == "?":
			row[2] = cell{"a key that is no lock", red}
		case h.Token != "":
			row[1] = cell{leftText(h.TTL), plain}
			row[2] = cell{ownerText(h), plain}
		}
		switch {
		case h.Fence != 0:
			row = slices.Insert(row, 2, cell{strconv.FormatUint(h.Fence, 10), plain})
		case s.fence != 0:
			row = slices.Insert(row, 2, cell{"-", dim})
		}
		rows = append(rows, row)
	}
	t.table("", 1, rows)
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
	type master struct {
		Master string `json:"master"`
		Token  string `json:"token,omitempty"`
		Owner  string `json:"owner,omitempty"`
		LeftMS *int64 `json:"left_ms,omitempty"`
		Fence  uint64 `json:"fence,omitempty"`
		Error  string `json:"error,omitempty"`
	}
	out := struct {
		Key      string   `json:"key"`
		State    state    `json:"state"`
		Token    string   `json:"token,omitempty"`
		Owner    string   `json:"owner,omitempty"`
		LeftMS   *int64   `json:"left_ms,omitempty"` // null where it never expires
		Fence    uint64   `json:"fence,omitempty"`
		Votes    int      `json:"votes"`
		Answered int      `json:"answered"`
		Quorum   int      `json:"quorum"`
		Masters  []master `json:"masters"`
	}{Key: s.key, State: s.state, Votes: s.votes, Answered: s.answered, Quorum: s.quorum, Fence: s.fence}
	if s.state == held {
		out.Token, out.Owner, out.LeftMS = s.leader.Token, s.leader.Owner(), leftMS(s.left)
	}
	for _, h := range s.holders {
		m := master{Master: h.Master, Token: h.Token, Owner: h.Owner(), Fence: h.Fence}
		if h.Token != "" {
			m.LeftMS = leftMS(h.TTL)
		}
		if h.Err != nil {
			m.Error = without(h.Err, h.Master)
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

func writeJSON(t *terminal, v any) error {
	enc := json.NewEncoder(t)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
