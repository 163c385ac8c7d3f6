package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/bench/bypass"
	"weir.io/weir/bench/echo"
	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
	"weir.io/weir/lab/traffic"
)

// Mode redirect, with the cheapest and the dearest policy.
var (
	handing        = track.Handing(model.Maglev)
	handingByTurns = track.Handing(model.RoundRobin)
)

var bypassNotes = slices.Concat([]string{
	"weir-redirect is mode `redirect`: it has another name than redirect, the program that only hands frames on. At least 20 rounds, also if --rounds says less",
}, latencyNotes, goodputNotes, handoverNotes)

// measureBypass measures connections that bypass the director.
func measureBypass(ctx context.Context, s *session) error {
	if !s.settings.Smoke {
		s.settings.Rounds = max(s.settings.Rounds, leastRounds)
	}
	for _, part := range []func(context.Context) error{s.measureLatency, s.measureGoodput} {
		if err := errors.Join(part(ctx), s.close()); err != nil { // its lab must not disturb the next part
			return err
		}
	}
	return s.measureHandover(ctx)
}

var handoverNotes = []string{
	"throughput: SYNs of new flows per second, 10,000,000 flows in turns, 1 VIP with 255 backends; one core does everything. Each has the options of Linux's SYN and the one that asks to be redirected, 90 bytes as a frame; with mode `redirect` the director hands each over, and nothing else of such a connection would come to it",
	"iptables: the table of tracked flows is emptied before each sample, and has room for all that one begins. It is netfilter's cost of a connection's first packet alone; those that follow cost it something, too, and weir nothing. The paper's SYNs per second on one core were 4.5 times netfilter's (figure 8)",
}

// measureHandover is how many connections a director can hand over.
func (s *session) measureHandover(ctx context.Context) error {
	return s.beginFlows(ctx, traffic.Traffic{Frames: []int{traffic.AskingFrame}, Asks: true},
		track.Direct, track.Redirect, track.Iptables, handing, handingByTurns)
}

// How long requests take, also divided by their time without a balancer, and how many packets of
// each the director has seen.
var (
	ratio50    = record.Quantity{Name: "p50-vs-direct", Unit: "1", Better: record.Lower}
	ratio99    = record.Quantity{Name: "p99-vs-direct", Unit: "1", Better: record.Lower}
	atDirector = record.Quantity{Name: "packets-at-director", Unit: "1", Better: record.Lower}
	agentTime  = record.Quantity{Name: "agent-time", Unit: "ns", Better: record.Lower}
	agentRuns  = record.Quantity{Name: "agent-runs", Unit: "1", Better: record.Neither}
	agentShare = record.Quantity{Name: "agent-share", Unit: "1", Better: record.Lower}
)

// The kinds of requests: one in a connection that stays (Netperf's RR), or one with a connection of
// its own (CRR).
var (
	rr  = record.Conditions{"requests": "RR"}
	crr = record.Conditions{"requests": "CRR"}
)

// latencyParts is how many short rounds, with short samples, replace each round. A disturbance
// often lasts longer than a sample, and is the same all the time: the bounds of the median of many
// short ratios are a third as far apart as those of long ones that take as much time in all.
const latencyParts = 6

// direct is the name of the way that others are compared with.
const direct = "direct"

var latencyNotes = []string{
	"latency: 8 bytes are sent and come back, one request at a time, over one connection (RR) or over a connection each, whose opening is part of it and whose end is not (CRR). Client and server are one thread each that waits in system calls, on a CPU each and with a real-time priority, as nginx has. Each host receives in a kernel thread of its own (threaded NAPI), which has to be woken, as a machine is by its NIC; those of the balancers share the client's CPU",
	"latency: all hosts have a cable to one switch. Each round is six, of samples a sixth as long: the more often ways take turns, the less it matters what disturbs them for a while",
	"Hosts have what their way needs: direct's no agent, the server of gue and ipip an agent that takes tunnels off, and weir-redirect's server one that echoes the option, with fallback nat, which needs nothing on a server. weir-redirect-gue is redirected to the server of gue and ipip, as where that is the fallback",
	"p50-vs-direct, p99-vs-direct: the median of the ratios in each round, and the bounds between which the median of all rounds there could be is, but in one case of a hundred",
	"packets-at-director: how many packets of each request a director has seen. With redirect it is the SYN alone",
	"agent-time: how long a program of an agent takes for a packet of an open redirected connection, as the kernel measures it, without what an empty program takes; agent-runs: how many packets of each request it sees; agent-share: what all of them take of a request's median latency",
	"the paper's figures are of hosts with NICs, where a hop is some 6 µs: redirect as direct in RR, DSR 6 µs more; in CRR redirect 6 µs more than direct, DSR 12",
}

// measureLatency measures all ways in turns.
func (s *session) measureLatency(ctx context.Context) error {
	l, err := inLab(ctx, s, bypass.New)
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	for _, at := range []record.Conditions{rr, crr} {
		for _, w := range bypass.Ways {
			steps = append(steps, func(ctx context.Context) error { return s.ask(ctx, l, w, at) })
		}
	}
	for _, w := range bypass.Ways {
		if w.Name == bypass.Handover || w.Name == bypass.BesideTunnels {
			steps = append(steps, func(ctx context.Context) error { return s.costOfAgents(ctx, l, w) })
		}
	}
	rounds := s.settings
	if !s.settings.Smoke {
		s.settings.Rounds, s.settings.Sample = rounds.Rounds*latencyParts, rounds.Sample/latencyParts
	}
	err = s.inRounds(ctx, steps...)
	s.settings = rounds
	if err != nil {
		return err
	}
	for _, at := range []record.Conditions{rr, crr} {
		for _, w := range bypass.Ways[1:] {
			s.compareTo(direct, w.Name, at, latency50, ratio50)
			s.compareTo(direct, w.Name, at, latency99, ratio99)
		}
	}
	return nil
}

// ask measures a way once.
func (s *session) ask(ctx context.Context, l *bypass.Lab, w *bypass.Way, at record.Conditions) error {
	r, err := l.Measure(ctx, w, at["requests"] == crr["requests"], s.sample())
	if err != nil {
		return fmt.Errorf("%v: %w", at, err)
	}
	s.add(w.Name, at, latency50, float64(r.P50)/1e6)
	s.add(w.Name, at, latency99, float64(r.P99)/1e6)
	if w.Weir {
		s.add(w.Name, at, atDirector, float64(r.AtDirector)/float64(r.Requests))
	}
	return nil
}

// costOfAgents measures what agents do to the packets of a redirected connection.
func (s *session) costOfAgents(ctx context.Context, l *bypass.Lab, w *bypass.Way) error {
	costs, r, err := l.AgentCosts(ctx, w, s.sample())
	if err != nil {
		return fmt.Errorf("cost of agents: %w", err)
	}
	var all float64
	for _, c := range costs {
		all += c.Runs * float64(c.Time)
		if c.Runs < 0.5 { // packets of neither a request nor an answer
			continue
		}
		at := record.Conditions{"host": c.Host, "program": c.Program}
		s.add(w.Name, at, agentTime, float64(c.Time))
		s.add(w.Name, at, agentRuns, c.Runs)
	}
	s.add(w.Name, record.Conditions{}, agentShare, all/float64(r.P50))
	return nil
}

// compareTo records the ratio of two subjects, round by round, and its bounds.
func (s *session) compareTo(to, of string, at record.Conditions, quantity, ratio record.Quantity) {
	ratios := record.Ratios(s.into.Find(of, at, quantity.Name), s.into.Find(to, at, quantity.Name))
	low, median, high := interval(ratios)
	for bound, value := range map[string]float64{"lower": low, "median": median, "upper": high} {
		bounded := maps.Clone(at)
		bounded["bound"] = bound
		s.add(of, bounded, ratio, value)
	}
	s.say("  %s %v: %s %.3f (%.3f to %.3f)", of, at, ratio.Name, median, low, high)
}

// toDirect is the latency of mode redirect divided by that without a balancer. If the director saw
// more than the SYN of a connection, something else was measured.
func toDirect(at record.Conditions, quantity record.Quantity) value {
	return func(s *record.Scenario) (float64, error) {
		value, err := ratio(bypass.Handover, direct, at, quantity)(s)
		if err != nil {
			return value, err
		}
		most, err := quantileOf(subject{bypass.Handover, at}, atDirector, 1)(s)
		if err != nil {
			return math.NaN(), err
		}
		if most > 1.01 {
			return value, fmt.Errorf("the director saw %.2f packets of each request in some round: not all connections were redirected", most)
		}
		return value, nil
	}
}

// betweenDirectAndDSR is what mode redirect adds to the latency of a request with a connection of
// its own, divided by what direct server return adds: gue or ipip, whichever is quicker.
func betweenDirectAndDSR(s *record.Scenario) (float64, error) {
	handed, err := toDirect(crr, latency50)(s)
	if err != nil {
		return math.NaN(), err
	}
	dsr := math.Inf(1)
	for _, mode := range []string{"gue", "ipip"} {
		value, err := ratio(mode, direct, crr, latency50)(s)
		if err != nil {
			return math.NaN(), err
		}
		dsr = min(dsr, value)
	}
	value := (handed - 1) / (dsr - 1)
	if dsr <= 1 {
		return value, errors.New("packets that pass the director took no longer than those that do not")
	}
	return value, nil
}

var goodput = record.Quantity{Name: "goodput", Unit: "B/s", Better: record.Higher}

// The rate of every host's cable in each direction, several times less than the machine can carry.
const (
	linkRate       = 20_000_000 // bits per second
	linkHosts      = 3          // clients, and as many servers
	linkEach       = 16         // connections of each client at a time
	goodputSettle  = 500 * time.Millisecond
	goodputSamples = 6
	goodputRounds  = 5
)

// goodputSizes are bytes of requests.
var goodputSizes = []int{256, 1024, 4096, 65536}

var goodputNotes = []string{
	"goodput: bytes per second of requests that came back, from 3 clients with 16 connections each, to 3 servers. Every host's cable carries 20 Mbit/s each way (HTB), headers among it: the machine's cores are not what limits large requests, and 20 Mbit/s stand for the paper's 10 Gbit/s. Answers go directly to the client with all of these modes. 5 rounds, also if --rounds says more",
	"redirect takes turns (`round-robin`), so that each server has as many of the few connections; in the others the director's cable is the limit, wherever they go",
	"the paper's goodput grew to that of all three servers with redirect, and DSR's to that of the balancer (figure 10)",
}

// measureGoodput measures how much the director's cable matters.
func (s *session) measureGoodput(ctx context.Context) error {
	l, err := inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*bypass.Links, error) {
		return bypass.NewLinks(ctx, lab, linkHosts, linkRate)
	})
	if err != nil {
		return err
	}
	sizes, settle, rounds := goodputSizes, goodputSettle, s.settings.Rounds
	if s.settings.Smoke {
		sizes, settle = []int{1024}, 0
	}
	s.settings.Rounds = min(rounds, goodputRounds)
	defer func() { s.settings.Rounds = rounds }()
	var steps []func(context.Context) error
	for _, at := range []record.Conditions{rr, crr} {
		for _, size := range sizes {
			for _, way := range bypass.LinkWays {
				load := bypass.Load{Connections: linkEach, Size: size, PerRequest: at["requests"] == crr["requests"],
					Settle: settle, Duration: goodputSamples * s.sample()}
				steps = append(steps, func(ctx context.Context) error {
					g, err := l.Goodput(ctx, way, load)
					if err != nil {
						return err
					}
					s.add(way, ofSize(at, size), goodput, float64(g.Bytes)/g.Elapsed.Seconds())
					return nil
				})
			}
		}
	}
	return s.inRounds(ctx, steps...)
}

func ofSize(at record.Conditions, size int) record.Conditions {
	return record.Conditions{"requests": at["requests"], "bytes": strconv.Itoa(size)}
}

// mostGoodput is the goodput of requests in open connections, of the size with the most, divided by
// what the director's cable carries.
func mostGoodput(s *record.Scenario) (float64, error) {
	most, problem := math.NaN(), error(nil)
	for _, size := range goodputSizes {
		value, err := reading(bypass.Handover, ofSize(rr, size), goodput)(s)
		if err != nil {
			problem = err // a short run has one size
			continue
		}
		if share := value * 8 / linkRate; !(most >= share) {
			most = share
		}
	}
	if math.IsNaN(most) {
		return most, problem
	}
	return most, nil
}

// newEcho and newAsk are the server and the client of labs, as processes of their own.
func newEcho() *cobra.Command {
	var port uint16
	var cpu int
	cmd := &cobra.Command{
		Use: "echo-server", Short: "Answer requests of a lab", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return echo.Serve(port, cpu) },
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "where to listen")
	cmd.Flags().IntVar(&cpu, "cpu", 0, "where to run")
	return cmd
}

func newAsk() *cobra.Command {
	var to string
	var connections bool
	var duration time.Duration
	var cpu int
	cmd := &cobra.Command{
		Use: "echo-client", Short: "Ask a server of a lab", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := netip.ParseAddrPort(to)
			if err != nil || !server.Addr().Is4() {
				return fmt.Errorf("--to %s: is no IPv4 address with a port", to)
			}
			r, err := echo.Ask(server, connections, duration, cpu)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the server to ask, address:port")
	cmd.Flags().BoolVar(&connections, "connections", false, "open a connection for each request")
	cmd.Flags().DurationVar(&duration, "for", time.Second, "how long to ask")
	cmd.Flags().IntVar(&cpu, "cpu", 0, "where to run")
	return cmd
}
