package main

import (
	"context"
	"fmt"

	"weir.io/weir/bench/process"
)

// Weather is what the network does to packets by itself, in percent of them.
type weather struct {
	loss    int // of all packets between the client and the router
	synAcks int // of SYN-ACKs, besides
}

// set makes the router lose packets from and to the client. The servers' own
// network loses none: a tunnel's packet was lost before or was not.
func (w weather) set(ctx context.Context, t *topology) error {
	rules := fmt.Sprintf(`table ip weather {
	chain forward {
		type filter hook forward priority 0;
		oifname eth0 tcp flags & (syn | ack) == syn | ack numgen random mod 100 < %d counter drop
		iifname eth0 numgen random mod 100 < %d counter drop
		oifname eth0 numgen random mod 100 < %d counter drop
	}
}`, w.synAcks, w.loss, w.loss)
	_, err := process.Run(ctx, t.router, "nft", rules)
	return err
}
