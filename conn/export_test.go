package conn

import (
	"testing"
	"time"
)

// AskEvery makes FollowGroup ask the sentinels again every d, until the test ends. Every
// FollowGroup must have returned by then, and no other test may run one meanwhile.
func AskEvery(tb testing.TB, d time.Duration) {
	before := askEvery
	askEvery = d
	tb.Cleanup(func() { askEvery = before })
}

// AskSlotEvery makes FollowSlot ask each node again every d, as AskEvery does for FollowGroup.
func AskSlotEvery(tb testing.TB, d time.Duration) {
	before := askSlotEvery
	askSlotEvery = d
	tb.Cleanup(func() { askSlotEvery = before })
}

// Remembers reports whether there is a Secret of a text.
func Remembers(text string) bool {
	secrets.Lock()
	defer secrets.Unlock()
	_, ok := secrets.of[text]
	return ok
}

// AnswerBytes is how many bytes an answer may have of each of so many nodes that are asked at a time.
func AnswerBytes(nodes int) int {
	s := newSurvey(Address{}, &Options{})
	for i := range nodes {
		s.running[string(rune(i))] = func() {}
	}
	return s.limits().Frame
}
