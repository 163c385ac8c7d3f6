// Package metrics reports in Prometheus's text format what a director or an agent counts, and the
// resources that its process uses.
package metrics

import (
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir.io/weir/internal/model"
)

// Datapath is the source of the values, read anew for every scrape.
type Datapath interface {
	Status() (model.DatapathStatus, error)
}

// liveHeap is what the last garbage collection left: if it keeps growing, there is a leak.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

// Handler answers scrapes. While the datapath cannot be read it answers with an error.
func Handler(version string, datapath Datapath, bgp func() model.BGPStatus, bfd func() *model.BFDStatus, list func() []model.Problem) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{version, datapath}, sessions(bgp), ways(bfd), newProblems("weir_problems", list),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

var (
	build = prometheus.NewDesc("weir_build_info", "1, for the director's version and the version of Go that it was built with.", []string{"version", "goversion"}, nil)

	utilization = prometheus.NewDesc("weir_datapath_utilization",
		"Share of the CPU's capacity for packets that was in use in the last 10 seconds, 0 to 1.", []string{"cpu"}, nil)
	packets = prometheus.NewDesc("weir_packets_total",
		"Packets that came in on the director's interfaces, by what became of them.", []string{"reason"}, nil)
	flows = prometheus.NewDesc("weir_flows_remembered",
		"Flows whose backend the director remembers.", nil, nil)
	natFlows = prometheus.NewDesc("weir_full_nat_flows",
		"Flows in full NAT's table, by how far what was seen shows that they are flows: fresh ones give way.", []string{"class"}, nil)
	natPlaces = prometheus.NewDesc("weir_full_nat_places",
		"Flows that full NAT's table has places for: addresses, ports and protocols.", nil, nil)
	flowEvents = prometheus.NewDesc("weir_flow_memory_events_total",
		"What has happened to flow memory: flows inserted, refused for want of a place, moved to another CPU, not told to the group at once.", []string{"event"}, nil)
	quic = prometheus.NewDesc("weir_quic_packets_total",
		"Packets of services with quic, by what their connection IDs said: found, unknown, down, other.", []string{"event"}, nil)
	asks = prometheus.NewDesc("weir_ask_redirect_events_total",
		"What has happened to SYNs of services with ask-redirect, and to answers that say whom this director asked.", []string{"event"}, nil)
	left = prometheus.NewDesc("weir_generations_left_total",
		"Generations that have left their service's log, by why: drained (nobody knew of connections, or others had no room), gone (none of their members is a backend any more), repeated (by a newer one, in a full log), max_drain. In a group each is counted by one director.", []string{"cause"}, nil)
	refused = prometheus.NewDesc("weir_api_refused_total",
		"Callers of the API over TCP that were refused, by the cause: certificate (they refuse api.cert), client_certificate (api.client-ca refuses theirs), unknown (of no client), nothing_shown (neither a token nor a certificate: so browsers begin), handshake (the connection ended in the handshake for another cause, such as another version of TLS).", []string{"cause"}, nil)
	hopsMoved = prometheus.NewDesc("weir_next_hops_moved_total",
		"How often the MAC address of a next hop to backends has changed since the process started: another host has its address, a replaced one or a stranger.", nil, nil)
	agents = prometheus.NewDesc("weir_agents",
		"Backends whose agents report their connections to the group, and those that did and are silent for more than a minute.", []string{"state"}, nil)
	bytes = prometheus.NewDesc("weir_bytes_total",
		"Bytes of the IP packets that came in on the director's interfaces, by what became of them.", []string{"reason"}, nil)
)

type collector struct {
	version  string
	datapath Datapath
}

// Describe implements [prometheus.Collector].
func (collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{build, utilization, flows, natFlows, natPlaces, flowEvents, quic, asks, left, refused, hopsMoved, agents, packets, bytes, probes, checkPackets, healthy, panics, probed, strain, strained, redirectProbes, redirected} {
		descriptions <- d
	}
	for _, d := range slices.Concat(ofServices, ofPeers, ofHooks, ofCaptures, ofNeighbors, ofLoads, ofUpkeep) {
		descriptions <- d
	}
	for _, d := range ofLogs {
		descriptions <- d.desc
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(values chan<- prometheus.Metric) {
	values <- prometheus.MustNewConstMetric(build, prometheus.GaugeValue, 1, c.version, runtime.Version())
	status, err := c.datapath.Status()
	if err != nil {
		values <- prometheus.NewInvalidMetric(packets, err)
		return
	}
	for _, cpu := range status.CPUs {
		values <- prometheus.MustNewConstMetric(utilization, prometheus.GaugeValue, cpu.Utilization, strconv.Itoa(cpu.CPU))
	}
	values <- prometheus.MustNewConstMetric(flows, prometheus.GaugeValue, float64(status.Flows.Remembered))
	if nat := status.NAT; nat != nil {
		values <- prometheus.MustNewConstMetric(natFlows, prometheus.GaugeValue, float64(nat.Fresh), model.FreshFlow.String())
		values <- prometheus.MustNewConstMetric(natFlows, prometheus.GaugeValue, float64(nat.Flows-nat.Fresh), model.ProvedFlow.String())
		values <- prometheus.MustNewConstMetric(natPlaces, prometheus.GaugeValue, float64(nat.Places))
	}
	for _, e := range status.Flows.Events {
		values <- prometheus.MustNewConstMetric(flowEvents, prometheus.CounterValue, float64(e.Count), e.Name)
	}
	collectPeers(values, &status)
	collectHooks(values, status.Hooks)
	collectLoads(values, &status)
	collectCapture(values, &status.Capture)
	collectNeighbor(values, &status.Neighbor)
	collectUpkeep(values, status.Upkeep)
	for _, e := range status.QUIC {
		values <- prometheus.MustNewConstMetric(quic, prometheus.CounterValue, float64(e.Count), e.Name)
	}
	for _, e := range status.Asks {
		values <- prometheus.MustNewConstMetric(asks, prometheus.CounterValue, float64(e.Count), e.Name)
	}
	for _, e := range status.Left {
		values <- prometheus.MustNewConstMetric(left, prometheus.CounterValue, float64(e.Count), e.Name)
	}
	for _, e := range status.Refused {
		values <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(e.Count), e.Name)
	}
	values <- prometheus.MustNewConstMetric(hopsMoved, prometheus.CounterValue, float64(status.HopsMoved))
	values <- prometheus.MustNewConstMetric(agents, prometheus.GaugeValue, float64(status.Agents.Reporting), "reporting")
	values <- prometheus.MustNewConstMetric(agents, prometheus.GaugeValue, float64(status.Agents.Silent), "silent")
	collectServices(values, status.Services)
	collectLogs(values, status.Services)
	collectHealth(values, status)
	collectRedirect(values, &status)
	for _, r := range status.Reasons {
		values <- prometheus.MustNewConstMetric(packets, prometheus.CounterValue, float64(r.Packets), r.Name)
		values <- prometheus.MustNewConstMetric(bytes, prometheus.CounterValue, float64(r.Bytes), r.Name)
	}
}
