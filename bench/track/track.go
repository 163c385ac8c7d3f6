// Package track is where forwarding is measured:
//
//	source --- balancer --- sink        source and sink --- balancer
//
// The source's packets go through whatever runs on the balancer: weir in one of its
// modes, DNAT by the kernel, or an XDP program that only redirects. Without a
// balancer the source is cabled to the sink.
package track

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/utilization"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/nic"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// BalancerCPU is the CPU of balancer and sink with two cores. The source has the other one.
const BalancerCPU = 1

// mtu leaves room for tunnels around full frames.
const mtu = 3000

// Options say what a track is for.
type Options struct {
	Subject  Subject
	Traffic  traffic.Traffic // what all its streams will send
	Backends int             // of all VIPs, as [traffic.Traffic.BackendsOf] distributes them
	// TwoCores gives the second CPU to the balancer and the sink. Otherwise the first
	// one does everything, batch by batch.
	TwoCores bool
	// OneArm makes packets leave the balancer by the port where they came in, as in a network where
	// directors and backends are behind the same switch.
	OneArm bool
	// Swaps says that weir begins with two thirds of the backends, and [Track.KeepSwapping] will
	// change to another two thirds and back.
	Swaps bool
	// Shared is the percentage of slots whose connections may belong to several backends: 0, 25 or
	// 100. Weir gets there by draining backends.
	Shared int
	// FlowRoom is for how many flows weir has room to remember, in full NAT as many as it can have ports;
	// 0: as many as by default, in full NAT as many as there are.
	FlowRoom int
	// Steered gives weir a NIC with that many rules, and waits until flows have them; 0: it has none. A
	// veth takes what XDP sends by the queue of the sending CPU, so all of it comes by queue SourceCPU,
	// which is the one for flows with rules: as if all flows had one, and a NIC had led them there.
	Steered int
	// FanOut has weir give packets to the other CPU.
	FanOut bool
	// Moves keeps the director running, whose backends are to move to other VTEPs: see [Track.MoveBackend].
	Moves bool
	// Every has the sink look at every packet.
	Every bool
	// Unseen has the sink drop packets without looking at them.
	Unseen bool
	// Routed puts a router before the balancer, whose kernel forwards packets to it. Then they come by the
	// queues that the NIC's rules say, and the director runs until the track is closed.
	Routed bool
	// CPUs is how many CPUs may send at once, by [Track.Parallel] alone; 0: one.
	CPUs int
	// SourceCPU is the CPU of the source, or of all with one core.
	SourceCPU int
	// Older is the path of another version of weir; empty: this version.
	Older string
	Meter *utilization.Meter // that measures the balancer's CPU too, if any
}

// Track is a source, a balancer and a sink.
type Track struct {
	Options
	lab      *netlab.Lab
	balancer *netlab.Host
	from     *netlab.Link // the source's
	up       *netlab.Link // the balancer's, which may be the same
	in, out  *netlab.Port // the balancer's
	sink     *traffic.Sink
	main     *Stream       // all of the traffic
	director *process.Weir // whose process was started last
	set      backendSet    // that the director has now
	moved    map[int]bool  // backends that are at their other VTEP
	card     *nic.Emulated // the balancer's, with steering
	closers  []func() error
}

// Start builds a track that forwards.
func Start(ctx context.Context, o Options) (_ *Track, err error) {
	lab, err := netlab.New()
	if err != nil {
		return nil, err
	}
	t := &Track{Options: o, lab: lab, moved: map[int]bool{}}
	if o.Swaps {
		t.set = lowerSet
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("track of %s: %w", o.Subject.Name, err), t.Close())
		}
	}()
	to := t.connect()
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if t.sink, err = traffic.NewSink(to, o.arrival()); err != nil {
		return nil, err
	}
	t.closers = append(t.closers, t.sink.Close)
	if o.Subject.start != nil {
		if err := o.Subject.start(ctx, t); err != nil {
			return nil, err
		}
	}
	if o.TwoCores {
		if _, err := process.ThreadNAPI(t.from.B, BalancerCPU); err != nil {
			return nil, err
		}
	}
	if t.main, err = t.Stream(o.Traffic); err == nil && o.Steered > 0 {
		err = t.steer(ctx)
	}
	return t, err
}

// connect makes the hosts and their links, and returns the sink's port.
func (t *Track) connect() (to *netlab.Port) {
	options := netlab.LinkOptions{XDP: true, MTU: mtu, Queues: max(t.SourceCPU+1, t.CPUs)}
	source, sink := t.silent("source"), t.silent("sink")
	if t.Subject.start == nil {
		t.from = t.lab.Link(source, sink, options)
		return t.from.B
	}
	t.balancer = t.lab.Router("balancer")
	first, last := options, options
	first.B = []string{"10.0.0.1/24", "fd00::1/64"}
	last.A = []string{"10.1.255.1/16", "10.1.255.2/16", "fd00:1::1:1/64", "fd00:1::1:2/64"}
	if t.Routed {
		t.connectRouter(source, first)
	} else {
		t.from = t.lab.Link(source, t.balancer, first)
		t.up = t.from
	}
	if t.in = t.up.B; t.OneArm {
		t.out, to = t.in, t.from.A
		t.balancer.Address(t.in.Name, last.A...)
		// The balancer must not tell hosts of shorter routes.
		t.balancer.Sysctl("net.ipv4.conf.all.send_redirects", "0")
		t.balancer.Sysctl("net.ipv4.conf."+t.in.Name+".send_redirects", "0")
	} else {
		link := t.lab.Link(t.balancer, sink, last)
		t.out, to = link.A, link.B
	}
	// No host answers on either side: neighbors are configured.
	for _, gateway := range []string{"10.0.0.2", "fd00::2"} {
		t.balancer.Neighbor(t.in.Name, gateway, t.up.A.MAC)
		t.balancer.Route("default", gateway)
	}
	for n := range t.Backends {
		t.balancer.Neighbor(t.out.Name, traffic.Backend(n, t.Subject.ipv6(t.Traffic)).String(), traffic.BackendMAC(n))
	}
	t.connectVTEPs()
	return to
}

// connectRouter puts a router between source and balancer.
func (t *Track) connectRouter(source *netlab.Host, options netlab.LinkOptions) {
	router := t.lab.Router("router")
	router.Sysctl("net.ipv4.conf.all.rp_filter", "0")
	router.Sysctl("net.ipv4.conf.default.rp_filter", "0")
	t.from = t.lab.Link(source, router, netlab.LinkOptions{XDP: true, MTU: mtu, B: []string{"10.2.0.1/24"}})
	options.Queues = routedQueues
	options.A = []string{"10.0.0.2/24"}
	t.up = t.lab.Link(router, t.balancer, options)
	router.Neighbor(t.up.A.Name, "10.0.0.1", t.up.B.MAC)
	for n := range t.Traffic.VIPs {
		router.Route(traffic.VIP(n, false).String()+"/32", "10.0.0.1")
	}
}

// silent returns a host whose kernel sends nothing of its own. A router solicitation or a multicast
// report that left on the other CPU would take the receiver's NAPI there: NAPI stays there as long
// as there is work, the source no longer waits for it, and one core's work becomes that of two
// cores and loses packets at the source's cable.
func (t *Track) silent(name string) *netlab.Host {
	host := t.lab.Host(name)
	host.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	return host
}

func (o Options) arrival() traffic.Arrival {
	return traffic.Arrival{Traffic: o.Traffic, Shape: o.Subject.shape, Outer6: o.Subject.outer6,
		SNAT: o.Subject.SNAT, Handed: o.Subject.Mode == model.Redirect, Backends: o.Backends, Expect: o.Subject.places, SeveralCPUs: o.CPUs > 1, Unseen: o.Unseen,
		Overlay: o.arrives(), Every: o.Every, Move: o.Moves}
}

// Close removes the track.
func (t *Track) Close() error {
	var errs []error
	for _, c := range slices.Backward(t.closers) {
		errs = append(errs, c())
	}
	return errors.Join(append(errs, t.lab.Close())...)
}
