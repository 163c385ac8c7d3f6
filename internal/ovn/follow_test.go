package ovn

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/lab/ovnlab"
)

func mac(t *testing.T, text string) (m model.MAC) {
	t.Helper()
	if err := m.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return m
}

// A VM's port is known with all that a tunnel needs; the VM moves, and goes.
func TestFollow(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	w := watch(t, Options{Endpoints: []string{n.SB}})
	w.until("the database is known", connected)

	n.SBctl("chassis-add", "hv1", "geneve,vxlan", "192.0.2.1")
	n.SBctl("chassis-add", "hv2", "geneve", "192.0.2.2", "--", "set", "Chassis", "hv2", "hostname=two.example")
	n.NBctl("--wait=sb", "ls-add", "neutron-6b1e", "--", "set", "Logical_Switch", "neutron-6b1e", "external_ids:neutron\\:network_name=blue",
		"--", "lsp-add", "neutron-6b1e", "p0", "--", "lsp-set-addresses", "p0", "fa:16:3e:00:00:05 10.0.0.5 fd00::5", "fa:16:3e:00:00:06 10.0.0.6",
		"--", "lsp-add", "neutron-6b1e", "p1", "--", "lsp-set-addresses", "p1", "fa:16:3e:00:00:07 10.0.0.7", "unknown")
	p := w.port("6b1e", "10.0.0.5", "is known", func(Port) bool { return true })
	if p.Chassis != nil || p.Up {
		t.Errorf("no host has the port, but it is %+v", p)
	}
	n.SBctl("lsp-bind", "p0", "hv1")
	p = w.port("6b1e", "10.0.0.5", "is on hv1", isOn("hv1"))
	want := Port{Name: "p0", Key: p.Key, Addresses: []Address{
		{mac(t, "fa:16:3e:00:00:05"), addresses("10.0.0.5", "fd00::5")}, {mac(t, "fa:16:3e:00:00:06"), addresses("10.0.0.6")}},
		Network: Network{ID: p.Network.ID, Switch: p.Network.Switch, Name: "neutron-6b1e", Alias: "blue", Key: p.Network.Key},
		Chassis: &Chassis{Name: "hv1", Encaps: []Encap{
			{Kind: Geneve, IP: address("192.0.2.1"), Checksum: true}, {Kind: VXLAN, IP: address("192.0.2.1"), Checksum: true}}},
		Up: p.Up}
	if diff := cmp.Diff(want, p, comparePorts); diff != "" {
		t.Error("the port is not as expected (-want +got):\n", diff)
	}
	if got := field(n.SBctl("--bare", "--columns=tunnel_key", "list", "Port_Binding", "p0")); got != fmt.Sprint(p.Key) || p.Key == 0 {
		t.Errorf("the port's key is %d, and the database says %q", p.Key, got)
	}
	if got := field(n.SBctl("--bare", "--columns=tunnel_key", "find", "Datapath_Binding", "external_ids:name=neutron-6b1e")); got != fmt.Sprint(p.Network.Key) {
		t.Errorf("the network's key is %d, and the database says %q", p.Network.Key, got)
	}
	if got := p.MAC(address("10.0.0.6")); got != mac(t, "fa:16:3e:00:00:06") {
		t.Errorf("10.0.0.6 goes with %v", got)
	}
	if other := w.port("neutron-6b1e", "10.0.0.7", "is known", func(Port) bool { return true }); !other.Unknown || p.Unknown {
		t.Errorf("p1 alone takes packets for unknown addresses, but p0 says %v and p1 %v", p.Unknown, other.Unknown)
	}

	// A live migration: the VM is to be on hv2, is there, too, and then alone.
	n.NBctl("--wait=sb", "lsp-set-options", "p0", "requested-chassis=hv2")
	n.SBctl("set", "Port_Binding", "p0", "additional_chassis="+uuid(n, "Chassis", "hv2"))
	p = w.port("6b1e", "fd00::5", "is on hv2, too", func(p Port) bool { return len(p.Additional) == 1 })
	if !isOn("hv1")(p) || p.Additional[0].Name != "hv2" || p.Requested == nil || p.Requested.Hostname != "two.example" {
		t.Errorf("the port is on hv1 and additionally on hv2, but it is %+v", p)
	}
	n.SBctl("set", "Port_Binding", "p0", "chassis="+uuid(n, "Chassis", "hv2"), "additional_chassis=[]", "up=true")
	p = w.port("6b1e", "fd00::5", "is on hv2", func(p Port) bool { return isOn("hv2")(p) && len(p.Additional) == 0 })
	if !p.Up {
		t.Error("hv2 has set the port up, and it is not up")
	}

	// The host is renumbered, goes, and the port with it.
	n.SBctl("set", "Encap", uuid(n, "Encap", "hv2"), "ip=192.0.2.22", "options:dst_port=6082")
	w.port("6b1e", "10.0.0.5", "is at the new address", func(p Port) bool {
		return slices.Equal(p.Chassis.Encaps, []Encap{{Kind: Geneve, IP: address("192.0.2.22"), Checksum: true, Port: 6082}})
	})
	n.SBctl("chassis-del", "hv2")
	w.port("6b1e", "10.0.0.5", "is on no host", func(p Port) bool { return p.Chassis == nil && p.Requested == nil })
	n.NBctl("lsp-set-addresses", "p0", "fa:16:3e:00:00:05 10.0.0.55")
	w.port("6b1e", "10.0.0.55", "is known", func(Port) bool { return true })
	s, _ := w.now()
	network, _ := s.Network("6b1e")
	if got, has := s.Port(network.ID, address("10.0.0.5")); has {
		t.Errorf("no port has 10.0.0.5 any more, but %+v does", got)
	}
	if got := s.Ports(network.ID); len(got) != 2 || got[0].Key >= got[1].Key || s.Status.Ports != 2 {
		t.Errorf("the network has p0 and p1, but %+v, and the status says %d", got, s.Status.Ports)
	}
	n.NBctl("ls-del", "neutron-6b1e")
	w.until("the network is gone", func(s *Snapshot) error {
		if _, err := s.Network("6b1e"); err == nil || s.Status.Networks != 0 || s.Status.Ports != 0 {
			return fmt.Errorf("it is there, or something of it")
		}
		return nil
	})
	if got := s.Networks(); len(got) != 1 || got[0].Name != "neutron-6b1e" {
		t.Errorf("a snapshot has changed: its networks are %+v", got)
	}
}

// A VM moves between real hosts: before, while both have the port, and after.
func TestLiveMigration(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	hv1, hv2 := n.Host("hv1", "192.0.2.1", "geneve"), n.Host("hv2", "192.0.2.2", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "p0", "--", "lsp-set-addresses", "p0", "fa:16:3e:00:00:05 10.0.0.5",
		"--", "lsp-set-options", "p0", "requested-chassis=hv1")
	hv1.Plug("p0")
	hv2.Plug("p0")
	w := watch(t, Options{Endpoints: []string{n.SB}})
	p := w.port("net", "10.0.0.5", "is up on hv1", func(p Port) bool { return isOn("hv1")(p) && p.Up })
	if len(p.Additional) != 0 || p.Requested == nil || p.Requested.Name != "hv1" {
		t.Errorf("before the move the port is %+v", p)
	}
	n.NBctl("lsp-set-options", "p0", "requested-chassis=hv1,hv2")
	p = w.port("net", "10.0.0.5", "is on hv2, too", func(p Port) bool { return len(p.Additional) == 1 && p.Additional[0].Name == "hv2" })
	if !isOn("hv1")(p) {
		t.Errorf("during the move the port is %+v", p)
	}
	n.NBctl("lsp-set-options", "p0", "requested-chassis=hv2")
	w.port("net", "10.0.0.5", "is up on hv2 alone", func(p Port) bool { return isOn("hv2")(p) && p.Up && len(p.Additional) == 0 })
}

// uuid returns that of a row by its name; of an encap by its chassis's.
func uuid(n *ovnlab.OVN, table, name string) string {
	column := "name"
	if table == "Encap" {
		column = "chassis_name"
	}
	return field(n.SBctl("--bare", "--columns=_uuid", "find", table, column+"="+name))
}

func field(text string) string { return strings.TrimSpace(text) }

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, address(text))
	}
	return all
}

// Two tenants have the same addresses, and a name need not mean one network.
func TestNetworksAreApart(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.SBctl("chassis-add", "hv1", "geneve", "192.0.2.1", "--", "chassis-add", "hv2", "geneve", "192.0.2.2")
	for i, name := range []string{"red", "blue"} {
		n.NBctl("--wait=sb", "ls-add", name, "--", "lsp-add", name, "p-"+name, "--",
			"lsp-set-addresses", "p-"+name, fmt.Sprintf("fa:16:3e:00:00:%02d 10.0.0.5", i))
		n.SBctl("lsp-bind", "p-"+name, fmt.Sprintf("hv%d", i+1))
	}
	w := watch(t, Options{Endpoints: []string{n.TCP}})
	red, blue := w.port("red", "10.0.0.5", "is on hv1", isOn("hv1")), w.port("blue", "10.0.0.5", "is on hv2", isOn("hv2"))
	if red.Name != "p-red" || blue.Name != "p-blue" || red.Network.Key == blue.Network.Key || red.Shared {
		t.Errorf("the ports are %+v and %+v", red, blue)
	}
	if _, err := (&Snapshot{}).Network("red"); err == nil {
		t.Error("a snapshot without content has a network")
	}
	n.NBctl("--wait=sb", "ls-add", "grey", "--", "--add-duplicate", "ls-add", "grey")
	w.until("two networks are named grey", func(s *Snapshot) error {
		_, err := s.Network("grey")
		if err == nil || !strings.Contains(err.Error(), "2 networks") {
			return fmt.Errorf("no error, or not about two: %w", err)
		}
		return nil
	})
	s, _ := w.now()
	for _, grey := range s.Networks() {
		if got, err := s.Network(grey.Switch); grey.Name == "grey" && (err != nil || got != grey) {
			t.Errorf("%s is %+v (%v), not %+v", grey.Switch, got, err, grey)
		}
	}

	// Two ports of one network with one address: packets go to the one that a host has.
	n.NBctl("--wait=sb", "lsp-add", "red", "again", "--", "set", "Logical_Switch_Port", "again", `addresses="fa:16:3e:00:00:09 10.0.0.5"`)
	if p := w.port("red", "10.0.0.5", "shares it", func(p Port) bool { return p.Shared }); p.Name != "p-red" {
		t.Errorf("packets go to port %s, which no host has", p.Name)
	}
	n.SBctl("lsp-unbind", "p-red", "--", "lsp-bind", "again", "hv1")
	w.port("red", "10.0.0.5", "is the other one", func(p Port) bool { return p.Name == "again" })
}

var oddColumns = []string{`"fa:16:3e:00:00:01 10.0.0.1 nonsense 10.0.0.99"`, `"nonsense"`, `""`, `"router"`, `"dynamic"`, `"unknown"`,
	`"fa:16:3e:00:00:07 10.0.0.7/24 fd00::7/64 10.0.0.7"`, `"fa:16:3e:00:00:08"`, `"ff:ff:ff:ff:ff:ff 10.0.0.9"`, `[]`,
	`"  FA:16:3E:00:00:0A   10.0.0.10 "`, `"fa:16:3e:00:00:0b 0.0.0.0"`, `"fa:16:3e:00:00:0c fe80::1%eth0"`}

// Whatever the column mac has: what can be read of it is used, and the rest is named.
func TestOddAddresses(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.NBctl("--wait=sb", "ls-add", "net")
	for i := range oddColumns {
		n.NBctl("lsp-add", "net", fmt.Sprintf("p%02d", i))
	}
	n.NBctl("--wait=sb", "sync")
	// Else it would write what it has.
	n.StopNorthd()
	for i, odd := range oddColumns {
		n.SBctl("set", "Port_Binding", fmt.Sprintf("p%02d", i), "mac="+odd)
	}
	w := watch(t, Options{Endpoints: []string{n.SB}})
	for _, ip := range []string{"10.0.0.1", "10.0.0.7", "fd00::7", "10.0.0.10"} {
		w.port("net", ip, "is known", func(Port) bool { return true })
	}
	s, _ := w.now()
	network, _ := s.Network("net")
	for _, ip := range []string{"10.0.0.9", "10.0.0.99", "0.0.0.0", "fe80::1"} {
		if p, has := s.Port(network.ID, address(ip)); has {
			t.Errorf("%s is known: %+v", ip, p)
		}
	}
	want := []string{
		`port p00: "fa:16:3e:00:00:01 10.0.0.1 nonsense 10.0.0.99": "nonsense" is not an IP address`,
		`port p01: "nonsense": mac "nonsense" is not a unicast Ethernet address`,
		`port p08: "ff:ff:ff:ff:ff:ff 10.0.0.9": mac "ff:ff:ff:ff:ff:ff" is not a unicast Ethernet address`,
		`port p11: "fa:16:3e:00:00:0b 0.0.0.0": "0.0.0.0" is not an IP address`,
		`port p12: "fa:16:3e:00:00:0c fe80::1%eth0": "fe80::1%eth0" is not an IP address`,
	}
	if diff := cmp.Diff(want, s.Status.Unread); diff != "" {
		t.Error("what could not be read (-want +got):\n", diff)
	}
	if s.Status.Ports != len(oddColumns) {
		t.Errorf("%d ports are known, of %d", s.Status.Ports, len(oddColumns))
	}
	n.SBctl("set", "Port_Binding", "p01", "mac=\"fa:16:3e:00:00:02 10.0.0.2\"")
	w.port("net", "10.0.0.2", "is known", func(Port) bool { return true })
	if s, _ := w.now(); len(s.Status.Unread) != len(want)-1 {
		t.Errorf("what has been mended is listed: %q", s.Status.Unread)
	}
}

// While the database is away the last state stays, and says so.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.SBctl("chassis-add", "hv1", "geneve", "192.0.2.1", "--", "chassis-add", "hv2", "geneve", "192.0.2.2")
	n.NBctl("--wait=sb", "ls-add", "net", "--", "lsp-add", "net", "p0", "--", "lsp-set-addresses", "p0", "fa:16:3e:00:00:05 10.0.0.5")
	n.SBctl("lsp-bind", "p0", "hv1")
	w := watch(t, Options{Endpoints: []string{"unix:/nonexistent/sb.sock", n.SB}})
	w.port("net", "10.0.0.5", "is on hv1", isOn("hv1"))
	before, _ := w.now()
	if before.Status.Endpoint != n.SB || before.Status.Problem != nil {
		t.Errorf("the second endpoint answers, but the status is %+v", before.Status)
	}

	n.StopSB()
	s := w.until("the connection is lost", func(s *Snapshot) error {
		if s.Status.Connected {
			return errors.New("it is there")
		}
		if s.Status.Problem == nil || !strings.Contains(s.Status.Problem.Error(), "/nonexistent/sb.sock") || !strings.Contains(s.Status.Problem.Error(), n.SB) {
			return fmt.Errorf("the problem does not name both endpoints: %w", s.Status.Problem)
		}
		return nil
	})
	network, err := s.Network("net")
	if err != nil {
		t.Fatal("the last state is lost:", err)
	}
	if p, has := s.Port(network.ID, address("10.0.0.5")); !has || !isOn("hv1")(p) || !s.Status.Known || s.Status.Ports != 1 {
		t.Errorf("the last state is lost: %+v, %+v", p, s.Status)
	}
	if !s.Status.Since.After(before.Status.Since) {
		t.Errorf("not connected since %v, before %v", s.Status.Since, before.Status.Since)
	}
	n.StartSB()
	n.SBctl("lsp-unbind", "p0", "--", "lsp-bind", "p0", "hv2")
	w.port("net", "10.0.0.5", "is on hv2", isOn("hv2"))

	// The database is lost, and begins anew. What was known stays until ovn-northd has written it again.
	n.StopNorthd()
	n.StopSB()
	n.EmptySB()
	n.StartSB()
	s = w.until("the database is empty", func(s *Snapshot) error {
		if !s.Status.Connected || !errors.Is(s.Status.Problem, errEmpty) {
			return fmt.Errorf("the problem is %w", s.Status.Problem)
		}
		return nil
	})
	if _, has := s.Port(network.ID, address("10.0.0.5")); !has {
		t.Error("an empty database made the last state go")
	}
	n.StartNorthd()
	w.port("net", "10.0.0.5", "is on no host", func(p Port) bool { return p.Chassis == nil })
}

// A database that is not OVN's Southbound one is named.
func TestNotSouthbound(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{Databases: true})
	w := watch(t, Options{Endpoints: []string{n.NB}})
	w.until("the database is refused", func(s *Snapshot) error {
		if s.Status.Problem == nil {
			return errors.New("there is no problem")
		}
		for _, part := range []string{n.NB, "has no database OVN_Southbound", "OVN_Northbound"} {
			if !strings.Contains(s.Status.Problem.Error(), part) {
				return fmt.Errorf("%q is missing in %q", part, s.Status.Problem)
			}
		}
		return nil
	})
}

// The oldest version that is followed has fewer columns: those of 20.03 are taken out.
func TestOldSchema(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/usr/share/ovn/ovn-sb.ovsschema")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for name := range optional {
		table, column, _ := strings.Cut(name, ".")
		delete(schema["tables"].(map[string]any)[table].(map[string]any)["columns"].(map[string]any), column)
	}
	text, err = json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "old.ovsschema")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	n := ovnlab.New(t, ovnlab.Options{Databases: true, Schema: file})
	transact(t, n.SB, []ovsdb.Operation{
		insert("SB_Global", map[string]any{}),
		insert("Datapath_Binding", map[string]any{"tunnel_key": 7, "external_ids": ovsdb.Map{"logical-switch": "s", "name": "net"}}),
		insert("Encap", map[string]any{"type": "geneve", "ip": "192.0.2.1", "chassis_name": "hv1"}),
		insert("Chassis", map[string]any{"name": "hv1", "encaps": ovsdb.Named("Encap")}),
		insert("Port_Binding", map[string]any{"logical_port": "p0", "datapath": ovsdb.Named("Datapath_Binding"), "tunnel_key": 3,
			"mac": "fa:16:3e:00:00:05 10.0.0.5", "chassis": ovsdb.Named("Chassis")}),
	})
	w := watch(t, Options{Endpoints: []string{n.SB}, Register: &Registration{Name: "weir", Owner: "lb1", Encaps: []Encap{{Kind: Geneve, IP: address("192.0.2.9")}}}})
	p := w.port("net", "10.0.0.5", "is on hv1", isOn("hv1"))
	if !p.Up || p.Key != 3 || p.Network.Key != 7 {
		t.Errorf("the port is %+v", p)
	}
	w.until("the director is a chassis", func(s *Snapshot) error {
		if !s.Status.Registered {
			return fmt.Errorf("it is not: %w", s.Status.Unregistered)
		}
		return nil
	})
}

func insert(table string, row map[string]any) ovsdb.Operation {
	return ovsdb.Operation{"op": "insert", "table": table, "row": row, "uuid-name": table}
}

// transact writes to the Southbound database.
func transact(t testing.TB, endpoint string, operations []ovsdb.Operation) []ovsdb.Result {
	t.Helper()
	conn, err := ovsdb.Open(t.Context(), endpoint, ovsdb.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text, err := conn.Call("transact", ovsdb.Transaction(database, operations)...)
	if err != nil {
		t.Fatal(err)
	}
	results, err := ovsdb.Results(text)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// Thousands of ports in hundreds of networks come at once, change one by one, and all move at once.
func TestThousandsOfPorts(t *testing.T) {
	t.Parallel()
	const networks, each = 200, 100
	n := ovnlab.New(t, ovnlab.Options{Databases: true})
	w := watch(t, Options{Endpoints: []string{n.SB}})
	operations := []ovsdb.Operation{insert("SB_Global", map[string]any{})}
	for host := range 2 {
		encap, chassis := fmt.Sprintf("e%d", host), fmt.Sprintf("hv%d", host)
		operations = append(operations,
			ovsdb.Operation{"op": "insert", "table": "Encap", "uuid-name": encap, "row": map[string]any{"type": "geneve", "ip": fmt.Sprintf("192.0.2.%d", host), "chassis_name": chassis}},
			ovsdb.Operation{"op": "insert", "table": "Chassis", "uuid-name": chassis, "row": map[string]any{"name": chassis, "encaps": ovsdb.Named(encap)}})
	}
	for i := range networks {
		name := fmt.Sprintf("net%d", i)
		operations = append(operations, ovsdb.Operation{"op": "insert", "table": "Datapath_Binding", "uuid-name": name,
			"row": map[string]any{"tunnel_key": i + 1, "external_ids": ovsdb.Map{"logical-switch": name, "name": name}}})
		for j := range each {
			operations = append(operations, ovsdb.Operation{"op": "insert", "table": "Port_Binding", "row": map[string]any{
				"logical_port": fmt.Sprintf("p%d-%d", i, j), "datapath": ovsdb.Named(name), "tunnel_key": j + 1, "chassis": ovsdb.Named("hv0"),
				"mac": fmt.Sprintf("fa:16:3e:00:%02x:%02x 10.0.%d.%d", i, j, i, j+1)}})
		}
	}
	began := time.Now()
	transact(t, n.SB, operations)
	check := func(chassis string) func(*Snapshot) error {
		return func(s *Snapshot) error {
			if s.Status.Ports != networks*each || s.Status.Networks != networks {
				return fmt.Errorf("%d networks with %d ports are known", s.Status.Networks, s.Status.Ports)
			}
			for i := range networks {
				network, err := s.Network(fmt.Sprintf("net%d", i))
				if err != nil {
					return err
				}
				for j := range each {
					p, has := s.Port(network.ID, address(fmt.Sprintf("10.0.%d.%d", i, j+1)))
					if !has || p.Name != fmt.Sprintf("p%d-%d", i, j) || int(p.Key) != j+1 || int(p.Network.Key) != i+1 || !isOn(chassis)(p) {
						return fmt.Errorf("port %d of network %d is %+v", j, i, p)
					}
				}
			}
			return nil
		}
	}
	w.until("all ports are known", check("hv0"))
	t.Logf("%d ports came in %v", networks*each, time.Since(began))
	began = time.Now()
	hv1 := uuid(n, "Chassis", "hv1")
	for i := range 100 {
		transact(t, n.SB, []ovsdb.Operation{move(fmt.Sprintf("p%d-0", i), hv1)})
	}
	w.port("net99", "10.0.99.1", "is on hv1", isOn("hv1"))
	t.Logf("100 ports moved one by one in %v", time.Since(began))
	began = time.Now()
	transact(t, n.SB, []ovsdb.Operation{{"op": "update", "table": "Port_Binding", "where": []any{}, "row": map[string]any{"chassis": ovsdb.UUID(hv1)}}})
	w.until("all ports have moved", check("hv1"))
	t.Logf("all moved in %v", time.Since(began))

	// One who comes late sees the same.
	began = time.Now()
	late := watch(t, Options{Endpoints: []string{n.SB}})
	late.until("all ports are known", check("hv1"))
	t.Logf("a new connection had all in %v", time.Since(began))
}

func move(port, chassis string) ovsdb.Operation {
	return ovsdb.Operation{"op": "update", "table": "Port_Binding", "where": [][]any{{"logical_port", "==", port}}, "row": map[string]any{"chassis": ovsdb.UUID(chassis)}}
}

// Options that time does not heal are errors.
func TestOptions(t *testing.T) {
	encap := []Encap{{Kind: Geneve, IP: address("192.0.2.9")}}
	for _, c := range []struct {
		options Options
		says    string
	}{
		{Options{}, "no endpoints"},
		{Options{Endpoints: []string{"http://sb"}}, "neither tcp:HOST:PORT"},
		{Options{Endpoints: []string{"tcp:192.0.2.1"}}, "tcp:HOST:PORT"},
		{Options{Endpoints: []string{"tcp:[::1]:66420"}}, "tcp:HOST:PORT"},
		{Options{Endpoints: []string{"unix:"}}, "is not unix:PATH"},
		{Options{Endpoints: []string{"tcp:[::1]:6642", "ssl:[::1]:6642"}}, "needs a CA, a certificate and a key"},
		{Options{Endpoints: []string{"unix:/sb"}, Register: &Registration{Name: "weir", Owner: "lb1"}}, "at least one end"},
		{Options{Endpoints: []string{"unix:/sb"}, Register: &Registration{Name: "weir", Owner: "lb1", Encaps: []Encap{{Kind: "stt", IP: address("192.0.2.9")}}}}, "geneve or vxlan"},
		{Options{Endpoints: []string{"unix:/sb"}, Register: &Registration{Name: "weir", Owner: "lb1", Encaps: append(encap, encap...)}}, "twice"},
	} {
		err := Follow(t.Context(), c.options, func(Snapshot) { t.Error("there was a report") })
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: the error is %v, and does not say %q", c.options, err, c.says)
		}
	}
}

var comparePorts = cmp.Options{cmpopts.IgnoreUnexported(Port{}), cmpopts.EquateComparable(netip.Addr{})}
