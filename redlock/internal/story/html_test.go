package story_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

// sources are the records of a scene.
func (s *scene) sources() (all []story.Source) {
	s.Helper()
	for _, a := range s.actors {
		all = append(all, story.Source{Name: a.name + ".flight", Record: a.record()})
	}
	return all
}

// twoHave has two clients have a lock at once, as their lists of masters differ.
func twoHave(t *testing.T, key string) (s *scene, tokens []string) {
	t.Helper()
	s = newScene(t, 6)
	first := s.actor("first", func(cfg *redlock.Config) { cfg.Masters = cfg.Masters[:3] }).sees(3)
	first.takes(key, ttl, redlock.WithFence())
	second := s.actor("second", func(cfg *redlock.Config) { cfg.Masters = cfg.Masters[3:] }).sees(3)
	second.takes(key, ttl)
	tokens = []string{first.held.Token(), second.held.Token()}
	second.releases()
	first.releases()
	return s, tokens
}

// A pageData is what the tests look at of what a page draws.
type pageData struct {
	Keys   []string
	Holds  []struct{ At int64 }
	Waits  []struct{}
	Rounds []struct{ At int64 }
	Seen   []struct{ Run int }
	Both   []struct{ From, To int64 }
}

func dataOf(t *testing.T, page []byte) (d pageData) {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindSubmatch(page)
	require.NotNil(t, m)
	require.NoError(t, json.Unmarshal(m[1], &d))
	return d
}

// textOf is what a reader without scripts sees.
func textOf(page []byte) string {
	body := regexp.MustCompile(`(?s)^.*<body>|<script.*?</script>|<[^>]*>`).ReplaceAllString(string(page), "")
	return html.UnescapeString(body)
}

func TestPageStandsAlone(t *testing.T) {
	s, tokens := twoHave(t, "k")
	sources := s.sources()
	page := story.Tell(sources, time.Second).HTML("")
	require.Equal(t, string(page), string(story.Tell(sources, time.Second).HTML("")), "the same records make the same page")
	require.NotRegexp(t, `(?i)https?:|\bsrc=|@import|url\(|//\w`, regexp.MustCompile(`(?m)(^|\s)// .*$`).ReplaceAllString(string(page), ""))
	require.True(t, story.IsHTML(page[:1024]))
	for _, secret := range tokens {
		require.NotContains(t, string(page), secret)
	}
	for element, source := range map[string]string{"style": "style-src", "script": "script-src"} {
		all := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllSubmatch(page, -1)
		require.Len(t, all, 1)
		sum := sha256.Sum256(all[0][1])
		policy := html.UnescapeString(string(page[:2048]))
		require.Contains(t, policy, "default-src 'none'; ")
		require.Contains(t, policy, source+" 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'; ")
	}
}

// What must never be comes first, and needs no script.
func TestPageHasTheSentences(t *testing.T) {
	s, _ := twoHave(t, "k")
	told := s.tell()
	page := told.HTML("")
	text := textOf(page)
	both, rest := strings.Index(text, "Two had a lock at once"), strings.Index(text, "What else is remarkable")
	require.Less(t, -1, both)
	require.Less(t, both, rest)
	for _, line := range told.Remarkable() {
		require.Contains(t, text, line.String()[:12])
		require.Contains(t, text, line.Text)
	}
	for _, line := range told.Who() {
		require.Contains(t, text, line)
	}
	require.Len(t, dataOf(t, page).Both, 1)

	page = told.HTML("k")
	for _, line := range told.Of("k") {
		require.Contains(t, textOf(page), line.Text)
	}
	require.Equal(t, []string{"k"}, dataOf(t, page).Keys)
	require.Contains(t, textOf(told.HTML("none")), `Nobody has held or wanted "none" here.`)
}

// The end of a connection, which may be told late, is no sign of a process that was there before.
func TestPageHasAProcessWhereItIsAlive(t *testing.T) {
	t.Parallel()
	again := asked(3, "a:1", 0)
	again.RunID = "another"
	late := met(3.1, "a:1", 0)
	late.Phase = "down"
	d := dataOf(t, tellOf(forgery{name: "a"}.of(t, met(1, "a:1", 0), again, late)).HTML(""))
	require.Len(t, d.Seen, 3)
	require.NotZero(t, d.Seen[0].Run)
	require.NotZero(t, d.Seen[1].Run)
	require.Zero(t, d.Seen[2].Run)
}

// A key can be any text, and so can an owner.
func TestPageTakesTextForText(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}"'` + "\x00\xff\u202e<!--"
	s, _ := twoHave(t, evil)
	page := s.tell().HTML(evil)
	require.Equal(t, 2, bytes.Count(page, []byte("</script")), "data and script")
	require.NotContains(t, string(page), "<img")
	require.NotContains(t, string(page), "<!--")
	require.NotContains(t, string(page), "\u202e")
	require.Contains(t, textOf(page), `<img src=x onerror=alert(1)>{{.}}"'\x00\xff\u202e<!--`)
	require.Contains(t, dataOf(t, page).Keys[0], `</script><script>alert(1)</script>`)
}

// A made is a record of rounds that nobody has made.
func made(t *testing.T, owner string, rounds func(o redlock.Observer)) *record.Record {
	t.Helper()
	rec, err := flight.New(flight.Options{NoQuestions: true})
	require.NoError(t, err)
	cfg, err := rec.Attach(redlock.Config{Owner: owner, Masters: []string{"a:1", "b:1", "c:1"}})
	require.NoError(t, err)
	rounds(cfg.Observers[0])
	require.NoError(t, rec.Close())
	var b bytes.Buffer
	_, err = rec.WriteTo(&b)
	require.NoError(t, err)
	r, err := record.Read(&b)
	require.NoError(t, err)
	return r
}

// A page that carried all would be too large for a mail. What matters is in it all the same.
func TestPageSaysWhatItLeavesOut(t *testing.T) {
	s, _ := twoHave(t, "k")
	const events = 30_000
	huge := made(t, "busy", func(o redlock.Observer) {
		votes := []redlock.Vote{{Verdict: "yes"}, {Verdict: "yes"}, {Verdict: "pending"}}
		for i := range events {
			e := redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: fmt.Sprint("lock:", i), Votes: votes}
			*behind.OfEvent(&e) = behind.Event{Asked: 3, Validity: time.Second, TTL: time.Second, Holders: 1}
			o(t.Context(), &e)
		}
	})
	told := story.Tell(append(s.sources(), story.Source{Name: "huge", Record: huge}), time.Second)
	page := told.HTML("")
	d := dataOf(t, page)
	require.Equal(t, 20_000, len(d.Holds)+len(d.Waits)+len(d.Rounds)+len(d.Seen))
	require.Contains(t, d.Keys, "k")
	require.Contains(t, d.Keys, fmt.Sprint("lock:", events-1), "the latest")
	require.NotContains(t, d.Keys, "lock:0")
	require.Len(t, d.Both, 1)
	require.Regexp(t, `The timeline has 20000 of 300\d\d events`, textOf(page))
	require.Less(t, len(page), 8<<20)
	require.NotContains(t, textOf(told.HTML("k")), "The timeline has")
}

// Where nothing but fences says what came first, nobody should believe the distance.
func TestPageSaysWhatFencesOrder(t *testing.T) {
	take := func(fence uint64) func(o redlock.Observer) {
		return func(o redlock.Observer) {
			e := redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: "k"}
			*behind.OfEvent(&e) = behind.Event{Validity: time.Second, TTL: time.Second, Holders: 1, Fence: fence}
			o(t.Context(), &e)
		}
	}
	first, second, third := made(t, "first", take(1)), made(t, "second", take(2)), made(t, "third", func(redlock.Observer) {})
	second.About.Boot, second.About.Began = "another", second.About.Began.Add(-time.Hour)
	third.About.Boot = "yet another"
	page := story.Tell([]story.Source{{Name: "1", Record: first}, {Name: "2", Record: second}, {Name: "3", Record: third}}, time.Second).HTML("")
	text := textOf(page)
	require.Contains(t, text, "All times are by the wall clock of first.")
	require.Contains(t, text, "The events of second: fences place them, and no clock does. The order of locks with fences is right.")
	require.Contains(t, text, "Its wall clock was 1h behind.")
	require.Contains(t, text, "The events of third: their own wall clock alone places them")
}
