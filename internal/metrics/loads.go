package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

var (
	loadMessages = prometheus.NewDesc("weir_load_messages_total",
		"Messages at the port for reports of loads, since the director started, by what became of them: taken; short, foreign (none of weir's), unknown_key, forged, malformed; old_epoch (to the process before, or the first of an agent: it is told the number of this one); replayed (or overtaken by a later one).", []string{"outcome"}, nil)
	loadAgents = prometheus.NewDesc("weir_load_agents",
		"Agents that report loads.", nil, nil)
	loadBackends = prometheus.NewDesc("weir_service_load_backends",
		"Backends that may get connections of a service that is placed by load, by whether their load is known: reported, stale.", []string{"service", "state"}, nil)
	loadDegraded = logDesc("weir_service_load_degraded",
		"1 while too few loads are reported, so that new connections are placed without: in turn, or with p2c of mode gue by what the director has opened itself.")
	loadDegradations = logDesc("weir_service_load_degradations_total",
		"How often it has become so, since the director started.")
	loadConnections = backendDesc("weir_backend_load_connections",
		"Connections that the backend's server has open, by its agent's last report.")
	loadQueue = backendDesc("weir_backend_load_queue",
		"Connections that wait in the accept queue of the backend's server, by its agent's last report.")
	loadPressure = backendDesc("weir_backend_load_pressure",
		"Share of the time in which somebody waited for a CPU, of the backend's host or its server's cgroup, 0 to 1, by its agent's last report.")
)

var ofLoads = []*prometheus.Desc{loadMessages, loadAgents, loadBackends, loadDegraded, loadDegradations, loadConnections, loadQueue, loadPressure}

// collectLoads collects nothing if no agent has to report loads. Stale loads have no values.
func collectLoads(values chan<- prometheus.Metric, status *model.DatapathStatus) {
	if status.Loads == nil {
		return
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	for _, m := range status.Loads.Messages {
		values <- prometheus.MustNewConstMetric(loadMessages, prometheus.CounterValue, float64(m.Count), m.Name)
	}
	gauge(loadAgents, float64(status.Loads.Agents))
	first, _ := withMetrics(status.Services)
	for i := range status.Services {
		s := &status.Services[i]
		if s.Loads == nil {
			continue
		}
		gauge(loadBackends, float64(s.Loads.Reported), s.Name, "reported")
		gauge(loadBackends, float64(s.Loads.Stale), s.Name, "stale")
		degraded := 0.0
		if s.Loads.Degraded {
			degraded = 1
		}
		gauge(loadDegraded, degraded, s.Name)
		values <- prometheus.MustNewConstMetric(loadDegradations, prometheus.CounterValue, float64(s.Loads.Degradations), s.Name)
		if i >= first {
			continue
		}
		for j := range s.Backends {
			if l := s.Backends[j].Load; l != nil && !l.Stale {
				gauge(loadConnections, float64(l.Connections), s.Name, s.Backends[j].Name)
				gauge(loadQueue, float64(l.Queue), s.Name, s.Backends[j].Name)
				gauge(loadPressure, l.Pressure, s.Name, s.Backends[j].Name)
			}
		}
	}
}
