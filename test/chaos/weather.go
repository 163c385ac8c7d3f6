package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"weir.io/weir/lab/process"
)

// weather is what the network itself does to packets, in percent of them.
type weather struct {
	loss    int // of all packets between the client and the router
	synAcks int // of SYN-ACKs, in addition
	late    int // of all packets: others overtake them
}

// set makes the router lose and hold packets from and to the client. The servers' own network loses
// none: a packet is lost before it is in a tunnel, or not at all.
func (w weather) set(ctx context.Context, t *topology, seed uint64) error {
	if err := delay(ctx, t, seed); err != nil {
		return err
	}
	rules := fmt.Sprintf(`table ip weather {
	chain prerouting {
		type filter hook prerouting priority mangle;
		iifname != %s numgen random mod 100 < %d counter meta mark set %d
	}
	chain forward {
		type filter hook forward priority 0;
		oifname eth0 tcp flags & (syn | ack) == syn | ack numgen random mod 100 < %d counter drop
		iifname eth0 numgen random mod 100 < %d counter drop
		oifname eth0 numgen random mod 100 < %d counter drop
		iifname %s counter
	}
}`, lateDevice, w.late, lateMark, w.synAcks, w.loss, w.loss, lateDevice)
	_, err := process.Run(ctx, t.router, "nft", rules)
	return err
}

// felt is how many packets the weather has hit.
type felt struct {
	Lost        int `json:"lost"`
	LostSynAcks int `json:"lost_syn_acks"`
	Late        int `json:"late"` // held back, and delivered later
}

var counted = regexp.MustCompile(`counter packets (\d+)`)

// feel reads the counters of the router's rules.
func feel(ctx context.Context, t *topology) (felt, error) {
	out, err := process.Run(ctx, t.router, "nft", "list", "table", "ip", "weather")
	if err != nil {
		return felt{}, err
	}
	var n [5]int // in order of the rules
	matches := counted.FindAllStringSubmatch(out, -1)
	if len(matches) != len(n) {
		return felt{}, fmt.Errorf("nft lists %d counters, not %d:\n%s", len(matches), len(n), out)
	}
	for i, match := range matches {
		if n[i], err = strconv.Atoi(match[1]); err != nil {
			return felt{}, fmt.Errorf("read counter: %w", err)
		}
	}
	return felt{Lost: n[1] + n[2] + n[3], LostSynAcks: n[1], Late: n[4]}, nil
}
