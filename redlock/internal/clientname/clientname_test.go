package clientname

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANameIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for text, n := range map[string]Name{
		"redlock/lib/v1.2.3/3-9f3a2c1b/billing@host:17": {Library, "v1.2.3", "3-9f3a2c1b", "billing@host:17"},
		"redlock/cmd/-/-/redlock-status@host:17":        {Command, "-", "", "redlock-status@host:17"},
		"redlock/lib/devel/5-00000000/":                 {Library, "devel", "5-00000000", ""},
		"redlock/lib/v1/1-00000000/a/b%25c":             {Library, "v1", "1-00000000", "a/b%c"},
		"redlock/lib/a%2Fb/1-00000000/%C3%A9%20%0A%7F":  {Library, "a/b", "1-00000000", "é \n\x7f"},
	} {
		require.Equal(t, text, n.String())
		read, ours := Parse(text)
		require.True(t, ours)
		require.Equal(t, n, read)
		for _, c := range []byte(text) {
			require.True(t, c > ' ' && c <= '~', "no master takes %q", text)
		}
	}
	require.Equal(t, "redlock/lib/-/-/", Name{Program: Library}.String())
	for _, text := range []string{"", "worker-7", "redlock", "redlock/lib/v1/3-9f3a2c1b", "redlock-doctor"} {
		_, ours := Parse(text)
		require.False(t, ours, text)
	}
	n, ours := Parse("redlock/lib/v1/3-9f3a2c1b/a%zz")
	require.True(t, ours)
	require.Equal(t, "a%zz", n.Owner)
}

// The hash is that of the masters: it is the same in any order, and whoever logs in there.
func TestAListHasOneHash(t *testing.T) {
	t.Parallel()
	list := []string{"a:6379", "b:6379", "redis://c:6379/2"}
	hash := List(list)
	require.Regexp(t, "^3-[0-9a-f]{8}$", hash)
	require.Equal(t, 3, Masters(hash))
	same := [][]string{
		{"b:6379", "redis://c:6379/2", "a:6379"},
		{"A", "redis://user:secret@b:6379", "rediss://:other@c/2"},
		{"a", "b", "redis://c?db=2"},
	}
	for _, other := range same {
		require.Equal(t, hash, List(other), other)
	}
	for _, other := range [][]string{list[:2], {"a:6379", "b:6379", "c:6379"}, {"a:6379", "b:6379", "redis://c:6380/2"}, append(slices.Clone(list), "d")} {
		require.NotEqual(t, hash, List(other), other)
	}
	require.Equal(t, List([]string{"sentinel://a,b,c/g"}), List([]string{"sentinels://user:secret@c,a,b/g"}))
	require.NotEqual(t, List([]string{"sentinel://a,b,c/g"}), List([]string{"sentinel://a,b,c/h"}))
	require.NotEqual(t, List([]string{"unix:///a"}), List([]string{"unix:///b"}))
	require.Zero(t, Masters("x"))
}

func TestWhoIsTheOwnerAndTheName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "billing@host:17", Who("billing@host:17", "billing"))
	require.Equal(t, "billing/worker-7", Who("worker-7", "billing"))
	require.Equal(t, "worker-7", Who("worker-7", ""))
	require.Equal(t, "billing", Who("", "billing"))
	require.Empty(t, Who("", ""))
}

func TestTheVersionIsThisModules(t *testing.T) {
	t.Parallel()
	require.NotContains(t, Version(), "(")
	require.False(t, strings.Contains(Version(), " "))
}
