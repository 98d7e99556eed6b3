//go:build linux

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// This is a second judge of who had a key when, and of the fences. It shares the claims with the
// first one (checkOverlaps, checkFences), and nothing else. It asks whether the history of a key
// is linearizable: whether each lock can have been taken at one moment and have ended at another, so
// that in this order nobody took what another had, and all fences grow.
//
// The operations are these:
//
//   - A lock is taken at a moment between the call and the return. If its validity is known, the
//     round that took it began no earlier than a TTL before the end of the validity, so it was taken
//     after that.
//   - It ends when its claim does. In truth it ends then or later: when the masters have the
//     release, or have let the key expire. The earliest moment is the one that admits most, as
//     nothing that is recorded needs a lock to be held for longer.
//   - A lock that was taken, and had no validity left when its taker came to look, claims nothing.
//     But it was valid at a moment between the call and the return. So nobody else can have had
//     it for all this time, and its fence has a place among the others.
//
// Attempts that failed are left out, and so are those that a killed client had no time to record.
// They may have had the key for a while. Nobody has done anything on the strength of that, so the
// contract says nothing of them. They may have taken a fence, too: fences have gaps.
//
// That an attempt was refused is left out, too. It does not follow that another had the lock then:
// two attempts may refuse each other, and what an attempt has left on a master that was frozen may
// refuse others for as long as the TTL.
//
// # What each judge sees
//
// Of claims that last, both see the same. If two that exclude each other overlap, each was taken
// before either ended, so no order is right. If none overlap, the beginnings and the ends of the
// claims are such an order, and it is the only one for those that exclude each other, so the
// fences must grow in it.
//
// The first judge has no use for claims that do not last, except that their fences must not be
// another's, and this one has. The first one alone sees what is no matter of order: a lock that was
// lost before its validity had ended, an increment that was lost, a key that nobody could take.
//
// The counters need no such judge. Each count is written once, and the resource has put all writes
// in order.

// searchTime is how long the search for an order may take, for one history. It takes milliseconds.
const searchTime = 30 * time.Second

// An act is the beginning of a lock, its end, or both at one moment. The output is its fence.
type act struct {
	*claim
	begins, ends bool
}

// A keyState is who has a key.
type keyState struct {
	holders int
	writer  bool   // the one holder is a writer
	permits int    // how many there are, as its holders say
	fence   uint64 // the greatest so far
}

func (s keyState) admits(l lockable) bool {
	switch l.Kind {
	case shared:
		return !s.writer
	case permits:
		return s.holders == 0 || s.permits == l.Permits && s.holders < l.Permits
	}
	return s.holders == 0
}

// then is the state after an act, if that may happen.
func (s keyState) then(a act, fence uint64) (may bool, next keyState) {
	if a.begins {
		if !s.admits(a.lock) || fence != 0 && fence <= s.fence {
			return false, s
		}
		s.holders++
		s.writer, s.permits = a.lock.isWriter(), a.lock.Permits
		s.fence = max(s.fence, fence)
	}
	if a.ends {
		s.holders--
		s.writer = false
	}
	return true, s
}

// keyModel is that of a key that is free, and has given this fence last.
func keyModel(fence uint64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return keyState{fence: fence} },
		Step: func(state, input, output any) (bool, any) {
			return state.(keyState).then(input.(act), output.(uint64))
		},
		DescribeOperation: func(input, output any) string {
			a := input.(act)
			text := fmt.Sprintf("%s, hold %d: %s ", a.client, a.hold, a.lock)
			switch {
			case !a.begins:
				return text + "ended"
			case a.ends:
				text += "taken, and ended"
			default:
				text += "taken"
			}
			if a.fence != 0 {
				text += fmt.Sprintf(", fence %d", output)
			}
			return text
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// A keyHistory is a part of what has happened to a key. The key was free before it and after it, and
// nobody was about to take it.
type keyHistory struct {
	key    string
	claims []*claim
	fence  uint64 // the greatest before
}

// A disorder is a history that is not linearizable, or of which this is not known.
type disorder struct {
	keyHistory
	text string
}

func (d disorder) String() string { return d.text }

// historiesOf cuts what has happened to a key into histories. At a cut all that went before is over,
// so each can be judged by itself.
func historiesOf(key string, claims []*claim) (all []keyHistory) {
	claims = slices.SortedFunc(slices.Values(claims), func(a, b *claim) int { return cmp.Compare(a.began, b.began) })
	var end time.Duration
	var fence uint64
	for _, h := range claims {
		if len(all) == 0 || h.began > end {
			all = append(all, keyHistory{key: key, fence: fence})
		}
		last := &all[len(all)-1]
		last.claims = append(last.claims, h)
		end, fence = max(end, h.From, h.To), max(fence, h.fence)
	}
	return all
}

// operations are what porcupine judges. It shows each client's in a row, in which they must not overlap.
func (k keyHistory) operations() (all []porcupine.Operation) {
	var rows []time.Duration // until when they are taken
	for _, h := range k.claims {
		row := slices.IndexFunc(rows, func(until time.Duration) bool { return until < h.began })
		if row < 0 {
			row, rows = len(rows), append(rows, 0)
		}
		rows[row] = max(h.From, h.To)
		lasts := h.From < h.To
		all = append(all, porcupine.Operation{
			ClientId: row, Input: act{h, true, !lasts}, Output: h.fence, Call: int64(h.began), Return: int64(h.From),
		})
		if lasts {
			all = append(all, porcupine.Operation{
				ClientId: row, Input: act{h, false, true}, Output: h.fence, Call: int64(h.To), Return: int64(h.To),
			})
		}
	}
	return all
}

// draw writes a page that shows how far an order can be found.
func (k keyHistory) draw(path string) error {
	model := keyModel(k.fence)
	_, found := porcupine.CheckOperationsVerbose(model, k.operations(), searchTime)
	return porcupine.VisualizePath(model, found, path)
}

// checkOrder demands that what has happened to each key is linearizable.
func (c *checker) checkOrder() {
	claims := make(map[string][]*claim)
	for _, h := range c.claims {
		for _, key := range h.lock.Keys {
			claims[key] = append(claims[key], h)
		}
	}
	for _, key := range keysOf(c.Locks) {
		for _, k := range historiesOf(key, claims[key]) {
			c.Histories++
			c.Longest = max(c.Longest, len(k.claims))
			verdict := porcupine.CheckOperationsTimeout(keyModel(k.fence), k.operations(), searchTime)
			if verdict == porcupine.Ok {
				continue
			}
			what := "are in no order"
			if verdict == porcupine.Unknown {
				what = fmt.Sprintf("could not be put in order within %v", searchTime)
			}
			c.Disorders = append(c.Disorders, disorder{k, fmt.Sprintf("%s: these %s: %s", key, what, c.show(k.claims...))})
			if verdict == porcupine.Unknown {
				break // the next may take as long
			}
		}
	}
}

// draw writes a page into the directory for each of the first disorders.
func (f *finding) draw(dir string) error {
	for i, d := range f.Disorders[:min(len(f.Disorders), maxHarm)] {
		if err := d.draw(filepath.Join(dir, fmt.Sprintf("history-%s-%d.html", d.key, i+1))); err != nil {
			return err
		}
	}
	return nil
}

// disorders counts those of a key.
func (f *finding) disorders(key string) (n int) {
	for _, d := range f.Disorders {
		if d.key == key {
			n++
		}
	}
	return n
}
