package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/spf13/cobra"
)

func newDoctor() *cobra.Command {
	var (
		f              mastersFlags
		ttl, span      time.Duration
		key            string
		strict, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what endangers a lock on the masters, and what to do about it",
		Long: `doctor examines every master for what endangers a lock, and says what to do
about it. It looks for nodes of a cluster, replicas, eviction of keys, locks
that a restart forgets (what it replays, the administrator's user alone is
told), clocks that run faster or slower than ours or were set, latency, missing
permissions, passwords that the user is shown, servers that were given twice,
an even number, and clients that have another list of masters (for that the
user needs CLIENT LIST; see also redlock clients).

What is wrong breaks locks, or prevents them on that master. What is risky does
so in some cases, which you can judge better than the doctor.

doctor takes a lock on each master for a moment (see --try). It changes nothing
else.

Exit status: 0 nothing is wrong, 1 something is wrong (with --strict: or risky),
64 wrong usage, 74 write error.
` + mastersHelp,
		Example: `  redlock doctor --masters redis-a:6379,redis-b:6379,redis-c:6379
  redlock doctor --ttl 1m             your longest TTL
  redlock doctor --json | jq -r '.findings[] | .level + ": " + .what'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := f.masterSet()
			if err != nil {
				return err
			}
			switch {
			case ttl <= 0:
				return usageError("", "--ttl is not above zero")
			case span < 0:
				return usageError("", "--span is below zero")
			case key == "":
				key = trialKey()
			}
			inspections := inspectAll(cmd.Context(), set, key, span)
			all := findings(inspections, ttl)
			out := newTerminal(os.Stdout)
			if asJSON {
				writeFindingsJSON(out, inspections, all)
			} else {
				writeFindings(out, inspections, all)
			}
			if err := out.failure(); err != nil {
				return err
			}
			if anyWrong(all) || strict && len(all) > 0 {
				return &failure{status: exitNo}
			}
			return nil
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&ttl, "ttl", 10*time.Second, "the longest TTL, or --min-hold, of your locks")
	flags.DurationVar(&span, "span", time.Second, "how long to watch clocks and latency")
	flags.StringVar(&key, "try", "", "`key` of the lock to try, if the user may not use all keys; may be in use (default: a random one that begins with lock:)")
	flags.BoolVar(&strict, "strict", false, "exit with 1 also if something is risky")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// trialKey is the key of a lock that nobody else takes.
func trialKey() string { return "lock:redlock-doctor:" + rand.Text() }

func inspectAll(ctx context.Context, set masterSet, key string, span time.Duration) []*inspection {
	inspections := make([]*inspection, len(set.masters))
	var inspecting sync.WaitGroup
	for i, master := range set.masters {
		inspecting.Go(func() { inspections[i] = inspect(ctx, master, set.connect, set.durable, set.key(key), span) })
	}
	inspecting.Wait()
	return inspections
}

// worst is the worst level of the findings about a master; "" if there are none.
func worst(all []finding, address string) (w level) {
	for _, f := range all {
		for _, master := range f.Masters {
			if master == address && w != wrong {
				w = f.Level
			}
		}
	}
	return w
}

func writeFindings(t *terminal, inspections []*inspection, all []finding) {
	rows := [][]cell{header("MASTER", "VERSION", "UP", "LATENCY", "MAX", "CLOCK", "AOF", "STATE")}
	for _, e := range inspections {
		rows = append(rows, e.row(worst(all, e.address)))
	}
	t.table("", 2, rows)
	for _, e := range inspections {
		if at := e.place(); at != nil {
			t.say("", plain, fmt.Sprintf("%s has the locks in slot %d, at %s with %s", e.address, at.Slot, conn.Printable(at.Node), plural(at.Replicas, "replica")))
		}
	}
	count := map[level]int{}
	for _, f := range all {
		count[f.Level]++
		t.printf("\n")
		f.write(t, len(inspections))
	}
	fit := counted(inspections, (*inspection).fit)
	needed := quorum.Majority(len(inspections))
	t.printf("\n%d of %s can be used, a lock needs %d.", fit, plural(len(inspections), "master"), needed)
	switch {
	case len(findDuplicates(inspections)) > 0:
		t.printf(" %s\n", t.paint(red, "No client takes a list with one master twice."))
	case fit < needed:
		t.printf(" %s\n", t.paint(red, "Nobody gets a lock."))
	case count[wrong] > 0:
		t.printf(" %s\n", t.paint(red, fmt.Sprintf("%d wrong, %d risky.", count[wrong], count[risky])))
	case count[risky] > 0:
		t.printf(" %s\n", t.paint(yellow, fmt.Sprintf("Nothing is wrong, %d risky.", count[risky])))
	default:
		t.printf(" %s\n", t.paint(green, "Nothing is wrong."))
	}
	unreplayed := func(e *inspection) bool { return e.err == nil && e.replay == "" && e.aof() != "off" }
	if n := counted(inspections, unreplayed); n > 0 {
		t.say("", plain, fmt.Sprintf("%d of %s did not say what the user default may do: whether a restart forgets what scripts wrote is not known (ask as a user who may run ACL GETUSER).",
			n, plural(len(inspections), "master")))
	}
	unlisted := func(e *inspection) bool { return e.err == nil && e.on.err != nil }
	if n := counted(inspections, unlisted); n > 0 {
		t.say("", plain, fmt.Sprintf("%d of %s did not say who is connected: whether all clients have one list of masters is not known (see redlock clients).",
			n, plural(len(inspections), "master")))
	}
}

// fit reports whether it gives locks, for all that is known: SET may have been refused for the key that was tried alone.
func (e *inspection) fit() bool {
	said, refuses := e.refusal["SET"]
	return e.err == nil && (!refuses || said.code == "WRONGTYPE" || said.ofKey())
}

// counted is of how many masters something is true.
func counted(inspections []*inspection, is func(*inspection) bool) (n int) {
	for _, e := range inspections {
		if is(e) {
			n++
		}
	}
	return n
}

// row is a master's line in the table.
func (e *inspection) row(w level) []cell {
	dash := cell{"-", dim}
	row := []cell{{e.address, plain}, dash, dash, dash, dash, dash, dash, {"ok", green}}
	if w != "" {
		row[7] = cell{string(w), levelColours[w]}
	}
	if e.err != nil {
		row[7].text = e.trouble().state
		return row
	}
	if v := e.server.Version; v != "" {
		row[1].text = clip(v, 8)
	}
	if e.server.RunID != "" {
		row[2].text = age(e.server.Uptime)
	}
	if median, longest := e.latency(); median > 0 {
		row[3].text, row[4].text = brief(median), brief(longest)
	}
	switch forward, back := clockJumps(e.samples); {
	case forward > 0:
		row[5].text = "+" + rounded(forward).String()
	case back > 0:
		row[5].text = "-" + rounded(back).String()
	}
	if rate, _, ok := e.rate(); ok {
		row[5].text = fmt.Sprintf("%+.2f%%", math.Round(rate*1e4)/100+0) // not -0
	}
	if aof := e.aof(); aof != "" {
		row[6].text = aof
	}
	for i := range row[:7] {
		if row[i].text != "-" {
			row[i].colour = plain
		}
	}
	return row
}

func writeFindingsJSON(t *terminal, inspections []*inspection, all []finding) {
	type master struct {
		Master     string   `json:"master"`
		Level      string   `json:"level"` // "ok", "risky", "wrong"
		Error      string   `json:"error,omitempty"`
		Version    string   `json:"version,omitempty"`
		RunID      string   `json:"run_id,omitempty"`
		Mode       string   `json:"mode,omitempty"`
		Role       string   `json:"role,omitempty"`
		UptimeS    int64    `json:"uptime_s,omitempty"`
		LatencyUS  float64  `json:"latency_us,omitempty"` // the median
		LongestUS  float64  `json:"latency_max_us,omitempty"`
		ClockRate  *float64 `json:"clock_rate,omitempty"` // 0.01: it runs 1 % faster than ours
		ClockError *float64 `json:"clock_rate_error,omitempty"`
		Forward    float64  `json:"clock_set_forward_s,omitempty"` // while we looked
		Back       float64  `json:"clock_set_back_s,omitempty"`
		Ahead      float64  `json:"clock_ahead_s,omitempty"` // of ours, at least; below 0 if it is behind
		AOF        string   `json:"aof,omitempty"`           // "off", "declared" with --durable, or its appendfsync
		Replay     string   `json:"replay,omitempty"`        // "all" or "not all" that its file has; absent if it does not say what the user default may do
		Eviction   string   `json:"maxmemory_policy,omitempty"`
		Tracking   bool     `json:"client_tracking"`
		Listed     bool     `json:"clients_listed"` // it has said who is connected

		Place *placeJSON `json:"cluster,omitempty"` // where the locks are, if it is a cluster
	}
	out := struct {
		OK       bool      `json:"ok"` // nothing is wrong
		Quorum   int       `json:"quorum"`
		Masters  []master  `json:"masters"`
		Findings []finding `json:"findings"`
	}{!anyWrong(all), quorum.Majority(len(inspections)), nil, append([]finding{}, all...)}
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, e := range inspections {
		m := master{Master: e.address, Error: without(e.err, e.address), Level: "ok", Version: e.server.Version, RunID: e.server.RunID, Mode: e.server.Mode,
			Role: e.server.Role, UptimeS: int64(e.server.Uptime / time.Second), AOF: e.aof(), Replay: e.replay,
			Eviction: e.setting("maxmemory-policy", "maxmemory_policy"), Tracking: e.server.Tracking,
			Listed: e.err == nil && e.on.err == nil, Place: e.place()}
		if w := worst(all, e.address); w != "" {
			m.Level = string(w)
		}
		median, longest := e.latency()
		m.LatencyUS, m.LongestUS = micros(median), micros(longest)
		forward, back := clockJumps(e.samples)
		m.Forward, m.Back, m.Ahead = forward.Seconds(), back.Seconds(), e.ahead().Seconds()
		if rate, uncertainty, ok := e.rate(); ok {
			m.ClockRate, m.ClockError = &rate, &uncertainty
		}
		out.Masters = append(out.Masters, m)
	}
	writeJSON(t, out)
}
