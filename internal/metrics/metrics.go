// Package metrics reports in Prometheus's text format what a director or an agent counts, and the
// resources that its process uses.
package metrics

import (
	"context"
	"net/http"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir.io/weir/internal/model"
)

// Datapath is the source of a director's values, read anew for every scrape.
type Datapath interface {
	Status() (model.DatapathStatus, error)
}

// Agent is the source of an agent's values, read anew for every scrape.
type Agent interface {
	Status() (model.AgentStatus, error)
}

// Handler answers scrapes. While the datapath cannot be read it answers with an error. A scrape by a client that
// is for some segments alone, which only returns, has their services and problems, and nothing else.
func Handler(version string, datapath Datapath, bgp func() model.BGPStatus, bfd func() *model.BFDStatus, list func() []model.Problem, only func(context.Context) []model.Segment) http.Handler {
	all := directorHandler(version, datapath, bgp, bfd, list)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if in := only(r.Context()); in != nil {
			segmentsHandler(in, version, datapath, list).ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}

// segmentsHandler answers a scrape about some segments.
func segmentsHandler(in []model.Segment, version string, datapath Datapath, list func() []model.Problem) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{ofDirector, func(v values) {
		v.build(build, version)
		v.problems(directorProblems, slices.DeleteFunc(slices.Clone(list()), func(p model.Problem) bool { return !slices.Contains(in, p.Segment) }))
		status, err := datapath.Status()
		if err != nil {
			v <- prometheus.NewInvalidMetric(packets, err)
			return
		}
		v.segmentSums(slices.DeleteFunc(status.Segments, func(c model.SegmentCounts) bool { return !slices.Contains(in, c.ID) }))
		status.Services = slices.DeleteFunc(status.Services, func(s model.ServiceStatus) bool { return !slices.Contains(in, s.Segment) })
		for i := range status.Services {
			s := &status.Services[i]
			s.Backends = slices.DeleteFunc(s.Backends, func(b model.BackendStatus) bool { return !slices.Contains(in, b.Segment) })
		}
		v.eachService(status.Services)
	}})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

func directorHandler(version string, datapath Datapath, bgp func() model.BGPStatus, bfd func() *model.BFDStatus, list func() []model.Problem) http.Handler {
	return handler(collector{ofDirector, func(v values) {
		v.build(build, version)
		v.problems(directorProblems, list())
		v.bgp(bgp())
		v.bfd(bfd())
		status, err := datapath.Status()
		if err != nil {
			v <- prometheus.NewInvalidMetric(packets, err)
			return
		}
		v.director(&status)
	}})
}

// AgentHandler answers scrapes of an agent. While the kernel cannot be read it answers with
// an error.
func AgentHandler(version string, agent Agent, list func() []model.Problem) http.Handler {
	return handler(collector{slices.Concat(ofAgent, descriptions{upkeepRepairs}), func(v values) {
		v.build(agentBuild, version)
		v.problems(agentProblems, list())
		status, err := agent.Status()
		if err != nil {
			v <- prometheus.NewInvalidMetric(agentPackets, err)
			return
		}
		v.agent(&status)
	}})
}

// liveHeap is what the last garbage collection left: if it keeps growing, there is a leak.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

func handler(c collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// descriptions are those of all metrics of a process. Each metric's own adds itself.
type descriptions []*prometheus.Desc

var ofDirector, ofAgent descriptions

func (d *descriptions) add(name, help string, labels ...string) *prometheus.Desc {
	*d = append(*d, prometheus.NewDesc(name, help, labels, nil))
	return (*d)[len(*d)-1]
}

// collector collects the metrics of a process.
type collector struct {
	descriptions
	collect func(values)
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descriptions {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) { c.collect(to) }

// values takes the values of one scrape.
type values chan<- prometheus.Metric

func (v values) gauge(d *prometheus.Desc, n float64, labels ...string) {
	v <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
}

func (v values) count(d *prometheus.Desc, n uint64, labels ...string) {
	v <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// is tells 1 or 0.
func (v values) is(d *prometheus.Desc, is bool, labels ...string) {
	n := 0.0
	if is {
		n = 1
	}
	v.gauge(d, n, labels...)
}

// tally counts each event under its name.
func (v values) tally(d *prometheus.Desc, events []model.Tallied) {
	for _, e := range events {
		v.count(d, e.Count, e.Name)
	}
}
