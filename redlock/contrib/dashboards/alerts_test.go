package dashboards

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
	"github.com/stretchr/testify/require"
)

func readAlerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("redlock-alerts.yml", false, model.UTF8Validation)
	require.Empty(t, errs)
	all := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			require.NotContains(t, all, r.Alert)
			all[r.Alert] = r
		}
	}
	return all
}

func TestAlertsNameWhatIsExported(t *testing.T) {
	there := lived(t).exported()
	for name, r := range readAlerts(t) {
		require.Empty(t, there.check(r.Expr), name)
		require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], name)
		for _, what := range []string{"summary", "description"} {
			require.NotEmpty(t, r.Annotations[what], name)
		}
	}
}

// masters is the phase of each master as n clients see it, for ten minutes: its series, and those of the
// other phases.
func masters(phases ...string) (lines []string) {
	for i, is := range phases {
		for _, phase := range []string{"dialing", "up", "stalled", "down", "refused", "quarantined"} {
			value := "0x40"
			if phase == is {
				value = "1x40"
			}
			lines = append(lines, `redlock_master_phase{job="service", instance="host:80", client="c", master="m`+string(rune('0'+i))+`", phase="`+phase+`"} `+value)
		}
	}
	return lines
}

// Each alert fires when it should, says of whom it speaks, and does not fire when all is well.
func TestAlertsFire(t *testing.T) {
	line := func(metric, more, values string) string {
		return metric + `{job="service", instance="host:80", ` + more + `} ` + values
	}
	waits := func(below30 string) []string {
		return []string{line("redlock_wait_duration_seconds_bucket", `outcome="ok", le="30"`, below30),
			line("redlock_wait_duration_seconds_bucket", `outcome="ok", le="60"`, "0+100x60"),
			line("redlock_wait_duration_seconds_bucket", `outcome="ok", le="+Inf"`, "0+100x60")}
	}
	attempts := func(ok, failed string) []string {
		return []string{line("redlock_attempts_total", `outcome="ok"`, ok), line("redlock_attempts_total", `outcome="held"`, "0x40"),
			line("redlock_attempts_total", `outcome="no_quorum"`, failed), line("redlock_attempts_total", `outcome="expired"`, "0x40")}
	}
	renewals := func(sent, failed string) []string {
		return []string{line("redlock_renewals_total", "", sent), line("redlock_renewals_failed_total", "", failed)}
	}
	seconds := func(taken, failed string) []string {
		return []string{line("redlock_second_locks_total", "", taken), line("redlock_second_locks_failed_total", "", failed)}
	}
	lines := func(all ...string) []string { return all }
	rules := readAlerts(t)
	tested := map[string]int{}
	for _, c := range []struct {
		alert string
		given []string
		says  string // the summary; empty if it does not fire
	}{
		{"RedlockQuorumLost", masters("up", "down", "stalled"), "host:80: only 1 redlock masters are up, which is no majority"},
		{"RedlockQuorumLost", masters("down", "down", "down"), "host:80: only 0 redlock masters are up, which is no majority"},
		{"RedlockQuorumLost", masters("up", "up", "quarantined", "down"), "host:80: only 2 redlock masters are up, which is no majority"},
		{"RedlockQuorumLost", masters("up", "up", "down"), ""},
		{"RedlockQuorumLost", masters("up"), ""},
		{"RedlockQuorumAtRisk", masters("up", "up", "down"), "host:80: 2 redlock masters are up, which is just a majority"},
		{"RedlockQuorumAtRisk", masters("up", "quarantined", "up", "up", "down"), "host:80: 3 redlock masters are up, which is just a majority"},
		{"RedlockQuorumAtRisk", masters("up", "up", "up", "up", "down"), ""},
		{"RedlockQuorumAtRisk", masters("up", "up", "up"), ""},
		{"RedlockQuorumAtRisk", masters("up", "down", "down"), ""},
		{"RedlockQuorumAtRisk", masters("up"), ""},
		{"RedlockQuorumAtRisk", masters("up", "up"), ""},
		{"RedlockMasterDown", masters("up", "up", "refused"), "redlock master m2 is refused for 1 clients of service"},
		{"RedlockMasterDown", masters("up", "stalled", "up"), "redlock master m1 is stalled for 1 clients of service"},
		{"RedlockMasterDown", masters("up", "up", "quarantined"), ""},
		{"RedlockMasterQuarantined", masters("up", "up", "quarantined"), "redlock master m2 does not vote for 1 clients of service"},
		{"RedlockMasterQuarantined", masters("up", "up", "down"), ""},
		{"RedlockLockLost", lines(line("redlock_lost_total", "", "3x20 4x20")), ""},
		{"RedlockLockLost", lines(line("redlock_lost_total", "", "3x30 4x10")), "host:80 has lost locks while it worked"},
		{"RedlockNoQuorum", attempts("0+10x40", "0+1x40"), "host:80: 9.091% of the attempts fail because of the masters"},
		{"RedlockNoQuorum", attempts("0+1000x40", "0+1x40"), ""},
		{"RedlockNoQuorum", attempts("0x40", "0x40"), ""},
		{"RedlockSecondLocksFail", seconds("0+9x40", "0+1x40"), "host:80: 10% of the second locks are not to be had"},
		{"RedlockSecondLocksFail", seconds("0x40", "0+1x40"), "host:80: 100% of the second locks are not to be had"},
		{"RedlockSecondLocksFail", seconds("0+100x40", "0+1x40"), ""},
		{"RedlockSecondLocksFail", seconds("0x40", "0x40"), ""},
		{"RedlockRenewalsFail", renewals("0+10x40", "0+1x40"), "host:80: 10% of the renewals fail"},
		{"RedlockRenewalsFail", renewals("0+100x40", "0+1x40"), ""},
		{"RedlockRenewalsFail", renewals("0x40", "0x40"), ""},
		{"RedlockWaitsAreLong", waits("0+90x60"), "one in a hundred waits for a lock of service takes 57s or more"},
		{"RedlockWaitsAreLong", waits("0+100x60"), ""},
		{"RedlockDebtsGrow", lines(line("redlock_master_debts", `master="m0"`, "0+5x60")), "host:80 has more and more releases that redlock master m0 does not take"},
		{"RedlockDebtsGrow", lines(line("redlock_master_debts", `master="m0"`, "300-3x60")), ""},
		{"RedlockDebtsGrow", lines(line("redlock_master_debts", `master="m0"`, "0+1x60")), ""},
	} {
		fired := of(t, c.given...).query(t, rules[c.alert].Expr)
		if c.says == "" {
			require.Empty(t, fired, "%s: %s", c.alert, c.given)
			continue
		}
		require.Len(t, fired, 1, "%s: %s", c.alert, c.given)
		require.Equal(t, c.says, expanded(t, rules[c.alert].Annotations["summary"], fired[0]), c.alert)
		tested[c.alert]++
	}
	for name := range rules {
		require.NotZero(t, tested[name], "%s was not tested", name)
	}
}

// expanded is a text as Prometheus sends it.
func expanded(t *testing.T, text string, s promql.Sample) string {
	t.Helper()
	data := template.AlertTemplateData(s.Metric.Map(), nil, "", promql.Sample{F: s.F})
	defs := "{{$labels := .Labels}}{{$value := .Value}}"
	e := template.NewTemplateExpander(t.Context(), defs+text, "alert", data, model.TimeFromUnix(time.Now().Unix()), nil, nil, nil)
	out, err := e.Expand()
	require.NoError(t, err)
	require.NotContains(t, out, "<no value>")
	require.False(t, strings.HasPrefix(out, ":"), "a label is missing")
	return out
}
