package ovn

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"weir.io/weir/internal/ovsdb"
)

// database is the Southbound database's name.
const database = "OVN_Southbound"

// The tables that are followed, with their columns: those that the server's version has are asked for.
var tables = map[string][]string{
	"SB_Global":        {"ipsec"},
	"Datapath_Binding": {"tunnel_key", "external_ids", "type", "nb_uuid"},
	"Port_Binding": {"logical_port", "type", "options", "datapath", "tunnel_key", "mac", "up", "chassis", "additional_chassis",
		"requested_chassis", "encap", "additional_encap", "virtual_parent"},
	"Chassis": {"name", "hostname", "encaps", "external_ids", "other_config", "transport_zones"},
	"Encap":   {"type", "ip", "options", "chassis_name"},
}

// typeVirtual is the type of ports that are no interface's: see virtual.go.
const typeVirtual = "virtual"

// optional are the columns that later versions of OVN have brought.
var optional = map[string]bool{
	"Datapath_Binding.type": true, "Datapath_Binding.nb_uuid": true, // 25.09
	"Port_Binding.up":                 true,                                        // 21.03
	"Port_Binding.additional_chassis": true, "Port_Binding.additional_encap": true, // 22.06
	"Port_Binding.requested_chassis": true, // 21.12
	"Chassis.other_config":           true, // 20.06
}

// wanted returns what to ask a server for whose database has these columns.
func wanted(columns map[string]map[string]bool) (map[string]ovsdb.Table, error) {
	asked := map[string]ovsdb.Table{}
	for table, names := range tables {
		var t ovsdb.Table
		for _, name := range names {
			switch {
			case columns[table][name]:
				t.Columns = append(t.Columns, name)
			case !optional[table+"."+name]:
				return nil, fmt.Errorf("the database %s has no column %s in table %s: not a version of OVN that weir knows", database, name, table)
			}
		}
		if table == "Port_Binding" {
			t.Where = [][]any{{"type", "==", ""}, {"type", "==", typeVirtual}}
		}
		asked[table] = t
	}
	return asked, nil
}

// Rows are never changed: a change makes another one. So a Snapshot shares them.
type (
	datapath struct {
		key         uint32
		externalIDs ovsdb.Map
		kind        string
		northbound  ovsdb.UUID
	}
	binding struct {
		name       string
		kind       string // empty, or typeVirtual
		options    ovsdb.Map
		datapath   ovsdb.UUID
		key        uint16
		mac        ovsdb.Set[string]
		up         ovsdb.Set[bool]
		chassis    ovsdb.Set[ovsdb.UUID]
		additional ovsdb.Set[ovsdb.UUID]
		requested  ovsdb.Set[ovsdb.UUID]
		encap      ovsdb.Set[ovsdb.UUID]
		others     ovsdb.Set[ovsdb.UUID] // of additional_encap
		parent     ovsdb.Set[string]     // of a virtual port

		addresses []Address // of mac
		unknown   bool
		unread    error // what of mac could not be read
	}
	chassis struct {
		name, hostname string
		encaps         ovsdb.Set[ovsdb.UUID]
		externalIDs    ovsdb.Map
		otherConfig    ovsdb.Map
		zones          ovsdb.Set[string]
	}
	encap struct {
		kind, ip, chassis string
		options           ovsdb.Map
	}
	global struct{ ipsec bool }
)

// column reads a column's new value, or in a change of a row of a column of many its difference.
type column struct {
	text   json.RawMessage
	differ bool
}

func set[T comparable](c column, old ovsdb.Set[T]) (ovsdb.Set[T], error) {
	var value ovsdb.Set[T]
	err := json.Unmarshal(c.text, &value)
	if c.differ {
		value = ovsdb.Toggle(old, value)
	}
	return value, err
}

func pairs(c column, old ovsdb.Map) (ovsdb.Map, error) {
	var value ovsdb.Map
	err := json.Unmarshal(c.text, &value)
	if c.differ {
		value = old.Toggle(value)
	}
	return value, err
}

// one reads a column of one value.
func one[T any](c column, into *T) error { return json.Unmarshal(c.text, into) }

// optionalOne reads a column of at most one value, of which a change has the new one.
func optionalOne[T any](c column, into *ovsdb.Set[T]) error {
	var value ovsdb.Set[T]
	err := json.Unmarshal(c.text, &value)
	*into = value
	return err
}

func (d *datapath) read(name string, c column) (err error) {
	switch name {
	case "tunnel_key":
		err = one(c, &d.key)
	case "external_ids":
		d.externalIDs, err = pairs(c, d.externalIDs)
	case "type":
		var kind ovsdb.Set[string]
		err = optionalOne(c, &kind)
		d.kind = kind.One()
	case "nb_uuid":
		var id ovsdb.Set[ovsdb.UUID]
		err = optionalOne(c, &id)
		d.northbound = id.One()
	}
	return err
}

// network says what the row is for; false: not a logical switch. Version 25.09 has columns for it that
// earlier ones have as external_ids (ovn-sb(5)).
func (d *datapath) network(id ovsdb.UUID) (Network, bool) {
	n := Network{ID: string(id), Switch: d.externalIDs["logical-switch"], Name: d.externalIDs["name"], Alias: d.externalIDs["name2"], Key: d.key}
	if d.kind == "logical-switch" && d.northbound != "" {
		n.Switch = string(d.northbound)
	}
	return n, n.Switch != ""
}

func (b *binding) read(name string, c column) (err error) {
	switch name {
	case "logical_port":
		err = one(c, &b.name)
	case "type":
		err = one(c, &b.kind)
	case "options":
		b.options, err = pairs(c, b.options)
	case "datapath":
		err = one(c, &b.datapath)
	case "tunnel_key":
		err = one(c, &b.key)
	case "mac":
		b.mac, err = set(c, b.mac)
		b.addresses, b.unknown, b.unread = readAddresses(b.mac)
	case "up":
		err = optionalOne(c, &b.up)
	case "chassis":
		err = optionalOne(c, &b.chassis)
	case "additional_chassis":
		b.additional, err = set(c, b.additional)
	case "requested_chassis":
		err = optionalOne(c, &b.requested)
	case "encap":
		err = optionalOne(c, &b.encap)
	case "additional_encap":
		b.others, err = set(c, b.others)
	case "virtual_parent":
		err = optionalOne(c, &b.parent)
	}
	return err
}

// ips returns the IP addresses of a port.
func (b *binding) ips() (all []netip.Addr) {
	for _, a := range b.addresses {
		for _, ip := range a.IPs {
			if !slices.Contains(all, ip) {
				all = append(all, ip)
			}
		}
	}
	return all
}

func (h *chassis) read(name string, c column) (err error) {
	switch name {
	case "name":
		err = one(c, &h.name)
	case "hostname":
		err = one(c, &h.hostname)
	case "encaps":
		h.encaps, err = set(c, h.encaps)
	case "external_ids":
		h.externalIDs, err = pairs(c, h.externalIDs)
	case "other_config":
		h.otherConfig, err = pairs(c, h.otherConfig)
	case "transport_zones":
		h.zones, err = set(c, h.zones)
	}
	return err
}

func (e *encap) read(name string, c column) (err error) {
	switch name {
	case "type":
		err = one(c, &e.kind)
	case "ip":
		err = one(c, &e.ip)
	case "chassis_name":
		err = one(c, &e.chassis)
	case "options":
		e.options, err = pairs(c, e.options)
	}
	return err
}

// end returns the row as weir uses it; false: it is of a kind, or has an address or a port, that weir
// does not know.
func (e *encap) end() (Encap, bool) {
	ip, err := netip.ParseAddr(e.ip)
	if err != nil || !usable(ip) || !slices.Contains(order, Kind(e.kind)) {
		return Encap{}, false
	}
	// "csum defaults to false for hardware VTEPs and true for all other cases" is what ovn-controller writes
	// (ovn-sb(5)); without it hosts of OVN send no checksums.
	end := Encap{Kind: Kind(e.kind), IP: ip.Unmap(), Checksum: e.options["csum"] == "true"}
	if text := e.options["dst_port"]; text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return Encap{}, false
		}
		end.Port = uint16(port)
	}
	return end, true
}

func (g *global) read(name string, c column) error {
	if name == "ipsec" {
		return one(c, &g.ipsec)
	}
	return nil
}

// readable is a row that can be read column by column.
type readable[T any] interface {
	*T
	read(name string, c column) error
}

// change returns a row after a change: nil if it has been deleted.
func change[T any, P readable[T]](old *T, c ovsdb.Change) (*T, error) {
	row, differ := c.Initial, false
	switch {
	case c.Delete:
		return nil, nil
	case c.Insert != nil:
		row = c.Insert
	case c.Modify != nil && old == nil:
		return nil, fmt.Errorf("a change of a row that is not known")
	case c.Modify != nil:
		row, differ = c.Modify, true
	case c.Initial == nil:
		return nil, fmt.Errorf("a change that says nothing")
	}
	next := new(T)
	if differ {
		*next = *old
	}
	for _, name := range slices.Sorted(maps.Keys(row)) {
		if err := P(next).read(name, column{row[name], differ}); err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
	}
	return next, nil
}
