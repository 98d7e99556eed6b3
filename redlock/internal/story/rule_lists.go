package story

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
)

// endpoint is a master's address without its database and scheme: by it, one server has one name.
func endpoint(addr string) string {
	if a, err := conn.ParseAddress(addr); err == nil {
		return a.Endpoint()
	}
	return addr
}

// apart reports whether the lists of two are such that a majority of one need not have a master of the other's. Addresses that a record
// shows to be of one server, or of one place one after the other, are one.
func (s *Story) apart(a, b *Party) bool {
	if a.Client.List == b.Client.List || a == b {
		return false
	}
	x, y := s.servers(a), s.servers(b)
	shared := 0
	for m := range x {
		if y[m] {
			shared++
		}
	}
	rest := func(n int) int { return max(n/2+1-(n-shared), 0) } // of its majority, must be of those that are shared
	return rest(len(x))+rest(len(y)) <= shared
}

// servers returns a party's list, one name for each server.
func (s *Story) servers(p *Party) map[string]bool {
	if s.names == nil {
		s.names = map[string]string{}
		runs := map[string]string{}
		for _, m := range s.Masters {
			if m.RunID == "" {
				continue
			}
			at := endpoint(m.Key)
			if first, ok := runs[m.RunID]; ok {
				s.unite(first, at)
			} else {
				runs[m.RunID] = at
			}
		}
		for _, p := range s.Parties {
			for _, all := range p.places {
				for _, t := range all[1:] {
					s.unite(endpoint(all[0].addr), endpoint(t.addr))
				}
			}
		}
	}
	all := map[string]bool{}
	for _, m := range p.Client.Masters {
		all[s.nameOf(endpoint(m))] = true
	}
	return all
}

// knowsAll reports whether a process of each of a party's masters was seen.
func (s *Story) knowsAll(p *Party) bool {
	return !slices.ContainsFunc(p.Client.Masters, func(addr string) bool { return s.aliases[addr] == "" })
}

func (s *Story) unite(a, b string) {
	if a, b = s.nameOf(a), s.nameOf(b); a != b {
		s.names[b] = a
	}
}

func (s *Story) nameOf(addr string) string {
	for {
		next, ok := s.names[addr]
		if !ok {
			return addr
		}
		addr = next
	}
}

// judgeLists tells of clients that do not exclude each other although they wanted the same. Grounds: both have asked for the same
// key, and their records say which masters, prefix and database they have. Whether that is meant, no record says.
func (s *Story) judgeLists(byKey map[name][]*Hold) {
	type space struct{ list, prefix, database string }
	first := map[space]*Party{}
	keys := map[space]map[string]bool{}
	for key, holds := range byKey {
		for _, h := range holds {
			p := h.Party
			x := space{p.Client.List, p.Client.Prefix, p.database}
			if first[x] == nil || p.Name < first[x].Name {
				first[x] = p
			}
			if keys[x] == nil {
				keys[x] = map[string]bool{}
			}
			keys[x][key.key[min(len(p.Client.Prefix), len(key.key)):]] = true
		}
	}
	common := func(x, y space) string {
		best := ""
		for k := range keys[x] {
			if keys[y][k] && (best == "" || k < best) {
				best = k
			}
		}
		return best
	}
	spaces := slices.Collect(maps.Keys(first))
	slices.SortFunc(spaces, func(a, b space) int { return strings.Compare(first[a].Name, first[b].Name) })
	for i, x := range spaces {
		for _, y := range spaces[:i] {
			if !s.spend(len(keys[x])) {
				return
			}
			a, b := first[y], first[x]
			key := common(x, y)
			if key == "" {
				continue
			}
			var f *Finding
			switch {
			case s.apart(a, b):
				f = s.find(s.start(), Lists, "", "", "%s and %s have two lists of masters: %s, and %s. A lock of one, such as %q, does not exclude the other.",
					a.Name, b.Name, list(a.Client.Masters), list(b.Client.Masters), key)
			case x.prefix != y.prefix:
				f = s.find(s.start(), Lists, "", "", "%s and %s have two prefixes, %q and %q: the same key, such as %q, is two locks. That may be meant.", a.Name, b.Name, y.prefix, x.prefix, key)
			case x.database != y.database:
				f = s.find(s.start(), Lists, "", "", "%s and %s have two databases, %s and %s: the same key, such as %q, is two locks. That may be meant.", a.Name, b.Name, y.database, x.database, key)
			default:
				continue
			}
			f.Maybe = true
			return // one is enough
		}
	}
}

func (s *Story) start() (first time.Time) {
	for _, t := range s.tapes {
		at := t.clock.at(t.record.About.BeganBoot)
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
