package main

import (
	"context"
	"slices"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
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
	s.into.Notes = bypassNotes
	if !s.settings.Smoke {
		s.settings.Rounds = max(s.settings.Rounds, leastRounds)
	}
	if err := s.measureLatency(ctx); err != nil {
		return err
	}
	if err := s.measureGoodput(ctx); err != nil {
		return err
	}
	if s.withoutSYNs {
		s.into.Notes = append(slices.Clone(s.into.Notes), "this run left the SYNs out (`--without-syns`), because something else ran on the machine that they would have disturbed: throughput and syn_vs_dnat are not of it")
		return nil
	}
	return s.measureHandover(ctx)
}

var handoverNotes = []string{
	"throughput: SYNs of new flows per second, 10,000,000 flows in turns, 1 VIP with 255 backends; one core does everything. Each has the options of Linux's SYN and the one that asks to be redirected, 90 bytes as a frame; with mode `redirect` the director hands each over, and nothing else of such a connection would come to it",
	"iptables: the table of tracked flows is emptied before each sample, and has room for all that one begins. It is netfilter's cost of a connection's first packet alone; those that follow cost it something, too, and weir nothing. The paper's SYNs per second on one core were 4.5 times netfilter's (figure 8)",
}

// measureHandover is how many connections a director can hand over.
func (s *session) measureHandover(ctx context.Context) error {
	flows := newFlows
	if s.settings.Smoke {
		flows = manyFlows / 10
	}
	c := &course{session: s}
	for _, subject := range []track.Subject{track.Direct, track.Redirect, track.Iptables, handing, handingByTurns} {
		l := c.add(track.Options{Subject: subject, Backends: oneVIP.backends, Traffic: traffic.Traffic{Protocol: model.TCP,
			Flows: flows, VIPs: oneVIP.vips, Frames: []int{traffic.AskingFrame}, SYNEvery: 1, InTurn: true, Asks: true}}, record.Conditions{})
		l.before = (*track.Stream).Forget
	}
	return c.run(ctx)
}
