package story

import "slices"

// late tells of those that went on when their lock was over, and b had it. It returns those that may still.
//
// Grounds: when the holder was told of the end, and when b took it. Who has let go late, without having been told, may have stopped to
// rely on it before.
func (s *Story) late(key string, before []*Hold, b *Hold) []*Hold {
	for i, a := range before {
		if !a.excludes(b) || !a.Told.After(a.Until) || !b.Taken.Add(a.tolerated(b)).Before(a.Told) || a.End == HandedOver {
			continue
		}
		if s.room(Late, key) {
			s.wentOn(key, a, b)
		}
		before[i] = nil
	}
	return slices.DeleteFunc(before, func(a *Hold) bool { return a == nil || a.Told.Before(b.From) })
}

func (s *Story) wentOn(key string, a, b *Hold) {
	f := s.find(b.Taken, Late, Frozen, key, "%s took %q after %s's lock had ended. But %s noticed its end only %s later: its process stood still (it was stopped, or its machine was, or it "+
		"collected garbage), or it did not look at its context. Whatever %s has written after %s came too late, and may have undone what %s did. Write with the lock's fence (WithFence), so that late writes are refused.",
		b.Party.Name, key, a.Party.Name, a.Party.Name, Short(a.Told.Sub(a.Until)), a.Party.Name, a.Until.Format(clockFormat), b.Party.Name)
	f.Holds, f.lost = []*Hold{a, b}, []*Hold{a}
	f.Grounds = append(append(ground(a.Last), a.shown()...), ground(b.first())...)
	if !a.told {
		f.doubt("That is so only if it relied on its lock until it let go: nothing told it of the end.")
	}
	if a.toldGaps != a.known() {
		f.doubt("That is so only if nobody had renewed it meanwhile: events are missing before " + a.Party.Name + " noticed.")
	}
	if a.Party.Clock.root != b.Party.Clock.root {
		f.doubt(apart)
	}
}

// clockFormat is a time of day.
const clockFormat = "15:04:05.000"
