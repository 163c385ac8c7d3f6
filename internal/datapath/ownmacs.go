package datapath

import (
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// A switch that does not know where a host is floods the frames for it to all. l2dsr leaves these
// frames alone, and so has to know which MAC addresses are this host's: an interface may take frames
// for several (macvlan, a MAC address that VRRP moves).

// followOwnMACs brings own_macs up to date, and returns the flag of the settings that goes with it. If
// the addresses are not known, frames for any address are this host's.
func (d *Datapath) followOwnMACs() (flag uint32, err error) {
	own, err := d.hops.hostMACs()
	if most := int(d.kernel.OwnMacs.MaxEntries()) / 2; err == nil && len(own) > most { // the old ones beside the new ones
		err = fmt.Errorf("the host has %d MAC addresses, and weir compares at most %d", len(own), most)
	}
	d.unknownMACs = err
	if err != nil {
		return 0, nil
	}
	if !maps.Equal(own, d.wrote.own) {
		if err := errors.Join(contents.Put(d.kernel.OwnMacs, own), contents.Prune(d.kernel.OwnMacs, own)); err != nil {
			return 0, fmt.Errorf("write MAC addresses of this host: %w", err)
		}
		d.wrote.own = own
	}
	return uint32(directorSettingsFlagSETTINGS_OWN_MACS), nil
}

// ownMACDifference says that frames for other hosts are not recognized.
func (d *Datapath) ownMACDifference() []upkeep.Difference {
	if d.unknownMACs == nil {
		return nil
	}
	return []upkeep.Difference{{What: "MAC addresses", Found: fmt.Sprintf("are not known, so l2dsr forwards frames that a switch floods for other hosts, too: %v", d.unknownMACs)}}
}

// hostMACs returns the MAC addresses of all interfaces of this network namespace, as keys of own_macs,
// and those that the director's interfaces take frames for besides, such as a macvlan's in a
// container. It asks the kernel only after a change. The caller must not change the map.
func (r *resolver) hostMACs() (map[uint64]uint8, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own != nil {
		return r.own, nil
	}
	own, err := r.readHostMACs()
	if err != nil {
		return nil, err
	}
	r.own = own
	return own, nil
}

// forgetOwnMACs makes hostMACs ask again.
func (r *resolver) forgetOwnMACs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = nil
}

// readHostMACs asks the kernel.
func (r *resolver) readHostMACs() (map[uint64]uint8, error) {
	links, err := r.netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	// The forwarding database of an interface that is no bridge: addresses that its filter lets in.
	taken, err := r.netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return nil, fmt.Errorf("list MAC addresses of interfaces: %w", err)
	}
	own := map[uint64]uint8{}
	add := func(address []byte) {
		const group = 1 // of the first byte: a multicast address
		if len(address) == len(model.MAC{}) && address[0]&group == 0 && model.MAC(address) != (model.MAC{}) {
			own[macWord(model.MAC(address))] = 1
		}
	}
	for _, link := range links {
		add(link.Attrs().HardwareAddr)
	}
	ours := map[int]bool{}
	for _, index := range r.named {
		ours[index] = true
	}
	for _, entry := range taken {
		if ours[entry.LinkIndex] && entry.Flags&netlink.NTF_SELF != 0 {
			add(entry.HardwareAddr)
		}
	}
	return own, nil
}

// ownMACsDiffer reports whether the host has other MAC addresses than those that are known. The
// kernel does not report those of interfaces in other network namespaces.
func (r *resolver) ownMACsDiffer() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, err := r.readHostMACs()
	if err == nil && r.own != nil && maps.Equal(own, r.own) {
		return false
	}
	r.own = nil
	return true
}
