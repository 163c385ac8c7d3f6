package datapath

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
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
		if links[i] = linkByName(name); links[i] != nil {
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

// takeInterfaces looks the interfaces of the table up again.
func (d *Datapath) takeInterfaces(names []string) {
	d.links = d.findInterfaces(names)
	d.own = currentNames(names, d.links)
	d.hops.name(names, d.links)
}

// name remembers which interfaces the names of a table stand for.
func (r *resolver) name(names []string, links []netlink.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := map[string]int{}
	for i, link := range links {
		if link != nil {
			named[names[i]] = link.Attrs().Index
		}
	}
	if !maps.Equal(named, r.named) {
		r.own.forget() // the new interfaces may take frames for other addresses
	}
	r.named = named
}

// current are the names that these interfaces of the configuration have now, if they have been in a
// table.
func (r *resolver) current(names []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	links := make([]netlink.Link, len(names))
	for i, name := range names {
		if index := r.named[name]; index != 0 {
			links[i] = r.link(index)
		}
	}
	return currentNames(names, links)
}

// currentNames are the names that interfaces have now; those that are not there keep the names
// under which they are awaited.
func currentNames(names []string, links []netlink.Link) []string {
	current := slices.Clone(names)
	for i, link := range links {
		if link != nil {
			current[i] = link.Attrs().Name
		}
	}
	return current
}

// attachedBy is the interface with the program that has that name now, or in the table; nil: there
// is none.
func (d *Datapath) attachedBy(name string) *attachment {
	if a := d.attached[name]; a != nil {
		return a
	}
	link := linkByName(name)
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

// linkByName returns nil for a link that is not there.
func linkByName(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	return link
}
