package tracking

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// A master that notifies without end takes no memory of the client: what nobody has looked at yet is one change for each lock.
// It is as urgent as the more urgent of the two, and spread only if both are.
func TestChangesThatAreOne(t *testing.T) {
	for name, c := range map[string]struct{ first, second, want Change }{
		"both of all keys":   {Change{All: true}, Change{All: true}, Change{All: true}},
		"then of its own":    {Change{All: true}, Change{}, Change{}},
		"its own before":     {Change{}, Change{All: true}, Change{}},
		"then it is enough":  {Change{}, Change{Urgent: true}, Change{Urgent: true}},
		"it has been enough": {Change{All: true, Urgent: true}, Change{}, Change{Urgent: true}},
	} {
		ks := new(KeptLocks)
		ks.sleeper = newSleeper(registry())
		s := &KeptLock{of: ks}
		s.told(c.first.Urgent, c.first.All)
		s.told(c.second.Urgent, c.second.All)
		c.want.of = s
		require.Equal(t, []Change{c.want}, ks.changes, name)
	}
}

// newKept returns a kept lock of ks, which is to be subscribed still.
func newKept(ks *KeptLocks) *KeptLock {
	kept := &KeptLock{of: ks}
	kept.hearer, kept.kept, kept.interests = kept, true, kept.keys[:0]
	return kept
}

// A waiter's interest in a key comes and goes while the masters are asked for who keeps it. This is for the race detector.
func TestAWaiterGoesWhileItsHolderIsAskedFor(t *testing.T) {
	ks := &KeptLocks{registry: registry()}
	kept := newKept(ks)
	var l Listener
	l.Init(ks.registry)
	for range 1000 {
		l.Listen(1, 2, "k")
		ks.registry.add(&kept.subscription, 1, 2, "k") // after the waiter's
		var gone sync.WaitGroup
		gone.Go(l.End)
		qs := Questions{of: ks, values: true}
		qs.Add(kept, []byte("token"))
		gone.Wait()
		require.Contains(t, string(qs.all[0].keys), "k")
	}
}

// An own write ends what masters promise, to a question before it as well whose answer comes later. A question that follows the
// write is answered for that lock again.
func TestAnAnswerPromisesNothingOnceAnOwnWriteHasFollowed(t *testing.T) {
	for _, values := range []bool{false, true} {
		ks := &KeptLocks{registry: registry()}
		kept := newKept(ks)
		ks.registry.add(&kept.subscription, 1, 2, "k")
		ask := func(number uint32) *question {
			qs := Questions{of: ks, number: number, values: values}
			qs.Add(kept, []byte("token"))
			return qs.all[0]
		}
		yes := resptest.Parse([]byte(":1\r\n"))
		if values {
			yes = resptest.Parse([]byte("*1\r\n:1\r\n"))
		}
		for range 2 { // the second time on what was used before
			first := ask(1)
			first.answer(0, yes)
			require.True(t, kept.Promised().Has(0))
			kept.Wrote()
			first.answer(0, yes)
			first.answer(1, yes)
			require.False(t, kept.Promised().Has(0) || kept.Promised().Has(1), "%v", values)
			second := ask(2)
			first.answer(1, yes)
			require.False(t, kept.Promised().Has(1), "%v", values)
			second.answer(1, yes)
			require.True(t, kept.Promised().Has(1))
			require.False(t, kept.Promised().Has(0))
			kept.Wrote()
		}
	}
}

// A burst of many renewals is not notified of, and what is written afterwards is: the first question behind the burst ends that,
// however many questions there are. A burst of a few is notified of.
func TestAQuietBurstEndsWithItsFirstQuestion(t *testing.T) {
	for _, locks := range []int{0, 1, maxKeysAsked, maxKeysAsked + 1, 3 * maxKeysAsked} {
		for _, renewals := range []int{quietAt - 1, quietAt, 1000} {
			ks := &KeptLocks{registry: registry()}
			qs := Questions{of: ks, values: true}
			for i := range locks {
				kept := newKept(ks)
				ks.registry.add(&kept.subscription, 1, 2, fmt.Sprint("k", i))
				qs.Add(kept, []byte("token"))
			}
			ops, begin := qs.AppendOps(nil, renewals)
			require.Len(t, ops, (locks+maxKeysAsked-1)/maxKeysAsked)
			worth := locks > 0 && renewals >= quietAt
			require.Equal(t, worth, begin != nil)
			if worth {
				require.Equal(t, string(quiet), string(begin.Command))
			}
			for i, op := range ops {
				require.Equal(t, worth && i == 0, bytes.HasPrefix(op.Command, loud), "%d locks, %d renewals, %d", locks, renewals, i)
				require.Equal(t, bytes.Count(op.Command, []byte("\r\n*"))+1, op.Replies, "a reply for each command")
			}
		}
	}
}
