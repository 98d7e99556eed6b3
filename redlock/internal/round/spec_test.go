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
