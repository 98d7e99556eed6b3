package resp_test

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is called for every read and for every reply must not cost a call where
// it is small enough to do without.
func TestSmallFunctionsAreInlined(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	inlinable := map[string]bool{}
	for _, m := range regexp.MustCompile(`can inline (\S+)`).FindAllSubmatch(out, -1) {
		inlinable[string(m[1])] = true
	}
	for _, name := range []string{
		"(*Reader).Advance",
		"(*Reader).Offset",
		"(*Reader).close",
		"(*Reader).fail",
		"(*Reader).naming",
		"(*Reader).scanLineEnd",
		"consumeLength",
		"Kind.IsAggregate",
		"Kind.canName",
		"Value.Kind",
		"Value.Raw",
		"Value.IsNull",
		"Value.IsError",
		"Value.Bytes",
		"Value.Is",
		"Value.Int",
		"Value.Bool",
		"Value.Format",
		"Value.Len",
		"Value.Clone",
		"AppendBulkString",
		"AppendInt",
		"AppendSimpleString",
		"AppendError",
		"AppendNull",
		"AppendNullBulk",
		"AppendNullArray",
		"AppendBool",
		"appendLength",
	} {
		require.True(t, inlinable[name], "%s is no longer inlinable", name)
	}
}
