package ovn

import (
	"cmp"
	"slices"
	"strings"

	"weir.io/weir/internal/ovsdb"
)

// Virtual is a port that no interface has, of the type "virtual": its address is at one of some other ports of the
// network, which are its parents. Neutron makes each port one whose address other ports may have, too (allowed address
// pairs), and which is on no host.
//
// OVN's routers, and its floating IPs, lead to a virtual port only once a host has said at which parent it is. On a host
// ovn-controller says so, when the parent announces the address. Nothing announces a director's VIPs in OVN's pipeline, so
// it goes by what is allowed: see claimsOfVirtual.
type Virtual struct {
	Name      string
	Addresses []Address // of the column mac: the address alone counts, since packets go to a parent
	Parents   []string  // names of ports that may have it
	Parent    string    // that has it; empty: none
	Chassis   *Chassis  // of the parent; nil: none
}

// Virtual returns the virtual ports of a network, by its ID, by their names.
func (s *Snapshot) Virtual(network string) []Virtual {
	var all []Virtual
	for _, b := range s.content.virtual {
		if b.datapath == ovsdb.UUID(network) {
			all = append(all, Virtual{Name: b.name, Addresses: b.addresses, Parents: b.parents(), Parent: b.parent.One(), Chassis: s.host(b.chassis.One())})
		}
	}
	slices.SortFunc(all, func(a, b Virtual) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// parents are the names of the ports that may have a virtual port's address (ovn-nb(5), "Options for virtual ports").
func (b *binding) parents() []string {
	return strings.FieldsFunc(b.options["virtual-parents"], func(r rune) bool { return r == ',' || r == ' ' })
}

// claimsOfVirtual returns the operations by which virtual ports are at a chassis of which a port is among their parents,
// and others are not. A virtual port that is at another host stays there: there a VM has announced the address, or another
// director has a port, too.
func (r *replica) claimsOfVirtual(chassis ovsdb.UUID) (operations []ovsdb.Operation) {
	if len(r.virtual.now) == 0 {
		return nil
	}
	type place struct {
		network ovsdb.UUID
		port    string
	}
	own := map[place]bool{}
	for _, b := range r.bindings {
		if b.kind == "" && slices.Contains(b.requested, chassis) {
			own[place{b.datapath, b.name}] = true
		}
	}
	for id, b := range r.virtual.now {
		here := slices.Contains(b.chassis, chassis)
		if !here && len(b.chassis) > 0 {
			continue
		}
		isOwn := func(name string) bool { return own[place{b.datapath, name}] }
		parents := b.parents()
		parent := b.parent.One()
		if !slices.Contains(parents, parent) || !isOwn(parent) {
			parent = ""
			if i := slices.IndexFunc(parents, isOwn); i >= 0 {
				parent = parents[i]
			}
		}
		row := map[string]any{}
		switch {
		case parent != "" && (!here || b.parent.One() != parent || len(b.up) == 0 || !b.up[0]):
			row["chassis"], row["virtual_parent"], row["up"] = chassis, parent, true
		case parent == "" && here:
			row["chassis"], row["virtual_parent"], row["up"] = ovsdb.Set[any]{}, ovsdb.Set[any]{}, false
		default:
			continue
		}
		// A host may have taken it meanwhile.
		operations = append(operations, ovsdb.Operation{"op": "update", "table": "Port_Binding", "row": row,
			"where": [][]any{{"_uuid", "==", id}, {"chassis", "==", b.chassis}}})
	}
	return operations
}
