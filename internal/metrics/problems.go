package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// problems are the things that a director or an agent was asked for and that do not run.
type problems struct {
	desc *prometheus.Desc
	list func() []model.Problem
}

func newProblems(name string, list func() []model.Problem) problems {
	return problems{prometheus.NewDesc(name,
		"Things that were asked for and do not run now, by their kind and severity: error, or warning where it runs, and not in all of its parts or not for long.", []string{"kind", "severity"}, nil), list}
}

// Describe implements [prometheus.Collector].
func (p problems) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- p.desc }

// Collect implements [prometheus.Collector].
func (p problems) Collect(values chan<- prometheus.Metric) {
	type of struct {
		kind     model.ProblemKind
		severity model.Severity
	}
	counts := map[of]int{}
	for _, one := range p.list() {
		counts[of{one.Kind, one.Severity}]++
	}
	for _, row := range model.ProblemKinds {
		for _, severity := range []model.Severity{model.SeverityError, model.SeverityWarning} {
			values <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(counts[of{row.Kind, severity}]), string(row.Kind), string(severity))
		}
	}
}
