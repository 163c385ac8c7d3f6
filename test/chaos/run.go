package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/test/chaos/schedule"
	"weir.io/weir/test/chaos/traffic"
)

// options are the options of a run.
type options struct {
	schedule.Options
	mode        mode
	retention   time.Duration // the services' retention
	connections int           // TCP
	flows       int           // UDP
	quics       int           // QUIC connections, if the mode has them
	weather     weather
	syncookies  int           // net.ipv4.tcp_syncookies of every host
	shared      bool          // the directors share an etcd
	alone       bool          // the directors do not tell each other of flows
	steer       bool          // directors have NICs that steer flows
	rehash      bool          // the router chooses directors by the hash of the client's socket
	binaries    binaries      // of weir
	patience    time.Duration // how long a client waits for an answer
	progress    io.Writer
	// meanwhile, if not nil, is called when the events begin: there tests cause faults that the
	// harness does not know.
	meanwhile func(ctx context.Context, h *harness) error
}

// retentions is how many retentions a connection must outlive to have seen everything.
const retentions = 5

// patience is how long a client waits for an answer before it gives the connection up: under loss
// TCP's retransmissions sometimes take a second or two.
const patience = 15 * time.Second

// harness is a run.
type harness struct {
	options
	top     *topology
	group   forwarder
	store   *sharedStore // nil: the directors share no store
	tracker *traffic.Tracker
	load    *traffic.Load
	ways    *ways
	counts  *counters     // nil: no weir runs
	cards   *cards        // nil: no flow is steered
	answers *checkServers // nil: backends are in one tier
	begin   time.Time
	fewest  int // connections at the same time, while events happened
}

// run performs events and returns what broke. It removes everything that it made.
func run(ctx context.Context, o options, events []schedule.Event) (_ *report, err error) {
	lab, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &harness{options: o, tracker: traffic.NewTracker(clientAddress())}
	h.say("building a client, a router, %d directors and %d backends", o.Directors, o.Backends)
	h.top = newTopology(lab, o.Directors, o.Backends, o.mode, o.steer)
	if o.rehash {
		h.top.followSockets()
	}
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if h.steers() {
		if h.cards, err = newCards(h.top); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, h.cards.close()) }()
	}
	h.top.setCookies(h.syncookies)
	if err := h.tellApart(ctx); err != nil {
		return nil, err
	}
	h.ways = newWays(h.top)
	if h.mode.redirects {
		h.tracker.Redirects(netip.MustParseAddr(vip))
	}
	h.tracker.OnBreak(h.ways.broke)
	h.tracker.OnStray(h.ways.astray)
	go h.ways.follow(ctx)
	servers, err := h.serve(ctx)
	if err != nil {
		return nil, err
	}
	if h.Tiers {
		h.answers = newCheckServers(h.top)
		defer h.answers.close()
		if err := h.answers.fail(false); err != nil {
			return nil, err
		}
	}
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	if err := h.connect(ctx); err != nil {
		return nil, err
	}
	p := newPerformer(h, servers)
	if err := h.perform(ctx, p, events); err != nil {
		return nil, err
	}
	h.say("every connection does a last exchange")
	h.load.Finish()
	weather, err := feel(ctx, h.top)
	if err != nil {
		return nil, err
	}
	return newReport(h, p, weather), nil
}

func (o *options) say(format string, args ...any) {
	fmt.Fprintf(o.progress, format+"\n", args...) // progress: errors do not matter
}

// serve runs the backends' servers and watches their answers.
func (h *harness) serve(ctx context.Context) ([]*traffic.Server, error) {
	var servers []*traffic.Server
	for i, b := range h.top.backends {
		ports := func(own, nat int) []string { return []string{fmt.Sprintf(":%d", own), fmt.Sprintf(":%d", nat)} }
		s, err := traffic.Serve(ctx, b.Host, i, ports(tcpPort, natTCP), ports(udpPort, natUDP), h.tracker)
		if err != nil {
			return nil, fmt.Errorf("serve on %s: %w", b.Name, err)
		}
		if h.mode.withoutQUIC() == "" {
			if err := h.serveQUIC(ctx, i, s); err != nil {
				return nil, err
			}
		}
		servers = append(servers, s)
		if err := watchAnswers(ctx, b.link.A, outgoing, i, h.numbersOf(i), h.tracker); err != nil {
			return nil, err
		}
	}
	if !h.mode.hidesClients() {
		return servers, h.top.lab.Err()
	}
	// Backends do not see the clients' addresses: resets are watched where they arrive.
	return servers, errors.Join(h.top.lab.Err(), watchAnswers(ctx, h.top.access.A, incoming, nobody, 0, h.tracker))
}

// start starts agents and directors, and lets the router send to the announced directors.
func (h *harness) start(ctx context.Context) error {
	first := schedule.Begin(h.Options)
	h.say("starting %s, retention %s", h.mode.what, h.retention)
	if err := h.startForwarder(ctx, first); err != nil {
		return err
	}
	for i, announced := range first.Announced {
		if announced {
			if err := h.group.start(ctx, i, schedule.This); err != nil {
				return err
			}
		}
	}
	if err := h.top.announce(first.Announced); err != nil {
		return err
	}
	if err := h.top.setQueues(ctx, first.Queues); err != nil {
		return err
	}
	return h.weather.set(ctx, h.top, h.Seed)
}

func (h *harness) startForwarder(ctx context.Context, first schedule.Group) error {
	if h.mode.dnat {
		h.group = newDNAT(h.top, first)
		return nil
	}
	if h.shared {
		var err error
		if h.store, err = startStore(h.top.store); err != nil {
			return err
		}
	}
	g := newGroup(h.top, h.mode, h.retention, h.binaries, h.store, first)
	g.alone, g.steer, g.tiers = h.alone, h.steer, h.Tiers
	h.group, h.counts = g, &counters{group: g}
	return g.startAgents(ctx, first)
}

// connect opens the connections, before anything happens.
func (h *harness) connect(ctx context.Context) error {
	address := netip.MustParseAddr(vip)
	h.load = &traffic.Load{Client: h.top.client, Addresses: []netip.Addr{clientAddress(), movedAddress()},
		TCP: netip.AddrPortFrom(address, tcpPort), UDP: netip.AddrPortFrom(address, udpPort), QUIC: netip.AddrPortFrom(address, quicPort),
		Tracker: h.tracker, Connections: h.connections, Flows: h.flows, Window: h.retention, Outlives: retentions * h.retention,
		Patience: h.patience, Seed: h.Seed}
	if h.mode.withoutQUIC() == "" {
		h.load.QUICs = h.quics
	}
	h.say("opening %d connections, %d flows and %d QUIC connections", h.connections, h.flows, h.load.QUICs)
	h.load.Start(ctx)
	deadline := time.Now().Add(2 * time.Minute)
	for h.load.Waiting() > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d connections could not be opened", h.load.Waiting())
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// perform lets the events happen, and waits until the run's time is over.
func (h *harness) perform(ctx context.Context, p *performer, events []schedule.Event) error {
	h.begin, h.fewest = time.Now(), h.tracker.Live()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var watched sync.WaitGroup
	watched.Go(func() {
		for sleep(watching, 100*time.Millisecond) {
			h.fewest = min(h.fewest, h.tracker.Live())
		}
	})
	if h.counts != nil {
		watched.Go(func() { h.counts.follow(watching) })
	}
	if h.cards != nil {
		watched.Go(func() { h.cards.disturb(watching, h.Seed) })
		watched.Go(func() { h.cards.follow(watching, h.counts.group) })
	}
	wrong := make(chan error, 1)
	go func() {
		if h.meanwhile == nil {
			wrong <- nil
			return
		}
		wrong <- h.meanwhile(ctx, h)
	}()
	err := errors.Join(p.run(ctx, h.begin, events), <-wrong)
	if err == nil && !sleep(ctx, time.Until(h.begin.Add(h.Duration))) {
		err = ctx.Err()
	}
	stop()
	watched.Wait()
	if h.cards != nil {
		err = errors.Join(err, h.cards.failed())
	}
	return err
}
