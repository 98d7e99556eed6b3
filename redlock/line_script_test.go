package redlock

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A modelLine is in Go what a line is on a master.
type modelLine struct {
	ids []string
	// What each key that is there has to live: "alive", "bell", "spent" if time has passed since, or "late"
	// if the clock was set back.
	// The line itself has no name, and the others have what follows the line's.
	left map[string]string
}

const (
	aliveTTL = 100 * time.Second // what an entry is given
	bellTTL  = 200 * time.Second
	spentTTL = 50 * time.Second // what is left when the test lets time pass
	lateTTL  = time.Hour        // ... and when it sets the clock back
)

func (l *modelLine) at(id string) int {
	for i, other := range l.ids {
		if other == id {
			return i
		}
	}
	return -1
}

func (l *modelLine) remove(id string) bool {
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

func (l *modelLine) stand(id string) (before string) {
	if l.at(id) < 0 {
		l.ids = append(l.ids, id)
	}
	l.left[""], l.left[id+":alive"] = "alive", "alive"
	for i := l.at(id) - 1; i >= 0; i-- {
		before := l.ids[i]
		if left := l.left[before+":alive"]; left != "" {
			if l.left[before] == "" {
				l.left[before] = "bell"
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

func (l *modelLine) leave(id string) (stood bool) {
	if i := l.at(id); i > 0 {
		delete(l.left, l.ids[i-1])
	}
	delete(l.left, id)
	delete(l.left, id+":alive")
	return l.remove(id)
}

// seeLine returns the ids that stand in a line, and how long each of its keys has to live.
const seeLine = `local all = redis.call('ZRANGE', KEYS[1], 0, -1)
local n = #all
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  all[#all + 1] = key
  all[#all + 1] = tostring(redis.call('PTTL', key))
end
table.insert(all, 1, tostring(n))
return all`

// see returns the line as it is on a master.
func see(t *testing.T, masters *redlocktest.Masters, line string) *modelLine {
	t.Helper()
	v, err := masters.Do(0, "EVAL", seeLine, "1", line)
	require.NoError(t, err)
	var all []string
	for _, s := range v.([]any) {
		all = append(all, s.(string))
	}
	n, err := strconv.Atoi(all[0])
	require.NoError(t, err)
	is := &modelLine{ids: all[1 : 1+n], left: map[string]string{}}
	for rest := all[1+n:]; len(rest) > 0; rest = rest[2:] {
		ms, err := strconv.Atoi(rest[1])
		require.NoError(t, err)
		name := rest[0][len(line):]
		if name != "" {
			name = name[1:]
		}
		switch left := time.Duration(ms) * time.Millisecond; {
		case left <= 0 || left > lateTTL:
			is.left[name] = fmt.Sprint(left)
		case left > bellTTL:
			is.left[name] = "late"
		case left > aliveTTL:
			is.left[name] = "bell"
		case left > spentTTL:
			is.left[name] = "alive"
		default:
			is.left[name] = "spent"
		}
	}
	return is
}

// Whatever comes to pass, the scripts leave on a master what the line in Go has: the same ids in the
// same order, the same keys, each with the life that it is due.
func TestScriptsOfTheLineDoAsItsModel(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	const line = "{k}:line"
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for range 20 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		command(t, masters, 0, "DEL", line)
		l := &modelLine{left: map[string]string{}}
		for _, id := range ids {
			command(t, masters, 0, "DEL", line+":"+id, line+":"+id+":alive")
		}
		did := fmt.Sprint("seed ", seed, ":")
		for range 25 {
			id := ids[r.IntN(len(ids))]
			bell := line + ":" + id
			switch n := r.IntN(21); {
			case n < 11:
				did += " stand " + id
				v, err := masters.Do(0, "EVAL", standScript.text, "1", line, id,
					fmt.Sprint(aliveTTL.Milliseconds()), fmt.Sprint(bellTTL.Milliseconds()))
				require.NoError(t, err)
				require.Equal(t, l.stand(id), v, did)
			case n < 14:
				did += " leave " + id
				v, err := masters.Do(0, "EVAL", leaveScript.text, "3", line, bell, bell+":alive", id)
				require.NoError(t, err)
				require.Equal(t, l.leave(id), v == int64(1), did)
			case n < 16:
				did += " dies " + id
				command(t, masters, 0, "DEL", bell+":alive")
				delete(l.left, id+":alive")
			case n < 17:
				did += " bell " + id
				command(t, masters, 0, "DEL", bell)
				delete(l.left, id)
			case n < 19:
				did += " time"
				for name := range l.left {
					key := line
					if name != "" {
						key += ":" + name
					}
					command(t, masters, 0, "PEXPIRE", key, fmt.Sprint(spentTTL.Milliseconds()))
					l.left[name] = "spent"
				}
			case n < 20:
				did += " back " + id
				if l.left[id+":alive"] != "" {
					command(t, masters, 0, "PEXPIRE", bell+":alive", fmt.Sprint(lateTTL.Milliseconds()))
					l.left[id+":alive"] = "late"
				}
			default:
				did += " lost"
				command(t, masters, 0, "DEL", line)
				l.ids = nil
				delete(l.left, "")
			}
			is := see(t, masters, line)
			require.ElementsMatch(t, l.ids, is.ids, did)
			if len(l.ids) > 0 {
				require.Equal(t, l.ids, is.ids, did)
			}
			require.Equal(t, l.left, is.left, did)
		}
	}
}
