package round

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// Which locks stay in the process when they are unlocked, and for whom: the waiter's must be of the same key, kind, terms and
// owner, whichever of the two is asked.
func TestWhichLocksStay(t *testing.T) {
	plain := func() *Spec {
		return &Spec{Kind: kind.Plain{}, Traits: new(Traits), Key: "k", Term: quorum.NewTerm(time.Minute, 0.01)}
	}
	fenced := func() *Spec {
		s := plain()
		f := kind.NewFenced("k", time.Minute, new(kind.Counters))
		s.Kind, s.Numbers = f, f
		return s
	}
	several := func() *Spec {
		s := plain()
		s.Kind, s.QueueNames = kind.NewSeveral([]string{"k", "l"}), []string{"k", "l"}
		return s
	}
	for name, of := range map[string]func() *Spec{"plain": plain, "fenced": fenced, "several": several} {
		require.True(t, of().CanStay(), name)
		require.True(t, of().Alike(of()), name)
		for what, change := range map[string]func(s *Spec){
			"key":    func(s *Spec) { s.Key = "another" },
			"TTL":    func(s *Spec) { s.Term.TTL++ },
			"drift":  func(s *Spec) { s.Term.Drift++ },
			"owner":  func(s *Spec) { s.Owner = "me" },
			"keys":   func(s *Spec) { s.QueueNames = []string{"k", "m"} },
			"prefix": func(s *Spec) { s.Prefixed, s.QueueNames = "of us:k", nil },
		} {
			other := of()
			change(other)
			require.True(t, other.CanStay(), "%s %s", name, what)
			require.False(t, of().Alike(other), "%s %s", name, what)
			require.False(t, other.Alike(of()), "%s %s", name, what)
		}
		for what, change := range map[string]func(s *Spec){
			"readers":       func(s *Spec) { s.Reader = true },
			"permits":       func(s *Spec) { s.Slotted = kind.NewPermits("k", time.Minute, 2) },
			"least time":    func(s *Spec) { s.Lingers = kind.NewPermits("k", time.Minute, 2) },
			"a second lock": func(s *Spec) { s.Second = "etcd" },
			"a kind that is neither read nor passed on": func(s *Spec) {
				s.Kind = kind.NewShared("k")
				if s.Numbers != nil {
					shared := kind.NewSharedFenced("k", time.Minute, new(kind.Counters))
					s.Kind, s.Numbers = shared, shared
				}
			},
		} {
			other := of()
			change(other)
			require.False(t, other.CanStay(), "%s %s", name, what)
			require.False(t, of().Alike(other), "%s %s", name, what)
		}
	}
	require.False(t, plain().Alike(fenced()))
	require.False(t, fenced().Alike(plain()))
	require.False(t, plain().Alike(several()))
}

// Whoever has a lock is in the way of another that shares any of its keys, not the first alone, and with the prefix; readers
// are not in each other's way.
func TestWhichLocksAreInTheWay(t *testing.T) {
	of := func(keys ...string) *Spec { return &Spec{Traits: &Traits{QueueNames: keys}} }
	one := func(key, prefix string) *Spec {
		s := &Spec{Traits: new(Traits), Key: key}
		if prefix != "" {
			s.Prefixed = prefix + key
		}
		return s
	}
	reader := func(s *Spec) *Spec {
		s.Reader = true
		return s
	}
	for name, c := range map[string]struct {
		s, t *Spec
		is   bool
	}{
		"the same key":               {one("k", ""), one("k", ""), true},
		"another key":                {one("k", ""), one("l", ""), false},
		"the same prefix":            {one("k", "of us:"), one("k", "of us:"), true},
		"another prefix":             {one("k", "of us:"), one("k", "of them:"), false},
		"the key as masters have it": {one("k", "of us:"), one("of us:k", ""), true},
		"the first of several":       {of("a", "b", "c"), one("a", ""), true},
		"the second of several":      {of("a", "b", "c"), one("b", ""), true},
		"the last of several":        {of("a", "b", "c"), one("c", ""), true},
		"none of several":            {of("a", "b", "c"), one("d", ""), false},
		"first and last":             {of("a", "b"), of("b", "c"), true},
		"last and last":              {of("a", "c"), of("b", "c"), true},
		"several apart":              {of("a", "b"), of("c", "d"), false},
		"two readers":                {reader(one("k", "")), reader(one("k", "")), false},
		"a reader and a writer":      {reader(one("k", "")), one("k", ""), true},
	} {
		require.Equal(t, c.is, c.s.InTheWayOf(c.t), name)
		require.Equal(t, c.is, c.t.InTheWayOf(c.s), name)
	}
}
