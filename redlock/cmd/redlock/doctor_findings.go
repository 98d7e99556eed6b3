package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A level is how bad a finding is.
type level string

const (
	wrong level = "wrong" // a lock can be lost, or cannot be taken there
	risky level = "risky" // likewise, but only in some cases, which the reader can judge
)

var levelColours = map[level]colour{wrong: red, risky: yellow}

// A finding is something about masters that endangers a lock, and its remedy.
type finding struct {
	Level   level    `json:"level"`
	What    string   `json:"what"`
	Remedy  string   `json:"remedy"`
	Masters []string `json:"on"` // the masters that it is about
}

// write writes a finding about some of so many masters.
func (f *finding) write(t *terminal, of int) {
	masters := strings.Join(f.Masters, ", ")
	if len(f.Masters) == of && of > 1 {
		masters = fmt.Sprintf("all %d masters", of)
	}
	t.say(string(f.Level)+"  ", levelColours[f.Level], f.What)
	t.say("       ", plain, masters)
	t.say("       → ", dim, f.Remedy)
}

// anyWrong reports whether something is wrong, and not only risky.
func anyWrong(all []finding) bool {
	return slices.ContainsFunc(all, func(f finding) bool { return f.Level == wrong })
}

// findings returns what endangers locks with at most this TTL, the worst first.
func findings(inspections []*inspection, ttl time.Duration) []finding {
	var all []finding
	for _, e := range inspections {
		add := func(l level, what, remedy string) {
			i := slices.IndexFunc(all, func(f finding) bool { return f.Level == l && f.What == what && f.Remedy == remedy })
			if i < 0 {
				i = len(all)
				all = append(all, finding{l, what, remedy, nil})
			}
			all[i].Masters = append(all[i].Masters, e.address)
		}
		if e.err != nil {
			t := e.trouble()
			add(wrong, t.what, t.remedy)
			continue
		}
		e.findRefusals(add)
		e.findRights(add)
		e.findEviction(add)
		e.findForgetting(add, ttl)
		e.findReplay(add)
		e.findPasswords(add)
		e.findReplicas(add)
		e.findSentinels(add)
		e.findClock(add)
		e.findOffset(add)
		e.findLatency(add, ttl)
		for _, lack := range e.server.Missing {
			add(risky, "lacks "+lack, "let the user run it; CLIENT TRACKING, without which waiters poll, needs Redis 6")
		}
	}
	all = append(all, findDuplicates(inspections)...)
	all = append(all, findNumber(inspections)...)
	all = append(all, findSharedHosts(inspections)...)
	all = append(all, findVersions(inspections)...)
	all = append(all, findLists(connectedTo(inspections), clientname.List(addresses(inspections)))...)
	slices.SortStableFunc(all, func(a, b finding) int { return strings.Compare(string(b.Level), string(a.Level)) })
	return all
}

// An adder takes a finding about one master.
type adder func(l level, what, remedy string)

// A trouble is why a master could not be examined: in a word, and in a sentence with its remedy.
type trouble struct{ state, what, remedy string }

func (e *inspection) trouble() trouble {
	said := without(e.err, e.address)
	unreachable := func(remedy string) trouble { return trouble{"unreachable", "cannot be used: " + said, remedy} }
	var refused *conn.RefusedError
	var busy *busyError
	var failed *conn.Error
	op := ""
	if errors.As(e.err, &failed) {
		op = failed.Op
	}
	switch {
	case errors.As(e.err, &refused):
		return trouble{"refused", refused.Reason, refused.Remedy}
	case errors.As(e.err, &busy) && busy.code == "LOADING":
		left := ""
		if s, err := strconv.Atoi(e.info["loading_eta_seconds"]); err == nil {
			left = fmt.Sprintf(", in about %v", time.Duration(s)*time.Second)
		}
		return trouble{"loading", "is loading its data, and takes no locks until it has" + left, "wait for it: INFO persistence says how far it is"}
	case errors.As(e.err, &busy):
		return trouble{"busy", "serves nobody for now: " + said, "see what keeps it busy: SCRIPT KILL ends a script that has written nothing"}
	case e.speaks == "TLS":
		return unreachable("it speaks TLS: write rediss:// (of a group sentinels://), or give --tls")
	case e.speaks != "":
		return unreachable("it speaks no TLS on this port: leave --tls, --cacert and --cert out and write redis://, or give its TLS port")
	case op == "cluster":
		return unreachable("more than half of its masters must answer, at the places that they announce (CLUSTER SLOTS): start them, correct the list, or let them announce places that can be reached from here (cluster-announce-ip)")
	case op == "sentinel":
		return unreachable("more than half of its sentinels must answer: start them, or correct the list; if they demand a password, set REDLOCK_SENTINEL_PASSWORD")
	case errors.Is(e.err, conn.ErrNoListener):
		return trouble{"down", "refuses connections: nobody listens there", "start it; check the address"}
	case errors.Is(e.err, conn.ErrUnanswered) && op != "credentials":
		return trouble{"stalled", "takes connections, and does not answer: " + said, "it runs, and hangs: see its log, its disk and whether its process is stopped"}
	}
	return unreachable("start it; check the address and the network")
}

func (e *inspection) findRefusals(add adder) {
	for _, commands := range e.refused() {
		command := commands[0]
		said := e.refusal[command]
		code := said.code
		remedy := "make it accept writes"
		switch {
		case said.ofKey():
			remedy = "name a key that the user of the locks may use, with --try; or let it have these keys: ACL SETUSER … ~" + e.pattern()
		case code == "NOPERM" && command == "TIME":
			remedy = "let the user run TIME, so that its clock can be examined: ACL SETUSER … +time"
		case code == "NOPERM":
			remedy = "let the user of the locks run it: ACL SETUSER … " + permissions
		case code == "OOM":
			remedy = "raise maxmemory, or remove other data"
		case code == "MISCONF" && strings.Contains(said.text, "AOF"):
			// What it could not sync it syncs only when it writes more, and it refuses to.
			remedy = "see its log: it cannot write to its disk; if it refuses although it can again, CONFIG SET appendonly no, and then yes"
		case code == "MISCONF":
			remedy = "see its log: it cannot write to its disk"
		case code == "NOREPLICAS" && groupOf(e.address) != "":
			remedy = "start its replica again: min-replicas-to-write keeps a master that is cut off from giving locks"
		case code == "NOREPLICAS":
			remedy = "CONFIG SET min-replicas-to-write 0: a master of a lock needs no replicas"
		case code == "WRONGTYPE":
			add(wrong, "has "+census.Holder{}.NoLock()+" in the place of the lock to try", "name another one with --try; 'redlock status' says what is there")
			continue
		case command == "TIME":
			remedy = "let the user run TIME, so that its clock can be examined"
		}
		l := wrong
		if command == "TIME" || command == "EVAL" && len(e.refusal) == 1 { // a script is usually called by EVALSHA
			l = risky
		}
		add(l, fmt.Sprintf("refuses %s: %s", strings.Join(commands, ", "), said.text), remedy)
	}
}

func (e *inspection) findEviction(add adder) {
	policy := e.setting("maxmemory-policy", "maxmemory_policy")
	limit, err := strconv.ParseInt(e.setting("maxmemory", "maxmemory"), 10, 64)
	switch {
	case policy == "" || err != nil:
		add(risky, "does not say whether it drops keys when its memory is full", "let the user run INFO; check that maxmemory-policy is noeviction")
	case policy != "noeviction" && limit > 0:
		add(wrong, fmt.Sprintf("drops locks when its memory is full (maxmemory-policy %s)", policy), "CONFIG SET maxmemory-policy noeviction")
	case policy != "noeviction":
		add(risky, fmt.Sprintf("would drop locks (maxmemory-policy %s) if a maxmemory were set", policy), "CONFIG SET maxmemory-policy noeviction")
	case limit > 0:
		if used, err := strconv.ParseInt(e.info["used_memory"], 10, 64); err == nil && used > limit/10*9 {
			add(risky, "has used 90 % of its maxmemory, and will refuse locks when all of it is used", "raise maxmemory, or remove other data")
		}
	}
}

func (e *inspection) findForgetting(add adder, ttl time.Duration) {
	if e.server.Cluster && !e.durable { // see findCluster
		return
	}
	const remedy = "CONFIG SET appendonly yes, appendfsync always and no-appendfsync-on-rewrite no; or else give every client a Config.RestartGuard (redlock run: --restart-guard) of the longest TTL, or of the longest WithMinHold (--min-hold) and a little more"
	durable := e.durable
	if denial := quorum.Denial(&e.server); durable && denial != "" {
		durable = false
		add(risky, "was declared to forget nothing (--durable, REDLOCK_DURABLE), and clients have it wait after a restart all the same: "+denial,
			"leave the declaration out: it does nothing for this master")
	}
	loses := "forgets all locks"
	switch e.aof() {
	case "always", "declared":
		if e.config["no-appendfsync-on-rewrite"] != "yes" {
			return
		}
		loses = "can forget locks that were taken while it rewrites its append-only file (no-appendfsync-on-rewrite)"
	case "everysec", "no":
		loses = "can forget the latest locks"
	}
	uptime := e.server.Uptime
	switch {
	case e.server.RunID == "":
		remedy := "let the user of the locks run INFO: ACL SETUSER … +info"
		if e.info != nil { // it may, and that does not help
			remedy = "use a server whose INFO has a run_id"
		}
		add(wrong, "does not say who it is (run_id): after each reconnect it may have been restarted, so it does not vote for the longest TTL", remedy)
	case durable:
		add(wrong, loses+" in a restart, and was declared not to (--durable, REDLOCK_DURABLE): it votes at once all the same",
			"leave the declaration out, of every client; or "+remedy)
	case e.aof() == "":
		add(risky, "does not say what it forgets in a restart",
			"if it has appendonly yes and appendfsync always, say so to every client (Config.Durable, with a Config.RestartGuard), and to redlock with --durable or REDLOCK_DURABLE=true")
	case uptime < ttl:
		add(wrong, fmt.Sprintf("%s in a restart, and had one less than the longest TTL (%v) ago", loses, ttl),
			"let nobody take locks until the longest TTL has passed; name yours with --ttl if it is another; "+remedy)
	default:
		add(risky, fmt.Sprintf("%s in a restart (appendonly and appendfsync)", loses), remedy)
	}
}

// findReplay looks for a user default that may not do all: see readDefaultUser.
func (e *inspection) findReplay(add adder) {
	if aof := e.aof(); e.replay == "not all" && aof != "off" {
		first := ""
		if e.user == defaultUser {
			first = "log in as another user, everywhere, with a user for the locks and an administrator: docs/masters.md has them; then "
		}
		add(wrong, "forgets in a restart what a script wrote by several commands (fences, several keys, readers, permits): its append-only file is replayed as the user default, who may not do all",
			first+"ACL SETUSER default off resetpass ~* +@all, and so in its aclfile; nobody can log in as a user who is off")
	}
}

// findPasswords looks for a user who may take locks, and by what CONFIG GET shows may do more.
func (e *inspection) findPasswords(add adder) {
	const remedy = "take the right from the user of the locks: ACL SETUSER … -config"
	switch {
	case len(e.shows) > 0:
		add(risky, "shows the user passwords of its configuration (CONFIG GET): "+strings.Join(e.shows, ", "), remedy)
	case e.mayShow:
		add(risky, "would show the user any password that is set in its configuration (CONFIG GET)", remedy)
	}
}

func (e *inspection) findReplicas(add adder) {
	if at := e.info["second_repl_offset"]; groupOf(e.address) == "" && (e.server.ReplID2 != "" || at != "" && at != "-1") {
		add(risky, "may have been a replica since its start: its locks were then replaced by another server's (master_replid2), and it had no vote for the longest TTL",
			"never make a master a replica, not even for a moment; once the longest TTL has passed since, no harm is left")
	}
	if n, _ := strconv.Atoi(e.info["connected_slaves"]); n > 0 && groupOf(e.address) == "" {
		add(risky, fmt.Sprintf("has %s: if one takes over, it lacks the latest locks", plural(n, "replica")),
			"if Sentinel fails it over, give it as sentinel://host:port,host:port,host:port/group; otherwise remove the replica")
	}
}

// findCluster looks at what only a cluster can have.
func (e *inspection) findCluster(add adder, addr conn.Address) {
	if !strings.Contains(addr.Endpoint(), ",") && len(e.server.Nodes) > 1 {
		add(risky, "is known by one node: without that, no client can start", "name three nodes, of different shards: cluster://host:port,host:port,host:port")
	}
	if e.server.Epoch == "" {
		add(risky, "does not say whether its slot was another node's in between: each reconnect counts as a failover", "let the user run CLUSTER INFO")
	}
	if at := e.place(); at.Replicas == 0 && e.info != nil && e.server.Epoch != "" {
		add(risky, "has no replica of the node with its slot: if that fails, nobody takes its place", "give that shard a replica")
	}
	if !e.durable {
		add(risky, "forgets the latest locks in a failover: it has no vote then until the longest TTL has passed",
			"keep TTLs short; use three clusters, or independent masters, if locks must be had meanwhile; if it forgets nothing, as MemoryDB, say so to every client (Config.Durable, with a Config.RestartGuard)")
	}
}

// A placeJSON is where a cluster has the locks.
type placeJSON struct {
	Slot     int    `json:"slot"`
	Node     string `json:"node"`
	Replicas int    `json:"replicas"` // of the node
}

// place is where the locks are if the master is a cluster; nil if it is none.
func (e *inspection) place() *placeJSON {
	if e.err != nil || !e.server.Cluster {
		return nil
	}
	n, _ := strconv.Atoi(e.info["connected_slaves"])
	return &placeJSON{conn.HashSlot(e.prefix), e.server.Endpoint, n}
}

// findSentinels looks at what only the master of a group can have.
func (e *inspection) findSentinels(add adder) {
	addr, err := conn.ParseAddress(e.address)
	switch {
	case err != nil || addr.Group() == "":
		return
	case addr.Cluster():
		e.findCluster(add, addr)
		return
	}
	if n := strings.Count(addr.Endpoint(), ",") + 1; n < 3 {
		add(risky, fmt.Sprintf("has %s: without one of them there is no majority", plural(n, "sentinel")), "run three or more, on machines of their own, and name them all")
	}
	// INFO tells of it only if there is one.
	least, ok := e.config["min-replicas-to-write"]
	if least == "0" || !ok && e.info != nil && e.info["min_slaves_good_slaves"] == "" {
		add(risky, "goes on giving locks when it is cut off and another has taken its place", "CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag 10")
	}
	major, _, _ := strings.Cut(e.server.Version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < 7 {
		add(risky, "goes on extending locks when another has taken its place: before Redis 7 nothing stops its scripts",
			"update it and its replicas to Redis 7 or later, or to Valkey: there min-replicas-to-write stops scripts, too")
	}
}

// slew is what keeps clocks from harming locks.
const slew = "let its clock and ours be slewed, and never set (chrony without makestep, no ntpdate)"

func (e *inspection) findClock(add adder) {
	forward, back := clockJumps(e.samples)
	if forward > 0 {
		add(wrong, fmt.Sprintf("has a clock that was set forward by %v while we looked: its locks ended that much too early", rounded(forward)), slew)
	}
	if back > 0 {
		add(risky, fmt.Sprintf("has a clock that was set back by %v while we looked: its locks last that much too long", rounded(back)), slew)
	}
	rate, uncertainty, ok := e.rate()
	off := max(rate, -rate)
	switch {
	case !ok:
	case off-uncertainty > defaults.DriftFactor && rate > 0:
		add(wrong, fmt.Sprintf("has a clock that gained %.1f %% on ours while we looked: its locks end too early", rate*100), slew)
	case off-uncertainty > defaults.DriftFactor:
		add(risky, fmt.Sprintf("has a clock that lost %.1f %% against ours while we looked: its locks last too long", off*100), slew)
	}
}

// farOff is how far clocks that are kept in step are never apart.
const farOff = time.Second

// findOffset looks for a clock that was set before we looked, or that somebody may set right. A
// lock compares no clocks, so that by itself it does no harm.
func (e *inspection) findOffset(add adder) {
	const remedy = "see which clock is wrong, and set it while nobody holds a lock; then " + slew
	switch ahead := e.ahead(); {
	case ahead > farOff:
		add(risky, fmt.Sprintf("has a clock that is %v ahead of ours: if it was set lately, its locks ended that much too early", rounded(ahead)), remedy)
	case ahead < -farOff:
		add(risky, fmt.Sprintf("has a clock that is %v behind ours: when it is set right, its locks end that much too early", rounded(-ahead)), remedy)
	}
}

func (e *inspection) findLatency(add adder, ttl time.Duration) {
	median, longest := e.latency()
	limit := defaults.RoundTimeout(ttl)
	const remedy = "move it nearer; look at its load (SLOWLOG GET, LATENCY DOCTOR); use a longer TTL"
	switch {
	case median > limit:
		add(wrong, fmt.Sprintf("answers after %s, later than a round waits (%v)", brief(median), limit), remedy)
	case longest > limit:
		add(risky, fmt.Sprintf("answered once only after %s, later than a round waits (%v)", brief(longest), limit), remedy)
	}
}

func findDuplicates(inspections []*inspection) (all []finding) {
	same := map[string][]string{}
	for _, e := range inspections {
		if id := e.server.RunID; id != "" {
			same[id] = append(same[id], e.address)
		}
	}
	for _, e := range inspections {
		if masters := same[e.server.RunID]; len(masters) > 1 && masters[0] == e.address {
			all = append(all, finding{wrong, "are one and the same server, whose votes would count twice", "name every master once", masters})
			delete(same, e.server.RunID)
		}
	}
	return all
}

func findNumber(inspections []*inspection) []finding {
	n := len(inspections)
	switch what := fmt.Sprintf("%s: ", plural(n, "master")); {
	case n == 1:
		return []finding{{risky, what + "if it fails, nobody gets a lock", "use three or five", addresses(inspections)}}
	case n == 2:
		return []finding{{risky, what + "if either fails, nobody gets a lock: that is worse than one master, where only one can fail", "use three or five", addresses(inspections)}}
	case n%2 == 0:
		return []finding{{risky, fmt.Sprintf("%s%d may fail, as with %d, and contenders can split the votes evenly", what, (n-1)/2, n-1),
			"use an odd number", addresses(inspections)}}
	}
	return nil
}

func findSharedHosts(inspections []*inspection) (all []finding) {
	hosts := map[string][]string{}
	for _, e := range inspections {
		if host, known := e.host(); known {
			hosts[host] = append(hosts[host], e.address)
		}
	}
	for _, e := range inspections {
		host, _ := e.host()
		if masters := hosts[host]; len(masters) > 1 && masters[0] == e.address {
			all = append(all, finding{risky, "are on one host, and fail together with it", "use a machine for each", masters})
		}
	}
	return all
}

// groupOf is the name of a master's group; "" if no Sentinel watches it.
func groupOf(address string) string {
	addr, err := conn.ParseAddress(address)
	if err != nil {
		return ""
	}
	return addr.Group()
}

// host is the host of the master; "" for a Unix socket. Of a group or a cluster it is that of the server that has the locks now,
// if it is known.
func (e *inspection) host() (host string, known bool) {
	addr, err := conn.ParseAddress(e.address)
	if err != nil {
		return "", false
	}
	at := addr.Endpoint()
	if addr.Group() != "" || addr.Cluster() {
		at = e.server.Endpoint
	}
	host, _, _ = net.SplitHostPort(at)
	return host, at != ""
}

func findVersions(inspections []*inspection) []finding {
	versions := map[string]bool{}
	for _, e := range inspections {
		if e.server.Version != "" {
			major, _, _ := strings.Cut(e.server.Version, ".")
			versions[major] = true
		}
	}
	if len(versions) < 2 {
		return nil
	}
	return []finding{{risky, "have different major versions", "update the older ones", addresses(inspections)}}
}

// connectedTo is who is connected to each master.
func connectedTo(inspections []*inspection) (all []connected) {
	for _, e := range inspections {
		all = append(all, e.on)
	}
	return all
}

func addresses(inspections []*inspection) []string {
	all := make([]string, len(inspections))
	for i, e := range inspections {
		all[i] = e.address
	}
	return all
}
