package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// A table names the director's interfaces as the configuration does: by their names, or by other
// names that they have. Only this file turns such names into interfaces. All else goes by indexes,
// and by the names that the interfaces have now.

// findInterfaces returns the interfaces that have these names, or have them as other names. An
// interface that was renamed since is found by the program on it, unless another one has its name
// now. Nil: it is not there. The director goes on with those that are, and takes the others when
// they come.
func (d *Datapath) findInterfaces(names []string) []netlink.Link {
	links := make([]netlink.Link, len(names))
	found := map[int]bool{}
	for i, name := range names {
		if links[i] = device.ByName(name); links[i] != nil {
			found[links[i].Attrs().Index] = true
		}
	}
	for i, name := range names {
		if links[i] != nil {
			continue
		}
		if index := d.attachedIndex(name); index != 0 && !found[index] {
			if link, err := netlink.LinkByIndex(index); err == nil {
				links[i], found[index] = link, true
			}
		}
	}
	return links
}

// attachedIndex is the interface to which this process or an earlier one attached the program under
// that name; 0: there is none.
func (d *Datapath) attachedIndex(name string) int {
	if a := d.attached[name]; a != nil {
		return a.index
	}
	index, _ := pinnedIndex(d.kernel.linkPin(name)) // an interface whose pin cannot be opened is not there
	return index
}

// lookUpInterfaces looks the interfaces of the table up again.
func (d *Datapath) lookUpInterfaces(names []string) {
	d.links = d.findInterfaces(names)
	d.own = nexthop.NamesOf(names, d.links)
	d.hops.NameInterfaces(names, d.links)
}

// attachedBy is the interface with the program that has that name now, or in the table; nil: there
// is none.
func (d *Datapath) attachedBy(name string) *attachment {
	if a := d.attached[name]; a != nil {
		return a
	}
	link := device.ByName(name)
	if link == nil {
		return nil
	}
	for _, a := range d.attached {
		if a.index == link.Attrs().Index {
			return a
		}
	}
	return nil
}

// attachedNames are the names that the interfaces with the program have now, in order.
func (d *Datapath) attachedNames() (names []string) {
	for name, a := range d.attached {
		if link, err := netlink.LinkByIndex(a.index); err == nil {
			name = link.Attrs().Name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// interfaceStatus returns the state of the table's interfaces, also of those that are not there,
// and of others that keep the program until all are there.
func (d *Datapath) interfaceStatus() (list []model.InterfaceStatus) {
	names := slices.Clone(d.table.Interfaces)
	for name := range d.attached {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i, link := range d.findInterfaces(names) {
		status := model.InterfaceStatus{Name: names[i]}
		if link != nil {
			status = d.statusOfLink(names[i], link)
		}
		list = append(list, status)
	}
	slices.SortFunc(list, func(a, b model.InterfaceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (d *Datapath) statusOfLink(name string, link netlink.Link) model.InterfaceStatus {
	attrs := link.Attrs()
	status := model.InterfaceStatus{Name: attrs.Name, Index: attrs.Index, MTU: attrs.MTU}
	if name != attrs.Name {
		status.Configured = name
	}
	if a := d.attached[name]; a != nil && a.index == attrs.Index && a.holds() {
		status.XDP = xdpMode(attrs.Index)
	}
	return status
}

// Attached returns how many interfaces have the director's program, from this process or an earlier
// one.
func (d *Datapath) Attached() (count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	on := map[int]bool{}
	for _, a := range d.attached {
		if a.holds() {
			on[a.index] = true
		}
	}
	pins, _ := filepath.Glob(d.kernel.linkPin("*")) // the pattern is not bad
	for _, pin := range pins {
		if index, err := pinnedIndex(pin); err == nil && index != 0 {
			on[index] = true
		}
	}
	return len(on)
}

// Lowered are the interfaces whose MTU has become smaller since this process looked for the first
// time.
func (d *Datapath) Lowered() []model.LoweredMTU {
	d.mu.Lock()
	defer d.mu.Unlock()
	var now []upkeep.MTU
	for _, link := range d.links {
		if link != nil {
			now = append(now, upkeep.MTU{Name: link.Attrs().Name, Index: link.Attrs().Index, MTU: link.Attrs().MTU})
		}
	}
	return d.mtus.Lowered(now, func(index int) bool {
		_, err := netlink.LinkByIndex(index)
		var none netlink.LinkNotFoundError
		return errors.As(err, &none)
	})
}

// Entrance returns the interface by which packets from an address come in, as far as routes tell,
// and its MAC address: of the director's interfaces the one that leads to the address, else the
// first. If name is not empty, it names the interface.
func (d *Datapath) Entrance(name string, from netip.Addr) (string, model.MAC, error) {
	d.mu.Lock()
	links := slices.DeleteFunc(slices.Clone(d.links), func(l netlink.Link) bool { return l == nil })
	own, begun := d.own, d.begun
	d.mu.Unlock()
	if !begun || len(own) == 0 {
		return "", model.MAC{}, observe.ErrNothingForwarded
	}
	if len(links) == 0 {
		all, _ := netlink.LinkList() // without a list none is named
		return "", model.MAC{}, fmt.Errorf("no packet comes in, because none of the director's interfaces, %s, is there; there are: %s",
			strings.Join(own, ", "), strings.Join(device.Candidates(slices.Values(all)), ", "))
	}
	link, wanted := links[0], 0
	switch {
	case name != "":
		given := device.ByName(name)
		if given == nil {
			return "", model.MAC{}, fmt.Errorf("interface %s: is not there; the director's are %s", name, strings.Join(own, ", "))
		}
		wanted = given.Attrs().Index
	case from.IsValid():
		wanted = d.hops.RouteTo(from).Hop.Ifindex
	}
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == wanted })
	switch {
	case at >= 0:
		link = links[at]
	case name != "":
		return "", model.MAC{}, fmt.Errorf("interface %s: is none of the director's, which are %s", name, strings.Join(own, ", "))
	}
	var mac model.MAC
	copy(mac[:], link.Attrs().HardwareAddr)
	return link.Attrs().Name, mac, nil
}
