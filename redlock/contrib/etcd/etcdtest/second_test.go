//go:build unix

package etcdtest

import (
	"testing"

	"github.com/redburst/redburst/redlock/contrib/etcd"
)

func TestSecond(t *testing.T) {
	t.Parallel()
	storeOf(t, calm(t), "second/", etcd.WithTTL(1)).Run(t)
}
