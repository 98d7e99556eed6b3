//go:build unix

package etcdtest

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/contrib/etcd"
)

func TestSecond(t *testing.T) {
	t.Parallel()
	storeOf(t, calm(t), "second/", etcd.WithTTL(10*time.Second)).Run(t)
}
