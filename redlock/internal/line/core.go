package line

import (
	"time"

	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// A Core is what the queues and the looks are given of a client.
type Core struct {
	Round    *round.Core
	Tracking *tracking.Registry
	Now      func() time.Duration
	Masters  int                  // how many there are
	Refused  func(err error) bool // whether a master's error says that it will refuse the same again
}
