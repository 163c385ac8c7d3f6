package site

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// OverlayMTU is what a VXLAN leaves of Ethernet's 1500 bytes, and so the MTU of pods behind it.
const OverlayMTU = 1450

// overlay is the name of each node's interface in the overlay, like flannel's.
const overlay = "flannel.1"

// joinOverlay lets each node reach the pods of the others through a VXLAN of their kernels, in
// place of direct routes: with a neighbor and a forwarding entry for each other node, as network
// plugins write them.
func (s *Site) joinOverlay(ctx context.Context) error {
	macs := map[*Node]string{}
	for i, n := range s.AllNodes() {
		mac := net.HardwareAddr{0x02, 0x76, 0x78, 0, 0, byte(i + 1)}.String()
		macs[n] = mac
		if err := n.run(ctx,
			fmt.Sprintf("ip link add %s address %s mtu %d type vxlan id 1 local %s dev eth0 dstport 8472 nolearning", overlay, mac, OverlayMTU, n.Address),
			fmt.Sprintf("ip link set %s up", overlay)); err != nil {
			return err
		}
		if s.options.OverlayBack {
			if err := n.run(ctx, fmt.Sprintf("ip address add %s/32 dev %s", n.OverlayAddress(), overlay),
				fmt.Sprintf("ip address add %s/128 dev %s nodad", n.OverlayAddress6(), overlay),
				"sysctl -qw net.ipv4.conf."+strings.ReplaceAll(overlay, ".", "/")+".rp_filter=1"); err != nil {
				return err
			}
		}
	}
	for _, n := range s.AllNodes() {
		for i, other := range s.AllNodes() {
			if other == n {
				continue
			}
			lines := []string{fmt.Sprintf("bridge fdb append %s dev %s dst %s", macs[other], overlay, other.Address)}
			for prefix, gateway := range map[string]string{other.pods.String(): other.pods.Addr().String(), other.pods6.String(): fmt.Sprintf("fe80::%x", i+1)} {
				lines = append(lines, fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", gateway, macs[other], overlay),
					fmt.Sprintf("ip route replace %s via %s dev %s onlink", prefix, gateway, overlay))
			}
			if err := n.run(ctx, lines...); err != nil {
				return err
			}
		}
	}
	return nil
}

// OverlayAddress is the node's own address in the overlay, as with flannel: the first of its pods'
// network.
func (n *Node) OverlayAddress() netip.Addr { return n.pods.Addr() }

// OverlayAddress6 is the IPv6 address: the last of the first 65,536, because the first is the
// anycast address of routers.
func (n *Node) OverlayAddress6() netip.Addr {
	a := n.pods6.Addr().As16()
	a[14], a[15] = 0xff, 0xff
	return netip.AddrFrom16(a)
}

// run runs programs on the node, one after the other.
func (n *Node) run(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if _, err := process.Run(ctx, n.host, words[0], words[1:]...); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// Overlaid returns how many packets the node has sent through the overlay.
func (n *Node) Overlaid(ctx context.Context) (uint64, error) {
	text, err := process.Run(ctx, n.host, "ip", "-s", "-j", "link", "show", "dev", overlay)
	if err != nil {
		return 0, err
	}
	var links []struct {
		Stats struct{ TX struct{ Packets uint64 } } `json:"stats64"`
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("%s says of %s: %s (%w)", n.Name, overlay, text, err)
	}
	return links[0].Stats.TX.Packets, nil
}

// count reads /proc/net/snmp of a host: for each protocol a line of names, and one of values.
func count(ctx context.Context, h *netlab.Host, name string) (int, error) {
	text, err := process.Run(ctx, h, "cat", "/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	protocol, what, _ := strings.Cut(name, " ")
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case words[0] != protocol+":":
		case names == nil:
			names = words
		default:
			if i := slices.Index(names, what); i > 0 && i < len(words) {
				return strconv.Atoi(words[i])
			}
		}
	}
	return 0, fmt.Errorf("%s counts no %s", h.Name, name)
}

// Count returns a kernel counter of the node's network, such as "Ip FragCreates" or "Icmp
// InDestUnreachs" (/proc/net/snmp).
func (n *Node) Count(ctx context.Context, name string) (int, error) { return count(ctx, n.host, name) }

// ClientCount is the same for the client.
func (s *Site) ClientCount(ctx context.Context, name string) (int, error) {
	return count(ctx, s.client, name)
}
