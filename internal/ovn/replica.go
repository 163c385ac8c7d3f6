package ovn

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/ovsdb"
)

// lent is a map that its owner changes and others read: once it has been lent, the next change makes
// another one.
type lent[K comparable, V any] struct {
	now map[K]V
	out bool
}

// own returns the map for a change.
func (l *lent[K, V]) own() map[K]V {
	switch {
	case l.now == nil:
		l.now = map[K]V{}
	case l.out:
		l.now = maps.Clone(l.now)
	}
	l.out = false
	return l.now
}

// lend returns the map for reading.
func (l *lent[K, V]) lend() map[K]V {
	l.out = true
	return l.now
}

// replica is a copy of what is followed of the database, with the ports of each network by their
// addresses. What a change costs depends on the networks that it touches, and not on the others.
type replica struct {
	global    map[ovsdb.UUID]*global
	bindings  map[ovsdb.UUID]*binding
	datapaths lent[ovsdb.UUID, *datapath]
	chassis   lent[ovsdb.UUID, *chassis]
	encaps    lent[ovsdb.UUID, *encap]

	names    map[string][]ovsdb.UUID // of networks; nil: the networks have changed
	count    int                     // of networks
	unread   map[ovsdb.UUID]*binding // ports whose addresses could not all be read
	virtual  lent[ovsdb.UUID, *binding]
	networks map[ovsdb.UUID]*lent[netip.Addr, []*binding]
	ports    lent[ovsdb.UUID, map[netip.Addr][]*binding]
	touched  map[ovsdb.UUID]bool // networks that ports does not have as they are now
	marks    bool                // something has changed in the tables of chassis
}

func newReplica() *replica {
	return &replica{global: map[ovsdb.UUID]*global{}, bindings: map[ovsdb.UUID]*binding{}, unread: map[ovsdb.UUID]*binding{},
		networks: map[ovsdb.UUID]*lent[netip.Addr, []*binding]{}, touched: map[ovsdb.UUID]bool{}, marks: true}
}

// apply makes changes. After an error the replica is not the database's any more.
func (r *replica) apply(changes ovsdb.Changes) error {
	for table, rows := range changes {
		for id, c := range rows {
			var err error
			switch table {
			case "SB_Global":
				err = put(r.global, id, c)
			case "Datapath_Binding":
				r.names = nil
				err = put(r.datapaths.own(), id, c)
			case "Chassis":
				r.marks = true
				err = put(r.chassis.own(), id, c)
			case "Encap":
				r.marks = true
				err = put(r.encaps.own(), id, c)
			case "Port_Binding":
				before := r.bindings[id]
				r.remove(id)
				if err = put(r.bindings, id, c); err == nil {
					r.add(id)
				}
				r.marks = r.marks || before.matters() || r.bindings[id].matters()
			}
			if err != nil {
				return fmt.Errorf("row %s of table %s: %w", id, table, err)
			}
		}
	}
	return nil
}

// put makes one change of a table.
func put[T any, P readable[T]](table map[ovsdb.UUID]*T, id ovsdb.UUID, c ovsdb.Change) error {
	next, err := change[T, P](table[id], c)
	if err != nil {
		return err
	}
	if next == nil {
		delete(table, id)
	} else {
		table[id] = next
	}
	return nil
}

// add and remove keep the ports by their addresses. The lists are lent, too, so they are made anew.
func (r *replica) add(id ovsdb.UUID) {
	b := r.bindings[id]
	switch {
	case b == nil:
		return
	case b.kind == typeVirtual:
		r.virtual.own()[id] = b
		return
	case b.unread != nil:
		r.unread[id] = b
	}
	network := r.networks[b.datapath]
	if network == nil {
		network = &lent[netip.Addr, []*binding]{}
		r.networks[b.datapath] = network
	}
	for _, ip := range b.ips() {
		list := append(slices.Clip(network.own()[ip]), b)
		slices.SortFunc(list, func(a, b *binding) int { return a.better(b) })
		network.own()[ip] = list
	}
	r.touched[b.datapath] = true
}

func (r *replica) remove(id ovsdb.UUID) {
	b := r.bindings[id]
	switch {
	case b == nil:
		return
	case b.kind == typeVirtual:
		delete(r.virtual.own(), id)
		return
	}
	delete(r.unread, id)
	r.touched[b.datapath] = true
	network := r.networks[b.datapath]
	if network == nil {
		return // none of its ports has had an address
	}
	for _, ip := range b.ips() {
		list := slices.DeleteFunc(slices.Clone(network.own()[ip]), func(other *binding) bool { return other == b })
		if len(list) == 0 {
			delete(network.own(), ip)
		} else {
			network.own()[ip] = list
		}
	}
	if len(network.now) == 0 {
		delete(r.networks, b.datapath)
	}
}

// better is less than zero if a packet for an address that both have should go to b: it is on a host, is
// up, or has the smaller key.
func (b *binding) better(other *binding) int {
	rank := func(b *binding) (n int) {
		if len(b.chassis) == 0 {
			n += 2
		}
		if len(b.up) > 0 && !b.up[0] {
			n++
		}
		return n
	}
	if d := rank(b) - rank(other); d != 0 {
		return d
	}
	return int(b.key) - int(other.key)
}

// mostUnread is how many ports a snapshot names whose addresses could not be read.
const mostUnread = 10

// content is what a snapshot has of the database.
type content struct {
	datapaths map[ovsdb.UUID]*datapath
	chassis   map[ovsdb.UUID]*chassis
	encaps    map[ovsdb.UUID]*encap
	names     map[string][]ovsdb.UUID
	ports     map[ovsdb.UUID]map[netip.Addr][]*binding
	virtual   map[ovsdb.UUID]*binding
	networks  int
	known     int // ports
	unread    []string
	ipsec     bool
}

// snapshot lends the content as it is now.
func (r *replica) snapshot() content {
	for id := range r.touched {
		if network := r.networks[id]; network != nil {
			r.ports.own()[id] = network.lend()
		} else {
			delete(r.ports.own(), id)
		}
	}
	clear(r.touched)
	if r.names == nil {
		r.names, r.count = map[string][]ovsdb.UUID{}, 0
		for id, d := range r.datapaths.now {
			if n, is := d.network(id); is {
				r.count++
				for _, name := range n.answers() {
					r.names[name] = append(r.names[name], id)
				}
			}
		}
	}
	c := content{datapaths: r.datapaths.lend(), chassis: r.chassis.lend(), encaps: r.encaps.lend(), names: r.names,
		ports: r.ports.lend(), virtual: r.virtual.lend(), networks: r.count, known: len(r.bindings) - len(r.virtual.now)}
	for _, b := range r.unread {
		c.unread = append(c.unread, fmt.Sprintf("port %s: %v", b.name, b.unread))
	}
	slices.Sort(c.unread)
	if more := len(c.unread) - mostUnread; more > 0 {
		c.unread = append(c.unread[:mostUnread:mostUnread], fmt.Sprintf("%d more", more))
	}
	for _, g := range r.global {
		c.ipsec = c.ipsec || g.ipsec
	}
	return c
}

// answers returns the names by which users may mean the network.
func (n *Network) answers() []string {
	all := []string{n.ID, n.Switch}
	if n.Name != "" {
		all = append(all, n.Name)
	}
	if id, of := strings.CutPrefix(n.Name, "neutron-"); of && id != "" {
		all = append(all, id)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
