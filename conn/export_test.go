package conn

import (
	"testing"
	"time"
)

// AskEvery has FollowGroup ask the sentinels again so often, until the test ends. Whoever follows
// has to have ended by then.
func AskEvery(tb testing.TB, d time.Duration) {
	before := askEvery
	askEvery = d
	tb.Cleanup(func() { askEvery = before })
}
