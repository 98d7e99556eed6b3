// Package aged knows servers that count as if they had been up for years. A client cannot know that a server which was
// started just now has forgotten nothing. Who has started it can, and tells the clients of its process here:
// redlocktest does. A server is known by its run id, which no other process has. So a restart ends it.
package aged

import (
	"sync"
	"time"
)

// By is for how long such a server counts as up. No lock has such a TTL, and no clock is set so far back that a time
// so long ago is before 1970.
const By = 10 * 365 * 24 * time.Hour

var runs sync.Map // the epoch of each run id

// Add notes a server that has forgotten nothing, unless its run id is not known. A node of a cluster has no longer the
// slots that it had when its epoch is another.
func Add(run, epoch string) {
	if run != "" {
		runs.Store(run, epoch)
	}
}

// Remove ends that.
func Remove(run string) { runs.Delete(run) }

// Has reports whether it is such a server.
func Has(run, epoch string) bool {
	known, ok := runs.Load(run)
	return ok && known == epoch
}
