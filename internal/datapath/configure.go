package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
)

// configure writes what the program needs to know of this host. While lookups change, flags are
// those of both the old and the new lookups.
func (d *Datapath) configure(c *change, flags uint32) error {
	settings := d.settings(c.all, d.hopOf)
	group, err := d.followGroup()
	if err != nil {
		return err
	}
	own, err := d.followOwnMACs(c.all)
	if err != nil {
		return err
	}
	settings.Flags = flags | group | own | d.shareFlag() | d.formerFlag() | d.quotas.flag(&d.table)
	if err := d.openEgress(c); err != nil {
		return err
	}
	if err := d.configureOverlay(); err != nil {
		return err
	}
	d.switchOn(d.wantedSysctls(flags, c.all))
	if err := d.writeSettings(settings); err != nil {
		return err
	}
	d.sayGroup()
	return nil
}

func (d *Datapath) writeSettings(settings abi.Settings) error {
	if err := exchange(d.kernel.ThisDirector, "this_director", uint32(0), settings, d.written, true, d.counting()); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	d.written = settings
	return nil
}

// hopOf is a backend's next hop in the form that the kernel's maps have.
func (d *Datapath) hopOf(b model.TableBackend) nexthop.Hop {
	return d.hops.Resolve(b, d.own)
}

func (d *Datapath) settings(services []*service, hopOf func(model.TableBackend) nexthop.Hop) abi.Settings {
	// A family that has no source now, because there is no route, keeps the source that it had:
	// without one, tunnels would come from any address.
	settings := d.written
	settings.IcmpRate, settings.LinkMtu, settings.WaitRate = d.table.ICMPRate, 0, waitRate
	settings.FlowShare, settings.SnatShare = flows.Ways, uint32(flows.BucketPorts)
	if len(services) > 1 {
		settings.FlowShare = flows.Ways * 3 / 4
	}
	if fullNATs(&d.table) > 1 {
		settings.SnatShare = uint32(flows.BucketPorts) * 3 / 4
	}
	for _, p := range d.tunnelSources(services, hopOf) {
		setTunnelSource(&settings, p)
	}
	for _, link := range d.links {
		if link != nil {
			settings.LinkMtu = max(settings.LinkMtu, uint32(link.Attrs().MTU))
		}
	}
	return settings
}

// setTunnelSource is the source of tunnels in the family of a prefix.
func setTunnelSource(settings *abi.Settings, p netip.Prefix) {
	if p.Addr().Is4() {
		settings.TunnelSource4 = abi.BigEndianAddress(p.Masked().Addr())
		settings.TunnelMask4 = abi.BigEndianAddress(netmask(p))
		return
	}
	settings.TunnelSource6 = abi.AddressBytes(p.Masked().Addr())
	settings.TunnelMask6 = abi.AddressBytes(netmask(p))
}

// tunnelSources are the configured prefixes, and for a family without one the
// address that this host has towards the first backend behind a tunnel.
func (d *Datapath) tunnelSources(services []*service, hopOf func(model.TableBackend) nexthop.Hop) []netip.Prefix {
	sources := d.table.TunnelSource
	var have4, have6 bool
	for _, p := range sources {
		have4, have6 = have4 || p.Addr().Is4(), have6 || p.Addr().Is6()
	}
	for _, s := range services {
		if have4 && have6 {
			break
		}
		if !(s.tunnels[0] && !have4 || s.tunnels[1] && !have6) {
			continue // its backends need not be looked at
		}
		for _, b := range s.order {
			is4 := b.desired.TunnelEnd().Is4()
			if !tunnels(b.desired.Mode) || b.desired.Segment.IsOverlay() || is4 && have4 || !is4 && have6 {
				continue
			}
			own := nexthop.OwnAddress(hopOf(b.desired), d.table.Directors)
			if !own.IsValid() {
				continue
			}
			if own.Is4() != is4 {
				continue // this host's pod, whose known host address is of the other family
			}
			sources = append(sources[:len(sources):len(sources)], netip.PrefixFrom(own, own.BitLen()))
			have4, have6 = have4 || is4, have6 || !is4
		}
	}
	return sources
}

// netmask is the address with the prefix's bits set.
func netmask(p netip.Prefix) netip.Addr {
	bytes := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	mask, _ := netip.AddrFromSlice(bytes)
	return mask
}

// openEgress lets packets leave by every interface that has a backend behind it, or will have when
// its entry is written. Interfaces that are open are left alone: a device map removes an entry
// before it puts the new one in, and packets in between would be lost. The kernel itself removes an
// interface that goes, even if one with its number comes back.
func (d *Datapath) openEgress(c *change) error {
	open, err := d.egress()
	if err != nil {
		return err
	}
	want := d.neededEgress()
	last := uint32(0)
	need := func(index uint32) {
		if index != last { // thousands of backends are mostly behind the same one
			want[index], last = true, index
		}
	}
	for _, s := range c.changed {
		for _, b := range s.order {
			need(d.entries.Entries[b.index].Ifindex)
			need(uint32(d.hops.Resolve(b.desired, d.own).Ifindex))
		}
	}
	if d.wrote.egress == nil {
		d.wrote.egress = map[uint32]uint32{}
	}
	if !c.whole { // an event about interfaces has come: it may be the kernel that has closed them
		maps.DeleteFunc(d.wrote.egress, func(index, _ uint32) bool { return open[index] != index })
	}
	for index := range want {
		if index == 0 {
			continue
		}
		if open[index] != index {
			if opened, err := d.putEgress(index); err != nil {
				return err
			} else if !opened {
				continue
			}
			if _, was := d.wrote.egress[index]; was {
				d.countHands("egress", 1)
			}
		}
		d.wrote.egress[index] = index
	}
	return nil
}

// putEgress lets packets leave by an interface. It is not opened if it is gone: then an event about that is on its way.
func (d *Datapath) putEgress(index uint32) (opened bool, err error) {
	if err := d.kernel.Egress.Put(index, index); errors.Is(err, unix.EINVAL) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("open interface %d for forwarding: %w", index, err)
	}
	return true, nil
}

// openInterface is openEgress of one interface, which a place is about to name.
func (d *Datapath) openInterface(index uint32) error {
	if d.wrote.egress[index] == index {
		return nil
	}
	var open uint32
	switch err := d.kernel.Egress.Lookup(index, &open); {
	case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
		return fmt.Errorf("read by which interfaces packets leave: %w", err)
	case err != nil || open != index:
		if opened, err := d.putEgress(index); err != nil || !opened {
			return err
		}
	}
	if d.wrote.egress == nil {
		d.wrote.egress = map[uint32]uint32{}
	}
	d.wrote.egress[index] = index
	return nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

// closeEgress ends that for interfaces with no backend behind them. No ring may name a backend that
// was behind one.
func (d *Datapath) closeEgress(services []*service) error {
	idle, err := d.egress()
	if err != nil {
		return err
	}
	for index := range d.neededEgress() {
		delete(idle, index)
	}
	d.keepUsed(idle, services)
	for index := range idle {
		if err := ignoreMissing("close interface for forwarding", d.kernel.Egress.Delete(index)); err != nil {
			return err
		}
		if _, was := d.wrote.egress[index]; !was {
			d.countHands("egress", 1)
		}
		delete(d.wrote.egress, index)
	}
	return nil
}

// egress are the interfaces by which packets may leave.
func (d *Datapath) egress() (map[uint32]uint32, error) {
	return contents.Read[uint32, uint32](d.kernel.Egress)
}

// keptEgress are those that must be open. When an interface goes, the kernel itself closes it.
func (d *Datapath) keptEgress() map[uint32]uint32 {
	kept := maps.Clone(d.wrote.egress)
	maps.DeleteFunc(kept, func(index, _ uint32) bool {
		_, err := netlink.LinkByIndex(int(index))
		return isNoLink(err)
	})
	return kept
}

// neededEgress are those that are needed whatever backends there are: the director's own, and those
// that lead to other directors.
func (d *Datapath) neededEgress() map[uint32]bool {
	need := map[uint32]bool{}
	for _, link := range d.links {
		if link != nil {
			need[uint32(link.Attrs().Index)] = true
		}
	}
	for _, p := range d.group.peers {
		need[uint32(p.hop.Ifindex)] = true
	}
	for _, at := range d.overlay.place {
		need[d.overlay.places.Entries[at.index].Ifindex] = true
	}
	return need
}

// keepUsed takes the interfaces that some backend is behind out of idle. It stops when idle is
// empty: mostly at once, or after the first backend.
func (d *Datapath) keepUsed(idle map[uint32]uint32, services []*service) {
	for _, s := range services {
		for _, b := range s.order {
			if len(idle) == 0 {
				return
			}
			delete(idle, d.entries.Entries[b.index].Ifindex)
		}
	}
}
