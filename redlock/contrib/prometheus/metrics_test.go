package redlockprom

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// soon is how long what should come at once may take before a test gives up.
const soon = 20 * time.Second

// open returns a client that the metrics watch, and whose masters are all up.
func open(t *testing.T, masters *redlocktest.Masters, metrics *Metrics) *redlock.Client {
	t.Helper()
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), Observers: []redlock.Observer{metrics.Observer()},
		RoundTimeout: 10 * time.Second, DialTimeout: 10 * time.Second, StallTime: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	metrics.Watch(client)
	opened.Store(client, nil)
	require.Eventually(t, func() bool {
		for _, m := range client.Stats().Masters {
			if m.Phase != "up" {
				return false
			}
		}
		return true
	}, soon, 5*time.Millisecond)
	return client
}

// opened are the clients of all tests.
var opened sync.Map

// gathered returns what a scrape has, by name{label,...}: the value, or a histogram's count.
func gathered(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	for c := range opened.Range { // their Observers are told first
		for c.(*redlock.Client).Stats().EventsWaiting > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	families, err := from.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "redlock_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}" // by the labels' names
			}
			all[name] = m.Counter.GetValue() + m.Gauge.GetValue() + float64(m.Histogram.GetSampleCount())
		}
	}
	return all
}

func registered(t *testing.T, metrics *Metrics) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(metrics))
	return r
}

// Every number of the Stats is in the metrics, under its own name.
func TestAllStatsAreCollected(t *testing.T) {
	s := redlock.Stats{Acquired: 1, Held: 2, NoQuorum: 3, Released: 6,
		Renewals: 8, RenewalsFailed: 9, RenewalsNotified: 28, FenceRaised: 10, Lost: 11, Revoked: 31,
		Waiting: 17, Kept: 18,
		EventsDropped: 29, EventsWaiting: 30, ReleaseFailed: 24,
		Masters: []redlock.MasterStats{
			{Addr: "a", Phase: "up", RTT: 19 * time.Second, Debts: 23},
			{Addr: "b", Phase: "quarantined"},
		}}
	*behind.OfStats(&s) = behind.Stats{Expired: 4, Cancelled: 5, Extended: 7, SecondTaken: 25, SecondTime: 26 * time.Second, SecondFailed: 27,
		WokenFree: 12, WokenHeld: 13, WokenExpiry: 14, WokenLocal: 15, WokenPoll: 16}
	*behind.OfMaster(&s.Masters[0]) = behind.Master{Replies: 20, Failures: 21, Owed: 22}
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(only{s}))
	got := gathered(t, r)
	want := map[string]float64{
		"events_dropped_total": 29, "events_waiting": 30,
		"releases_failed_total": 24, "second_locks_total": 25, "second_locks_seconds_total": 26, "second_locks_failed_total": 27, "renewals_notified_total": 28,
		"attempts_total{ok}": 1, "attempts_total{held}": 2, "attempts_total{no_quorum}": 3, "attempts_total{expired}": 4,
		"attempts_total{cancelled}": 5, "released_total": 6, "extended_total": 7, "renewals_total": 8, "renewals_failed_total": 9,
		"fences_raised_total": 10, "lost_total": 11, "revoked_total": 31, "wakes_total{free}": 12, "wakes_total{held}": 13, "wakes_total{expiry}": 14,
		"wakes_total{local}": 15, "wakes_total{poll}": 16, "waiting": 17, "kept": 18,
		"master_rtt_seconds{a}": 19, "master_replies_total{a}": 20, "master_failures_total{a}": 21, "master_owed{a}": 22, "master_debts{a}": 23,
		"master_rtt_seconds{b}": 0, "master_replies_total{b}": 0, "master_failures_total{b}": 0, "master_owed{b}": 0, "master_debts{b}": 0,
	}
	for _, p := range []string{"dialing", "up", "stalled", "down", "refused", "quarantined"} {
		want["master_phase{a,"+p+"}"], want["master_phase{b,"+p+"}"] = 0, 0
	}
	want["master_phase{a,up}"], want["master_phase{b,quarantined}"] = 1, 1
	require.Equal(t, want, got)
	require.Equal(t, "invalid", (mux.Quarantined + 1).String(), "all phases are there")
	require.Equal(t, 18+11, reflect.TypeFor[redlock.Stats]().NumField()+reflect.TypeFor[behind.Stats]().NumField(), "what is new is there")
}

// The page lists what there is, with its labels, and nothing else.
func TestThePageListsEachMetric(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	listed, there := map[string]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(redlock_\w+)(?:\{(.*)\})?`).FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, listed, m[1])
		listed[m[1]] = m[2]
	}
	all := make(chan *prometheus.Desc, 100)
	New().Describe(all)
	close(all)
	for d := range all {
		m := regexp.MustCompile(`fqName: "(\w+)".* variableLabels: \{(.*)\}}$`).FindStringSubmatch(d.String())
		there[m[1]] = m[2]
	}
	require.Equal(t, there, listed)
}

// only collects the Stats that it is given.
type only struct{ stats redlock.Stats }

func (o only) Describe(to chan<- *prometheus.Desc) { New().Describe(to) }
func (o only) Collect(to chan<- prometheus.Metric) { collect(o.stats, to) }

// A master that fails is seen between two scrapes, too.
func TestMetricsOfAMasterThatFails(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	metrics := New()
	client := open(t, masters, metrics)
	registry := registered(t, metrics)
	m := client.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Kill(0)
	a := masters.Addr(0)
	require.Eventually(t, func() bool { return gathered(t, registry)["master_phase{"+a+",down}"] == 1 }, soon, 5*time.Millisecond)
	require.NoError(t, m.Unlock(t.Context()))
	require.Equal(t, 1.0, gathered(t, registry)["master_debts{"+a+"}"])
	require.NoError(t, m.TryLock(t.Context()))
	require.Positive(t, gathered(t, registry)["master_failures_total{"+a+"}"])
	masters.Restart(0)
	require.Eventually(t, func() bool { return gathered(t, registry)["master_phase{"+a+",quarantined}"] == 1 }, soon, 5*time.Millisecond)
	all := gathered(t, registry)
	require.Zero(t, all["master_phase{"+a+",up}"])
	require.Positive(t, all["master_phase_changes_total{"+a+",down}"])
	masters.Kill(1)
	require.ErrorIs(t, client.NewMutex("k", time.Second).TryLock(t.Context()), redlock.ErrNoQuorum)
	all = gathered(t, registry)
	require.Equal(t, 1.0, all["attempts_total{no_quorum}"])
	require.Equal(t, 1.0, all["round_duration_seconds{lock,no_quorum}"])
}

// Keys are labels only as the user's function says.
func TestKeyLabel(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	prefix := func(key string) string { p, _, _ := strings.Cut(key, ":"); return p }
	metrics := New(WithKeyLabel(prefix))
	client := open(t, masters, metrics)
	registry := registered(t, metrics)
	for i := range 3 {
		for _, key := range []string{"orders", "users", "no\xffutf-8"} {
			m := client.NewMutex(fmt.Sprint(key, ":", i), 30*time.Second)
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
		}
	}
	metrics.Observer()(t.Context(), &redlock.Event{Kind: redlock.EventWaited, Key: "orders:7", Took: time.Second})
	all := gathered(t, registry)
	for _, key := range []string{"orders", "users", "no\uFFFDutf-8"} {
		require.Equal(t, 3.0, all["round_duration_seconds{"+key+",lock,ok}"])
		require.Equal(t, 3.0, all["round_duration_seconds{"+key+",unlock,ok}"])
		require.Equal(t, 3.0, all["hold_duration_seconds{"+key+"}"])
	}
	require.Equal(t, 1.0, all["wait_duration_seconds{orders,ok}"])
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A Metrics can be registered before its client is there, and outlives it.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	metrics := New()
	registry := registered(t, metrics)
	require.Empty(t, gathered(t, registry))
	client := open(t, masters, metrics)
	m := client.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	_, stop := m.KeepAlive(t.Context())
	defer stop()
	require.NoError(t, client.Close())
	all := gathered(t, registry)
	require.Equal(t, 1.0, all["attempts_total{ok}"])
	require.Equal(t, 1.0, all["lost_total"])
	require.Zero(t, all["kept"])
	require.Equal(t, 1.0, all["master_phase{"+masters.Addr(0)+",down}"])

	require.True(t, registry.Unregister(metrics))
	require.Empty(t, gathered(t, registry))
	require.NoError(t, registry.Register(metrics))
	require.Equal(t, 1.0, gathered(t, registry)["attempts_total{ok}"])
}

// Several clients of a process are told apart by a label of the registry's.
func TestSeveralClients(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	registry := prometheus.NewPedanticRegistry()
	for i, name := range []string{"orders", "users"} {
		metrics := New()
		client := open(t, masters, metrics)
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"client": name}, registry).Register(metrics))
		for range i + 1 {
			require.NoError(t, client.NewMutex(name, time.Second).TryLock(t.Context()))
			_, err := masters.Do(0, "DEL", name)
			require.NoError(t, err)
			_, err = masters.Do(1, "DEL", name)
			require.NoError(t, err)
		}
	}
	all := gathered(t, registry)
	require.Equal(t, 1.0, all["attempts_total{orders,ok}"])
	require.Equal(t, 2.0, all["attempts_total{users,ok}"])
	require.Error(t, registry.Register(New()), "without the label it is refused")
}
