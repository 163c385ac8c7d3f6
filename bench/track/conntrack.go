package track

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

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
