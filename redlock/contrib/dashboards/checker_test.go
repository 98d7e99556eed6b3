package dashboards

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// exported is what there is: the labels of each metric, and their values.
type exported map[string]map[string][]string

func (d *database) exported() exported {
	all := exported{}
	for _, s := range d.series {
		name := s.labels.Get("__name__")
		if all[name] == nil {
			all[name] = map[string][]string{}
		}
		s.labels.Range(func(l labels.Label) { all[name][l.Name] = append(all[name][l.Name], l.Value) })
	}
	return all
}

// check returns what an expression names that is not there: metrics, labels, and values of labels.
func (e exported) check(expr string) (faults []string) {
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	known := map[string]bool{} // labels of the metrics that are named
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		v, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		of, ok := e[v.Name]
		if !ok {
			fault("no metric %q", v.Name)
			return nil
		}
		for label := range of {
			known[label] = true
		}
		for _, m := range v.LabelMatchers {
			values, ok := of[m.Name]
			if !ok {
				fault("%s has no label %q", v.Name, m.Name)
				continue
			}
			words := []string{m.Value}
			if m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp {
				words = strings.Split(m.Value, "|")
			}
			for _, word := range words {
				if regexp.QuoteMeta(word) == word && !slices.Contains(values, word) {
					fault("%s is never %q in %s", m.Name, word, v.Name)
				}
			}
		}
		return nil
	})
	grouped := func(names []string) {
		for _, name := range names {
			if !known[name] {
				fault("no label %q", name)
			}
		}
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			grouped(n.Grouping)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped(n.VectorMatching.MatchingLabels)
				grouped(n.VectorMatching.Include)
			}
		}
		return nil
	})
	return faults
}

// The check finds what is misspelt.
func TestCheckerFindsFaults(t *testing.T) {
	e := of(t, `m_total{job="j", outcome="ok"} 1`, `m_total{job="j", outcome="held"} 1`).exported()
	require.Empty(t, e.check(`sum by (outcome) (rate(m_total{outcome=~"ok|held"}[1m])) / on (outcome) m_total`))
	for _, expr := range []string{`m_totl`, `m_total{outcom="ok"}`, `m_total{outcome=~"ok|helt"}`, `sum by (outcom) (m_total)`,
		`m_total / on (jop) m_total`, `rate(m_total[1m]`} {
		require.Len(t, e.check(expr), 1, expr)
	}
}
