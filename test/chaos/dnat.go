package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"weir.io/weir/test/chaos/schedule"
)

// dnat is the rival in every Linux: iptables chooses a random backend, by weight, for a
// connection's first packet, conntrack remembers it, and the director's own address replaces the
// client's, so that replies come back to the director.
type dnat struct {
	told
	top     *topology
	running []bool
}

func newDNAT(top *topology, first schedule.Group) *dnat {
	return &dnat{told: newTold(first), top: top, running: make([]bool, len(top.directors))}
}

func (d *dnat) start(ctx context.Context, i int, _ schedule.Version) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[i] = true
	return d.restore(ctx, i, d.rules(i))
}

func (d *dnat) apply(ctx context.Context, now schedule.Group) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
	d.history = append(d.history, configuration{time.Now(), now})
	for i, running := range d.running {
		if running {
			if err := d.restore(ctx, i, d.rules(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop forgets the rules and the connections, like a host that goes down.
func (d *dnat) stop(ctx context.Context, i int, _ bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[i] = false
	if err := d.restore(ctx, i, "*nat\nCOMMIT\n"); err != nil {
		return err
	}
	return d.top.directors[i].Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// again does nothing: no process forwards.
func (d *dnat) again(context.Context, int, schedule.Version, bool) error { return nil }

func (d *dnat) clientAgain(context.Context, schedule.Version) error { return nil }

func (d *dnat) agentAgain(context.Context, int, schedule.Version) error { return nil }

func (d *dnat) ended() error { return nil }

// restore replaces a director's rules in one step.
func (d *dnat) restore(ctx context.Context, i int, rules string) error {
	cmd := d.top.directors[i].Command(ctx, "iptables-restore", "--wait")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore on %s: %w: %s", d.top.directors[i].Name, err, out)
	}
	return nil
}

// rules are a director's rules in iptables-restore's format. Draining backends get no new
// connections; those that conntrack remembers go on.
func (d *dnat) rules(i int) string {
	var text strings.Builder
	text.WriteString("*nat\n")
	for _, service := range []struct {
		protocol   string
		port, real int
	}{{"tcp", tcpPort, natTCP}, {"udp", udpPort, natUDP}} {
		left := 0
		for _, b := range d.now.Backends {
			left += weightOf(b)
		}
		for n, b := range d.now.Backends {
			weight := weightOf(b)
			if weight == 0 {
				continue
			}
			fmt.Fprintf(&text, "-A PREROUTING -d %s -p %s --dport %d -m statistic --mode random --probability %.8f -j DNAT --to-destination %s:%d\n",
				vip, service.protocol, service.port, float64(weight)/float64(left), lanAddress(backends+n), service.real)
			left -= weight
		}
	}
	fmt.Fprintf(&text, "-A POSTROUTING -s %s -o eth1 -j SNAT --to-source %s\nCOMMIT\n", clientAddress(), lanAddress(snatHost+i))
	return text.String()
}

// weightOf returns a backend's share of new connections.
func weightOf(b schedule.Backend) int {
	if b.State == schedule.Active || b.State == schedule.Dead {
		return int(b.Weight)
	}
	return 0
}
