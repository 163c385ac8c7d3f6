package main

import (
	"context"
	"fmt"

	"weir.io/weir/bench/bulk"
	"weir.io/weir/lab/record"
)

// A backend's run time per byte that it received, and its two parts.
var (
	backendTime = record.Quantity{Name: "cpu", Unit: "ns/B", Better: record.Lower}
	napiTime    = record.Quantity{Name: "cpu-napi", Unit: "ns/B", Better: record.Lower}
	serverTime  = record.Quantity{Name: "cpu-server", Unit: "ns/B", Better: record.Lower}
	bulkRate    = record.Quantity{Name: "rate", Unit: "Gbit/s", Better: record.Neither}
	segmentSize = record.Quantity{Name: "mss", Unit: "B", Better: record.Neither}
)

// bulkBytes are sent per second of sample: about as much as one core sends.
const bulkBytes = 1e9

var backendNotes = []string{
	"cpu: run time of the kernel thread of the backend's uplink (threaded NAPI: from the driver to the socket) and of iperf3's server (from the socket to user space), both on a core of their own, per byte that iperf3 received; client and director have the other core",
	"direct: the same frames without tunnel and agent, sent by l2dsr over a cable like the others', so what comes in is alike but for the outer headers",
	"routed: to the same host by the director's kernel, with no XDP on the way: a veth hands over the kernel's own buffers",
	"the client's MTU of 1500 makes the segments, the tunnels' cables have 9000: mss is the same for all",
	"xdp: the agent unwraps in XDP, before GRO; tc: after it, where it finds IPIP coalesced and GUE not",
}

func measureBackend(ctx context.Context, s *session) error {
	b, err := inLab(ctx, s, bulk.New)
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	for _, subject := range bulk.Subjects {
		steps = append(steps, func(ctx context.Context) error {
			r, err := b.Measure(ctx, subject, int(s.sample().Seconds()*bulkBytes))
			if err != nil {
				return fmt.Errorf("%s: %w", subject.Name, err)
			}
			bytes := float64(r.Bytes)
			at := record.Conditions{}
			s.add(subject.Name, at, backendTime, r.CPU().Seconds()*1e9/bytes)
			s.add(subject.Name, at, napiTime, r.NAPI.Seconds()*1e9/bytes)
			s.add(subject.Name, at, serverTime, r.Server.Seconds()*1e9/bytes)
			s.add(subject.Name, at, bulkRate, bytes*8/1e9/r.Elapsed.Seconds())
			s.add(subject.Name, at, segmentSize, float64(r.Segment))
			return nil
		})
	}
	return s.inRounds(ctx, steps...)
}
