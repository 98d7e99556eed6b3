package conn

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// More than half of the sentinels name a place, in whatever spelling.
func TestPlaceThatMostSentinelsName(t *testing.T) {
	t.Parallel()
	found := map[string][]string{
		"a": {"10.0.0.1"}, "10.0.0.1": {"10.0.0.1"}, "10.0.0.2": {"10.0.0.2"},
		"both": {"10.0.0.1", "10.0.0.2"}, "also": {"10.0.0.2", "10.0.0.1"},
	}
	for name, c := range map[string]struct {
		said  []string
		total int
		known string
		want  string // empty if they do not agree
		asked bool   // for addresses
	}{
		"all":                       {[]string{"a", "a", "a"}, 3, "10.0.0.1", "a", false},
		"most":                      {[]string{"a", "a", "10.0.0.2"}, 3, "", "a", false},
		"most, and it is known":     {[]string{"a", "a", "10.0.0.2"}, 3, "a", "a", false},
		"it has moved":              {[]string{"a", "a", "10.0.0.2"}, 3, "10.0.0.2", "a", true},
		"it has only been renamed":  {[]string{"a", "a", "10.0.0.1"}, 3, "10.0.0.1", "10.0.0.1", true},
		"to what cannot be found":   {[]string{"lost", "lost", "10.0.0.1"}, 3, "10.0.0.1", "lost", true},
		"half":                      {[]string{"a", "a", "10.0.0.2", "10.0.0.2"}, 4, "", "", true},
		"too few":                   {[]string{"a", "10.0.0.1"}, 5, "", "", false},
		"two spellings":             {[]string{"a", "10.0.0.1"}, 3, "", "10.0.0.1", true},
		"the known one":             {[]string{"a", "10.0.0.1"}, 3, "a", "a", true},
		"the frequent one":          {[]string{"a", "a", "10.0.0.1"}, 5, "", "a", true},
		"unknown to some":           {[]string{"a", "", "10.0.0.1"}, 3, "", "10.0.0.1", true},
		"no name for it":            {[]string{"", "", "a"}, 3, "", "", false},
		"of a name with two places": {[]string{"both", "also"}, 3, "", "also", true},
		"one of its places":         {[]string{"both", "both", "10.0.0.1", "10.0.0.1"}, 5, "", "10.0.0.1", true},
		"which of its places?":      {[]string{"both", "10.0.0.1", "10.0.0.2"}, 3, "", "", true},
		"cannot be found":           {[]string{"lost", "gone", "a"}, 3, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var places []place
			for _, one := range c.said {
				places = count(places, place{endpoint: one})
			}
			asked := false
			got, ok := agree(places, c.total, c.known, func(endpoint string) (all []netip.AddrPort) {
				asked = true
				for _, ip := range found[endpoint] {
					all = append(all, netip.AddrPortFrom(netip.MustParseAddr(ip), 1))
				}
				return all
			})
			require.Equal(t, c.want, got.endpoint)
			require.Equal(t, c.want != "", ok)
			require.Equal(t, c.asked, asked)
			if ok {
				require.Greater(t, 2*got.votes, c.total)
			}
		})
	}
}
