package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// A Report is a whole run.
type Report struct {
	Rounds  int
	Slice   time.Duration
	Took    time.Duration
	Results []Result

	Command  string // that has made it
	Revision string // of redburst
}

// tolerable is the share of failed operations up to which a peer can be the
// best: one that fails more is fast at something else.
const tolerable = 0.01

// Total is all rounds of contestant i.
func (r Result) Total(i int) *Sample {
	total := newSample()
	for _, round := range r.Rounds {
		total.Merge(round[i])
	}
	return total
}

// of is the figure of contestant i in the round, NaN if there is none that counts.
func (r Result) of(round []*Sample, i int) float64 {
	s := round[i]
	v := r.Case.metric.of(s)
	if v <= 0 || float64(s.Errors) > tolerable*float64(s.Ops()+s.Errors) {
		return math.NaN()
	}
	return v
}

// best is the contestant with the lowest figure over all rounds, -1 if there is none. It is one for the whole case:
// the lowest of each round would be whom the noise favours, which is the lower the more there are.
func (r Result) best(counts func(c Contestant) bool) int {
	best, least := -1, math.Inf(1)
	for i, c := range r.Contestants {
		if !counts(c) {
			continue
		}
		total := make([]*Sample, len(r.Contestants))
		total[i] = r.Total(i)
		if v := r.of(total, i); v < least {
			best, least = i, v
		}
	}
	return best
}

func named(name string) func(Contestant) bool {
	return func(c Contestant) bool { return c.Name == name }
}

// ratio compares two figures round by round. Rounds in which one is missing
// don't count.
func (r Result) ratio(over, under func(round []*Sample) float64) (Spread, bool) {
	var all []float64
	for _, round := range r.Rounds {
		if q := over(round) / under(round); !math.IsNaN(q) && !math.IsInf(q, 0) {
			all = append(all, q)
		}
	}
	return spreadOf(all)
}

// against compares contestants over and under, of which either may be -1.
func (r Result) against(over, under int) (Spread, bool) {
	if over < 0 || under < 0 {
		return Spread{}, false
	}
	return r.ratio(
		func(round []*Sample) float64 { return r.of(round, over) },
		func(round []*Sample) float64 { return r.of(round, under) })
}

// AgainstFloor is the contestant's figure over the floor's.
func (r Result) AgainstFloor(name string) (Spread, bool) {
	return r.against(r.best(named(name)), r.best(Contestant.Floor))
}

// AgainstPeers is the best peer's figure over redburst's: how many times faster redburst is.
func (r Result) AgainstPeers() (Spread, bool) {
	return r.against(r.best(Contestant.Peer), r.best(named(ours)))
}

// turns says how often each contestant took its turn, and for how long.
func (r Result) turns(length time.Duration) string {
	length = max(length, r.Case.least)
	if len(r.Rounds) == 1 {
		return fmt.Sprintf("One round, turns of %v", length)
	}
	return fmt.Sprintf("%d rounds, turns of %v", len(r.Rounds), length)
}

// Noisy names the ratios of the summary that say nothing.
func (r Report) Noisy() (rows []string) {
	for _, res := range r.Results {
		for _, column := range []struct {
			name string
			of   func() (Spread, bool)
		}{
			{overFloor, func() (Spread, bool) { return res.AgainstFloor(ours) }},
			{peerOver, res.AgainstPeers},
		} {
			if s, ok := column.of(); ok && s.Noisy() {
				rows = append(rows, fmt.Sprintf("%s, %s: %s", res.Case.Name, column.name, s))
			}
		}
	}
	return rows
}

// table is the summary for a terminal.
func (r Report) table() []byte {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintf(w, "\ncase\tredburst\tfloor\tbest peer\t%s\t%s\n", overFloor, peerOver)
	for _, res := range r.Results {
		fmt.Fprintf(w, "%s, %s\t%s\t%s\t%s\t%s\t%s\n", res.Case.Name, res.Case.metric.Name,
			res.figure(named(ours), false), res.figure(Contestant.Floor, false), res.figure(Contestant.Peer, true),
			ratioCell(res.AgainstFloor(ours)), ratioCell(res.AgainstPeers()))
	}
	w.Flush() // to memory
	fmt.Fprintf(&b, "\nTimes of redburst, of raw sockets (the floor) and of the fastest other library; less is better. In brackets: the median\n"+
		"of the ratio is in there with %.0f %%. %s says nothing: run it again with less beside it.\n", 100*sure, noiseMark)
	return b.Bytes()
}

func (Report) path(dir string) string { return filepath.Join(dir, "report.md") }

// Write writes the report, its picture and the figures of every round.
func (r Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	figures, err := json.MarshalIndent(r.figures(), "", "  ")
	if err != nil {
		return err
	}
	title, err := r.draw(dir)
	if err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "figures.json"), append(figures, '\n'), 0o666),
		os.WriteFile(r.path(dir), r.markdown(title), 0o666))
}

// The ratios of the summary.
const (
	overFloor = "redburst ÷ floor"
	peerOver  = "best peer ÷ redburst"
)

func (r Report) markdown(picture string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Benchmark\n\nAt most %d rounds, turns of at least %v, %v altogether, on %s.\n\n", r.Rounds, r.Slice, r.Took.Round(time.Second), time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(&b, "%s\n\n", machine())
	fmt.Fprintf(&b, "Masters: %s. redburst: %s. Made in bench by `%s`.\n\n", r.servers(), r.Revision, r.Command)
	fmt.Fprintf(&b, "Contestants: %s.\n\n", versions())
	b.WriteString("The clients and all masters share this machine. In each round all contestants take turns on the same masters; " +
		"a ratio compares figures of the same round. It is given as the median of the rounds, and in brackets the interval that has " +
		"the true median in it with at least 90 %, whatever the distribution; fewer than five rounds allow none. " +
		noiseMark + " marks a ratio that says nothing: its interval is wider than half of the median, or than a tenth with 1 within. " +
		"A narrow interval about 1 says that the two are equal. " +
		"An operation is an acquire with its release unless the case says otherwise. " +
		pinned() +
		"The floor is raw sockets with prepared bytes and no parsing, and the fastest of its kinds over the whole case: " +
		"a set of sockets for each goroutine, which waits parked in the runtime's poller (park) or holds a thread (ppoll); " +
		"or, for several goroutines, one set for all, whose commands share their writes as redburst's do (batched). " +
		"Peers have the pools and timeouts that their documentation advises; " +
		"\"failfast\" returns at the quorum, \"quickretry\" tries again after 2.5 to 7.5 ms instead of 50 to 250 ms. " +
		"\"by-hand\" is what articles show, and asks one master after the other, over go-redis. " +
		"The best peer is the one with the lowest figure over the whole case. " +
		"Modes that cannot be a peer's best do not take part everywhere. There is no failfast on one master, nor in renew, as it does not renew all keys. " +
		"There is nothing else than failfast and by-hand where the masters are another number or at a distance, are reached otherwise, or hang; " +
		"but in hung one goes without, to show what that costs. Where Lock waits, one goes without quickretry. " +
		"The cases told, waiting and handover-processes take one client.\n\n")

	fmt.Fprintf(&b, "## Summary\n\n| case | floor | redburst | best peer | %s | %s |\n|---|---:|---:|---:|---:|---:|\n", overFloor, peerOver)
	for _, res := range r.Results {
		fmt.Fprintf(&b, "| [%s](#%s), %s | %s | %s | %s | %s | %s |\n", res.Case.Name, anchor(res.Case.Name), res.Case.metric.Name,
			res.figure(Contestant.Floor, false), res.figure(named(ours), false), res.figure(Contestant.Peer, true),
			ratioCell(res.AgainstFloor(ours)), ratioCell(res.AgainstPeers()))
	}
	if picture != "" {
		fmt.Fprintf(&b, "\n![%s](%s)\n", picture, pictureFile)
	}
	for _, res := range r.Results {
		fmt.Fprintf(&b, "\n## %s\n\n%s. %s.\n\n", res.Case.Name, strings.ToUpper(res.Case.About[:1])+res.Case.About[1:], res.turns(r.Slice))
		if res.Case.note != "" {
			fmt.Fprintf(&b, "%s\n\n", res.Case.note)
		}
		if slices.ContainsFunc(res.Contestants, func(c Contestant) bool { return strings.HasPrefix(c.Name, "etcd-") }) {
			fmt.Fprintf(&b, "etcd has %d members here, and writes its log to the disk of this machine.\n\n", etcdMembers)
		}
		table := res.Case.table
		if table == nil {
			table = Result.writeLatency
		}
		table(res, &b)
		if res.Case.harms() {
			res.writePrice(&b)
		}
		res.writeErrors(&b)
	}
	return b.Bytes()
}

// pinned says which CPUs whom belong to.
func pinned() string {
	if pins.none() {
		return "Nothing was pinned to CPUs. "
	}
	return fmt.Sprintf("The masters (the delaying proxy and etcd, too) were pinned to CPUs %s, and the clients to %s (`-cpuset %s`). ",
		listed(pins.Masters), listed(pins.Clients), pins)
}

func anchor(name string) string { return strings.ToLower(strings.ReplaceAll(name, "=", "")) }

// figure is that of the best contestant, with its name if that is wanted.
func (r Result) figure(counts func(Contestant) bool, name bool) string {
	i := r.best(counts)
	if i < 0 {
		return "—"
	}
	v := r.Case.metric.of(r.Total(i))
	cell := short(time.Duration(v))
	if r.Case.metric.Name == cpuMetric.Name {
		cell = fmt.Sprintf("%.3f cores", v)
	}
	if name {
		cell += " (" + r.Contestants[i].Name + ")"
	}
	return cell
}

func (r Result) writeLatency(b *bytes.Buffer) {
	b.WriteString("| contestant | p50 | p99 | p99.9 | mean | ops/s | CPU/op | allocs/op | B/op | commands/op | master reads/op | ÷ floor | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	unfinished := false
	for i, c := range r.Contestants {
		s := r.Total(i)
		latency := []string{"—", "—", "—", "—"}
		if s.Ops() > 0 {
			latency = []string{short(s.Quantile(0.50)), short(s.Quantile(0.99)), short(s.Quantile(0.999)), short(s.Mean())}
		}
		fmt.Fprintf(b, "| %s | %s | %.0f | %s | %.1f | %.0f | %.1f | %.1f | %s | %s |\n", c.Name, strings.Join(latency, " | "),
			s.Throughput(), short(time.Duration(s.Per(float64(s.CPU)))), s.Per(float64(s.Allocs)), s.Per(float64(s.Bytes)),
			s.Per(float64(s.Commands)), s.Per(float64(s.Reads)), ratioCell(r.AgainstFloor(c.Name)), failedCell(s))
		unfinished = unfinished || s.Ops() == 0 && s.Errors == 0
	}
	if unfinished {
		b.WriteString("\nNo times, and 0 failed: no operation had ended when the turn was over.\n")
	}
}

// writePrice writes what the case's fault or durability costs, beside what it costs the floor. Of a fault that is less
// or more than nothing: the quorum is a later one of those that answer, but fewer masters share the processors.
func (r Result) writePrice(b *bytes.Buffer) {
	before := "while all masters are well"
	if r.Case.Fsync != "" {
		before = "while the masters persist nothing"
	}
	fmt.Fprintf(b, "\nEach turn measures the same just before, %[1]s.\n\n"+
		"| contestant | %[2]s ÷ %[2]s %[1]s | that ÷ the floor's |\n|---|---:|---:|\n", before, r.Case.metric.Name)
	price := func(i int) func(round []*Sample) float64 {
		return func(round []*Sample) float64 { return r.of(round, i) / round[i].Extra[harmless] }
	}
	floor := r.best(Contestant.Floor)
	for i, c := range r.Contestants {
		over := "—"
		if floor >= 0 {
			over = ratioCell(r.ratio(price(i), price(floor)))
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", c.Name, ratioCell(r.ratio(price(i), func([]*Sample) float64 { return 1 })), over)
	}
}

// writeTimes writes the table of what takes long, and happens a few times.
func (r Result) writeTimes(b *bytes.Buffer) {
	b.WriteString("The ratios compare figures of the same round.\n\n" +
		"| contestant | p50 | ÷ redburst | least | greatest | times | failed |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range r.Contestants {
		s := r.Total(i)
		fmt.Fprintf(b, "| %s |", c.Name)
		r.writeAgainst(b, i, p50.of, p50.of)
		least, greatest := "—", "—"
		if s.Ops() > 0 {
			least, greatest = short(s.Quantile(0)), short(s.Quantile(1))
		}
		fmt.Fprintf(b, " %s | %s | %d | %s |\n", least, greatest, s.Ops(), failedCell(s))
	}
}

func (r Result) writeRenewal(b *bytes.Buffer) {
	b.WriteString("| contestant | CPU (cores) | memory per lock | goroutines | commands/s | least TTL left | lost | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range r.Contestants {
		s := r.Total(i)
		left := "a key is missing"
		if ms := s.Extra[leastLeft]; ms >= 0 {
			left = short(time.Duration(ms) * time.Millisecond)
		}
		fmt.Fprintf(b, "| %s | %.3f | %.0f B | %.0f | %.0f | %s | %.0f | %s |\n", c.Name, s.Extra[cores], s.Extra[lockBytes],
			s.Extra[goroutines], float64(s.Commands)/s.Wall.Seconds(), left,
			s.Extra[lost], failedCell(s))
	}
}

func (r Result) writeRounds(b *bytes.Buffer) {
	b.WriteString("Of several rounds, the worst one's figures behind the hand-overs. A process may take the lock again itself (kept); " +
		"its hand-over is none. A round asks more than one master; attempts may have asked one only.\n\n" +
		"| contestant | p50 | p99 | max | hand-overs/s | kept | rounds/lock | attempts/lock | commands/lock | CPU/lock | locks per process: least, median, most | longest wait | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range r.Contestants {
		s := r.Total(i)
		latency := []string{"—", "—", "—"}
		if s.Ops() > 0 {
			latency = []string{short(s.Quantile(0.50)), short(s.Quantile(0.99)), short(time.Duration(s.Latency.Max()))}
		}
		rounds := []string{"—", "—"}
		if c.Name == ours {
			rounds = []string{fmt.Sprintf("%.2f", s.Extra[roundsPerLock]), fmt.Sprintf("%.2f", s.Extra[attemptsPerLock])}
		}
		fmt.Fprintf(b, "| %s | %s | %.0f | %.0f %% | %s | %.1f | %s | %.0f, %.0f, %.0f | %s | %s |\n", c.Name, strings.Join(latency, " | "),
			s.Throughput(), 100*s.Extra[kept], strings.Join(rounds, " | "), s.Extra[commandsPerLock], short(time.Duration(s.Extra[cpuPerLock])),
			s.Extra[leastTurns], s.Extra[medianTurns], s.Extra[mostTurns],
			short(time.Duration(s.Extra[longestWait]*float64(time.Millisecond))), failedCell(s))
	}
}

func (r Result) writeWaiting(b *bytes.Buffer) {
	b.WriteString("Then all keys are released at once: p50 and max are until a waiter has its lock.\n\n" +
		"| contestant | CPU (cores) | memory per waiter | goroutines | of them in I/O | commands/s | p50 | max | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range r.Contestants {
		s := r.Total(i)
		fmt.Fprintf(b, "| %s | %.4f | %.0f B | %.0f | %.0f | %.0f | %s | %s | %s |\n", c.Name, s.Extra[cores], s.Extra[lockBytes],
			s.Extra[goroutines], s.Extra[inIO], float64(s.Commands)/s.Wall.Seconds(),
			short(s.Quantile(0.50)), short(time.Duration(s.Latency.Max())), failedCell(s))
	}
}

// extra is what a case measures besides, as a figure.
func extra(name string) func(*Sample) float64 {
	return func(s *Sample) float64 { return s.Extra[name] }
}

// writeAgainst writes two cells: the median of contestant i's time, and how many times redburst's
// plain time that is.
func (r Result) writeAgainst(b *bytes.Buffer, i int, of, plain func(*Sample) float64) {
	own := func(round []*Sample) float64 {
		if v := of(round[i]); v > 0 {
			return v
		}
		return math.NaN()
	}
	against := func(round []*Sample) float64 { return math.NaN() }
	if at := slices.IndexFunc(r.Contestants, func(c Contestant) bool { return c.Name == ours }); at >= 0 && at != i {
		against = func(round []*Sample) float64 { return plain(round[at]) }
	}
	figure, ok := r.ratio(own, func([]*Sample) float64 { return 1 })
	if !ok || figure.Median == 0 {
		b.WriteString(" — | — |")
		return
	}
	fmt.Fprintf(b, " %s | %s |", short(time.Duration(figure.Median)), ratioCell(r.ratio(own, against)))
}

func failedCell(s *Sample) string {
	if s.Errors == 0 {
		return "0"
	}
	return fmt.Sprintf("**%d** (%s %%)", s.Errors, three(100*s.Per(float64(s.Errors))))
}

func (r Result) writeErrors(b *bytes.Buffer) {
	for i, c := range r.Contestants {
		if s := r.Total(i); s.Errors > 0 {
			text := strings.Join(strings.Fields(s.Err), " ")
			if cut := 300; len(text) > cut {
				text = strings.ToValidUTF8(text[:cut], "") + " …"
			}
			fmt.Fprintf(b, "\nFailed first, %s: `%s`\n", c.Name, strings.ReplaceAll(text, "`", "'"))
		}
	}
}

func ratioCell(s Spread, ok bool) string {
	if !ok {
		return "—"
	}
	return s.String()
}

// short is a duration to three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d)
	case d < time.Millisecond:
		return three(float64(d)/1e3) + " µs"
	case d < time.Second:
		return three(float64(d)/1e6) + " ms"
	}
	return three(d.Seconds()) + " s"
}

// three is a number from 1 on to three digits.
func three(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// roundFigures are the figures of one round as the file has them.
type roundFigures struct {
	P50, P99, P999, Mean, Max time.Duration `json:",omitempty"`
	Ops, Errors               int64
	Error                     string `json:",omitempty"`
	Wall, CPU                 time.Duration
	Allocs, Bytes             uint64
	Commands, Reads           int64
	Extra                     map[string]float64 `json:",omitempty"`
}

// figures are those of every round, by case and contestant; durations are in
// nanoseconds.
func (r Report) figures() map[string]map[string][]roundFigures {
	out := map[string]map[string][]roundFigures{}
	for _, res := range r.Results {
		byName := map[string][]roundFigures{}
		for i, c := range res.Contestants {
			for _, round := range res.Rounds {
				s := round[i]
				byName[c.Name] = append(byName[c.Name], roundFigures{
					P50: s.Quantile(0.50), P99: s.Quantile(0.99), P999: s.Quantile(0.999), Mean: s.Mean(),
					Max: time.Duration(s.Latency.Max()), Ops: s.Ops(), Errors: s.Errors, Error: s.Err,
					Wall: s.Wall, CPU: s.CPU, Allocs: s.Allocs, Bytes: s.Bytes,
					Commands: s.Commands, Reads: s.Reads, Extra: s.Extra,
				})
			}
		}
		out[res.Case.Name] = byName
	}
	return out
}

// invocation is how the report is made again.
func invocation(args []string) string {
	said := "go run ."
	for _, arg := range args {
		if strings.ContainsAny(arg, "*?[ ") {
			arg = "'" + arg + "'"
		}
		said += " " + arg
	}
	return said
}

// servers are those of all cases.
func (r Report) servers() string {
	var all []string
	for _, res := range r.Results {
		if !slices.Contains(all, res.Server) {
			all = append(all, res.Server)
		}
	}
	return strings.Join(all, ", ")
}

// revision is the commit that is measured.
func revision() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "an unknown commit"
	}
	return strings.TrimSpace(string(out))
}

// machine describes what the figures were taken on.
func machine() string {
	cpu := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = strings.TrimLeft(strings.TrimSpace(name), ": \t")
				break
			}
		}
	}
	var u unix.Utsname
	kernel := ""
	if unix.Uname(&u) == nil {
		kernel = ", Linux " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%d × %s%s, %s.", runtime.GOMAXPROCS(0), cpu, kernel, runtime.Version())
}

// versions names the contestants' modules.
func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown versions"
	}
	var out []string
	for _, m := range info.Deps {
		for _, peer := range []string{"go-redsync/redsync", "redis/go-redis", "gomodule/redigo", "redis/rueidis", "bsm/redislock", "etcd/client"} {
			if version := peer + " " + m.Version; strings.Contains(m.Path, peer) && !slices.Contains(out, version) {
				out = append(out, version)
			}
		}
	}
	return strings.Join(out, ", ")
}
