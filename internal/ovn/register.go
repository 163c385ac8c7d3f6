package ovn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/internal/retry"
)

// Registration is a director as one of OVN's chassis: each host of OVN makes tunnels to all chassis, and
// takes packets from these alone. Ports whose requested-chassis it is are at the director: hosts send it their packets
// (OVN 21.12 or later).
type Registration struct {
	// Name is the chassis's. No other director may have it, and no host.
	Name string
	// Owner is whose chassis it is, such as the director's host name: only the same owner changes or
	// removes it later.
	Owner string
	// Encaps are the director's ends of tunnels. VXLAN is left out while no host of OVN has it: with one
	// chassis that has, ovn-northd makes all keys short enough for VXLAN, so that there is no room for
	// more than 4095 networks (is_vxlan_mode in northd), and so is a family of addresses.
	Encaps []Encap
	// Zones are the transport zones, in which alone hosts make tunnels; none: those without a zone.
	Zones []string
}

// marker is the key in external_ids of a chassis that a director has registered; the value is the owner.
const marker = "weir-director"

func (r *Registration) check() error {
	if r.Name == "" || r.Owner == "" || len(r.Encaps) == 0 {
		return errors.New("a chassis of OVN needs a name, an owner and at least one end of tunnels")
	}
	for i, e := range r.Encaps {
		if !slices.Contains(order, e.Kind) || !usable(e.IP) {
			return fmt.Errorf("chassis %s: %q %v is no end of tunnels: a kind, geneve or vxlan, and an address", r.Name, e.Kind, e.IP)
		}
		if slices.ContainsFunc(r.Encaps[:i], func(o Encap) bool { return o.Kind == e.Kind && o.IP.Unmap() == e.IP.Unmap() }) {
			return fmt.Errorf("chassis %s has %s %v twice", r.Name, e.Kind, e.IP)
		}
	}
	return nil
}

// registrar is how far registering has come on one connection.
type registrar struct {
	otherConfig bool   // the database has Chassis.other_config
	asked       uint64 // the transaction that is under way
	pauses      retry.Backoff
	until       time.Time        // not before is there another one
	again       <-chan time.Time // when that is, if there is one to make
}

// waits reports whether a transaction is under way, or the time for the next one has not come. Somebody
// may undo what is written: that must not become a race.
func (w *registrar) waits() bool {
	if w.asked != 0 {
		return true
	}
	left := time.Until(w.until)
	if left > 0 && w.again == nil {
		w.again = time.After(left)
	}
	return left > 0
}

// answered takes the answer to a transaction. Its changes have come before it.
func (w *registrar) answered(f *follower, m ovsdb.Message) {
	if m.Reply != w.asked {
		return
	}
	w.asked = 0
	err := m.Err
	if err == nil {
		_, err = ovsdb.Results(m.Result)
	}
	if err != nil {
		f.registered(false, fmt.Errorf("register chassis %s: %w", f.Register.Name, err))
	}
	f.replica.marks = true // whether it is as it has to be shows in the replica
}

// registered notes whether the director is among OVN's chassis, and why it is not, or not wholly.
func (f *follower) registered(is bool, reason error) {
	same := fmt.Sprint(f.status.Unregistered) == fmt.Sprint(reason)
	if f.status.Registered == is && same {
		return
	}
	f.status.Registered, f.status.Unregistered, f.changed = is, reason, true
	switch {
	case reason != nil && !same:
		f.Log.Warn("the director is not among OVN's chassis as it is asked for", "error", reason)
	case is:
		f.Log.Info("the director is among OVN's chassis", "chassis", f.Register.Name)
	}
}

// register compares the tables with what is asked for, and begins a transaction if they differ.
func (f *follower) register(conn *ovsdb.Conn) error {
	operations, registered, reason := f.Register.plan(f.replica, f.write.otherConfig)
	if len(operations) == 0 {
		f.replica.marks = false
		f.registered(registered, reason)
		return nil
	}
	if f.write.waits() {
		return nil // what differs, differs then, too
	}
	if f.write.pauses.First == 0 {
		f.write.pauses = retry.Backoff{First: firstPause, Last: lastPause}
	}
	if time.Since(f.write.until) > lastPause {
		f.write.pauses.Reset()
	}
	number, err := conn.Request("transact", ovsdb.Transaction(database, operations)...)
	if err != nil {
		return fmt.Errorf("register chassis %s: %w", f.Register.Name, err)
	}
	f.write.asked, f.write.until = number, time.Now().Add(f.write.pauses.Next())
	return nil
}

// plan returns the transaction by which the tables become as they have to be; without operations, whether
// they are. The reason is why they are not, or why they do not have all that is asked for.
func (r *Registration) plan(now *replica, otherConfig bool) (operations []ovsdb.Operation, registered bool, reason error) {
	var id ovsdb.UUID
	var row *chassis
	for key, c := range now.chassis.now {
		if c.name == r.Name {
			id, row = key, c
		}
	}
	if row != nil && row.externalIDs[marker] != r.Owner {
		return nil, false, r.refuse(row)
	}
	encaps, reason := r.encaps(now)
	if len(encaps) == 0 {
		return nil, false, reason
	}
	listed, changed, operations, err := r.planEncaps(now, row, encaps)
	if err != nil {
		return nil, false, err
	}
	if row != nil {
		operations = append(operations, now.claims(id)...)
		operations = append(operations, now.claimsOfVirtual(id)...)
	}
	operations = append(operations, ovsdb.Operation{"op": "comment", "comment": "weir: register chassis " + r.Name})
	features, zones := now.features(), slices.Sorted(slices.Values(r.Zones))
	// Of a row that is there only what differs is written: with RBAC hosts may not write their hostname
	// again, for example (rbac_chassis_update in northd).
	columns := map[string]any{}
	if changed {
		columns["encaps"] = ovsdb.Set[any](listed)
	}
	if row == nil || !slices.Equal(slices.Sorted(slices.Values(row.zones)), zones) {
		columns["transport_zones"] = ovsdb.Set[string](zones)
	}
	if otherConfig && (row == nil || !maps.Equal(row.otherConfig, features)) {
		columns["other_config"] = features
	}
	switch {
	case row == nil:
		columns["name"], columns["hostname"], columns["external_ids"] = r.Name, r.Owner, ovsdb.Map{marker: r.Owner}
		return append(operations, ovsdb.Operation{"op": "insert", "table": "Chassis", "row": columns}), false, reason
	case len(columns) > 0:
		return append(operations, ovsdb.Operation{"op": "update", "table": "Chassis", "row": columns,
			"where": [][]any{{"_uuid", "==", id}, r.own()}}), false, reason
	case len(operations) > 1: // of an end of tunnels alone, or of ports
		return operations, false, reason
	}
	return nil, true, reason
}

// matters reports whether a port is one that some director may have to be at: it is meant to be on some host, or virtual.
func (b *binding) matters() bool { return b != nil && (len(b.requested) > 0 || b.kind == typeVirtual) }

// claims returns the operations by which ports are on a chassis that are meant to be there (requested-chassis of
// ovn-nb(5)), and others are not. OVN's hosts send to a port where its row says that it is; on a host ovn-controller
// says so.
func (r *replica) claims(chassis ovsdb.UUID) (operations []ovsdb.Operation) {
	for id, b := range r.bindings {
		if b.kind == typeVirtual {
			continue
		}
		here := slices.Contains(b.chassis, chassis)
		wanted := slices.Contains(b.requested, chassis)
		row := map[string]any{}
		switch {
		case wanted && (!here || len(b.up) == 0 || !b.up[0]):
			row["chassis"], row["up"] = chassis, true
		case here && !wanted:
			row["chassis"], row["up"] = ovsdb.Set[any]{}, false
		default:
			continue
		}
		operations = append(operations, ovsdb.Operation{"op": "update", "table": "Port_Binding", "row": row, "where": [][]any{{"_uuid", "==", id}}})
	}
	return operations
}

// own is the condition that a chassis is the owner's.
func (r *Registration) own() []any {
	return []any{"external_ids", "includes", ovsdb.Map{marker: r.Owner}}
}

// refuse says whose the chassis is.
func (r *Registration) refuse(row *chassis) error {
	if other := row.externalIDs[marker]; other != "" {
		return fmt.Errorf("chassis %s is the director's on %s: each director needs a name of its own", r.Name, other)
	}
	return fmt.Errorf("chassis %s of host %q is not weir's: use another name, or hand it over by ovn-sbctl set Chassis %s external_ids:%s=%s",
		r.Name, row.hostname, r.Name, marker, r.Owner)
}

// encaps returns the ends of tunnels that do OVN no harm, and what is wrong with the others. Those of a family that no
// host has are left out: a host sends to any one of a chassis's ends, also to one that it has no way to
// (chassis_tunnel_find in ovn-controller).
func (r *Registration) encaps(now *replica) ([]Encap, error) {
	inVXLAN, families := false, map[bool]bool{}
	for _, c := range now.chassis.now {
		if c.externalIDs[marker] != "" {
			continue
		}
		for _, id := range c.encaps {
			e := now.encaps.now[id]
			if e == nil {
				continue
			}
			inVXLAN = inVXLAN || e.kind == string(VXLAN)
			if ip, err := netip.ParseAddr(e.ip); err == nil && c.otherConfig["is-remote"] != "true" {
				families[ip.Unmap().Is6()] = true
			}
		}
	}
	left := slices.DeleteFunc(slices.Clone(r.Encaps), func(e Encap) bool { return !families[e.IP.Unmap().Is6()] })
	if len(left) == 0 { // there is no host yet, or none could reach any
		left = slices.Clone(r.Encaps)
	}
	if inVXLAN {
		return left, nil
	}
	all := len(left)
	left = slices.DeleteFunc(left, func(e Encap) bool { return e.Kind == VXLAN })
	if len(left) == all {
		return left, nil
	}
	return left, fmt.Errorf("chassis %s does not offer vxlan, as no host of OVN does: it would leave no room for more than %d networks", r.Name, mostVXLANNetwork)
}

// planEncaps returns the chassis's new encaps, and the operations for those that are new or differ.
func (r *Registration) planEncaps(now *replica, row *chassis, encaps []Encap) (listed []any, changed bool, operations []ovsdb.Operation, err error) {
	kept := 0
	for i, e := range encaps {
		id, old := find(now, e)
		switch {
		case old == nil:
			name := "encap" + strconv.Itoa(i)
			operations = append(operations, ovsdb.Operation{"op": "insert", "table": "Encap", "uuid-name": name, "row": map[string]any{
				"type": string(e.Kind), "ip": e.IP.Unmap().String(), "chassis_name": r.Name, "options": e.options()}})
			listed, changed = append(listed, ovsdb.Named(name)), true
			continue
		case row == nil || !slices.Contains(row.encaps, id):
			return nil, false, nil, fmt.Errorf("chassis %s cannot have %s %v, which chassis %s has", r.Name, e.Kind, e.IP, old.chassis)
		case !maps.Equal(old.options, e.options()):
			operations = append(operations, ovsdb.Operation{"op": "update", "table": "Encap", "row": map[string]any{"options": e.options()},
				"where": [][]any{{"_uuid", "==", id}}})
		}
		kept++
		listed = append(listed, id)
	}
	return listed, changed || row == nil || kept != len(row.encaps), operations, nil
}

// find returns the row of an end of tunnels, which is unique.
func find(now *replica, e Encap) (ovsdb.UUID, *encap) {
	for id, row := range now.encaps.now {
		if ip, err := netip.ParseAddr(row.ip); err == nil && row.kind == string(e.Kind) && ip.Unmap() == e.IP.Unmap() {
			return id, row
		}
	}
	return "", nil
}

func (e Encap) options() ovsdb.Map {
	options := ovsdb.Map{"csum": strconv.FormatBool(e.Checksum)}
	if e.Port != 0 {
		options["dst_port"] = strconv.Itoa(int(e.Port))
	}
	return options
}

// features returns what a director's chassis has to say in other_config. ovn-northd uses what ovn-controller
// has learned in the course of time only if every chassis says "true" to it (build_chassis_features): a
// director that did not would take it away from all hosts. Flows for hosts do not concern directors, so
// they say what all hosts say. Keys that begin with "is-" are not features, but what a chassis is.
func (r *replica) features() ovsdb.Map {
	var all ovsdb.Map // nil: no host has been looked at
	for _, c := range r.chassis.now {
		if c.externalIDs[marker] != "" || c.otherConfig["is-remote"] == "true" {
			continue
		}
		if all == nil {
			all = ovsdb.Map{}
			maps.Copy(all, c.otherConfig)
		}
		maps.DeleteFunc(all, func(key, value string) bool {
			return value != "true" || c.otherConfig[key] != "true" || strings.HasPrefix(key, "is-") || slices.Contains(hostSettings, key)
		})
	}
	if all == nil {
		all = ovsdb.Map{}
	}
	return all
}

// hostSettings are keys of other_config by which ovn-controller tells how it is set.
var hostSettings = []string{"ovn-monitor-all", "ovn-enable-lflow-cache"}

// Unregister removes the director from OVN's chassis, at the first endpoint that can. Without such a chassis
// there is nothing to do, and one that is not the owner's is an error.
func Unregister(ctx context.Context, o Options) error {
	if o.Register == nil {
		return errors.New("there is no chassis to unregister")
	}
	if err := o.check(); err != nil {
		return err
	}
	var problems []error
	for _, endpoint := range o.Endpoints {
		err := o.unregister(ctx, endpoint)
		if err == nil {
			return nil
		}
		problems = append(problems, fmt.Errorf("unregister chassis %s at %s: %w", o.Register.Name, endpoint, err))
	}
	return errors.Join(problems...)
}

func (o *Options) unregister(ctx context.Context, endpoint string) error {
	conn, err := ovsdb.Open(ctx, endpoint, o.TLS)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, conn.Close)()
	defer conn.Close()
	named := []any{"name", "==", o.Register.Name}
	text, err := conn.Call("transact", ovsdb.Transaction(database, []ovsdb.Operation{
		{"op": "comment", "comment": "weir: unregister chassis " + o.Register.Name},
		{"op": "delete", "table": "Chassis", "where": [][]any{named, o.Register.own()}},
		{"op": "select", "table": "Chassis", "where": [][]any{named}, "columns": []string{"hostname", "external_ids"}},
	})...)
	if err != nil {
		return err
	}
	results, err := ovsdb.Results(text)
	if err != nil {
		return err
	}
	if len(results) == 0 || len(results[len(results)-1].Rows) == 0 {
		return nil
	}
	left := results[len(results)-1].Rows
	row, err := change[chassis](nil, ovsdb.Change{Initial: left[0]})
	if err != nil {
		return err
	}
	return o.Register.refuse(row)
}
