package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/spf13/cobra"
)

func newExplain() *cobra.Command {
	var x explainer
	cmd := &cobra.Command{
		Use:   "explain [flags] FILE|URL...",
		Short: "Say what has happened, from flight records",
		Long: `explain reads the flight records of one or more processes, and says what is
remarkable: locks that two had at once and locks that were lost, with the cause,
long waits, rounds that have failed, masters that were away, and clocks and
lists of masters that disagree. With --key it tells the whole story of one lock.

A record is a file (redlock run --flight FILE, or package flight), or the
http:// or https:// address at which a service serves its own. Give the records
of all who use the locks: two that had a lock at once show only in both records.

All times are in UTC. The clocks of hosts may be apart: what the masters' clocks
said to each puts the records together, and fences do where there is no master
in common. explain says by how much the clocks differ.

A process that still runs goes on writing: explain says what is in the record
until now.

--html writes a page as well, which a browser shows: what is remarkable, and a
timeline of each lock and each master. It is one file, asks nobody for anything,
and can be sent in a mail. It tells keys, owners and the masters' addresses, and
no token. With --key it is about one lock. A page that is there already is
replaced, and any other file is not.

--json writes one object: ok, records, and findings, each with its time, what it
says, the masters that it blames, and whether nothing else can have left such
records (certain).

Exit status: 0, or
    1  two had a lock at once, or a lock was lost; with --key, that lock
   64  wrong usage, a file is no flight record, or --html names another's file
   74  the output cannot be written`,
		Example: `  redlock explain app.flight
  redlock explain --key lock:report a.flight b.flight
  redlock explain --html what-happened.html a.flight b.flight
  redlock explain http://a:6060/debug/redlock http://b:6060/debug/redlock`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("usage: "+cmd.UseLine(), "the FILE is missing")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return x.explain(args) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&x.key, "key", "k", "", "tell the story of this `KEY` alone")
	flags.StringVar(&x.page, "html", "", "write a page with the timeline to this `FILE`, too")
	flags.BoolVar(&x.json, "json", false, "write JSON")
	flags.DurationVar(&x.wait, "wait", time.Second, "from how long on a wait is remarkable")
	return cmd
}

// An explainer tells what has happened.
type explainer struct {
	key  string
	wait time.Duration
	page string // the file to write one to
	json bool
}

func (x *explainer) explain(names []string) error {
	if x.page != "" {
		if err := checkPage(x.page); err != nil {
			return usageError("name a file that is not there yet", "--html %s: %w", x.page, err)
		}
	}
	var sources []story.Source
	for _, name := range names {
		r, err := readRecord(name)
		if err != nil {
			return usageError("", "%s: %w", shownName(name), err)
		}
		sources = append(sources, story.Source{Name: shownName(name), Record: r})
	}
	s := story.Tell(sources, x.wait)
	if x.page != "" {
		if err := writePage(x.page, s.HTML(x.key)); err != nil {
			return &failure{exitIO, fmt.Errorf("--html: %w", err), ""}
		}
	}
	found, alarm := x.findings(s)
	out := newTerminal(os.Stdout)
	if x.json {
		x.writeJSON(out, s, found, !alarm)
	} else {
		x.write(out, s)
	}
	if err := out.failure(); err != nil {
		return err
	}
	if alarm {
		return &failure{status: exitNo}
	}
	return nil
}

// findings are those that are asked for. alarm reports whether two had a lock at once, or one was lost.
func (x *explainer) findings(s *story.Story) (found []story.Finding, alarm bool) {
	for _, f := range s.Findings {
		if x.key != "" && f.Key != "" && !s.Concerns(f, x.key) {
			continue // that is another lock's
		}
		found = append(found, f)
		alarm = alarm || f.Matter == story.Overlap || f.Matter == story.Late || f.Matter == story.Loss
	}
	return found, alarm
}

func (x *explainer) writeJSON(out *terminal, s *story.Story, found []story.Finding, ok bool) {
	type findingJSON struct {
		Time     time.Time    `json:"time"`
		Matter   story.Matter `json:"matter"`
		*keyJSON              // as the masters have it; nil if there is none
		Cause    story.Cause  `json:"cause,omitempty"`
		What     string       `json:"what"`
		Masters  []string     `json:"on"`      // that are to blame, by the cause
		Certain  bool         `json:"certain"` // nothing else can have left these records
	}
	all := struct {
		OK       bool          `json:"ok"` // nobody had a lock with another, and none was lost
		Records  []string      `json:"records"`
		Findings []findingJSON `json:"findings"`
	}{ok, s.Who(), []findingJSON{}}
	for _, f := range found {
		var key *keyJSON
		if f.Key != "" {
			key = new(newKeyJSON(f.Key))
		}
		all.Findings = append(all.Findings, findingJSON{f.At, f.Matter, key, f.Cause, f.Text, append([]string{}, f.Masters...), !f.Maybe && !f.Likely})
	}
	writeJSON(out, all)
}

func (x *explainer) write(out *terminal, s *story.Story) {
	for _, line := range s.Who() {
		out.lines(2, plain, wrap(conn.Printable(line), out.width()-2, false))
	}
	lines := s.Remarkable()
	if x.key != "" {
		lines = s.Of(x.key)
	}
	out.printf("\n")
	for _, line := range lines {
		mark := ""
		if line.Mark && x.key != "" {
			mark = "! "
		}
		out.say(line.At.Format("15:04:05.000")+"  ", plain, mark+line.Text)
	}
	switch {
	case x.key != "" && !s.Knows(x.key):
		out.printf("nobody has held or wanted %q here\n", x.key)
	case len(lines) == 0:
		out.printf("nothing is remarkable\n")
	}
}

// fetchTimeout is how long a service may take to hand its record out.
const fetchTimeout = 30 * time.Second

func readRecord(name string) (*record.Record, error) {
	if isURL(name) {
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		var answer *http.Response
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, name, nil)
		if err == nil {
			answer, err = http.DefaultClient.Do(q)
		}
		if whole := (*url.Error)(nil); errors.As(err, &whole) {
			if whole.Op == "parse" { // which quotes what is wrong: a part of a password, perhaps
				return nil, errors.New("it is no address of a page")
			}
			return nil, whole.Err // the rest is the address
		}
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the server says %s", answer.Status)
		}
		return record.Read(answer.Body)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return record.Read(f)
}

// shownName is the name of a record without what may be a secret: a user, a password, or a query.
func shownName(name string) string {
	if !isURL(name) {
		return name
	}
	u, err := url.Parse(name)
	if err != nil {
		scheme, _, _ := strings.Cut(name, ":")
		return fmt.Sprintf("an address that begins with %s:", scheme)
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func isURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// checkPage returns an error if a page must not be written to a file: it is there already, and is not such a page.
func checkPage(name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	refused := errors.New("it is there already, and is no page of redlock explain")
	if !info.Mode().IsRegular() {
		return refused
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 1024)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	if !story.IsHTML(head[:n]) {
		return refused
	}
	return nil
}

// writePage writes a page, or leaves the one that was there. It is for those alone who may see the records.
func writePage(name string, page []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".redlock-*.html") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(page)
	if err = errors.Join(err, f.Close()); err == nil {
		if err = checkPage(name); err == nil {
			err = os.Rename(f.Name(), name)
		}
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
