package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

// mostBackends is how many backends have metrics of their own: those of the first services
// of the configuration. A scrape of more would take seconds, and so would each query of it.
const mostBackends = 10_000

var (
	servicePackets     = logDesc("weir_service_packets_total", "Packets that were forwarded to backends of the service, also to those that are gone.")
	serviceBytes       = logDesc("weir_service_bytes_total", "Bytes of the IP packets that were forwarded to backends of the service, as they came in.")
	serviceConnections = logDesc("weir_service_connections_total", "TCP connections that clients have opened to the service: SYNs that were forwarded, those that were sent again, too.")
	serviceDropped     = logDesc("weir_service_dropped_packets_total", "Packets of the service that no backend got. Their reasons are in weir_packets_total.")
	serviceSlots       = logDesc("weir_service_slots", "Slots of the service's ring.")

	backendPackets     = backendDesc("weir_backend_packets_total", "Packets that were forwarded to the backend.")
	backendBytes       = backendDesc("weir_backend_bytes_total", "Bytes of the IP packets that were forwarded to the backend, as they came in.")
	backendConnections = backendDesc("weir_backend_connections_total", "TCP connections that clients have opened to the backend: SYNs that were forwarded, those that were sent again, too.")
	backendSlots       = backendDesc("weir_backend_slots", "Slots of the service's ring that the backend owns: by all of them, what part of new connections it is to get.")

	leftOut = prometheus.NewDesc("weir_backends_without_metrics",
		"Backends that have no metrics of their own, because those of the first services of the configuration are 10,000 already.", nil, nil)
)

var ofServices = []*prometheus.Desc{servicePackets, serviceBytes, serviceConnections, serviceDropped, serviceSlots,
	backendPackets, backendBytes, backendConnections, backendSlots, leftOut}

func backendDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"service", "backend"}, nil)
}

// withMetrics returns how many services have metrics for each backend, and how many backends have
// none.
func withMetrics(services []model.ServiceStatus) (first, without int) {
	for of := 0; first < len(services); first++ {
		if of += len(services[first].Backends); of > mostBackends {
			break
		}
	}
	for i := range services[first:] {
		without += len(services[first+i].Backends)
	}
	return first, without
}

func collectServices(values chan<- prometheus.Metric, services []model.ServiceStatus) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	first, without := withMetrics(services)
	gauge(leftOut, without)
	for i := range services {
		s := &services[i]
		count(servicePackets, s.Packets, s.Name)
		count(serviceBytes, s.Bytes, s.Name)
		count(serviceConnections, s.Opened, s.Name)
		count(serviceDropped, s.Dropped, s.Name)
		gauge(serviceSlots, s.Slots, s.Name)
		if i >= first {
			continue
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			count(backendPackets, b.Packets, s.Name, b.Name)
			count(backendBytes, b.Bytes, s.Name, b.Name)
			count(backendConnections, b.Opened, s.Name, b.Name)
			gauge(backendSlots, b.Slots, s.Name, b.Name)
		}
	}
}
