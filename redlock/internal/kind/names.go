package kind

import (
	"bytes"
	"strconv"
	"strings"
)

// CounterKey is where the counter of a lock with a fence is.
func CounterKey(key string) string { return "{" + key + "}:fence" }

// IntentKey is where a writer that waits for readers leaves its intent.
func IntentKey(key string) string { return "{" + key + "}:writer" }

// cutIntentKey returns the key beside which an intent is; nothing if it is no intent's name.
func cutIntentKey(intent []byte) (key []byte) {
	rest, open := bytes.CutPrefix(intent, []byte("{"))
	key, ok := bytes.CutSuffix(rest, []byte("}:writer"))
	if !open || !ok {
		return nil
	}
	return key
}

// slotInfix is between the key and the slot.
const slotInfix = ":permit:"

// slotPrefix is what the names of all slots of a key begin with. What follows is the slot's number,
// a slash, and how many there are.
func slotPrefix(key string) string { return "{" + key + "}" + slotInfix }

// cutSlotKey splits the name of a slot's key into the prefix and what follows. The slot is 0 if
// it is no such name.
func cutSlotKey(key []byte) (prefix []byte, slot, of int) {
	i := bytes.LastIndexByte(key, ':')
	j := bytes.LastIndexByte(key, '/')
	if i < 0 || j < i {
		return nil, 0, 0
	}
	slot, err := strconv.Atoi(string(key[i+1 : j]))
	of, err2 := strconv.Atoi(string(key[j+1:]))
	if err != nil || err2 != nil || slot < 1 || slot > of {
		return nil, 0, 0
	}
	return key[:i+1], slot, of
}

// AppendQueueKey appends the key of the queue of one of a lock's names: {key}:line, and {key}:permit:line
// for permits.
func AppendQueueKey(dst []byte, name string) []byte {
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, slotInfix) {
		return append(append(dst, name...), "line"...)
	}
	return append(append(append(dst, '{'), name...), "}:line"...)
}

// Reserved reports whether a key has a name that something beside a lock has. See the package comment of redlock.
func Reserved(key string) bool {
	if !strings.HasPrefix(key, "{") {
		return false
	}
	for _, end := range [...]string{"}:fence", "}:permits", "}:writer", "}:line"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	return strings.Contains(key, "}"+slotInfix) || strings.Contains(key, "}:line:")
}

// A Subject is a lock whose waiters a change of a key concerns. They are subscribed by its name.
type Subject struct {
	Name  []byte
	Slot  int // of a lock with permits, from 1 on; 0 of any other
	Slots int // ... and how many there are
}

// AppendSubjects appends the locks that a key concerns. It is a lock's own key, the intent of a writer for which
// readers wait, or a slot; it is all that its name allows.
func AppendSubjects(dst []Subject, key []byte) []Subject {
	dst = append(dst, Subject{Name: key})
	if of := cutIntentKey(key); of != nil {
		dst = append(dst, Subject{Name: of})
	}
	if prefix, slot, of := cutSlotKey(key); slot != 0 {
		dst = append(dst, Subject{prefix, slot, of})
	}
	return dst
}
