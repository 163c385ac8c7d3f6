package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// ofSessions are the metrics of the session with each neighbor.
var ofSessions = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(model.BGPNeighborStatus) float64
}{
	{sessionDesc("weir_bgp_session_up", "Whether there is a BGP session with the neighbor: 1 or 0."), prometheus.GaugeValue,
		func(n model.BGPNeighborStatus) float64 {
			if n.State == model.SessionEstablished {
				return 1
			}
			return 0
		}},
	{sessionDesc("weir_bgp_routes_announced", "Routes that the neighbor has been told."), prometheus.GaugeValue,
		func(n model.BGPNeighborStatus) float64 { return float64(n.Announced) }},
	{sessionDesc("weir_bgp_sessions_lost_total", "Sessions with the neighbor that have ended, since the director started."), prometheus.CounterValue,
		func(n model.BGPNeighborStatus) float64 { return float64(n.Losses) }},
}

var listens = prometheus.NewDesc("weir_bgp_listener_up", "Whether passive neighbors, all of them, can connect to an address of bgp.listen: 1 or 0.", []string{"listen"}, nil)

func sessionDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"neighbor"}, nil)
}

// sessions collects them.
type sessions func() model.BGPStatus

// Describe implements [prometheus.Collector].
func (sessions) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- listens
	for _, d := range ofSessions {
		descriptions <- d.desc
	}
}

// Collect implements [prometheus.Collector].
func (s sessions) Collect(values chan<- prometheus.Metric) {
	status := s()
	for _, l := range status.Listen {
		up := 1.0
		if l.Problem != "" {
			up = 0
		}
		values <- prometheus.MustNewConstMetric(listens, prometheus.GaugeValue, up, l.Address.String())
	}
	for _, n := range status.Neighbors {
		for _, d := range ofSessions {
			values <- prometheus.MustNewConstMetric(d.desc, d.kind, d.value(n), n.Name())
		}
	}
}
