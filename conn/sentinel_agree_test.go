package conn

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// More than half of the sentinels name a place, in whatever spelling.
func TestPlaceThatMostSentinelsName(t *testing.T) {
	t.Parallel()
	found := map[string][]string{
		"a:1": {"10.0.0.1:1"}, "alias:1": {"10.0.0.1:1"}, "10.0.0.1:1": {"10.0.0.1:1"}, "10.0.0.2:1": {"10.0.0.2:1"},
		"both:1": {"10.0.0.2:1", "10.0.0.1:1"}, "also:1": {"10.0.0.1:1", "10.0.0.2:1"},
	}
	for name, c := range map[string]struct {
		said  []string
		total int
		known string
		want  string // empty if they do not agree
		asked bool   // for addresses
	}{
		"all":                       {[]string{"a:1", "a:1", "a:1"}, 3, "10.0.0.1:1", "a:1", false},
		"most":                      {[]string{"a:1", "a:1", "10.0.0.2:1"}, 3, "", "a:1", false},
		"most, and it is known":     {[]string{"a:1", "a:1", "10.0.0.2:1"}, 3, "a:1", "a:1", false},
		"it has moved":              {[]string{"a:1", "a:1", "10.0.0.2:1"}, 3, "10.0.0.2:1", "a:1", true},
		"it has only been renamed":  {[]string{"a:1", "a:1", "10.0.0.1:1"}, 3, "10.0.0.1:1", "10.0.0.1:1", true},
		"to what cannot be found":   {[]string{"lost:1", "lost:1", "10.0.0.1:1"}, 3, "10.0.0.1:1", "lost:1", true},
		"half":                      {[]string{"a:1", "a:1", "10.0.0.2:1", "10.0.0.2:1"}, 4, "", "", true},
		"too few":                   {[]string{"a:1", "10.0.0.1:1"}, 5, "", "", false},
		"two spellings":             {[]string{"a:1", "10.0.0.1:1"}, 3, "", "10.0.0.1:1", true},
		"two names":                 {[]string{"a:1", "alias:1"}, 3, "", "10.0.0.1:1", true},
		"the known one":             {[]string{"a:1", "10.0.0.1:1"}, 3, "a:1", "a:1", true},
		"the frequent one":          {[]string{"alias:1", "alias:1", "a:1"}, 5, "", "10.0.0.1:1", true},
		"unknown to some":           {[]string{"a:1", "", "10.0.0.1:1"}, 3, "", "10.0.0.1:1", true},
		"no name for it":            {[]string{"", "", "a:1"}, 3, "", "", false},
		"of a name with two places": {[]string{"both:1", "also:1"}, 3, "", "10.0.0.1:1", true},
		"one of its places":         {[]string{"both:1", "both:1", "10.0.0.1:1", "10.0.0.1:1"}, 5, "", "10.0.0.1:1", true},
		"which of its places?":      {[]string{"both:1", "10.0.0.1:1", "10.0.0.2:1"}, 3, "", "", true},
		"cannot be found":           {[]string{"lost:1", "gone:1", "a:1"}, 3, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var places []place
			for _, one := range c.said {
				places = count(places, place{endpoint: one})
			}
			var asked atomic.Bool
			got, ok := agree(places, c.total, c.known, func(endpoint string) (all []netip.AddrPort) {
				asked.Store(true)
				for _, at := range found[endpoint] {
					all = append(all, netip.MustParseAddrPort(at))
				}
				return all
			})
			require.Equal(t, c.want, got.endpoint)
			require.Equal(t, c.want != "", ok)
			require.Equal(t, c.asked, asked.Load())
			if ok {
				require.Greater(t, 2*got.votes, c.total)
			}
		})
	}
}

// One sentinel names what is hard to find. The places of the others are found meanwhile.
func TestNameThatIsHardToFindDelaysNoOther(t *testing.T) {
	t.Parallel()
	var others sync.WaitGroup
	others.Add(2)
	found := make(chan struct{})
	go func() {
		others.Wait()
		close(found)
	}()
	at := netip.MustParseAddrPort("10.0.0.1:1")
	got, ok := agree([]place{{endpoint: "hard:1", votes: 1}, {endpoint: "a:1", votes: 1}, {endpoint: at.String(), votes: 1}}, 3, "",
		func(endpoint string) []netip.AddrPort {
			if endpoint == "hard:1" {
				select {
				case <-found:
				case <-time.After(time.Minute):
					t.Error("the others were not looked up")
				}
				return nil
			}
			others.Done()
			return []netip.AddrPort{at}
		})
	require.True(t, ok)
	require.Equal(t, at.String(), got.endpoint)
	require.Equal(t, 2, got.votes)
}
