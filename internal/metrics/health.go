package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	probes = prometheus.NewDesc("weir_health_probes_total",
		"Probes of backends' health, by what they said: ok, or why not.", []string{"result"}, nil)
	checkPackets = prometheus.NewDesc("weir_health_packets_total",
		"Packets of probes that take the way of clients' packets, by what has become of them: check_sent; check_not_marked: none of theirs; check_no_way: its backend is not checked any more; check_not_ip; check_no_room: for outer headers.", []string{"verdict"}, nil)
	healthy = prometheus.NewDesc("weir_service_backends",
		"Backends of the service that would get connections if they were healthy, by what the director's probes say: up, down, unknown.",
		[]string{"service", "health"}, nil)
	panics = logDesc("weir_service_panic", "1 while so few of the service's backends are healthy that all of them are used.")
	probed = prometheus.NewDesc("weir_backend_up",
		"Whether the director's probes find the backend healthy. Backends that are not checked, or not yet, have none.",
		[]string{"service", "backend"}, nil)
	strain = prometheus.NewDesc("weir_backend_strain",
		"Connections in a second that the backend's host refuses, or has no room for in the accept queue (of UDP: datagrams in the receive buffer), by its agent's last report: of services with health.passive, where there are any.",
		[]string{"service", "backend", "sign"}, nil)
	strained = prometheus.NewDesc("weir_backend_strained_share",
		"What part of its share the backend keeps, of those that are strained.", []string{"service", "backend"}, nil)
)

func collectHealth(values chan<- prometheus.Metric, status model.DatapathStatus) {
	for _, p := range status.Probes {
		values <- prometheus.MustNewConstMetric(probes, prometheus.CounterValue, float64(p.Count), p.Name)
	}
	for _, p := range status.CheckPackets {
		values <- prometheus.MustNewConstMetric(checkPackets, prometheus.CounterValue, float64(p.Count), p.Name)
	}
	first, _ := withMetrics(status.Services)
	for i := range status.Services {
		s := &status.Services[i]
		if s.Health == nil {
			continue
		}
		for _, of := range []struct {
			state model.HealthState
			count int
		}{{model.HealthUp, s.Health.Up}, {model.HealthDown, s.Health.Down}, {model.HealthUnknown, s.Health.Unknown}} {
			values <- prometheus.MustNewConstMetric(healthy, prometheus.GaugeValue, float64(of.count), s.Name, string(of.state))
		}
		values <- prometheus.MustNewConstMetric(panics, prometheus.GaugeValue, truth(s.Health.Panic), s.Name)
		if i >= first {
			continue
		}
		for _, b := range s.Backends {
			if b.Health != nil && b.Health.State != model.HealthUnknown {
				values <- prometheus.MustNewConstMetric(probed, prometheus.GaugeValue, truth(b.Health.State == model.HealthUp), s.Name, b.Name)
			}
			if b.Strain != nil {
				values <- prometheus.MustNewConstMetric(strain, prometheus.GaugeValue, b.Strain.Refused, s.Name, b.Name, "refused")
				values <- prometheus.MustNewConstMetric(strain, prometheus.GaugeValue, b.Strain.Overflows, s.Name, b.Name, "overflows")
				values <- prometheus.MustNewConstMetric(strained, prometheus.GaugeValue, float64(b.Strain.Parts)/model.ShareParts, s.Name, b.Name)
			}
		}
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
