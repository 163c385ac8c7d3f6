package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// ofWays are the metrics of each BFD session.
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

var (
	speaks  = prometheus.NewDesc("weir_bfd_process_up", "Whether the process that speaks BFD answers: 1 or 0.", nil, nil)
	unheard = prometheus.NewDesc("weir_bfd_packets_discarded_total",
		"Packets to the ports of BFD that changed nothing, by why, since weir bfd started.", []string{"reason"}, nil)
)

// ways collects them; nil: BFD is not configured.
type ways func() *model.BFDStatus

// Describe implements [prometheus.Collector].
func (ways) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- speaks
	descriptions <- unheard
	for _, d := range ofWays {
		descriptions <- d.desc
	}
}

// Collect implements [prometheus.Collector].
func (w ways) Collect(values chan<- prometheus.Metric) {
	status := w()
	if status == nil {
		return
	}
	up := 0.0
	if status.PID != 0 && status.Problem == "" {
		up = 1
	}
	values <- prometheus.MustNewConstMetric(speaks, prometheus.GaugeValue, up)
	for _, d := range status.Discards {
		values <- prometheus.MustNewConstMetric(unheard, prometheus.CounterValue, float64(d.Count), d.Name)
	}
	for _, s := range status.Sessions {
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
