package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/kube/test/site"
	"weir.io/weir/lab/record"
)

// The measured changes, and their timing.
const (
	podReady      = "pod-ready"
	podTerminates = "pod-terminating"
	serviceMade   = "service-made"
	rollingUpdate = "rolling-update"
	nodeLabelled  = "node-labelled"
	requestEvery  = 2 * time.Millisecond
	longEvery     = 50 * time.Millisecond
	silence       = 1200 * time.Millisecond // longer than a lost SYN waits
	preStop       = 3 * time.Second
	knockEvery    = 2 * time.Millisecond
	knockPatience = 250 * time.Millisecond
	standing      = 4 // pods that stay all the time
	firstOfOthers = 20
	startup       = 300 * time.Millisecond // how long a pod takes to become ready
)

// Quantities: delays from when something was written to the API server.
var (
	inSlice  = record.Quantity{Name: "slice", Unit: "ms", Better: record.Lower}
	inSet    = record.Quantity{Name: "set", Unit: "ms", Better: record.Lower}
	request  = record.Quantity{Name: "request", Unit: "ms", Better: record.Lower}
	byAll    = record.Quantity{Name: "request-by-all", Unit: "ms", Better: record.Lower}
	lastOne  = record.Quantity{Name: "last-request", Unit: "ms", Better: record.Lower}
	routed   = record.Quantity{Name: "route", Unit: "ms", Better: record.Lower}
	failed   = record.Quantity{Name: "failed", Unit: "request", Better: record.Lower}
	broken   = record.Quantity{Name: "broken", Unit: "request", Better: record.Lower}
	made     = record.Quantity{Name: "requests", Unit: "request", Better: record.Neither}
	madeLong = record.Quantity{Name: "long-requests", Unit: "request", Better: record.Neither}
)

// vip is the address of the measured Service. edgeVIP is that of the Service for which nodes join,
// which the DirectorGroup forwards in nat.
var vip, edgeVIP = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")

// each is how many of each change a round has.
type each struct{ pods, services, nodes, rolled int }

var perRound = each{pods: 8, services: 5, nodes: 2, rolled: standing}

// measuring is one run.
type measuring struct {
	*site.Site
	mode     string
	into     *record.Scenario
	perRound each
	requests *site.Requests
	pods     []*site.Pod // that stay
}

func (m *measuring) add(subject string, q record.Quantity, value float64) {
	m.into.Add(subject, nil, q, value)
}

// since records the time between two events; nothing if the second was never seen.
func (m *measuring) since(subject string, q record.Quantity, from, to time.Time) {
	if !to.IsZero() {
		m.add(subject, q, max(0, to.Sub(from).Seconds()*1e3))
	}
}

// all measures everything in rounds, after a warm-up that is not counted.
func (m *measuring) all(ctx context.Context, rounds int) error {
	for i := range standing {
		p, err := m.StartPod(ctx, m.Nodes[i%len(m.Nodes)], "web")
		if err != nil {
			return err
		}
		if _, err := p.Ready(ctx); err != nil {
			return err
		}
		m.pods = append(m.pods, p)
	}
	if err := m.group(ctx); err != nil {
		return err
	}
	if err := m.notes(ctx); err != nil {
		return err
	}
	if _, err := m.MakeService(ctx, "web", "web", vip, m.inMode); err != nil {
		return err
	}
	if err := cluster.Until(ctx, "an answer from outside", func() error { return m.Ask(ctx, vip).Err }); err != nil {
		return err
	}
	counted := m.into
	m.into = &record.Scenario{} // for the warm-up
	if err := m.round(ctx, each{pods: 2, services: 1, nodes: 1}); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	m.into = counted
	for i := range rounds {
		began := time.Now()
		if err := m.round(ctx, m.perRound); err != nil {
			return err
		}
		say("  round %d of %d took %.0f s", i+1, rounds, time.Since(began).Seconds())
	}
	return nil
}

func (m *measuring) round(ctx context.Context, n each) error {
	m.requests = site.Request(ctx, requestEvery, func(ctx context.Context) site.Answer { return m.Ask(ctx, vip) })
	defer func() { m.requests.Close() }()
	for i := range n.pods {
		if err := m.comesAndGoes(ctx, m.Nodes[i%len(m.Nodes)]); err != nil {
			return err
		}
	}
	m.requests.Close()
	for i := range n.services {
		if err := m.service(ctx, netip.AddrFrom4([4]byte{203, 0, 113, byte(firstOfOthers + i)})); err != nil {
			return err
		}
	}
	for range n.nodes {
		if err := m.nodeJoins(ctx); err != nil {
			return err
		}
	}
	if n.rolled == 0 {
		return nil
	}
	return m.roll(ctx, n.rolled)
}

// comesAndGoes measures how soon a pod gets its first request after it is ready, and its last one
// after it was told to end.
func (m *measuring) comesAndGoes(ctx context.Context, n *site.Node) error {
	m.requests.Forget()
	p, err := m.StartPod(ctx, n, "web")
	if err != nil {
		return err
	}
	if err := starts(ctx); err != nil {
		return err
	}
	ready, err := p.Ready(ctx)
	if err != nil {
		return err
	}
	first, all, err := m.requests.Served(ctx, p.Name, m.ways())
	if err != nil {
		return err
	}
	slice := m.SliceSince("web", p.Name, true)
	m.since(podReady, inSlice, ready, slice)
	m.since(podReady, inSet, ready, m.SetSince(slice))
	m.since(podReady, request, ready, first)
	m.since(podReady, byAll, ready, all)
	told, err := p.Delete(ctx)
	if err != nil {
		return err
	}
	last, err := m.requests.Quiet(ctx, p.Name, told, silence)
	if err != nil {
		return err
	}
	if last.IsZero() {
		last = told
	}
	slice = m.SliceSince("web", p.Name, false)
	m.since(podTerminates, inSlice, told, slice)
	m.since(podTerminates, inSet, told, m.SetSince(slice))
	m.since(podTerminates, lastOne, told, last)
	m.count(podReady)
	return p.End(ctx)
}

// starts is a pod's own time until it is ready. Without it the EndpointSlice controller would hear
// of the same pod again before it has read its own write, and back off for a second (its
// defaultSyncBackOff), which would be measured instead. Kubelets ask pods once a second whether
// they are ready.
func starts(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startup):
		return nil
	}
}

// count records how many of the requests since the last Forget have failed.
func (m *measuring) count(subject string) {
	all := m.requests.Since(time.Time{})
	stories := m.requests.Failures(time.Time{})
	for _, story := range stories {
		say("  failed: %s", story)
	}
	m.add(subject, failed, float64(len(stories)))
	m.add(subject, made, float64(len(all)))
}

// service measures how soon after its creation a Service can be reached from outside. Its pods
// exist already.
func (m *measuring) service(ctx context.Context, at netip.Addr) error {
	knocking, stop := context.WithCancel(ctx)
	defer stop()
	first := make(chan time.Time, 1)
	knocks := site.Request(knocking, knockEvery, func(ctx context.Context) site.Answer {
		ctx, cancel := context.WithTimeout(ctx, knockPatience)
		defer cancel()
		a := m.Ask(ctx, at)
		if a.Err == nil {
			select {
			case first <- a.Began.Add(a.Took):
			default:
			}
		}
		return a
	})
	defer knocks.Close()
	name := "made-" + fmt.Sprint(at.As4()[3])
	began, err := m.MakeService(ctx, name, "web", at, m.inMode)
	if err != nil {
		return err
	}
	var hops time.Time
	if err := cluster.Until(ctx, "the router to have a route to "+at.String(), func() error {
		list, err := m.NextHops(at)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("it has none")
		}
		hops = time.Now()
		return err
	}); err != nil {
		return err
	}
	select {
	case answered := <-first:
		m.since(serviceMade, inSet, began, m.SetSince(began))
		m.since(serviceMade, routed, began, hops)
		m.since(serviceMade, request, began, answered)
	case <-time.After(time.Minute):
		return fmt.Errorf("nobody answers at %s", at)
	case <-ctx.Done():
		return ctx.Err()
	}
	stop()
	return m.DeleteService(ctx, name, at)
}

// roll replaces pods while requests are made.
func (m *measuring) roll(ctx context.Context, n int) error {
	short := site.Request(ctx, requestEvery, func(ctx context.Context) site.Answer { return m.Ask(ctx, vip) })
	long := site.Request(ctx, longEvery, func(ctx context.Context) site.Answer { return m.AskLong(ctx, vip) })
	rolled, err := site.Loaded(ctx, short, long, func() error {
		pods, err := m.Roll(ctx, "web", m.pods[:n], preStop)
		m.pods = append(m.pods[n:], pods...)
		return err
	})
	if err != nil {
		return err
	}
	for _, story := range rolled.Stories {
		say("  failed: %s", story)
	}
	m.add(rollingUpdate, failed, float64(rolled.Failed))
	m.add(rollingUpdate, broken, float64(rolled.Broken))
	m.add(rollingUpdate, made, float64(rolled.Made))
	m.add(rollingUpdate, madeLong, float64(rolled.Long))
	return nil
}
