package utilization

import "time"

// polls are sums over the polls of one NAPI instance on one CPU that had packets.
type polls struct {
	count   uint64
	packets uint64
	budget  uint64 // packets, if all of them had been full
	time    time.Duration
	// Sums over the full polls.
	fullPackets uint64
	fullTime    time.Duration
}

func pollsOf(i bpfInstance) polls {
	return polls{
		count: i.Polls, packets: i.Packets, budget: i.Budget, time: time.Duration(i.Time),
		fullPackets: i.FullPackets, fullTime: time.Duration(i.FullTime),
	}
}

// since returns what was counted after an earlier reading. An instance that counts less than it did
// is a new one at the same address: all its counts are new.
func (p polls) since(before polls) polls {
	if p.count < before.count {
		return p
	}
	return polls{
		count: p.count - before.count, packets: p.packets - before.packets,
		budget: p.budget - before.budget, time: p.time - before.time,
		fullPackets: p.fullPackets - before.fullPackets, fullTime: p.fullTime - before.fullTime,
	}
}

// needed returns how long the packets would have taken had all polls been full. The full polls
// until now show what a packet takes then. Without any it is not known, and the time counts as it
// is.
func (p polls) needed(untilNow polls) time.Duration {
	if untilNow.fullPackets == 0 {
		return p.time
	}
	packet := float64(untilNow.fullTime) / float64(untilNow.fullPackets)
	return min(p.fullTime+time.Duration(packet*float64(p.packets-p.fullPackets)), p.time)
}
