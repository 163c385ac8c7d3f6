package track

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// startIptables has one rule per VIP for all of its backends, the cheapest there
// is: the kernel chooses one of a range by the flow's addresses.
func startIptables(ctx context.Context, t *Track) error {
	if err := t.track(); err != nil {
		return err
	}
	program := map[bool]string{false: "iptables", true: "ip6tables"}[t.Traffic.IPv6]
	for n := range t.Traffic.VIPs {
		if _, err := process.Run(ctx, t.balancer, program, "-w", "-t", "nat", "-A", "PREROUTING",
			"-d", traffic.VIP(n, t.Traffic.IPv6).String(), "-p", t.Traffic.Protocol.String(), "--dport", strconv.Itoa(traffic.Port),
			"-j", "DNAT", "--to-destination", t.backendRange(n)); err != nil {
			return err
		}
	}
	return nil
}

// startNftables does the same with nftables.
func startNftables(ctx context.Context, t *Track) error {
	if err := t.track(); err != nil {
		return err
	}
	family := map[bool]string{false: "ip", true: "ip6"}[t.Traffic.IPv6]
	var rules strings.Builder
	fmt.Fprintf(&rules, "table %s spread {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n", family)
	for n := range t.Traffic.VIPs {
		fmt.Fprintf(&rules, "%s daddr %s %s dport %d dnat to %s\n", family, traffic.VIP(n, t.Traffic.IPv6),
			t.Traffic.Protocol, traffic.Port, t.backendRange(n))
	}
	rules.WriteString("}\n}\n")
	cmd := t.balancer.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

func (t *Track) backendRange(vip int) string {
	first, end := t.Traffic.BackendsOf(vip, t.Backends)
	return fmt.Sprintf("%s-%s", traffic.Backend(first, t.Traffic.IPv6), traffic.Backend(end-1, t.Traffic.IPv6))
}
