package kind

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// ReaderMark begins the ids of readers. It is also a member of the queue by itself: the mark of the rank that readers
// can still join. No other id has a colon.
const ReaderMark = "r:"

const (
	EntryLife = 3 * time.Second // how long an entry of a queue lives after it was renewed
	maxWaited = 1 << 42         // ms that a note can say, so that no sum overflows

	MaxOwner = 128
	MaxToken = 4 << 10 // bytes of a token that is handed over; ours have far less
)

// AppendNote appends what an entry says of its waiter. It has no part of the id: any user who knows the id can end the
// entry.
func AppendNote(dst []byte, waited time.Duration, owner string) []byte {
	dst = strconv.AppendInt(dst, max(waited, 0).Milliseconds(), 10)
	return append(append(dst, ' '), owner...)
}

// ReadNote undoes AppendNote. left is how long the entry has still to live, so the note is as old as its life less that.
// known is false if there is no note.
func ReadNote(note []byte, left time.Duration) (waited time.Duration, owner string, known bool) {
	number, name, ok := bytes.Cut(note, []byte(" "))
	ms, err := strconv.ParseUint(string(number), 10, 63)
	if !ok || err != nil || ms > maxWaited {
		return 0, "", false
	}
	if CheckOwner(string(name)) == nil {
		owner = string(name)
	}
	return Milliseconds(int64(ms)) + max(EntryLife-left, 0), owner, true
}

// TokenChars is how many characters a token has behind its owner: 20 bytes in base64.
const TokenChars = 27

// Owner returns the owner in a token; empty if it has none, or if another library made it.
func Owner(token string) string {
	token, _, _ = CutSlot(strings.TrimPrefix(token, LeftMark))
	i := strings.LastIndexByte(token, '/')
	if i < 0 || len(token)-i-1 != TokenChars || CheckOwner(token[:i]) != nil {
		return ""
	}
	return token[:i]
}

// CheckOwner returns what is wrong with an owner.
func CheckOwner(owner string) error {
	if strings.HasPrefix(owner, LeftMark) {
		return fmt.Errorf("owner %q begins with %s, which marks a lock that was released", owner, LeftMark)
	}
	if len(owner) > MaxOwner {
		return fmt.Errorf("owner has %d bytes, at most %d are possible", len(owner), MaxOwner)
	}
	if strings.HasPrefix(owner, RevokedPrefix) {
		return fmt.Errorf("owner %q begins with revoked: and would be taken for a lock that was revoked", owner)
	}
	for _, r := range owner {
		if r <= ' ' || r > '~' {
			return fmt.Errorf("owner %q has characters other than printable ASCII without spaces", owner)
		}
	}
	return nil
}

// Milliseconds returns the time that a master gives as a number of milliseconds.
func Milliseconds(n int64) time.Duration {
	if n > int64(clock.Forever/time.Millisecond) {
		return clock.Forever
	}
	return time.Duration(n) * time.Millisecond
}
