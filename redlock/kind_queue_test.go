package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A queueModel is in Go what a queue is on a master.
type queueModel struct {
	ids []string
	// What each key that is there has to live: "alive", "notice", "spent" if time has passed since, or "late"
	// if the clock was set back.
	// The queue itself has no name, and the others have what follows the queue's.
	left map[string]string
}

const (
	aliveTTL = 100 * time.Second // what an entry is given
	bellTTL  = 200 * time.Second
	spentTTL = 50 * time.Second // what is left when the test lets time pass
	lateTTL  = time.Hour        // ... and when it sets the clock back
)

func (l *queueModel) at(id string) int {
	for i, other := range l.ids {
		if other == id {
			return i
		}
	}
	return -1
}

func (l *queueModel) remove(id string) bool {
	i := l.at(id)
	if i < 0 {
		return false
	}
	l.ids = append(l.ids[:i:i], l.ids[i+1:]...)
	if len(l.ids) == 0 {
		delete(l.left, "")
	}
	return true
}

func reads(id string) bool { return strings.HasPrefix(id, kind.ReaderMark) }

// join puts a reader among those who can be joined, in the order of their ids.
func (l *queueModel) join(id string) {
	at := l.at(kind.ReaderMark) + 1
	for at < len(l.ids) && reads(l.ids[at]) && l.ids[at] < id {
		at++
	}
	l.ids = slices.Insert(l.ids, at, id)
}

// joined reports whether a reader is among those who can be joined.
func (l *queueModel) joined(id string) bool {
	mark, at := l.at(kind.ReaderMark), l.at(id)
	return mark >= 0 && mark < at && !slices.ContainsFunc(l.ids[mark:at], func(id string) bool { return !reads(id) })
}

func (l *queueModel) enter(id string) (before string) {
	switch {
	case l.at(id) >= 0:
	case !reads(id):
		l.ids = append(l.ids, id)
	case l.at(kind.ReaderMark) >= 0:
		l.join(id)
	default:
		l.ids = append(l.ids, kind.ReaderMark, id)
	}
	l.left[""], l.left[id+":alive"] = "alive", "alive"
	at := l.at(id)
	if reads(id) {
		if !l.joined(id) {
			return ""
		}
		at = l.at(kind.ReaderMark)
		defer func() {
			if before == "" {
				l.remove(kind.ReaderMark)
			}
		}()
	}
	for i := at - 1; i >= 0; i-- {
		before := l.ids[i]
		if reads(id) && reads(before) {
			return ""
		}
		if left := l.left[before+":alive"]; left != "" {
			if l.left[before] == "" {
				l.left[before] = "notice"
			}
			for _, id := range l.ids[:i+1] {
				if left == "late" && l.left[id+":alive"] != "" {
					l.left[id+":alive"] = "alive"
				}
			}
			return before
		}
		l.remove(before)
		delete(l.left, before)
	}
	return ""
}

func (l *queueModel) leave(id string) (stood bool) {
	at := l.at(id)
	delete(l.left, id)
	delete(l.left, id+":alive")
	stood = l.remove(id)
	if mark := l.at(kind.ReaderMark); reads(id) && mark >= 0 && (mark == len(l.ids)-1 || !reads(l.ids[mark+1])) {
		l.remove(kind.ReaderMark)
		at = mark
	}
	if at > 0 {
		delete(l.left, l.ids[at-1])
	}
	return stood
}

// seeQueue returns the ids that are in a queue, and how long each of its keys has to live.
const seeQueue = `local all = redis.call('ZRANGE', KEYS[1], 0, -1)
local n = #all
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  all[#all + 1] = key
  all[#all + 1] = tostring(redis.call('PTTL', key))
end
table.insert(all, 1, tostring(n))
return all`

// see returns the queue as it is on a master.
func see(t *testing.T, masters *redlocktest.Masters, queue string) *queueModel {
	t.Helper()
	v := Says(t, masters, 0, "EVAL", seeQueue, "1", queue)
	var all []string
	for _, s := range v.([]any) {
		all = append(all, s.(string))
	}
	n, err := strconv.Atoi(all[0])
	require.NoError(t, err)
	is := &queueModel{ids: all[1 : 1+n], left: map[string]string{}}
	for rest := all[1+n:]; len(rest) > 0; rest = rest[2:] {
		ms, err := strconv.Atoi(rest[1])
		require.NoError(t, err)
		name := rest[0][len(queue):]
		if name != "" {
			name = name[1:]
		}
		switch left := time.Duration(ms) * time.Millisecond; {
		case left <= 0 || left > lateTTL:
			is.left[name] = fmt.Sprint(left)
		case left > bellTTL:
			is.left[name] = "late"
		case left > aliveTTL:
			is.left[name] = "notice"
		case left > spentTTL:
			is.left[name] = "alive"
		default:
			is.left[name] = "spent"
		}
	}
	return is
}

// Whatever comes to pass, the scripts leave on a master what the queue in Go has: the same ids in the
// same order, the same keys, each with the life that it is due.
func TestScriptsOfTheQueueDoAsItsModel(t *testing.T) {
	sequential(t)
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	const queue = "{k}:line"
	ids := []string{"a", "b", "c", "d", "r:a", "r:b", "r:c"}
	for range fewer(30) {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		Says(t, masters, 0, "DEL", queue)
		l := &queueModel{left: map[string]string{}}
		for _, id := range ids {
			Says(t, masters, 0, "DEL", queue+":"+id, queue+":"+id+":alive")
		}
		did := fmt.Sprint("seed ", seed, ":")
		for range 30 {
			id := ids[r.IntN(len(ids))]
			notice := queue + ":" + id
			switch n := r.IntN(21); {
			case n < 11:
				did += " enter " + id
				v := Says(t, masters, 0, "EVAL", kind.EnterScript.Text, "1", queue, id,
					fmt.Sprint(aliveTTL.Milliseconds()), fmt.Sprint(bellTTL.Milliseconds()))
				require.Equal(t, l.enter(id), v, did)
			case n < 14:
				did += " leave " + id
				v := Says(t, masters, 0, "EVAL", kind.LeaveScript.Text, "3", queue, notice, notice+":alive", id)
				require.Equal(t, l.leave(id), v == int64(1), did)
			case n < 16:
				did += " dies " + id
				Says(t, masters, 0, "DEL", notice+":alive")
				delete(l.left, id+":alive")
			case n < 17:
				did += " notice " + id
				Says(t, masters, 0, "DEL", notice)
				delete(l.left, id)
			case n < 19:
				did += " time"
				for name := range l.left {
					key := queue
					if name != "" {
						key += ":" + name
					}
					Says(t, masters, 0, "PEXPIRE", key, fmt.Sprint(spentTTL.Milliseconds()))
					l.left[name] = "spent"
				}
			case n < 20:
				did += " back " + id
				if l.left[id+":alive"] != "" {
					Says(t, masters, 0, "PEXPIRE", notice+":alive", fmt.Sprint(lateTTL.Milliseconds()))
					l.left[id+":alive"] = "late"
				}
			default:
				did += " lost"
				Says(t, masters, 0, "DEL", queue)
				l.ids = nil
				delete(l.left, "")
			}
			is := see(t, masters, queue)
			require.ElementsMatch(t, l.ids, is.ids, did)
			if len(l.ids) > 0 {
				require.Equal(t, l.ids, is.ids, did)
			}
			require.Equal(t, l.left, is.left, did)
		}
	}
}

// Readers have one entry in the queue, that of the first of them, until it is the first of all. Who comes
// later has another.
func TestReadersShareOneRankInTheQueue(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	const queue = "{k}:line"
	type step struct{ does, before string } // "+" enters, "-" leaves, "x" dies
	for name, steps := range map[string][]step{
		"they go together": {
			{"+w1", ""}, {"+r:b", "w1"}, {"+w2", "r:b"}, {"+r:a", "w1"}, {"+r:c", "w1"}, {"+w3", "w2"}, {"+w2", "r:c"},
			{"-w1", ""}, {"+r:b", ""}, {"+r:a", ""}, {"+r:c", ""},
			{"+r:d", "w3"}, {"+r:e", "w3"}, // it is closed
			{"-r:c", ""}, {"+w2", "r:b"}, {"-r:b", ""}, {"+w2", "r:a"}, {"+r:a", ""}, {"-r:a", ""}, {"+w2", ""},
			{"-w2", ""}, {"+r:d", "w3"}, {"-w3", ""}, {"+r:e", ""}, {"+r:d", ""}, {"-r:e", ""}, {"-r:d", ""},
		},
		"who gives up keeps no place": {
			{"+w1", ""}, {"+r:a", "w1"}, {"+r:b", "w1"}, {"+w2", "r:b"}, {"-r:b", ""}, {"+r:c", "w1"},
			{"-r:c", ""}, {"-r:a", ""}, {"+r:d", "w2"}, {"+w2", "w1"}, {"-w1", ""}, {"-w2", ""}, {"-r:d", ""},
		},
		"the dead keep no place": {
			{"+w1", ""}, {"+r:a", "w1"}, {"+r:b", "w1"}, {"+w2", "r:b"}, {"xr:b", ""}, {"+w2", "r:a"}, {"xr:a", ""},
			{"+w2", "w1"}, {"+r:c", "w2"}, {"xw1", ""}, {"+r:c", "w2"}, {"xw2", ""}, {"+r:c", ""}, {"-r:c", ""}, {"-w1", ""},
		},
		"readers that are first delay no others": {
			{"+r:b", ""}, {"+r:a", ""}, {"+w1", "r:a"}, {"+r:c", "w1"}, {"-w1", ""}, {"+r:c", ""}, {"+r:d", ""},
			{"+w2", "r:d"}, {"-r:d", ""}, {"-r:c", ""}, {"+w2", "r:a"}, {"-r:a", ""}, {"+w2", "r:b"}, {"-r:b", ""}, {"+w2", ""}, {"-w2", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			did := ""
			for _, s := range steps {
				id := s.does[1:]
				notice := queue + ":" + id
				did += " " + s.does
				switch s.does[0] {
				case '+':
					v := Says(t, masters, 0, "EVAL", kind.EnterScript.Text, "1", queue, id, "100000", "100000")
					require.Equal(t, s.before, v, did)
				case '-':
					Says(t, masters, 0, "EVAL", kind.LeaveScript.Text, "3", queue, notice, notice+":alive", id)
				default:
					Says(t, masters, 0, "DEL", notice+":alive")
				}
			}
			require.Zero(t, Says(t, masters, 0, "EXISTS", queue), did)
		})
	}
}

// The places of those in a line: readers that share a rank share a place, and their mark has none.
func TestPlacesInLine(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	Says(t, masters, 0, "ZADD", "{k}:line", "1", "a", "2", "r:", "2", "r:b", "2", "r:c", "3", "d")
	for id, want := range map[string]string{"a": "[1 4]", "r:b": "[2 4]", "r:c": "[2 4]", "d": "[4 4]", "nobody": "[0 0]"} {
		require.Equal(t, want, fmt.Sprint(Says(t, masters, 0, "EVAL", kind.PlaceScript.Text, "1", "{k}:line", id)), id)
	}
	Says(t, masters, 0, "ZREM", "{k}:line", "a", "r:")
	for id, want := range map[string]string{"r:b": "[1 3]", "r:c": "[1 3]", "d": "[3 3]"} {
		require.Equal(t, want, fmt.Sprint(Says(t, masters, 0, "EVAL", kind.PlaceScript.Text, "1", "{k}:line", id)), id)
	}
}
