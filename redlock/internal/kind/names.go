package kind

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/redburst/redburst/conn"
)

// appendBeside appends the name of a key that is kept beside a lock's key: {key}:fence, for example. If the key
// has a hash tag, the name is key}:fence: so it has the same tag, and is in the same slot of a cluster.
func appendBeside(dst []byte, key, end string) []byte {
	if conn.HashTag(key) == "" {
		dst = append(dst, '{')
	}
	return append(append(dst, key...), end...)
}

// Ambiguous reports whether what would stand beside a lock's key has the name of what stands beside another's: t}:a has
// no hash tag, and {t}:a has one, and {t}:a}:fence is the counter of both. In a cluster the key and what is beside it
// would be in two slots, too.
func Ambiguous(key string) bool { return conn.HashTag(key) == "" && strings.Contains(key, "}") }

// isBeside reports whether a name can begin with this if it is kept beside a lock's key.
func isBeside(begin string) bool {
	return strings.HasPrefix(begin, "{") || conn.HashTag(begin) != ""
}

// CounterKey returns the key of the counter that a fenced lock on a key has.
func CounterKey(key string) string { return string(appendBeside(nil, key, "}:fence")) }

// IntentKey returns the key at which a writer that waits for readers leaves its intent.
func IntentKey(key string) string { return string(appendIntentKey(nil, key)) }

func appendIntentKey(dst []byte, key string) []byte {
	return appendBeside(dst, key, "}:writer")
}

// cutIntentKey undoes IntentKey. The name can be the intent of a key with a hash tag and of one without; each is nil if
// it is not.
func cutIntentKey(intent []byte) (tagged, plain []byte) {
	rest, ok := bytes.CutSuffix(intent, []byte("}:writer"))
	if !ok {
		return nil, nil
	}
	if hasTag(rest) {
		tagged = rest
	}
	if key, ok := bytes.CutPrefix(rest, []byte("{")); ok && !hasTag(key) {
		plain = key
	}
	return tagged, plain
}

func hasTag(key []byte) bool {
	return conn.HashTag(unsafe.String(unsafe.SliceData(key), len(key))) != ""
}

// slotInfix stands between the key and the slot's number.
const slotInfix = ":permit:"

// slotPrefix returns the beginning of the names of all slots of a key. The slot's number, a slash, and the
// number of slots follow.
func slotPrefix(key string) string { return string(appendBeside(nil, key, "}"+slotInfix)) }

// SlotPrefix is the name by which [AppendQueueKey] knows the lock of a key's permits.
func SlotPrefix(key string) string { return slotPrefix(key) }

// SlotKey returns the key of a slot, from 1 on.
func SlotKey(key string, slot, of int) string {
	return slotPrefix(key) + strconv.Itoa(slot) + "/" + strconv.Itoa(of)
}

// MarkKey returns the key that says how many permits a key has.
func MarkKey(key string) string { return string(appendBeside(nil, key, "}:permits")) }

// WitnessKey returns the key of the masters' witness ([conn.Options.Witness]), for locks with a prefix. Clusters had one
// before, }:witness, which old clients overwrite.
func WitnessKey(prefix string) string { return string(appendBeside(nil, prefix, "}:since")) }

// CutMarkKey undoes MarkKey.
func CutMarkKey(mark string) (key string, ok bool) { return cutBeside(mark, "}:permits") }

// CutQueueKey undoes [AppendQueueKey] for a key, or for its permits.
func CutQueueKey(queue string) (key string, permits, ok bool) {
	if key, ok = cutBeside(queue, "}"+slotInfix+"line"); ok {
		return key, true, true
	}
	key, ok = cutBeside(queue, "}:line")
	return key, false, ok
}

func cutBeside(name, end string) (key string, ok bool) {
	rest, ok := strings.CutSuffix(name, end)
	if !ok || conn.HashTag(rest) != "" {
		return rest, ok
	}
	return strings.CutPrefix(rest, "{")
}

// cutSlotKey splits the name of a slot's key into the prefix, the slot's number and the number of slots. The
// slot is 0 if the name is not a slot's.
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

// AppendQueueKey appends the key of the global queue for one of a lock's names: {key}:line, or
// {key}:permit:line if the lock has permits.
func AppendQueueKey(dst []byte, name string) []byte {
	if begin, ok := strings.CutSuffix(name, "}"+slotInfix); ok && isBeside(begin) {
		return append(append(dst, name...), "line"...)
	}
	return appendBeside(dst, name, "}:line")
}

// Reserved reports whether a name is one of those that are kept beside a lock. See the package comment of
// redlock.
func Reserved(key string) bool {
	for _, end := range [...]string{"}:fence", "}:permits", "}:writer", "}:line", "}:since", "}:witness"} {
		if begin, ok := strings.CutSuffix(key, end); ok && isBeside(begin) {
			return true
		}
	}
	for _, part := range [...]string{"}" + slotInfix, "}:line:"} {
		if i := strings.LastIndex(key, part); i >= 0 && isBeside(key[:i]) {
			return true
		}
	}
	return false
}

// A Subject is a lock whose waiters are to hear of a change of a key. They are subscribed by the lock's name.
type Subject struct {
	Name  []byte
	Slot  int // the slot that has changed, from 1 on; 0 if the lock has no permits
	Slots int // the number of slots; 0 if the lock has no permits
}

// AppendSubjects appends the locks that a key can belong to. It can be a lock's own key, the intent of a writer
// for which readers wait, or a slot. Its name can allow several of these, and then it counts as each.
func AppendSubjects(dst []Subject, key []byte) []Subject {
	dst = append(dst, Subject{Name: key})
	tagged, plain := cutIntentKey(key)
	for _, of := range [...][]byte{tagged, plain} {
		if of != nil {
			dst = append(dst, Subject{Name: of})
		}
	}
	if prefix, slot, of := cutSlotKey(key); slot != 0 {
		dst = append(dst, Subject{prefix, slot, of})
	}
	return dst
}

// Quoted returns a key as it stands in a message.
func Quoted(key string) string {
	const most = 100
	if len(key) > most {
		return fmt.Sprintf("%q...", key[:most])
	}
	return strconv.Quote(key)
}
