package held

import (
	"testing"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"
)

func TestAReleaseOfThePoolIsAsNew(t *testing.T) {
	all := new(releases)
	used, fresh := all.take(), all.take()
	conntest.Soil(used, "of", "onDecided")
	all.put(used)
	own := []string{"Call.Op", "Call.one", "Call.roundLease", "Call.Request.Name"} // see package round
	require.Empty(t, conntest.Differs(used, fresh, own...))
}
