//go:build unix

package zookeeper

import (
	"testing"
	"time"
)

func TestSecond(t *testing.T) {
	t.Parallel()
	s := storeOf(t, calm(t), "/test/second", WithTimeout(4*time.Second))
	s.Run(t)
}
