package ovn

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/ovsdb"
)

// Status says how far a snapshot can be trusted.
type Status struct {
	// Connected says that changes of the database are seen. Else the snapshot is the last one before the
	// connection was lost.
	Connected bool
	Endpoint  string    // of the connection, or of the last one
	Since     time.Time // when it became connected, or has not been since
	// Problem says why it is not connected, or what is wrong with the database; nil: nothing is.
	Problem error
	// Known says that the snapshot has a database's content. It is false until the first connection.
	Known    bool
	Networks int
	Ports    int // that are followed, those without addresses, too
	// Unread says of some ports what of their addresses could not be read.
	Unread []string
	// IPsec says that OVN encrypts all tunnels: its hosts take no packets that are not.
	IPsec bool
	// Registered says that the director is among OVN's chassis as Options.Register asks for.
	Registered bool
	// Unregistered says why it is not, or not with all ends of tunnels; nil: it is, or it is not asked for.
	Unregistered error
}

// Snapshot is what the database says at one moment. It does not change.
type Snapshot struct {
	Status  Status
	content content
}

// Network returns the network that a name means: the logical switch's name or UUID, for Neutron also
// the network's ID.
func (s *Snapshot) Network(name string) (Network, error) {
	ids := s.content.names[name]
	switch len(ids) {
	case 0:
		return Network{}, fmt.Errorf("OVN has no network %q", name)
	case 1:
		n, _ := s.content.datapaths[ids[0]].network(ids[0])
		return n, nil
	}
	return Network{}, fmt.Errorf("OVN has %d networks that are named %q: a UUID says which one", len(ids), name)
}

// Networks returns all networks, by their names.
func (s *Snapshot) Networks() []Network {
	var all []Network
	for id, d := range s.content.datapaths {
		if n, is := d.network(id); is {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b Network) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key)) })
	return all
}

// Port returns the port of a network, by its ID, that has an address. It is put together by each call.
func (s *Snapshot) Port(network string, ip netip.Addr) (Port, bool) {
	id := ovsdb.UUID(network)
	list := s.content.ports[id][ip.Unmap()]
	d := s.content.datapaths[id]
	if len(list) == 0 || d == nil {
		return Port{}, false
	}
	return s.port(list[0]), true
}

// Ports returns the ports of a network, by its ID, that have addresses, by their keys.
func (s *Snapshot) Ports(network string) []Port {
	id := ovsdb.UUID(network)
	seen := map[*binding]bool{}
	var all []Port
	for _, list := range s.content.ports[id] {
		for _, b := range list {
			if !seen[b] && s.content.datapaths[id] != nil {
				seen[b] = true
				all = append(all, s.port(b))
			}
		}
	}
	slices.SortFunc(all, func(a, b Port) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

// Chassis returns all hosts of OVN, by their names.
func (s *Snapshot) Chassis() []Chassis {
	var all []Chassis
	for id := range s.content.chassis {
		all = append(all, *s.host(id))
	}
	slices.SortFunc(all, func(a, b Chassis) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (s *Snapshot) port(b *binding) Port {
	p := Port{Name: b.name, Key: b.key, Addresses: b.addresses, Unknown: b.unknown,
		Chassis: s.host(b.chassis.One()), Requested: s.host(b.requested.One())}
	p.Network, _ = s.content.datapaths[b.datapath].network(b.datapath)
	p.Up = p.Chassis != nil && (len(b.up) == 0 || b.up[0])
	for _, id := range b.additional {
		if c := s.host(id); c != nil {
			p.Additional = append(p.Additional, c)
		}
	}
	slices.SortFunc(p.Additional, func(a, b *Chassis) int { return cmp.Compare(a.Name, b.Name) })
	for _, id := range slices.Concat(b.encap, b.others) {
		if e := s.content.encaps[id]; e != nil {
			if end, usable := e.end(); usable {
				p.encaps = append(p.encaps, end.IP)
			}
		}
	}
	for _, ip := range b.ips() {
		p.Shared = p.Shared || len(s.content.ports[b.datapath][ip]) > 1
	}
	return p
}

// host returns a chassis; nil: the database has none such.
func (s *Snapshot) host(id ovsdb.UUID) *Chassis {
	row := s.content.chassis[id]
	if row == nil {
		return nil
	}
	c := &Chassis{Name: row.name, Hostname: row.hostname, Weir: row.externalIDs[marker] != ""}
	for _, id := range row.encaps {
		if e := s.content.encaps[id]; e != nil {
			if end, usable := e.end(); usable {
				c.Encaps = append(c.Encaps, end)
			}
		}
	}
	slices.SortFunc(c.Encaps, func(a, b Encap) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.IP.Compare(b.IP)) })
	return c
}
