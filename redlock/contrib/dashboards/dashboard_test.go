package dashboards

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dashboard is what there is to be checked of Grafana's.
type dashboard struct {
	Title      string
	UID        string
	Templating struct {
		List []struct {
			Name, Type, Definition string
			Query                  any
		}
	}
	Panels []struct {
		ID      int
		Title   string
		Type    string
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("redlock-dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// filled is an expression with values for Grafana's variables.
func filled(t *testing.T, expr string) string {
	t.Helper()
	expr = strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$job", ".*", "$instance", ".*").Replace(expr)
	require.NotContains(t, expr, "$", "an unknown variable")
	return expr
}

var inLegend = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

// Whatever the dashboard asks for is there, and has the labels by which it is shown.
func TestDashboardShowsWhatIsExported(t *testing.T) {
	service := lived(t)
	there := service.exported()
	d := readDashboard(t)
	require.NotEmpty(t, d.Title)
	require.NotEmpty(t, d.UID)
	named, queries, ids := map[string]bool{}, 0, map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, q := range p.Targets {
			queries++
			expr := filled(t, q.Expr)
			require.Empty(t, there.check(expr), "%s: %s", p.Title, expr)
			result := service.query(t, expr)
			require.NotEmpty(t, result, "%s: %s", p.Title, expr)
			for _, label := range inLegend.FindAllStringSubmatch(q.LegendFormat, -1) {
				require.True(t, result[0].Metric.Has(label[1]), "%s: the result of %s has no label %s", p.Title, expr, label[1])
			}
			for name := range there {
				named[name] = named[name] || regexp.MustCompile(`\b`+name+`\b`).MatchString(expr)
			}
		}
	}
	require.Greater(t, queries, 20)
	for name, is := range named {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count"), "_bucket")
		require.True(t, is || named[base+"_bucket"], "%s is not shown", name)
	}
}

var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// The variables are those that the queries use, and have values.
func TestDashboardVariables(t *testing.T) {
	service := lived(t)
	names := map[string]bool{}
	for _, v := range readDashboard(t).Templating.List {
		names[v.Name] = true
		if v.Type != "query" {
			continue
		}
		require.Equal(t, v.Definition, v.Query.(map[string]any)["query"], "what is shown is what is asked")
		parts := labelValues.FindStringSubmatch(v.Definition)
		require.NotNil(t, parts, v.Definition)
		expr := filled(t, parts[1])
		require.Empty(t, service.exported().check(expr), expr)
		require.NotEmpty(t, service.query(t, expr)[0].Metric.Get(parts[2]), v.Definition)
	}
	require.Equal(t, map[string]bool{"datasource": true, "job": true, "instance": true}, names)
}
