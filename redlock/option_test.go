package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What goes together, of each two options and of all that go with a kind, is as in the package comment,
// with a prefix and without one. All else is an error, in either order.
func TestWhatGoesTogether(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "app:"} {
		c, _ := newFake(t, 3, Config{Prefix: prefix})
		goTogether(t, c)
	}
}

func goTogether(t *testing.T, c *Client) {
	options := map[string]Option{
		"fence": WithFence(), "keys": WithKeys("l"), "shared": WithShared(), "permits": WithPermits(4), "second": WithSecond(newOther(0)),
		"token": WithToken("t.1.4"), "owner": WithOwner("o"),
		"max lifetime": WithMaxLifetime(time.Minute), "min hold": WithMinHold(time.Minute),
	}
	never := map[string]bool{
		"fence, permits": true, "keys, shared": true, "keys, permits": true, "shared, permits": true,
		"second, fence": true, "second, keys": true, "second, shared": true, "second, permits": true,
		"min hold, shared": true, "second, token": true,
	}
	for a := range options {
		for b := range options {
			for _, opts := range [][]Option{{options[a], options[b]}, {options[b], options[a]}} {
				goes := !never[a+", "+b] && !never[b+", "+a]
				require.Equal(t, goes, c.CheckMutex("k", ttl, opts...) == nil, "%s, %s", a, b)
			}
		}
	}
	for _, kind := range []string{"", "fence", "keys", "fence, keys", "shared", "shared, fence", "permits"} {
		opts := []Option{options["token"], options["owner"], options["max lifetime"]}
		if !strings.Contains(kind, "shared") {
			opts = append(opts, options["min hold"])
		}
		for name := range strings.SplitSeq(kind, ", ") {
			if name != "" {
				opts = append(opts, options[name])
			}
		}
		require.NoError(t, c.CheckMutex("k", ttl, opts...), kind)
	}
}
