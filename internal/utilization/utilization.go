// Package utilization says how much of each CPU's capacity for packets is in use: 0
// without traffic, 1 where the first packets are lost, and in between in proportion
// to their rate.
//
// The three conditions, and the idea that busy time must be weighted by how full the bursts are,
// come from "HNLB: Utilizing Hardware Matching Capabilities of NICs for Offloading Stateful Load
// Balancers", section IV: a CPU that is always busy with single packets could handle more of them
// at once. There, for a DPDK loop, the weight is the mean burst divided by the greatest.
//
// For the kernel's NAPI that product is not proportional to the rate. A poll takes some fixed time,
// and some more for each packet. The product takes all of a poll's time as fixed, and is far too
// small until the bursts grow; the busy share takes all of it as time for packets, and is too
// great. The full polls, those that found as many packets as they may take (the budget), show how
// much is which: the utilization is the time that the same packets would have taken had all polls
// been full. It is never more than the busy share, and equals it when all are full, which is when
// packets begin to be lost.
package utilization

import "time"

// CPU is the packet work of one CPU from one reading to another. Shares are from 0 to 1.
type CPU struct {
	Number      int
	Utilization float64 // share of its capacity
	Busy        float64 // share of its time in packet work
	Fullness    float64 // packets divided by budget, in polls with packets; 0 without any
	Polls       uint64  // with packets
	Packets     uint64  // counted by each NAPI instance that they pass
}

// Product is the formula of the paper.
func (c CPU) Product() float64 { return c.Busy * c.Fullness }

// sum adds up what the NAPI instances of one CPU did.
type sum struct {
	polls    uint64
	packets  uint64
	budget   uint64
	overhead time.Duration
	time     time.Duration // in polls with packets
	needed   time.Duration // the same, had they been full
}

func (s *sum) add(p, untilNow polls) {
	s.polls += p.count
	s.packets += p.packets
	s.budget += p.budget
	s.time += p.time
	s.needed += p.needed(untilNow)
}

// of returns the shares of the elapsed time.
func (s *sum) of(elapsed time.Duration) CPU {
	c := CPU{Polls: s.polls, Packets: s.packets}
	if elapsed <= 0 {
		return c
	}
	// Fuller polls are fewer, and so are the empty polls after them.
	needed := float64(s.needed)
	if s.budget > 0 {
		c.Fullness = min(float64(s.packets)/float64(s.budget), 1)
		needed += float64(s.overhead) * c.Fullness
	} else {
		needed += float64(s.overhead)
	}
	c.Busy = min(float64(s.time+s.overhead)/float64(elapsed), 1)
	c.Utilization = min(needed/float64(elapsed), 1)
	return c
}
