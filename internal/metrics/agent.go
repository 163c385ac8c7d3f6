package metrics

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir.io/weir/internal/model"
)

// Agent is the source of an agent's values, read anew for every scrape.
type Agent interface {
	Status() (model.AgentStatus, error)
}

// AgentHandler answers scrapes of an agent. While the kernel cannot be read it answers with
// an error.
func AgentHandler(version string, agent Agent, list func() []model.Problem) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(agentCollector{version, agent}, newProblems("weir_agent_problems", list),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

var (
	agentBuild = prometheus.NewDesc("weir_agent_build_info", "1, for the agent's version and the version of Go that it was built with.", []string{"version", "goversion"}, nil)

	agentPackets = prometheus.NewDesc("weir_agent_packets_total",
		"Packets that came in or left by the agent's interfaces, by what became of them.", []string{"reason"}, nil)
	agentBytes = prometheus.NewDesc("weir_agent_bytes_total", "Bytes of the packets that came in or left by the agent's interfaces, by what became of them.", []string{"reason"}, nil)

	unwrappedPackets = logDesc("weir_agent_service_packets_total", "Packets of the service that were unwrapped; several that the kernel coalesced count once.")
	unwrappedBytes   = logDesc("weir_agent_service_bytes_total", "Bytes of the packets of the service that were unwrapped, without their outer headers.")

	noPlace = logDesc("weir_agent_service_no_place_total", "Packets whose flow would have stayed in the agent's memory, and found no place within the service's quota.")

	redirectedOpened = logDesc("weir_redirect_connections_total",
		"Connections of this host's clients that backends have got: directors do not count their packets.")
	redirectedNow = logDesc("weir_redirect_connections_remembered",
		"Connections of this host's clients with backends that the agent remembers: those that are open, and some that have ended.")
	redirectedPackets = prometheus.NewDesc("weir_redirect_packets_total",
		"Packets of redirected connections that this host's clients have sent and received; several that the kernel coalesced count once.", []string{"service", "direction"}, nil)
	redirectedBytes = prometheus.NewDesc("weir_redirect_bytes_total",
		"Bytes of the IP packets of redirected connections that this host's clients have sent and received.", []string{"service", "direction"}, nil)
	redirectEvents = prometheus.NewDesc("weir_redirect_events_total",
		"What has happened to SYNs and SYN-ACKs of redirected services.", []string{"service", "event"}, nil)
	fallbacks = prometheus.NewDesc("weir_redirect_fallbacks_total",
		"Connections that go as their service falls back, by why. What a backend's host counts, the client's has as again, too.",
		[]string{"service", "host", "cause"}, nil)
	agentLoads = prometheus.NewDesc("weir_agent_load_messages_total",
		"Reports of this host's loads to directors, since the agent started, by their result: sent, failed.", []string{"result"}, nil)
	agentLoadDirectors = prometheus.NewDesc("weir_agent_load_directors",
		"Directors that this host's loads are reported to, by whether they have answered: known, silent.", []string{"state"}, nil)
)

var ofAgents = []*prometheus.Desc{agentBuild, agentPackets, agentBytes, unwrappedPackets, unwrappedBytes, noPlace,
	redirectedOpened, redirectedNow, redirectedPackets, redirectedBytes, redirectEvents, fallbacks, agentLoads, agentLoadDirectors, upkeepRepairs}

type agentCollector struct {
	version string
	agent   Agent
}

// Describe implements [prometheus.Collector].
func (agentCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range ofAgents {
		descriptions <- d
	}
}

// Collect implements [prometheus.Collector].
func (c agentCollector) Collect(values chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	values <- prometheus.MustNewConstMetric(agentBuild, prometheus.GaugeValue, 1, c.version, runtime.Version())
	status, err := c.agent.Status()
	if err != nil {
		values <- prometheus.NewInvalidMetric(agentPackets, err)
		return
	}
	for _, r := range status.Reasons {
		count(agentPackets, r.Packets, r.Name)
		count(agentBytes, r.Bytes, r.Name)
	}
	for _, s := range status.Services {
		count(unwrappedPackets, s.Packets, s.Name)
		count(unwrappedBytes, s.Bytes, s.Name)
		count(noPlace, s.NoPlace, s.Name)
	}
	collectUpkeep(values, status.Upkeep)
	if l := status.Loads; l != nil {
		count(agentLoads, l.Sent, "sent")
		count(agentLoads, l.Failed, "failed")
		values <- prometheus.MustNewConstMetric(agentLoadDirectors, prometheus.GaugeValue, float64(l.Known), "known")
		values <- prometheus.MustNewConstMetric(agentLoadDirectors, prometheus.GaugeValue, float64(l.Directors-l.Known), "silent")
	}
	for i := range status.Redirects {
		r := &status.Redirects[i]
		count(redirectedOpened, r.Opened, r.Name)
		values <- prometheus.MustNewConstMetric(redirectedNow, prometheus.GaugeValue, float64(r.Connections), r.Name)
		count(redirectedPackets, r.SentPackets, r.Name, "sent")
		count(redirectedPackets, r.ReceivedPackets, r.Name, "received")
		count(redirectedBytes, r.SentBytes, r.Name, "sent")
		count(redirectedBytes, r.ReceivedBytes, r.Name, "received")
		for _, e := range r.Events {
			count(redirectEvents, e.Count, r.Name, e.Name)
			if host := model.FallbackHost(e.Name); host != "" {
				count(fallbacks, e.Count, r.Name, host, e.Name)
			}
		}
	}
}
