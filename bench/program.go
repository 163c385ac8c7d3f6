package main

import (
	"context"
	"fmt"

	"weir.io/weir/bench/program"
	"weir.io/weir/lab/record"
)

// runTime is a program's own time per packet.
var runTime = record.Quantity{Name: "run", Unit: "ns", Better: record.Lower}

// repeats is how often a program runs on its packet for one value.
const repeats, smokeRepeats = 200_000, 10_000

var programNotes = []string{
	"the program alone (BPF_PROG_TEST_RUN with repeats), on one 128-byte TCP packet of an established flow that leaves where it came in; the maps are those of a running director with 10 backends per service. All programs in turns, medians of 3 turns per round",
	"swap: a program that swaps the MAC addresses; move: one that moves the head by 20 bytes and writes Ethernet. Both have what the kernel's harness takes in them, as the modes have",
	"a repeated run does not reset the packet, so tunnels take their growth back, and l2dsr and NAT write their headers back; what that costs is measured in the same turns, and subtracted",
	"gue carries a row, which names the backup: 8 bytes more over IPv4, 20 over IPv6",
	"snat: the flow began with a SYN that nobody answered",
}

func measureProgram(ctx context.Context, s *session) error {
	lab, err := s.newLab()
	if err != nil {
		return err
	}
	times := repeats
	if s.settings.Smoke {
		times = smokeRepeats
	}
	this, err := thisVersion()
	if err != nil {
		return err
	}
	this.Hands = false // a SYN that hands over a connection is compared with no program
	var steps []func(context.Context) error
	for _, vip6 := range s.families() {
		b, err := program.New(ctx, lab, vip6, this)
		if err != nil {
			return fmt.Errorf("%s: %w", familyNames[vip6], err)
		}
		s.atEnd(b.Close)
		steps = append(steps, func(ctx context.Context) error {
			took, err := b.Measure(ctx, times)
			if err != nil {
				return fmt.Errorf("%s: %w", familyNames[vip6], err)
			}
			for _, name := range programSubjects() {
				s.add(name, modesAt(vip6), runTime, took[name])
			}
			return nil
		})
	}
	return s.inRounds(ctx, steps...)
}

func programSubjects() []string {
	names := []string{program.Swap, program.Move}
	for _, way := range program.Ways {
		names = append(names, way.Name)
	}
	return names
}
