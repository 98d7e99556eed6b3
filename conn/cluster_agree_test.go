package conn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

// The slots are those of the specification of Redis Cluster, and of a server.
func TestHashSlots(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"123456789": 0x31C3, "foo": 12182, "{foo}bar": 12182, "a{foo}{bar}": 12182, "{}foo": HashSlot("{}foo"), "{06S}": 0, "": 0,
	} {
		require.Equal(t, want, HashSlot(key), key)
	}
	for key, want := range map[string]string{
		"": "", "a": "", "{}": "", "{}{a}": "", "{a": "", "a}": "", "}{a}": "a", "{a}": "a", "x{a}y{b}": "a", "{{a}}": "{a", "{locks}:": "locks",
	} {
		require.Equal(t, want, HashTag(key), key)
	}
}

// slotsReply is an answer to CLUSTER SLOTS. Each range is "first last host port id", or with "-" for a null host.
func slotsReply(ranges ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(ranges))
	for _, r := range ranges {
		f := strings.Fields(r)
		host := fmt.Sprintf("$%d\r\n%s\r\n", len(f[2]), f[2])
		if f[2] == "-" {
			host = "$-1\r\n"
		}
		out += fmt.Sprintf("*4\r\n:%s\r\n:%s\r\n*4\r\n%s:%s\r\n$%d\r\n%s\r\n*0\r\n*4\r\n$1\r\nr\r\n:1\r\n$1\r\nr\r\n*0\r\n", f[0], f[1], host, f[3], len(f[4]), f[4])
	}
	return out
}

func valueOf(t testing.TB, text string) resp.Value {
	r := resp.NewReader(len(text)+1, resp.Limits{Elements: 1 << 20, Frame: maxView})
	copy(r.Free(len(text)), text)
	r.Advance(len(text))
	v, err := r.Next()
	require.NoError(t, err)
	return v
}

func TestViewsOfACluster(t *testing.T) {
	t.Parallel()
	replica := []string{"r:1"}
	for name, c := range map[string]struct {
		reply string
		want  clusterView
		err   string
	}{
		"three masters": {reply: slotsReply("0 9 a 1 A", "10 20 10.0.0.1 2 B", "21 99 ::1 3 C"),
			want: clusterView{[]clusterNode{{"A", "a:1"}, {"B", "10.0.0.1:2"}, {"C", "[::1]:3"}}, "B", replica}},
		"in pieces":            {reply: slotsReply("0 9 a 1 A", "10 20 b 2 B", "21 99 a 1 A"), want: clusterView{[]clusterNode{{"A", "a:1"}, {"B", "b:2"}}, "B", replica}},
		"nobody has it":        {reply: slotsReply("0 9 a 1 A"), want: clusterView{[]clusterNode{{"A", "a:1"}}, "", nil}},
		"the host that we use": {reply: slotsReply("0 16383 - 1 A"), want: clusterView{[]clusterNode{{"A", "asked:1"}}, "A", replica}},
		"no id":                {reply: "*1\r\n*3\r\n:0\r\n:99\r\n*2\r\n$1\r\na\r\n:1\r\n", want: clusterView{[]clusterNode{{"a:1", "a:1"}}, "a:1", nil}},
		"no name":              {reply: slotsReply("0 99 ? 1 A"), want: clusterView{[]clusterNode{{"A", ""}}, "A", replica}},
		"no name, but an address": {
			reply: "*1\r\n*3\r\n:0\r\n:99\r\n*4\r\n$1\r\n?\r\n:1\r\n$1\r\nA\r\n*2\r\n$2\r\nip\r\n$8\r\n10.0.0.1\r\n",
			want:  clusterView{[]clusterNode{{"A", "10.0.0.1:1"}}, "A", nil}},
		"no slots":          {reply: "*0\r\n", err: "no master with slots"},
		"no list":           {reply: "+OK\r\n", err: "no list of slots"},
		"a null":            {reply: "*-1\r\n", err: "no master with slots"},
		"no range":          {reply: "*1\r\n:1\r\n", err: "bad range"},
		"a range beyond":    {reply: slotsReply("0 16384 a 1 A"), err: "bad range"},
		"a range backwards": {reply: slotsReply("9 8 a 1 A"), err: "bad range"},
		"two have it":       {reply: slotsReply("0 50 a 1 A", "10 60 b 1 B"), err: "two masters of slot 15"},
		"a bad port":        {reply: slotsReply("0 50 a 70000 A"), err: "bad node"},
		"a long name":       {reply: slotsReply("0 50 " + strings.Repeat("a", 400) + " 7 A"), err: "bad node"},
		"nothing of a node": {reply: "*1\r\n*3\r\n:0\r\n:99\r\n*2\r\n$1\r\n?\r\n:1\r\n", err: "neither an id nor a place"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := parseView(valueOf(t, c.reply), 15, "asked:7")
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, v)
		})
	}
	var many []string
	for i := range maxMasters + 1 {
		many = append(many, fmt.Sprintf("%d %d a %d %d", i, i, i+1, i))
	}
	_, err := parseView(valueOf(t, slotsReply(many...)), 0, "asked:7")
	require.ErrorContains(t, err, "more than 500 masters")
}

// A scene is what nodes say: by endpoint, the masters that they name, the owner, and their state.
type scene map[string]clusterAnswer

// says is an answer of a node that names these masters. The endpoint of a master is its id.
func says(owner string, state slotState, at time.Duration, masters ...string) clusterAnswer {
	a := clusterAnswer{state: state, asked: at, view: clusterView{owner: owner}}
	for _, m := range masters {
		a.view.masters = append(a.view.masters, clusterNode{m, m})
	}
	return a
}

// More than half of the asked nodes say who the masters are, and more than half of the masters who has the slot.
func TestOwnerThatMostMastersName(t *testing.T) {
	t.Parallel()
	gone := clusterAnswer{err: resp.ErrNeedMore}
	silent := clusterAnswer{pending: true}
	abc := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		sources []string
		said    scene
		want    string
		asked   time.Duration
		moving  bool
	}{
		"all": {abc, scene{"a": says("a", slotHere, 3, abc...), "b": says("a", slotElsewhere, 1, abc...), "c": says("a", slotElsewhere, 2, abc...)}, "a", 2, false},
		"one of three is behind": {abc, scene{"a": says("a", slotHere, 1, abc...), "b": says("b", slotHere, 1, abc...),
			"c": says("b", slotElsewhere, 1, abc...)}, "b", 1, false},
		"each says another": {abc, scene{"a": says("a", slotHere, 1, abc...), "b": says("b", slotHere, 1, abc...), "c": gone}, "", 0, false},
		"two of three are gone, and the third is its master": {abc, scene{"a": says("a", slotHere, 1, abc...), "b": gone, "c": gone}, "", 0, false},
		"one of two":                {[]string{"a"}, scene{"a": says("a", slotHere, 1, "a", "b"), "b": gone}, "", 0, false},
		"one of one":                {[]string{"a"}, scene{"a": says("a", slotHere, 1, "a")}, "a", 1, false},
		"one listed one is gone":    {[]string{"x", "c", "a"}, scene{"x": gone, "c": says("b", slotElsewhere, 1, abc...), "a": says("b", slotElsewhere, 1, abc...), "b": says("b", slotHere, 1, abc...)}, "b", 1, false},
		"two listed ones are gone":  {[]string{"x", "y", "a"}, scene{"x": gone, "y": gone, "a": says("b", slotElsewhere, 1, abc...), "b": says("b", slotHere, 1, abc...)}, "", 0, false},
		"all but a stranger":        {[]string{"a", "b", "x"}, scene{"a": gone, "b": gone, "x": says("x", slotHere, 1, "x")}, "", 0, false},
		"... and they are silent":   {[]string{"a", "b", "x"}, scene{"a": silent, "b": silent, "x": says("x", slotHere, 1, "x")}, "", 0, false},
		"... or not asked yet":      {[]string{"a", "b", "x"}, scene{"x": says("x", slotHere, 1, "x")}, "", 0, false},
		"half of them":              {[]string{"a", "b", "x", "y"}, scene{"a": gone, "b": gone, "x": says("x", slotHere, 1, "x"), "y": says("x", slotElsewhere, 1, "x")}, "", 0, false},
		"a newcomer may be one":     {[]string{"a", "b", "c", "d"}, scene{"a": says("a", slotHere, 1, "a", "b", "d"), "b": says("a", slotElsewhere, 1, "a", "b", "d"), "c": says("b", slotElsewhere, 1, "a", "b"), "d": gone}, "a", 1, false},
		"... two of whose may be":   {[]string{"a", "b", "c", "d"}, scene{"a": says("a", slotHere, 1, "a", "b", "d", "e"), "b": says("a", slotElsewhere, 1, "a", "b", "d", "e"), "c": says("b", slotElsewhere, 1, "a", "b"), "d": gone}, "", 0, false},
		"others may still answer":   {abc, scene{"a": says("a", slotHere, 1, "a"), "b": silent, "c": silent}, "", 0, false},
		"another may still be one":  {abc, scene{"a": says("a", slotHere, 1, "a"), "b": silent, "c": says("a", slotElsewhere, 1, abc...)}, "", 0, false},
		"one has left the cluster":  {abc, scene{"a": says("a", slotHere, 1, "a"), "b": says("d", slotElsewhere, 1, "b", "c", "d"), "c": says("d", slotElsewhere, 1, "b", "c", "d")}, "d", 1, false},
		"one is in another cluster": {[]string{"a", "b"}, scene{"a": says("a", slotHere, 1, "a"), "b": says("b", slotHere, 1, "b")}, "", 0, false},
		"it is moving":              {abc, scene{"a": says("a", slotMoving, 1, abc...), "b": says("a", slotElsewhere, 1, abc...), "c": gone}, "a", 1, true},
		"most serve nobody":         {abc, scene{"a": says("a", slotHere, 1, abc...), "b": says("a", slotDown, 1, abc...), "c": says("a", slotDown, 1, abc...)}, "", 0, false},
		"nobody has it":             {abc, scene{"a": says("", slotElsewhere, 1, abc...), "b": says("", slotElsewhere, 1, abc...), "c": gone}, "", 0, false},
		"no node":                   {nil, scene{}, "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			tally := clusterTally{sources: c.sources, answers: c.said}
			var o SlotOwner
			ok := false
			require.NotPanics(t, func() { o, ok = tally.owner(tally.masters()) })
			require.Equal(t, c.want != "", ok)
			require.Equal(t, c.want, o.Endpoint)
			require.Equal(t, c.asked, o.Asked)
			require.Equal(t, c.moving, o.Moving)
			require.Error(t, tally.disagreement(1, Secret{}))
		})
	}
}

// A server that is known by two ids has one say.
func TestTwoIDsOfAServerHaveOneSay(t *testing.T) {
	t.Parallel()
	at := []clusterNode{{"A", "a"}, {"A2", "a"}, {"B", "b"}, {"C", "c"}}
	said := func(owner string) clusterAnswer {
		return clusterAnswer{state: slotElsewhere, asked: 1, view: clusterView{owner: owner, masters: at}}
	}
	tally := clusterTally{[]string{"a", "b", "c"}, scene{"a": said("A"), "b": said("A"), "c": said("C")}}
	_, ok := tally.owner(tally.masters())
	require.False(t, ok)
	tally.answers["c"] = said("A")
	_, ok = tally.owner(tally.masters())
	require.True(t, ok)
}

// What the master says itself is told with the majority's word, and is no younger than either.
func TestWhatTheMasterOfASlotSaysItself(t *testing.T) {
	t.Parallel()
	abc := []string{"a", "b", "c"}
	own := func(state slotState, at time.Duration) clusterAnswer {
		a := says("a", state, at, abc...)
		a.epoch = "7"
		return a
	}
	for name, c := range map[string]struct {
		own       clusterAnswer
		confirmed time.Duration
		epoch     string
	}{
		"it is asked before the others": {own(slotHere, 3), 3, "7"},
		"it is asked after the others":  {own(slotHere, 9), 6, "7"},
		"it gives the slot away":        {own(slotMoving, 3), 3, "7"},
		"it denies it":                  {own(slotElsewhere, 3), 0, ""},
		"it serves nobody":              {own(slotDown, 3), 0, ""},
		"it is gone":                    {clusterAnswer{err: resp.ErrNeedMore}, 0, ""},
		"it has not answered":           {clusterAnswer{pending: true}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tally := clusterTally{abc, scene{"a": c.own, "b": says("a", slotElsewhere, 6, abc...), "c": says("a", slotElsewhere, 5, abc...)}}
			o, ok := tally.owner(tally.masters())
			require.True(t, ok)
			require.Equal(t, "a", o.Endpoint)
			require.Equal(t, c.confirmed, o.Confirmed)
			require.Equal(t, c.epoch, o.Epoch)
		})
	}
}

// Each node knows itself by another name than the others do. What most call it is its place.
func TestPlaceOfAMasterIsWhatMostCallIt(t *testing.T) {
	t.Parallel()
	tally := clusterTally{sources: []string{"1", "2", "3"}, answers: scene{}}
	for _, at := range tally.sources {
		v := clusterView{owner: "A", masters: []clusterNode{{"A", "a:1"}}}
		if at == "1" {
			v.masters[0].endpoint = "localhost:1"
		}
		tally.answers[at] = clusterAnswer{view: v}
	}
	require.Equal(t, map[string]string{"A": "a:1"}, tally.masters().endpoints)

	// One of those that say so is silent now: what is left is a place that one node names, and no more.
	for _, silent := range []string{"2", "3"} {
		before := tally.answers[silent]
		tally.answers[silent] = clusterAnswer{err: resp.ErrNeedMore}
		require.Empty(t, tally.masters().endpoints)
		tally.answers[silent] = before
	}

	// Half of them is not most of them.
	tally.sources = append(tally.sources, "4")
	tally.answers["4"] = clusterAnswer{err: resp.ErrNeedMore}
	require.Empty(t, tally.masters().endpoints)
	tally.answers["4"] = tally.answers["3"]
	require.Equal(t, map[string]string{"A": "a:1"}, tally.masters().endpoints)
}

// FuzzClusterSlots gives any answer to CLUSTER SLOTS to the parser, and what it makes of it to the count.
func FuzzClusterSlots(f *testing.F) {
	for _, ranges := range [][]string{{"0 9 a 1 A", "10 20 10.0.0.1 2 B", "21 16383 ::1 3 C"}, {"0 16383 - 1 A"}, {"0 99 ? 1 A"}, {}} {
		f.Add([]byte(slotsReply(ranges...)), 15)
	}
	f.Fuzz(func(t *testing.T, text []byte, slot int) {
		r := resp.NewReader(len(text)+1, resp.Limits{Elements: 1 << 20, Frame: maxView})
		copy(r.Free(len(text)+1), text)
		r.Advance(len(text))
		v, err := r.Next()
		if err != nil {
			return
		}
		view, err := parseView(v, slot, "asked:7")
		if err != nil {
			return
		}
		require.NotEmpty(t, view.masters)
		ids := map[string]bool{}
		for _, n := range view.masters {
			require.NotEmpty(t, n.id)
			require.LessOrEqual(t, len(n.endpoint), maxEndpoint+10)
			require.False(t, ids[n.id], "named twice")
			ids[n.id] = true
		}
		require.True(t, view.owner == "" || ids[view.owner])
		tally := clusterTally{sources: []string{"asked:7"}, answers: map[string]clusterAnswer{"asked:7": {view: view}}}
		o, ok := tally.owner(tally.masters())
		require.Equal(t, ok, o.Endpoint != "")
		tally.disagreement(slot, Secret{})
	})
}
