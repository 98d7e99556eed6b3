package redlockotel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func TestMetricsOfAClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	m, other := b.client.NewMutex("k", ttl), b.client.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(ctx))
	require.NoError(t, m.Extend(ctx))
	require.ErrorIs(t, other.TryLock(ctx), redlock.ErrHeld)
	done := make(chan error, 1)
	go func() { done <- other.Lock(ctx) }()
	b.waiting(t)
	require.Equal(t, 1.0, b.collected(t)["lock.waiting"])
	require.NoError(t, m.Unlock(ctx))
	require.NoError(t, <-done)
	_, stop := other.KeepAlive(ctx)
	defer stop()
	require.Equal(t, 1.0, b.collected(t)["lock.kept"])
	b.delete(t, "k")
	require.ErrorIs(t, other.Unlock(ctx), redlock.ErrNotHeld)
	b.masters.Kill(0)
	b.masters.Kill(1)
	require.ErrorIs(t, m.TryLock(ctx), redlock.ErrNoQuorum)
	require.Eventually(t, func() bool {
		all := b.collected(t)
		return all["master.phase_changes{down,"+where(b, 0)+"}"] > 0 && all["master.phase_changes{down,"+where(b, 1)+"}"] > 0
	}, soon, 5*time.Millisecond)

	all := b.collected(t)
	require.Zero(t, all["lock.waiting"])
	require.Zero(t, all["lock.kept"])
	require.Equal(t, 2.0, all["lock.attempts{ok}"])
	require.Positive(t, all["lock.attempts{held}"])
	require.Equal(t, all["lock.attempts{held}"], all["round.duration{lock,held}"])
	require.Equal(t, 1.0, all["lock.attempts{no_quorum}"])
	require.Equal(t, 1.0, all["lock.released"])
	require.Equal(t, 1.0, all["lock.extended"])
	require.Equal(t, 1.0, all["round.duration{lock,ok}"]) // the lock that was handed over took no round
	require.Equal(t, 1.0, all["round.duration{lock,no_quorum}"])
	require.Equal(t, 1.0, all["round.duration{extend,ok}"])
	require.Equal(t, 1.0, all["round.duration{unlock,ok}"])
	require.Equal(t, 1.0, all["round.duration{unlock,not_held}"])
	require.Equal(t, 1.0, all["wait.duration{ok}"])
	require.Equal(t, 2.0, all["hold.duration"])
	require.Equal(t, 1.0, all["master.status{down,"+where(b, 0)+"}"])
	require.Zero(t, all["master.status{up,"+where(b, 0)+"}"])
	require.Equal(t, 1.0, all["master.status{up,"+where(b, 2)+"}"])
	require.Equal(t, 1.0, all["master.phase_changes{up,"+where(b, 2)+"}"])
	require.Positive(t, all["master.rtt{"+where(b, 2)+"}"])
	require.Positive(t, all["master.replies{"+where(b, 2)+"}"])
	require.Positive(t, all["master.failures{"+where(b, 0)+"}"])
}

// where is a master's server.address and server.port.
func where(b *bench, i int) string { return strings.Replace(b.masters.Addr(i), ":", ",", 1) }

// Every number of the Stats is in the metrics, under its own name.
func TestAllStatsAreReported(t *testing.T) {
	s := redlock.Stats{Acquired: 1, Held: 2, NoQuorum: 3, Released: 6,
		Renewals: 8, RenewalsFailed: 9, RenewalsNotified: 28, FenceRaised: 10, Lost: 11, Revoked: 31,
		Waiting: 17, Kept: 18,
		EventsDropped: 29, EventsWaiting: 30, ReleaseFailed: 24,
		Masters: []redlock.MasterStats{
			{Addr: "a:1", Phase: "up", RTT: 19 * time.Second, Debts: 23},
			{Addr: "b:2", Phase: "quarantined"},
		}}
	*behind.OfStats(&s) = behind.Stats{Expired: 4, Cancelled: 5, Extended: 7, SecondTaken: 25, SecondTime: 26 * time.Second, SecondFailed: 27,
		WokenFree: 12, WokenHeld: 13, WokenExpiry: 14, WokenLocal: 15, WokenPoll: 16}
	*behind.OfMaster(&s.Masters[0]) = behind.Master{Replies: 20, Failures: 21, Owed: 22}
	b := &bench{reader: metric.NewManualReader()}
	telemetry, err := New(WithMeterProvider(metric.NewMeterProvider(metric.WithReader(b.reader))))
	require.NoError(t, err)
	r, err := telemetry.watch(func() redlock.Stats { return s })
	require.NoError(t, err)
	want := map[string]float64{
		"events.dropped": 29, "events.waiting": 30,
		"release.failed": 24, "second.taken": 25, "second.time": 26, "second.failed": 27, "renewal.notified": 28,
		"lock.attempts{ok}": 1, "lock.attempts{held}": 2, "lock.attempts{no_quorum}": 3, "lock.attempts{expired}": 4,
		"lock.attempts{cancelled}": 5, "lock.released": 6, "lock.extended": 7, "renewal.sent": 8, "renewal.failed": 9,
		"fence.raised": 10, "lock.lost": 11, "lock.revoked": 31, "wait.wakes{free}": 12, "wait.wakes{held}": 13, "wait.wakes{expiry}": 14,
		"wait.wakes{local}": 15, "wait.wakes{poll}": 16, "lock.waiting": 17, "lock.kept": 18,
		"master.rtt{a,1}": 19, "master.replies{a,1}": 20, "master.failures{a,1}": 21, "master.owed{a,1}": 22, "master.debts{a,1}": 23,
		"master.rtt{b,2}": 0, "master.replies{b,2}": 0, "master.failures{b,2}": 0, "master.owed{b,2}": 0, "master.debts{b,2}": 0,
	}
	for _, p := range []string{"dialing", "up", "stalled", "down", "refused", "quarantined"} {
		want["master.status{"+p+",a,1}"], want["master.status{"+p+",b,2}"] = 0, 0
	}
	want["master.status{up,a,1}"], want["master.status{quarantined,b,2}"] = 1, 1
	require.Equal(t, want, b.collected(t))
	require.Equal(t, "invalid", (mux.Quarantined + 1).String(), "all phases are there")
	require.Equal(t, 18+11, reflect.TypeFor[redlock.Stats]().NumField()+reflect.TypeFor[behind.Stats]().NumField(), "what is new is there")
	require.NoError(t, r.Unregister())
	require.Empty(t, b.collected(t))
}

// The page lists what there is, with its unit, and nothing else.
func TestThePageListsEachMetric(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, page, _ = bytes.Cut(page, []byte("# Metrics"))
	listed, there := map[string]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(redlock\.\S+) +(\S+)`).FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, listed, m[1])
		listed[m[1]] = m[2]
	}
	reader := metric.NewManualReader()
	telemetry, err := New(WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	require.NoError(t, err)
	_, err = telemetry.watch(func() redlock.Stats { return redlock.Stats{Masters: []redlock.MasterStats{{Addr: "a:1"}}} })
	require.NoError(t, err)
	for _, e := range []redlock.Event{{Kind: redlock.EventRound}, {Kind: redlock.EventWaited}, {Kind: redlock.EventMaster, Master: &redlock.MasterStats{}}} {
		behind.OfEvent(&e).Held = 1
		telemetry.Observer()(t.Context(), &e)
	}
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	for _, m := range data.ScopeMetrics[0].Metrics {
		there[m.Name] = m.Unit
	}
	require.Equal(t, there, listed)
}

func TestPlaceOfAMaster(t *testing.T) {
	for address, want := range map[string]map[string]any{
		"a:6379":                {"server.address": "a", "server.port": int64(6379)},
		"rediss://a:1/3":        {"server.address": "a", "server.port": int64(1)},
		"[::1]:6379":            {"server.address": "::1", "server.port": int64(6379)},
		"unix:///run/redis.s":   {"server.address": "/run/redis.s"},
		"sentinel://a:1,b:2/g":  {"server.address": "a:1,b:2/g"},
		"sentinel://a:1/g":      {"server.address": "a:1/g"},
		"what is that supposed": {"server.address": "what is that supposed"},
	} {
		require.Equal(t, want, about(place(address)), address)
	}
}

// Keys are attributes of metrics only as the user's function says.
func TestKeyLabel(t *testing.T) {
	t.Parallel()
	b := newBench(t, WithKeyLabel(func(key string) string { p, _, _ := strings.Cut(key, ":"); return p }),
		WithAttributes(attribute.String("client", "c")))
	for i := range 3 {
		for _, key := range []string{"orders", "users", "no\xffutf-8"} {
			m := b.client.NewMutex(fmt.Sprint(key, ":", i), ttl)
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
		}
	}
	b.Observer()(t.Context(), &redlock.Event{Kind: redlock.EventWaited, Key: "orders:7", Took: time.Second})
	all := b.collected(t)
	for _, key := range []string{"orders", "users", "no\uFFFDutf-8"} {
		require.Equal(t, 3.0, all["round.duration{c,"+key+",lock,ok}"])
		require.Equal(t, 3.0, all["round.duration{c,"+key+",unlock,ok}"])
		require.Equal(t, 3.0, all["hold.duration{c,"+key+"}"])
	}
	require.Equal(t, 1.0, all["wait.duration{c,orders,ok}"])
	require.Equal(t, 9.0, all["lock.attempts{c,ok}"])
	require.Equal(t, 1.0, all["master.status{c,up,"+where(b, 0)+"}"])
}

// What was counted last is reported after Close, too.
func TestMetricsOutliveTheClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.Do(t.Context(), b.client, "k", ttl, func(context.Context) error { return nil }))
	require.NoError(t, b.client.Close())
	all := b.collected(t)
	require.Equal(t, 1.0, all["lock.attempts{ok}"])
	require.Equal(t, 1.0, all["master.status{down,"+where(b, 0)+"}"])
}

// Several clients of a process share the instruments, and are told apart.
func TestSeveralClients(t *testing.T) {
	t.Parallel()
	b := newBench(t, WithAttributes(attribute.String("client", "first")))
	for i, name := range []string{"orders", "users"} {
		telemetry, err := New(WithMeterProvider(b.meters), WithAttributes(attribute.String("client", name)))
		require.NoError(t, err)
		client := b.open(t, telemetry)
		for range i + 1 {
			require.NoError(t, telemetry.Do(t.Context(), client, "k", ttl, func(context.Context) error { return nil }))
		}
	}
	all := b.collected(t)
	require.Equal(t, 1.0, all["lock.attempts{orders,ok}"])
	require.Equal(t, 2.0, all["lock.attempts{users,ok}"])
	require.Equal(t, 1.0, all["round.duration{orders,unlock,ok}"])
	require.Equal(t, 2.0, all["round.duration{users,unlock,ok}"])
}
