package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"weir.io/weir/bench/site"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// Quantities of requests. The paper's figures 4.6 and 4.9 show the first, 4.7 shows latency.
var (
	requestRate = record.Quantity{Name: "requests", Unit: "request/s", Better: record.Higher}
	latency50   = record.Quantity{Name: "latency-p50", Unit: "ms", Better: record.Lower}
	latency99   = record.Quantity{Name: "latency-p99", Unit: "ms", Better: record.Lower}
	processTime = record.Quantity{Name: "process-time", Unit: "us", Better: record.Lower} // per request
)

// connectionKinds are the ways to use connections. Opening and closing them is most of a balancer's
// work, so that is measured only with the smallest and the largest size.
var connectionKinds = []struct {
	name       string
	perRequest bool
	sizes      []int
}{
	{"keep-alive", false, []int{1, 2, 4, 8}},
	{"per-request", true, []int{1, 8}},
}

// webConnections are open at a time.
const webConnections = 32

var webNotes = []string{
	"client, router, balancer and servers share this machine's cores: requests per second say what the whole costs, not what a balancer on a machine of its own could carry",
	"wrk is a closed loop: 32 connections, each with one request under way, so the latency is that under full load",
	"keep-alive: a connection for every 100 requests (the nginx of the paper allowed no more); per-request: a connection for each",
	"direct: the router spreads connections over the servers (ECMP), there is no balancer",
	"process-time: run time per request of the balancer's processes, nginx and haproxy; the kernel's part of it includes softirqs that ran on top of them",
	"every failed request would have failed the scenario",
}

func measureHTTP(ctx context.Context, s *session) error {
	sizes := []int{1, 2, 4, 8}
	if s.settings.Smoke {
		sizes = []int{2}
	}
	s.say("  %d web servers behind %d ways", sizes[len(sizes)-1], len(site.Ways()))
	lan, err := inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*site.Site, error) { return site.New(ctx, lab, sizes) })
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	for _, kind := range connectionKinds {
		if s.settings.Smoke {
			kind.sizes = sizes
		}
		for _, n := range kind.sizes {
			for _, way := range site.Ways() {
				if way.Six && n != sizes[len(sizes)-1] {
					continue // one size is enough to show the family's cost
				}
				load := site.Load{Servers: n, Connections: webConnections, PerRequest: kind.perRequest, Duration: s.sample()}
				at := record.Conditions{"servers": strconv.Itoa(n), "connections": kind.name, "family": way.Family()}
				steps = append(steps, func(ctx context.Context) error { return s.request(ctx, lan, way, load, at) })
			}
		}
	}
	return s.inRounds(ctx, steps...)
}

// request loads a way once and records the result.
func (s *session) request(ctx context.Context, lan *site.Site, way *site.Way, load site.Load, at record.Conditions) error {
	r, err := lan.Measure(ctx, way, load)
	if err != nil {
		return fmt.Errorf("%s %v: %w", way.Name, at, err)
	}
	s.add(way.Name, at, requestRate, float64(r.Requests)/r.Elapsed.Seconds())
	s.add(way.Name, at, latency50, milliseconds(r.Latency50))
	s.add(way.Name, at, latency99, milliseconds(r.Latency99))
	if way.Process {
		s.add(way.Name, at, processTime, r.CPU.Seconds()*1e6/float64(r.Requests))
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
