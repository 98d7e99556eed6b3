package conn

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/resp"
)

// This file decides who the master of a slot of a Redis Cluster is, from what its nodes say. It is
// pure: cluster_ask.go asks the nodes.
//
// A cluster client trusts any node, and is redirected by it. Here more than half of the cluster's
// masters must say who has the slot, and who those masters are, more than half of the nodes that are
// listed or were agreed on last. A node that is silent is one of them, too: whoever cuts the others off
// must not make a majority of the rest. A node that was cut off, forgotten or moved to another cluster
// would otherwise lead a lock to another server.

const (
	slots = 1 << 14 // of each cluster

	// maxMasters bounds the masters that a node may name, so also the places that are asked at a time. Redis recommends at
	// most 1,000 nodes, with their replicas.
	maxMasters = 500
)

// HashTag returns the part of a key that says in which slot of a cluster the key is: what is
// between its first { and the next }. It is empty if there is none. Then the whole key says it.
func HashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
}

// HashSlot returns the slot of a cluster in which a key is, from 0 to 16383.
func HashSlot(key string) int {
	var crc uint16 // CRC-16/XMODEM
	for _, c := range []byte(cmp.Or(HashTag(key), key)) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}

// A clusterNode is a master of a cluster.
type clusterNode struct {
	id       string // the endpoint, if the cluster gives none
	endpoint string // empty if it is not known
}

// A clusterView is what one node says of its cluster: the answer to CLUSTER SLOTS.
type clusterView struct {
	masters  []clusterNode // that have slots, as only these elect a new master
	owner    string        // id of the one that has our slot; empty if none has it
	replicas []string      // endpoints of its replicas
}

// parseView reads an answer to CLUSTER SLOTS of the node at an endpoint.
func parseView(v resp.Value, slot int, at string) (view clusterView, err error) {
	if v.Kind() != resp.Array {
		return view, errors.New("an answer that is no list of slots")
	}
	seen := map[string]bool{}
	for it := v.Elems(); ; {
		r, ok := it.Next()
		if !ok {
			break
		}
		fields := r.Elems()
		first, ok1 := fields.Next()
		last, ok2 := fields.Next()
		master, ok3 := fields.Next()
		from, ok4 := first.Int()
		to, ok5 := last.Int()
		if !(ok1 && ok2 && ok3 && ok4 && ok5) || from < 0 || from > to || to >= slots {
			return view, errors.New("an answer with a bad range of slots")
		}
		n, err := parseNode(master, at)
		if err != nil {
			return view, err
		}
		if !seen[n.id] {
			seen[n.id] = true
			view.masters = append(view.masters, n)
		}
		if len(view.masters) > maxMasters {
			return view, fmt.Errorf("an answer with more than %d masters", maxMasters)
		}
		if from <= int64(slot) && int64(slot) <= to {
			if view.owner != "" && view.owner != n.id {
				return view, fmt.Errorf("an answer with two masters of slot %d", slot)
			}
			view.owner = n.id
			view.replicas = replicasOf(fields, at)
		}
	}
	if len(view.masters) == 0 {
		return view, errors.New("it knows of no master with slots")
	}
	return view, nil
}

// knowsNoCluster reports whether an answer to CLUSTER SLOTS says that there is no such command. A proxy that hides a whole
// cluster may say so.
func knowsNoCluster(v resp.Value) bool {
	return ErrorCode(v) == "ERR" && bytes.Contains(bytes.ToLower(v.Bytes()), []byte("unknown "))
}

// replicasOf reads the endpoints of the replicas of a range of slots: of those that have one, and of a hundred at most.
func replicasOf(it resp.Iter, at string) (all []string) {
	for len(all) < 100 {
		v, ok := it.Next()
		if !ok {
			break
		}
		if n, err := parseNode(v, at); err == nil && n.endpoint != "" && !slices.Contains(all, n.endpoint) {
			all = append(all, n.endpoint)
		}
	}
	return all
}

// parseNode reads a node: its host, its port, its id, and more. A null or empty host is that of the
// node that was asked, and ? is a name that is not known.
func parseNode(v resp.Value, at string) (n clusterNode, err error) {
	it := v.Elems()
	host, ok1 := it.Next()
	port, ok2 := it.Next()
	p, ok3 := port.Int()
	if !(ok1 && ok2 && ok3) || p < 0 || p > 65535 {
		return n, errors.New("an answer with a bad node")
	}
	id, _ := it.Next()
	name := string(host.Bytes())
	switch {
	case host.IsNull() || name == "":
		var asked Address
		if err := asked.parseHostPort(at); err != nil {
			return n, err
		}
		name = asked.host
	case name == "?":
		name = ""
		more, _ := it.Next()
		for key, value := range pairs(more) {
			if key == "ip" {
				name = string(value.Bytes())
			}
		}
	}
	if len(name) > maxEndpoint || len(id.Bytes()) > maxEndpoint {
		return n, errors.New("an answer with a bad node")
	}
	if name != "" && p != 0 { // what is no address is no place: a node chooses its name, and the others repeat it
		if at := endpointOf(name, strconv.FormatInt(p, 10)); isPlace(at) {
			n.endpoint = at
		}
	}
	n.id = cmp.Or(string(id.Bytes()), n.endpoint)
	if n.id == "" {
		return n, errors.New("an answer with a node that has neither an id nor a place")
	}
	return n, nil
}

// A slotState is what a node says when it is asked for a key of the slot.
type slotState uint8

const (
	slotDown      slotState = iota // it serves no keys now
	slotHere                       // it has the slot
	slotElsewhere                  // another node has it (MOVED)
	slotMoving                     // it has the slot, which is on its way to another node (ASK)
)

// has reports whether the node has the slot.
func (s slotState) has() bool { return s == slotHere || s == slotMoving }

// stateOf returns what the reply to a command for a key of the slot says.
func stateOf(v resp.Value) slotState {
	switch code := ErrorCode(v); {
	case code == "MOVED":
		return slotElsewhere
	case code == "ASK" || code == "TRYAGAIN":
		return slotMoving
	case v.IsError() && code != "WRONGTYPE":
		return slotDown
	}
	return slotHere
}

// A clusterAnswer is the latest answer of a node.
type clusterAnswer struct {
	pending bool // there is none yet
	view    clusterView
	state   slotState
	epoch   string        // its config epoch, if it has the slot; empty if it does not say
	asked   time.Duration // when it was asked, on clock.Now's clock
	err     error         // why there is no answer
}

// SlotOwner is the master of a slot, as more than half of its cluster's masters name it.
type SlotOwner struct {
	Endpoint string        // its host:port; empty if there is no such majority
	Moving   bool          // the slot is on its way to another node
	Asked    time.Duration // a majority has named it when it was asked then or later, on clock.Now's clock
	Nodes    []string      // the cluster's masters, and the replicas of this one

	// What it says itself. It grows its config epoch whenever it is given a slot: if it was none of the masters for a moment
	// between two questions, only that tells.
	Confirmed time.Duration // a majority and itself have said that it has the slot when they were asked then or later; 0 if it has not
	Epoch     string        // its config epoch then; empty if it did not say
}

// A clusterTally has what the nodes of a cluster have answered.
type clusterTally struct {
	sources []string // endpoints of the nodes that say who the masters are: that are listed, or were agreed on last
	answers map[string]clusterAnswer
}

// The masters of a cluster are those that more than half of the sources name.
type clusterMasters struct {
	endpoints map[string]string // by id: those of which more than half of the sources name that place
	most      int               // how many of those that were named there can be when all sources have answered
}

// masters returns the cluster's masters. A source that is silent names none of them. But it could name
// each: so it makes no master, and more of them possible.
func (t *clusterTally) masters() clusterMasters {
	silent := 0
	named := map[string]map[string]int{} // by id: how often by which endpoint
	for _, s := range t.sources {
		a, asked := t.answers[s]
		if !asked || a.pending || a.err != nil {
			silent++
			continue
		}
		for _, n := range a.view.masters {
			if named[n.id] == nil {
				named[n.id] = map[string]int{}
			}
			named[n.id][n.endpoint]++
		}
	}
	all := clusterMasters{endpoints: map[string]string{}}
	for id, by := range named {
		votes, most := 0, ""
		for _, endpoint := range slices.Sorted(maps.Keys(by)) {
			votes += by[endpoint]
			if by[endpoint] > by[most] {
				most = endpoint
			}
		}
		if 2*(votes+silent) > len(t.sources) {
			all.most++
		}
		if 2*by[most] > len(t.sources) { // else a few could lead us anywhere while others are silent
			all.endpoints[id] = most
		}
	}
	return all
}

// owner returns the master of the slot, if more than half of the masters name the same one. A master
// that serves no keys names none: it is cut off from the others, or the cluster is not whole.
func (t *clusterTally) owner(masters clusterMasters) (o SlotOwner, ok bool) {
	named := map[string][]time.Duration{}
	replicas := map[string]int{}
	places := map[string]bool{} // one server answers there, whatever ids it is known by
	for _, endpoint := range masters.endpoints {
		if places[endpoint] {
			continue
		}
		places[endpoint] = true
		a, ok := t.answers[endpoint]
		if ok && a.err == nil && !a.pending && a.state != slotDown && a.view.owner != "" {
			named[a.view.owner] = append(named[a.view.owner], a.asked)
			for _, r := range a.view.replicas {
				replicas[r]++
			}
		}
		if endpoint != "" {
			o.Nodes = append(o.Nodes, endpoint)
		}
	}
	for r, votes := range replicas {
		if 2*votes > masters.most && !slices.Contains(o.Nodes, r) {
			o.Nodes = append(o.Nodes, r)
		}
	}
	slices.Sort(o.Nodes)
	for id, asked := range named {
		at := masters.endpoints[id]
		if 2*len(asked) <= masters.most || at == "" {
			continue
		}
		slices.Sort(asked)
		o.Endpoint = at
		o.Asked = asked[len(asked)-1-masters.most/2]
		own := t.answers[at]
		o.Moving = own.state == slotMoving
		if own.state.has() {
			o.Confirmed, o.Epoch = min(o.Asked, own.asked), own.epoch
		}
		return o, true
	}
	return SlotOwner{}, false
}

// disagreement says what each node has said, when there is no majority. They were told a password, which is not in it.
func (t *clusterTally) disagreement(slot int, told Secret) error {
	err := fmt.Errorf("more than half of the cluster's masters must say who has slot %d, and more than half of %d nodes, listed or agreed on before, who these are",
		slot, len(t.sources))
	hide := func(said string) string { return mask(said, told.Reveal()) }
	for _, at := range slices.Sorted(maps.Keys(t.answers)) {
		a, shown := t.answers[at], hide(at) // others have named it
		switch {
		case a.pending:
			err = fmt.Errorf("%w; node %s has not answered", err, shown)
		case a.err != nil:
			err = fmt.Errorf("%w; node %s: %w", err, shown, quoted(causeOf(a.err), hide))
		case a.state == slotDown:
			err = fmt.Errorf("%w; node %s serves no keys now", err, shown)
		case a.view.owner == "":
			err = fmt.Errorf("%w; node %s says that nobody has it", err, shown)
		default:
			err = fmt.Errorf("%w; node %s says %s", err, shown, clip(hide(a.view.endpointOf(a.view.owner)), maxEndpoint))
		}
	}
	return err
}

// endpointOf returns where a master is, or its id if that is not known.
func (v *clusterView) endpointOf(id string) string {
	for _, n := range v.masters {
		if n.id == id {
			return cmp.Or(n.endpoint, n.id)
		}
	}
	return id
}
