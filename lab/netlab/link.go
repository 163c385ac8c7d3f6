package netlab

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
)

// LinkOptions describe a link. The zero value is an Ethernet link of MTU 1500
// without addresses.
type LinkOptions struct {
	MTU    int      // of both ends; 0: 1500
	A, B   []string // addresses of the ends: 10.0.0.1/24
	NameA  string   // of the first end's interface; empty: eth0, eth1, ...
	NameB  string   // of the second end's
	Queues int      // receive and send queues of both ends; 0: one
	// XDP says that a program may run at one end or both: no end then leaves
	// checksums or segmentation to the other (nobody would finish a checksum that
	// XDP forwards), and both have GRO on, without which veth drops the frames
	// that XDP redirects. Frames that XDP sends back arrive at switches only, and
	// elsewhere after [Port.ReceiveXDP].
	XDP bool
	// Tagged says that 802.1Q tags are in the frames rather than beside them, as
	// XDP must see them.
	Tagged bool
}

// Link is a cable between two hosts.
type Link struct {
	A, B *Port
}

// Port is one end of a link: an interface of a host.
type Port struct {
	Host  *Host
	Name  string
	Index int
	MAC   net.HardwareAddr
}

// Link connects two hosts by a cable. An end at a switch is plugged into it.
func (l *Lab) Link(a, b *Host, opts LinkOptions) *Link {
	link := &Link{A: &Port{Host: a, Name: opts.NameA}, B: &Port{Host: b, Name: opts.NameB}}
	for _, port := range []*Port{link.A, link.B} {
		if port.Name == "" {
			port.Name = "eth" + strconv.Itoa(port.Host.ports)
			port.Host.ports++
		}
	}
	l.try(func() error { return link.create(opts) }, "link %s to %s", a.Name, b.Name)
	a.Address(link.A.Name, opts.A...)
	b.Address(link.B.Name, opts.B...)
	return link
}

// firstIndex is beyond the indexes that a host of a lab gives by itself.
const firstIndex = 1000

func (l *Link) create(opts LinkOptions) error {
	mtu := opts.MTU
	if mtu == 0 {
		mtu = 1500
	}
	queues := max(opts.Queues, 1)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = l.A.Name, mtu, queues, queues
	// The kernel takes an end with its peer's index for no virtual link, and lets
	// up to a second pass before it sees the carrier (linkwatch_urgent_event in
	// net/core/link_watch.c): no two ends have the same, whatever their hosts.
	l.A.Host.lab.links++
	attrs.Index = firstIndex + l.A.Host.lab.links
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = l.B.Name, netlink.NsFd(int(l.B.Host.ns))
	veth.PeerMTU, veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(mtu), uint32(queues), uint32(queues)
	if err := l.A.Host.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("make veth pair: %w", err)
	}
	// A veth looks at its peer's GRO when it is set up, and never again, to know
	// whether it can send for XDP: both are prepared before either is up.
	for _, step := range []func(*Port, LinkOptions) error{(*Port).prepare, (*Port).plugIn, (*Port).await} {
		for _, port := range []*Port{l.A, l.B} {
			if err := step(port, opts); err != nil {
				return fmt.Errorf("%s of %s: %w", port.Name, port.Host.Name, err)
			}
		}
	}
	return nil
}

// prepare sets the port's offloads.
func (p *Port) prepare(opts LinkOptions) error {
	link, err := p.Host.nl.LinkByName(p.Name)
	if err != nil {
		return err
	}
	p.Index, p.MAC = link.Attrs().Index, link.Attrs().HardwareAddr
	offloads := []offload{}
	if opts.XDP {
		offloads = append(offloads, offload{sendChecksum, false}, offload{receiveCoalescing, true})
	}
	if opts.Tagged {
		offloads = append(offloads, offload{sendTags, false}, offload{receiveTags, false})
	}
	if err := p.Host.Do(func() error { return setOffloads(p.Name, offloads) }); err != nil {
		return err
	}
	if opts.XDP && p.Host.bridge != nil {
		return p.passAll()
	}
	return nil
}

// plugIn makes the port one of its host's bridge, where that is a switch, and sets
// it up.
func (p *Port) plugIn(LinkOptions) error {
	link, err := p.Host.nl.LinkByIndex(p.Index)
	if err != nil {
		return err
	}
	if p.Host.bridge != nil {
		if err := p.Host.nl.LinkSetMaster(link, p.Host.bridge); err != nil {
			return fmt.Errorf("plug in: %w", err)
		}
	}
	return p.Host.nl.LinkSetUp(link)
}

// await waits until the port is in use. A bridge drops what comes before it has
// been told of the carrier: often the first ARP request, which its sender repeats
// after a second.
func (p *Port) await(LinkOptions) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // between two looks
		link, err := p.Host.nl.LinkByIndex(p.Index)
		if err != nil {
			return err
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited in vain for its carrier: it is %s", link.Attrs().OperState)
		}
	}
}

// SetUp plugs the port's cable in or out.
func (p *Port) SetUp(up bool) error {
	link, err := p.Host.nl.LinkByIndex(p.Index)
	if err != nil {
		return fmt.Errorf("find %s of %s: %w", p.Name, p.Host.Name, err)
	}
	if up {
		return p.Host.nl.LinkSetUp(link)
	}
	return p.Host.nl.LinkSetDown(link)
}

// Counters returns the port's counters: packets and bytes, both ways. They are
// the kernel's, which also count what an XDP program takes.
func (p *Port) Counters() (netlink.LinkStatistics, error) {
	link, err := p.Host.nl.LinkByIndex(p.Index)
	if err != nil {
		return netlink.LinkStatistics{}, fmt.Errorf("counters of %s of %s: %w", p.Name, p.Host.Name, err)
	}
	return *link.Attrs().Statistics, nil
}

// Switch makes an Ethernet switch: a host whose links are plugged into a bridge.
// The MTU, 1500 when 0, bounds none of its links.
func (l *Lab) Switch(name string) *Host {
	h := l.Host(name)
	l.try(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "bridge"
		// Snooping would hold multicast, and so IPv6 neighbor discovery, back until a querier was
		// heard of.
		off := false
		bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off}
		if err := h.nl.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make bridge: %w", err)
		}
		h.bridge = bridge
		return h.nl.LinkSetUp(bridge)
	}, "switch %s", name)
	return h
}
