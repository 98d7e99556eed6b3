package round

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/stretchr/testify/require"
)

// A call of the pool says what a new one says, whatever the round before was.
func TestACallOfThePoolIsAsNew(t *testing.T) {
	// These the mux sets, and the lease's number must not come again.
	own := []string{"Op.Votes", "Op.Started", "Op.Decided", "Op.Asked", "Op.f", "Op.kept", "Op.yes", "Op.open", "Op.quorum", "Op.pending", "Op.decided",
		"Op.waiting", "Op.hurried", "Op.drive", "Op.deadline", "Op.in", "Op.prev", "Op.next", "Op.looks", "one", "roundLease", "Request.Name"}
	// No round of a core sets this.
	own = append(own, "Op.OnReply")
	permits, fenced := kind.NewPermits("k", time.Minute, 3), kind.NewFenced("k", time.Minute, new(kind.Counters))
	p := &Spec{Kind: permits, Traits: &Traits{Slotted: permits, Lingers: permits}, Key: "k", Term: quorum.Term{TTL: time.Minute}, Timeout: time.Second}
	f := &Spec{Kind: fenced, Traits: &Traits{Numbers: fenced}, Key: "k", Term: quorum.Term{TTL: time.Minute}, Timeout: time.Second}
	token, mark := []byte("token"), []byte("2/token")
	for name, begin := range map[string]func(k *Call){
		"acquire":  func(k *Call) { k.Acquire(p, "me", 0) },
		"raise":    func(k *Call) { k.Raise(f, 3) },
		"mend":     func(k *Call) { k.mend(f, token, 3, 1) },
		"extend":   func(k *Call) { k.Extend(p, mark, 0, time.Second) },
		"repair":   func(k *Call) { k.Repair(p, mark, 0, time.Second, 1) },
		"pass":     func(k *Call) { k.Pass(f, token, 3, time.Second) },
		"release":  func(k *Call) { k.Release(p, mark) },
		"linger":   func(k *Call) { k.Linger(p, mark, time.Second, true) },
		"agrees":   func(k *Call) { k.Agrees(p) },
		"read":     func(k *Call) { k.Read(f, token) },
		"revoke":   func(k *Call) { k.Revoke("k", false, "token", "why", time.Second) },
		"look":     func(k *Call) { k.Look(p, time.Second) },
		"intend":   func(k *Call) { k.Intend(f, kind.Plain{}, token, time.Second) },
		"withdraw": func(k *Call) { k.Withdraw(f, kind.Plain{}, token) },
		"ask":      func(k *Call) { k.Ask(script.Script{Text: "return 1"}, mux.VerdictFunc(nil), time.Second, true, nil) },
	} {
		c, used, fresh := new(Core), new(Call), new(Call)
		c.Init(time.Hour)
		conntest.Soil(used)
		c.Put(used)
		begin(used)
		begin(fresh)
		require.Empty(t, conntest.Differs(used, fresh, own...), name)
	}
}

// heard is a mux that says what became of sets.
type heard struct {
	Mux
	answered, never mux.Set
}

func (h *heard) Heard(of mux.Sent) (answered, soon, never mux.Set) {
	return of.To & h.answered, 0, of.To & h.never
}

// A master whose connection has ended owes its answer until its process is another: each round asks about it, be it the only
// one that owes or not. Then a round repairs it.
func TestARestartedMasterOwesNothing(t *testing.T) {
	for _, other := range []mux.Set{0, 1 << 0} { // owes, and may answer still
		masters := new(heard)
		c := &Core{Mux: masters}
		c.Init(time.Hour)
		s := quorum.NewSets(1<<2|other, 10, 20)
		for range 2 { // again after its repair
			round := func() (repaired mux.Set) {
				k := c.Take()
				defer c.Put(k)
				return s.Succeeded(c.BeginRound(&s, k), 1<<2)
			}
			require.Zero(t, round())
			masters.never = 1 << 2
			require.Zero(t, round(), "it may be carried out late")
			require.Zero(t, round())
			masters.never, masters.answered = 0, 1<<2
			require.Equal(t, mux.Set(1<<2), round(), "its process is another")
			masters.answered = 0
			s.Sent(1<<2, 30, 40)
		}
	}
}
