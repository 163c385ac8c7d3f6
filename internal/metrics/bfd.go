package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// ofWays is what is said of each BFD session.
var ofWays = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(model.BFDSessionStatus) float64
}{
	{wayDesc("weir_bfd_session_up", "Whether the BFD session is up: 1 or 0."), prometheus.GaugeValue,
		func(s model.BFDSessionStatus) float64 {
			if s.State == "up" {
				return 1
			}
			return 0
		}},
	{wayDesc("weir_bfd_sessions_lost_total", "How often the BFD session was lost by a failure, since weir bfd started."), prometheus.CounterValue,
		func(s model.BFDSessionStatus) float64 { return float64(s.Losses) }},
}

func wayDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"neighbor", "source", "hops"}, nil)
}

// ways collects them.
type ways func() []model.BFDSessionStatus

// Describe implements [prometheus.Collector].
func (ways) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range ofWays {
		descriptions <- d.desc
	}
}

// Collect implements [prometheus.Collector].
func (w ways) Collect(values chan<- prometheus.Metric) {
	for _, s := range w() {
		source, hops := "", "one"
		if s.Source.IsValid() {
			source = s.Source.String()
		}
		if s.Multihop {
			hops = "several"
		}
		for _, d := range ofWays {
			values <- prometheus.MustNewConstMetric(d.desc, d.kind, d.value(s), s.Neighbor.String(), source, hops)
		}
	}
}
