//go:build unix

package etcdtest

import (
	"testing"

	"github.com/redburst/redburst/redlock/contrib/etcd"
)

func TestSecond(t *testing.T) {
	c := calm(t)
	s := storeOf(c, "second/", etcd.WithTTL(1))
	s.Open(t)
	s.Line(t, "") // its client is closed with this test, and not with the first that uses it
	s.Run(t)
}
