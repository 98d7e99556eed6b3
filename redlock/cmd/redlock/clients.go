package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/spf13/cobra"
)

func newClients() *cobra.Command {
	var f mastersFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "Show who is connected, and who has another list of masters",
		Long: `clients asks every master who is connected to it, and changes nothing. The user
needs the right to CLIENT LIST.

Two clients with different lists of masters do not exclude each other, and
nothing else tells. So each client says which list it has: LIST is the number of
its masters and a hash of their addresses, in any order. clients says who has
another list than most. If one writes names and the other IP addresses, they
have different hashes for the same masters, and clients sees that, too.

PROGRAM is lib for the Go library and cmd for this command. A LIST of - is that
of a command that takes no locks. Clients of other libraries are counted as
other connections. What a client says of itself is a hint: everybody can have
any name.

Exit status: 0 all that are known have one list, 1 some have another, 97 too few
masters answered, 64 wrong usage, 74 write error.
` + mastersHelp,
		Example: `  redlock clients
  redlock clients --json | jq -r '.masters[].clients[] | .owner + " " + .list'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := f.masterSet()
			if err != nil {
				return err
			}
			connected := set.connected(cmd.Context())
			own := clientname.List(set.masters)
			all := findLists(connected, own)
			out := newTerminal(os.Stdout)
			if asJSON {
				writeClientsJSON(out, connected, own, all)
			} else {
				writeClients(out, connected, own, all)
			}
			if err := out.failure(); err != nil {
				return err
			}
			answered := len(connected)
			for _, c := range connected {
				if c.err != nil {
					answered--
				}
			}
			switch {
			case answered < quorum.Majority(len(connected)):
				return &failure{exitNoQuorum, fmt.Errorf("only %d of %s answered", answered, plural(len(connected), "master")),
					"the user needs the right to CLIENT LIST (+client|list); " + doctorRemedy}
			case anyWrong(all):
				return &failure{status: exitNo}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// A connected is who is connected to a master.
type connected struct {
	address string
	err     error // why nobody knows; nil if it is known
	clients []connection
	others  int // connections of which nothing tells that they are ours
}

// A connection is one of our clients.
type connection struct {
	clientname.Name
	from      string // its address
	age, idle time.Duration
}

// who is what tells a client from others on all masters.
func (c *connection) who() string { return cmp.Or(c.Owner, c.from) }

// mostConnections is how many of them are looked at: a server can write shorter lines than any that is honest.
const mostConnections = 100_000

func (s *masterSet) connected(ctx context.Context) []connected {
	all := make([]connected, len(s.masters))
	s.connect.ClientName = probeName("clients")
	for i, err := range s.askAll(ctx, func(i int, p *probe) error { return all[i].read(ctx, p) }) {
		all[i].address = conn.Redact(s.masters[i])
		if err != nil {
			all[i] = connected{address: all[i].address, err: err}
		}
	}
	return all
}

// read asks a master who is connected to it, but for the connection that asks.
func (c *connected) read(ctx context.Context, p *probe) error {
	replies, err := p.do(ctx, clientList)
	if err != nil {
		return err
	}
	if replies[0].IsError() {
		return errors.New("CLIENT LIST: " + p.ErrorText(replies[0]))
	}
	list := string(replies[0].Bytes())
	if strings.Count(list, "\n") > mostConnections {
		return fmt.Errorf("CLIENT LIST: it names more than %d connections", mostConnections)
	}
	for line := range strings.Lines(list) {
		said := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			said[name] = value
		}
		seconds := func(name string) time.Duration {
			n, _ := strconv.ParseInt(said[name], 10, 64)
			return time.Duration(n) * time.Second
		}
		id := p.Server().ClientID
		name, ours := clientname.Parse(said["name"])
		switch {
		case len(said) == 0, id != 0 && said["id"] == strconv.FormatInt(id, 10):
		case ours:
			from := said["addr"]
			for _, text := range []*string{&name.Program, &name.Version, &name.List, &name.Owner, &from} {
				*text = p.Hide(*text) // the name was escaped until now
			}
			c.clients = append(c.clients, connection{name, from, seconds("age"), seconds("idle")})
		default:
			c.others++
		}
	}
	slices.SortStableFunc(c.clients, func(a, b connection) int { return strings.Compare(a.Owner, b.Owner) })
	return nil
}

// A usage is one list of masters, and who has it.
type usage struct {
	list    string
	clients []string // in order, each as often as it is connected to one master
	masters []string // those that the clients are connected to
	all     bool     // one client is connected to all masters that were asked
}

// usages returns the lists that clients have, the one that most have first. If two are equal, ours is before the other.
func usages(on []connected, own string) (all []usage) {
	times := map[string]map[string][]int{} // how often a client of a list is connected to each master
	for i, c := range on {
		for _, cl := range c.clients {
			if cl.List == "" {
				continue
			}
			if times[cl.List] == nil {
				times[cl.List] = map[string][]int{}
			}
			if times[cl.List][cl.who()] == nil {
				times[cl.List][cl.who()] = make([]int, len(on))
			}
			times[cl.List][cl.who()][i]++
		}
	}
	for list, clients := range times {
		u, seen := usage{list: list}, make([]bool, len(on))
		for _, who := range slices.Sorted(maps.Keys(clients)) {
			n := clients[who]
			for range slices.Max(n) {
				u.clients = append(u.clients, who)
			}
			u.all = u.all || slices.Min(n) > 0
			for i := range n {
				seen[i] = seen[i] || n[i] > 0
			}
		}
		for i := range seen {
			if seen[i] {
				u.masters = append(u.masters, on[i].address)
			}
		}
		all = append(all, u)
	}
	ours := func(u usage) int { return map[bool]int{true: 0, false: 1}[u.list == own] }
	slices.SortFunc(all, func(a, b usage) int {
		return cmp.Or(len(b.clients)-len(a.clients), ours(a)-ours(b), strings.Compare(a.list, b.list))
	})
	return all
}

// findLists compares the lists of the clients with each other, and with ours. A client that is connected to all of our
// masters, and has as many, has the same masters, however it writes them.
func findLists(on []connected, own string) (all []finding) {
	lists := usages(on, own)
	if len(lists) == 0 {
		return nil
	}
	same := func(u usage) bool {
		return u.list == own || u.all && clientname.Masters(u.list) == len(on)
	}
	const remedy = "give all processes the same list, written alike: see 'redlock clients' again when they have it"
	most := lists[0]
	if most.list != own && !same(most) && !slices.ContainsFunc(lists, func(u usage) bool { return u.list == own }) {
		var asked []string
		for _, c := range on {
			asked = append(asked, c.address)
		}
		f := finding{wrong, "are another list than that of the clients: " + own + ", and not " + most.list, "name those masters that the clients have", asked}
		if n := clientname.Masters(most.list); most.all && n > len(on) {
			f.Level, f.What = risky, fmt.Sprintf("are not all masters of the clients, who have %d (%s)", n, most.list)
		}
		all = append(all, f)
	}
	for _, u := range lists[1:] {
		who := fmt.Sprintf("%s (%s)", plural(len(u.clients), "client"), names(u.clients))
		if same(u) && same(most) {
			all = append(all, finding{risky, fmt.Sprintf("have %s with the list %s, and not %s: the same masters, written in another way", who, u.list, most.list),
				"write the masters alike everywhere: so one sees who has other masters", u.masters})
			continue
		}
		unless := ""
		if clientname.Masters(u.list) == clientname.Masters(most.list) { // some have replaced a master, or are about to
			unless = ", unless these lists differ only by a master that is shut down for good and the one that replaces it"
		}
		all = append(all, finding{wrong, fmt.Sprintf("have %s with another list of masters than most, %s and not %s: they and the others do not exclude each other%s",
			who, u.list, most.list, unless), remedy, u.masters})
	}
	return all
}

// names are the names of some clients, for people.
func names(clients []string) string {
	const most = 5
	distinct := slices.Compact(slices.Clone(clients))
	if more := len(distinct) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(distinct[:most], ", "), more)
	}
	return strings.Join(distinct, ", ")
}

func writeClients(t *terminal, on []connected, own string, all []finding) {
	lists := usages(on, own)
	for _, c := range on {
		if c.err != nil {
			t.say(c.address+"  ", red, without(c.err, c.address))
			t.printf("\n")
			continue
		}
		t.printf("%s: %s, %s\n", conn.Printable(c.address), plural(len(c.clients), "connection"), plural(c.others, "other"))
		if len(c.clients) > 0 {
			rows := [][]cell{header("PROGRAM", "VERSION", "LIST", "AGE", "IDLE", "FROM", "CLIENT")}
			for _, cl := range c.clients {
				list := cell{cmp.Or(cl.List, "-"), plain}
				if cl.List != "" && cl.List != lists[0].list {
					list.colour = red
				}
				rows = append(rows, []cell{{cl.Program, plain}, {clip(cl.Version, 12), plain}, list,
					{age(cl.age), plain}, {age(cl.idle), plain}, {cl.from, plain}, {cl.Owner, plain}})
			}
			t.table("  ", len(rows[0]), rows)
		}
		t.printf("\n")
	}
	for _, f := range all {
		f.write(t, len(on))
		t.printf("\n")
	}
	var silent []string
	for _, c := range on {
		if c.err != nil {
			silent = append(silent, conn.Printable(c.address))
		}
	}
	most := ""
	if len(lists) > 0 {
		most = conn.Printable(lists[0].list) // the masters name it
	}
	switch {
	case len(silent) > 0:
		t.say("", yellow, fmt.Sprintf("%s with a list of masters: who is connected to %s, and with which list, is not known.",
			plural(total(lists), "client"), strings.Join(silent, ", ")))
	case len(lists) == 0:
		t.printf("No client with a list of masters is connected.\n")
	case len(all) > 0:
		t.printf("%d of %s with a list of masters have %s.\n", len(lists[0].clients), plural(total(lists), "client"), most)
	case most == own:
		t.printf("%s\n", t.paint(green, fmt.Sprintf("%s with a list of masters: all have yours, %s.", plural(total(lists), "client"), own)))
	default:
		t.printf("%s\n", t.paint(green, fmt.Sprintf("%s with a list of masters: all have %s, which is yours (%s) written in another way.",
			plural(total(lists), "client"), most, own)))
	}
}

func total(lists []usage) (n int) {
	for _, u := range lists {
		n += len(u.clients)
	}
	return n
}

func writeClientsJSON(t *terminal, on []connected, own string, all []finding) {
	type clientJSON struct {
		Program string `json:"program"`
		Version string `json:"version"`
		List    string `json:"list,omitempty"` // empty for a command that takes no locks
		Owner   string `json:"owner,omitempty"`
		From    string `json:"from"`
		AgeS    int64  `json:"age_s"`
		IdleS   int64  `json:"idle_s"`
	}
	type masterJSON struct {
		Master  string       `json:"master"`
		Error   string       `json:"error,omitempty"`
		Clients []clientJSON `json:"clients"`
		Others  int          `json:"others"` // connections of others
	}
	type listJSON struct {
		List    string   `json:"list"`
		Owners  []string `json:"owners"` // of the clients that have it
		Masters []string `json:"on"`     // the masters where they are connected
	}
	out := struct {
		OK       bool         `json:"ok"`   // nobody that is known has another list
		List     string       `json:"list"` // that of the masters that were asked
		Lists    []listJSON   `json:"lists"`
		Masters  []masterJSON `json:"masters"`
		Findings []finding    `json:"findings"`
	}{!anyWrong(all), own, []listJSON{}, nil, append([]finding{}, all...)}
	for _, u := range usages(on, own) {
		out.Lists = append(out.Lists, listJSON{u.list, u.clients, u.masters})
	}
	for _, c := range on {
		m := masterJSON{Master: c.address, Error: without(c.err, c.address), Clients: []clientJSON{}, Others: c.others}
		for _, cl := range c.clients {
			m.Clients = append(m.Clients, clientJSON{cl.Program, cl.Version, cl.List, cl.Owner, cl.from, int64(cl.age / time.Second), int64(cl.idle / time.Second)})
		}
		out.Masters = append(out.Masters, m)
	}
	writeJSON(t, out)
}
