package story

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
)

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Short is a duration as people read it.
func Short(d time.Duration) string {
	switch d = d.Abs(); {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		d = d.Round(time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(100 * time.Microsecond)
	default:
		d = d.Round(time.Microsecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// list is a list as people read it.
func list(all []string) string {
	switch len(all) {
	case 0:
		return "none"
	case 1:
		return all[0]
	}
	if more := len(all) - maxListed; more > 1 {
		return strings.Join(all[:maxListed], ", ") + fmt.Sprintf(" and %d others", more)
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

func plainText(detail string) string {
	if detail == "" {
		return "The record does not say why."
	}
	return "Its error: " + strings.TrimPrefix(detail, "redlock: ") + "."
}

// Which votes votesText tells of.
const (
	against  = iota // those that are not yes
	refusals        // those that say no, or failed
)

// votesText says what masters have said in a round.
func votesText(r *Round, which int) string {
	said := map[string][]string{}
	var order []string
	lost := 0
	for _, v := range r.Votes {
		if v.Verdict == record.No || v.Verdict == record.Failed {
			lost++
		}
	}
	for i, v := range r.Votes {
		m := r.master(i)
		what := ""
		switch v.Verdict {
		case record.No:
			what = "said no"
		case record.Pending:
			what = "did not answer in time"
		default:
			what = "failed (" + cmp.Or(reason(v.Err, m), "without a reason") + ")"
		}
		switch {
		case v.Verdict == record.Yes, which == refusals && v.Verdict == record.Pending:
			continue
		case v.Verdict == record.Pending && 2*lost >= len(r.Votes): // nobody waits for those who are left
			continue
		}
		if said[what] == nil {
			order = append(order, what)
		}
		said[what] = append(said[what], m)
	}
	var parts []string
	for _, what := range order {
		parts = append(parts, list(said[what])+" "+what)
	}
	return strings.Join(parts, "; ")
}

// reason is the beginning of a master's error, for people: what follows says what to do about it.
func reason(err, master string) string {
	text, _, _ := strings.Cut(err, ";")
	for _, r := range reasons {
		if strings.Contains(text, r.part) {
			return r.words
		}
	}
	for _, prefix := range []string{"mux: ", "conn: ", master + ": "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return strings.TrimSuffix(text, ".")
}

// reasons are what systems say of connections, in other words than each other.
var reasons = []struct{ part, words string }{
	{"does not answer", "no answer"},
	{"connection refused", "nobody listens there"},
	{"actively refused", "nobody listens there"}, // Windows
	{"connection reset", brokeOff},
	{"forcibly closed", brokeOff},
	{"broken pipe", brokeOff},
	{"EOF", brokeOff},
}

const brokeOff = "the connection broke"

// whyFailed says what was in the way of a round.
func (r *Round) whyFailed() string {
	which := against
	if r.Outcome == "refused" {
		which = refusals
	}
	return cmp.Or(votesText(r, which), reason(r.Detail, ""), "the record does not say why")
}

// do says what an operation does.
func do(op string) string { return cmp.Or(opWords[op], op) }

var opWords = map[string]string{record.OpLock: "take", record.OpUnlock: "release", record.OpRenew: "renew", record.OpRecheck: "renew"}

// inWords says what an outcome means.
func inWords(outcome string) string {
	return cmp.Or(outcomeWords[outcome], strings.ReplaceAll(outcome, "_", " "))
}

var outcomeWords = map[string]string{
	"held":      "another has it",
	"no_quorum": "too few masters answered",
	"refused":   "too many masters refused",
	"expired":   "the masters answered too late",
	"second":    "the second lock failed",
	"cancelled": "its context ended",
}
