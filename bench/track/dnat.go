package track

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

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
	_, err := process.Run(ctx, t.balancer, "nft", rules.String())
	return err
}

func (t *Track) backendRange(vip int) string {
	first, end := t.Traffic.BackendsOf(vip, t.Backends)
	return fmt.Sprintf("%s-%s", traffic.Backend(first, t.Traffic.IPv6), traffic.Backend(end-1, t.Traffic.IPv6))
}

// How many flows the kernel tracks in each namespace, and in how many buckets, for all namespaces
// together.
const (
	conntrackMax     = "/proc/sys/net/netfilter/nf_conntrack_max"
	conntrackBuckets = "/proc/sys/net/netfilter/nf_conntrack_buckets"
)

// track makes room for the flows in the kernel's connection tracking, as the operator of such a
// balancer would: a bucket for each of a flow's two directions, no checksums (a NIC has verified
// them), and UDP flows that stay although no host answers.
func (t *Track) track() error {
	t.balancer.Sysctl("net.netfilter.nf_conntrack_checksum", "0")
	t.balancer.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "600")
	if err := t.lab.Err(); err != nil {
		return err
	}
	flows := min(t.Traffic.Flows, mostTracked)
	if err := t.raise(conntrackMax, func(int) int { return 2*flows + 1<<16 }); err != nil {
		return fmt.Errorf("limit of tracked flows: %w", err)
	}
	if err := t.raise(conntrackBuckets, func(others int) int { return others + 2*flows }); err != nil {
		return fmt.Errorf("buckets of tracked flows: %w", err)
	}
	// The namespace's flows would outlive it for some time, and be in the way until then.
	t.closers = append(t.closers, t.forget)
	return nil
}

// mostTracked is more flows than DNAT begins before it is told to forget them.
const mostTracked = 1 << 21

// raise raises one of the kernel's numbers, unless it is large enough, until the track is closed:
// if several tracks are up, the last one must be closed first.
func (t *Track) raise(file string, need func(now int) int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || now >= need(now) {
		return err
	}
	t.closers = append(t.closers, func() error { return os.WriteFile(file, text, 0o644) })
	return os.WriteFile(file, []byte(strconv.Itoa(need(now))), 0o644)
}

// Forget makes the kernel forget the flows that it tracks for DNAT.
func (s *Stream) Forget() error {
	if !s.track.Subject.dnat {
		return nil
	}
	s.opened = false
	return s.track.forget()
}

func (t *Track) forget() error {
	err := t.balancer.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if err != nil {
		return fmt.Errorf("forget tracked flows: %w", err)
	}
	return nil
}
