package redlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
)

// Shutdown ends the client. It ends the contexts of all work under locks at once, and takes no lock from work that has
// not stopped. It waits until all is released, or ctx ends, and then closes the client ([Client.Close]). When it has begun,
//
//   - each new attempt to take a lock gets ErrClosed, and so does each Lock that waits. An attempt under way ends with its
//     round: its keys are released, and it gets ErrClosed, too, unless it had the lock by then.
//   - the contexts of Do, Acquire, Lead and KeepAlive end, and their causes wrap ErrClosed. A Do whose function has not
//     begun does not call it.
//   - a lock that is kept alive then is renewed until it is unlocked or its stop is called, even if the parent of its
//     context ends. That of Do or Lead is unlocked when the function has returned.
//   - Extend, Unlock and Release do what they always do, and WithMinHold is kept. No lock is handed over in this
//     client any more.
//
// It waits for the functions of Do and Lead, and for the release of each Acquire, also where the lock is lost, and for
// each lock that a Mutex holds, until that is unlocked or its validity has ended. A lock that was handed over by its token counts once it was
// extended. It looks for them with pauses of 10 ms at most.
//
// It returns nil if nothing was left to wait for. Otherwise its error wraps that of ctx, and its cause, or ErrClosed if
// the client was closed meanwhile. Locks that are held then are left to their TTL, as Close leaves them, since work may
// go on under them. The error names the keys of up to ten.
//
// It may be called more than once, and after Close. A function of Do or Lead that calls it waits for itself: let it
// start a goroutine that does, as the function must return first.
func (c *Client) Shutdown(ctx context.Context) (err error) {
	mustContext(ctx)
	c.check()
	defer c.Close()
	c.shutting.Do(func() { close(c.shut) })
	c.held.Shutdown()
	c.localQueues.Wake()
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		// The order matters: an attempt has listed its lock before it ends, and who takes a lock off the list is
		// counted as busy before.
		idle := c.attempts.TryLock()
		if idle {
			c.attempts.Unlock()
		}
		left := c.held.Held()
		busy := c.busy.Load()
		if idle && len(left) == 0 && busy == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
			if cause := context.Cause(ctx); cause != err {
				err = fmt.Errorf("%w: %w", err, cause)
			}
		case <-c.closed:
			err = ErrClosed
		case <-time.After(pause):
			continue
		}
		c.Close() // it ends attempts, which may still have taken a lock
		for key, n := range c.held.Held() {
			left[key] = max(left[key], n) // one may have been let go of too late
		}
		if len(left) == 0 && busy == 0 {
			return nil
		}
		return fmt.Errorf("redlock: shutdown: %w: %s", err, unfinished(left, busy))
	}
}

// unfinished says what Shutdown has not waited for.
func unfinished(left map[string]int, busy int64) string {
	var said []string
	if len(left) > 0 {
		n := 0
		for _, more := range left {
			n += more
		}
		const most = 10
		var keys []string
		for _, key := range slices.Sorted(maps.Keys(left))[:min(most, len(left))] {
			keys = append(keys, kind.Quoted(key))
		}
		text := "1 lock is left to its TTL: "
		if n != 1 {
			text = fmt.Sprintf("%d locks are left to their TTL: ", n)
		}
		text += strings.Join(keys, ", ")
		if more := len(left) - most; more > 0 {
			text += fmt.Sprintf(" and %d more keys", more)
		}
		said = append(said, text)
	}
	if busy > 0 {
		text := "1 call of Do, Acquire, Lead or Unlock has not ended"
		if busy != 1 {
			text = fmt.Sprintf("%d calls of Do, Acquire, Lead or Unlock have not ended", busy)
		}
		said = append(said, text)
	}
	return strings.Join(said, "; ")
}
