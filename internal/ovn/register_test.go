package ovn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/lab/ovnlab"
)

func registration(name, owner string, encaps ...Encap) *Registration {
	return &Registration{Name: name, Owner: owner, Encaps: encaps}
}

func geneve(ip string) Encap { return Encap{Kind: Geneve, IP: address(ip), Checksum: true} }
func vxlan(ip string) Encap  { return Encap{Kind: VXLAN, IP: address(ip)} }

func registered(s *Snapshot) error {
	if !s.Status.Registered || s.Status.Unregistered != nil {
		return fmt.Errorf("it is not, or not wholly: %w", s.Status.Unregistered)
	}
	return nil
}

// unregistered waits until the director is refused, and says why.
func unregistered(says string) func(*Snapshot) error {
	return func(s *Snapshot) error {
		if s.Status.Registered || s.Status.Unregistered == nil || !strings.Contains(s.Status.Unregistered.Error(), says) {
			return fmt.Errorf("registered is %v, with %w", s.Status.Registered, s.Status.Unregistered)
		}
		return nil
	}
}

// chassisNamed returns a chassis of a snapshot.
func chassisNamed(s *Snapshot, name string) *Chassis {
	all := s.Chassis()
	if i := slices.IndexFunc(all, func(c Chassis) bool { return c.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// tunnelTo returns the kinds of tunnels that a host has to an address.
func tunnelTo(h *ovnlab.Host, ip string) []string {
	return strings.Fields(h.Vsctl("--bare", "--columns=type", "find", "Interface", "options:remote_ip=\""+ip+"\""))
}

// Hosts of OVN make tunnels to a director that is registered, nothing else changes for them, and they
// take the tunnels down when it is not registered any more.
func TestRegister(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	hv1, hv2 := n.Host("hv1", "192.0.2.1", "geneve"), n.Host("hv2", "192.0.2.2", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "p0", "--", "lsp-set-addresses", "p0", "fa:16:3e:00:00:05 10.0.0.5",
		"--", "lsp-add", "net", "p1", "--", "lsp-set-addresses", "p1", "fa:16:3e:00:00:06 10.0.0.6",
		"--", "lb-add", "lb", "10.0.0.100:80", "10.0.0.5:80", "--", "ls-lb-add", "net", "lb",
		"--", "acl-add", "net", "to-lport", "1000", "ip4", "allow-related")
	hv1.Plug("p0")
	hv2.Plug("p1")
	flows := func() string {
		n.NBctl("--wait=hv", "sync")
		all := strings.Split(n.SBctl("lflow-list"), "\n")
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	before := flows()

	o := Options{Endpoints: []string{n.SB}, Register: registration("weir-lb1", "lb1.example", geneve("192.0.2.9"))}
	w := watch(t, o)
	w.until("the director is registered", registered)
	for _, h := range []*ovnlab.Host{hv1, hv2} {
		wait(t, h.Name+" has a tunnel to the director", func() error {
			if got := tunnelTo(h, "192.0.2.9"); !slices.Equal(got, []string{"geneve"}) {
				return fmt.Errorf("it has %q: %s", got, h.Log())
			}
			return nil
		})
	}
	// What ovn-northd tells the hosts is what it told them before, also after it has read all anew; and a
	// client of the Northbound database that waits for all hosts does not wait for the director.
	n.StopNorthd()
	n.StartNorthd()
	if after := flows(); after != before {
		t.Errorf("OVN's logical flows have changed:\n%s", differs(before, after))
	}
	s, _ := w.now()
	if c := chassisNamed(&s, "weir-lb1"); c == nil || !c.Weir || c.Hostname != "lb1.example" || !slices.Equal(c.Encaps, o.Register.Encaps) {
		t.Errorf("the director's chassis is %+v", c)
	}
	if c := chassisNamed(&s, "hv1"); c == nil || c.Weir || c.Hostname != "hv1" {
		t.Errorf("hv1 is %+v", c)
	}

	// A second process of the same director finds all as it has to be, and writes nothing.
	rows := versions(t, n)
	watch(t, o).until("the director is registered", registered)
	if again := versions(t, n); again != rows {
		t.Errorf("registered twice, the rows were\n%s and are\n%s", rows, again)
	}

	// Somebody removes it, or changes it, and the director puts it back.
	n.SBctl("chassis-del", "weir-lb1")
	wait(t, "the chassis is back", func() error {
		if uuid(n, "Chassis", "weir-lb1") == "" {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	n.SBctl("set", "Encap", uuid(n, "Encap", "weir-lb1"), "options:csum=false")
	wait(t, "the encap is as it was", func() error {
		if got := field(n.SBctl("get", "Encap", uuid(n, "Encap", "weir-lb1"), "options:csum")); got != `"true"` {
			return fmt.Errorf("csum is %s", got)
		}
		return nil
	})
	// A feature that all hosts have come to have is the director's, too.
	n.SBctl("set", "Chassis", "hv1", "other_config:new-feature=true", "--", "set", "Chassis", "hv2", "other_config:new-feature=true", "other_config:is-interconn=true")
	wait(t, "the director says that it has the feature", func() error {
		if got := n.SBctl("get", "Chassis", "weir-lb1", "other_config"); !strings.Contains(got, `new-feature="true"`) || strings.Contains(got, "is-") {
			return fmt.Errorf("other_config is %s", got)
		}
		return nil
	})

	// After the database was away, the chassis is registered again.
	n.StopSB()
	w.until("the connection is lost", func(s *Snapshot) error {
		if s.Status.Connected {
			return fmt.Errorf("it is there")
		}
		return nil
	})
	n.StartSB()
	n.SBctl("chassis-del", "weir-lb1")
	w.until("the director is registered", func(s *Snapshot) error {
		if c := chassisNamed(s, "weir-lb1"); c == nil || !s.Status.Connected || uuid(n, "Chassis", "weir-lb1") == "" {
			return fmt.Errorf("there is none")
		}
		return registered(s)
	})

	// Only its owner removes it.
	w.stop()
	other := o
	other.Register = registration("weir-lb1", "lb2.example", geneve("192.0.2.9"))
	if err := Unregister(t.Context(), other); err == nil || !strings.Contains(err.Error(), "the director's on lb1.example") {
		t.Error("another director removed the chassis:", err)
	}
}

// What is another's is not touched.
func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.SBctl("chassis-add", "hv1", "geneve", "192.0.2.1", "--", "set", "Chassis", "hv1", "hostname=one.example")
	rows := versions(t, n)
	watch(t, Options{Endpoints: []string{n.SB}, Register: registration("hv1", "lb1", geneve("192.0.2.9"))}).
		until("a host's name is refused", unregistered(`chassis hv1 of host "one.example" is not weir's`))
	watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir", "lb1", geneve("192.0.2.1"))}).
		until("a host's address is refused", unregistered("chassis weir cannot have geneve 192.0.2.1, which chassis hv1 has"))
	if again := versions(t, n); again != rows {
		t.Errorf("the rows were\n%s and are\n%s", rows, again)
	}

	// A host that has been handed over is adopted, and its ends of tunnels with it.
	n.SBctl("set", "Chassis", "hv1", "external_ids:weir-director=lb1")
	o := Options{Endpoints: []string{n.SB}, Register: registration("hv1", "lb1", geneve("192.0.2.9"), geneve("2001:db8::9"))}
	s := watch(t, o).until("the chassis is adopted", registered)
	if c := chassisNamed(&s, "hv1"); !slices.Equal(c.Encaps, o.Register.Encaps) {
		t.Errorf("the chassis is %+v", c)
	}
	second := watch(t, Options{Endpoints: []string{n.SB}, Register: registration("hv1", "lb2", geneve("192.0.2.10"))})
	second.until("another director's name is refused", unregistered("chassis hv1 is the director's on lb1"))
	second.stop()
}

// Unregister removes the chassis, and is content if there is none.
func TestUnregister(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	o := Options{Endpoints: []string{"unix:/nonexistent/sb.sock", n.SB}, Register: registration("weir", "lb1", geneve("192.0.2.9"))}
	w := watch(t, o)
	w.until("the director is registered", registered)
	w.stop()
	for range 2 {
		if err := Unregister(t.Context(), o); err != nil {
			t.Error(err)
		}
		if got := n.SBctl("--bare", "--columns=name", "list", "Chassis") + n.SBctl("--bare", "--columns=ip", "list", "Encap"); strings.TrimSpace(got) != "" {
			t.Errorf("there is still %q", got)
		}
	}
	n.StopSB()
	if err := Unregister(t.Context(), o); err == nil || !strings.Contains(err.Error(), n.SB) || !strings.Contains(err.Error(), "/nonexistent/sb.sock") {
		t.Errorf("nothing answers, and the error is %v", err)
	}
}

// A director offers VXLAN only where a host does: ovn-northd would make all keys short.
func TestVXLANIsNotBroughtIn(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	n.SBctl("chassis-add", "hv1", "geneve", "192.0.2.1")
	n.NBctl("--wait=sb", "sync")
	limit := func() string { return field(n.NBctl("--wait=sb", "get", "NB_Global", ".", "options:max_tunid")) }
	before := limit()
	o := Options{Endpoints: []string{n.SB}, Register: registration("weir", "lb1", geneve("192.0.2.9"), vxlan("192.0.2.9"))}
	w := watch(t, o)
	w.until("vxlan is left out", func(s *Snapshot) error {
		if !s.Status.Registered || s.Status.Unregistered == nil || !strings.Contains(s.Status.Unregistered.Error(), "does not offer vxlan") {
			return fmt.Errorf("registered is %v, with %w", s.Status.Registered, s.Status.Unregistered)
		}
		return nil
	})
	n.NBctl("--wait=sb", "sync")
	if after := limit(); after != before {
		t.Errorf("the greatest key of a network was %s and is %s", before, after)
	}
	n.SBctl("chassis-add", "hv2", "vxlan", "192.0.2.2")
	w.until("the director is registered with vxlan, too", func(s *Snapshot) error {
		if c := chassisNamed(s, "weir"); c == nil || len(c.Encaps) != 2 {
			return fmt.Errorf("the chassis is %+v", c)
		}
		return registered(s)
	})
	if short := limit(); short == before {
		t.Errorf("with a host that has vxlan the greatest key of a network is still %s", short)
	}
	n.SBctl("chassis-del", "hv2")
	w.until("vxlan is left out again", func(s *Snapshot) error {
		if c := chassisNamed(s, "weir"); c == nil || len(c.Encaps) != 1 {
			return fmt.Errorf("the chassis is %+v", c)
		}
		return nil
	})
}

// A director offers ends of tunnels in the families alone that hosts have: a host would send to any of them.
func TestFamiliesAreNotBroughtIn(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	h := n.Host("hv1", "192.0.2.1", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "vm", "--", "lsp-set-addresses", "vm", "fa:16:3e:00:00:05 10.0.0.5")
	h.Plug("vm")
	four, six := geneve("192.0.2.9"), geneve("2001:db8::9")
	w := watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir", "lb1", six, four)})
	has := func(encaps ...Encap) func(*Snapshot) error {
		return func(s *Snapshot) error {
			if c := chassisNamed(s, "weir"); c == nil || !slices.Equal(c.Encaps, encaps) {
				return fmt.Errorf("the chassis is %+v", c)
			}
			return registered(s)
		}
	}
	w.until("the director has the hosts' family", has(four))
	n.NBctl("--wait=hv", "sync")
	if to4, to6 := tunnelTo(h, "192.0.2.9"), tunnelTo(h, "2001:db8::9"); len(to4) != 1 || len(to6) != 0 {
		t.Errorf("hv1 has the tunnels %v and %v", to4, to6)
	}
	n.SBctl("chassis-add", "hv2", "geneve", "2001:db8::2")
	w.until("the director has both families", has(four, six))
	n.SBctl("chassis-del", "hv2")
	w.until("the director has the hosts' family again", has(four))
}

// versions returns all chassis and encaps with the versions of their rows: a row's changes with each
// change of it.
func versions(t *testing.T, n *ovnlab.OVN) string {
	t.Helper()
	var all []string
	for _, table := range []string{"Chassis", "Encap"} {
		for _, r := range transact(t, n.SB, []ovsdb.Operation{{"op": "select", "table": table, "where": []any{}, "columns": []string{"_uuid", "_version"}}}) {
			for _, row := range r.Rows {
				all = append(all, fmt.Sprintf("%s %s %s", table, row["_uuid"], row["_version"]))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func differs(a, b string) string {
	var all []string
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, line := range left {
		if !slices.Contains(right, line) {
			all = append(all, "- "+line)
		}
	}
	for _, line := range right {
		if !slices.Contains(left, line) {
			all = append(all, "+ "+line)
		}
	}
	return strings.Join(all, "\n")
}

// Where the server checks roles, a director may do what a host may: be the chassis that its certificate
// names.
func TestRegisterWithRoles(t *testing.T) {
	t.Parallel()
	ca := ovnlab.NewAuthority(t)
	server, client := ca.Certificate("server", time.Hour), ovsdb.TLS(ca.Certificate("weir", time.Hour))
	n := ovnlab.New(t, ovnlab.Options{CA: server.CA, Cert: server.Cert, Key: server.Key})
	endpoint := n.Roles()
	o := Options{Endpoints: []string{endpoint}, TLS: client, Register: registration("weir", "lb1", geneve("192.0.2.9"))}
	w := watch(t, o)
	w.until("the director is registered", registered)
	n.SBctl("set", "Encap", uuid(n, "Encap", "weir"), "options:csum=false")
	wait(t, "the encap is as it was", func() error {
		if got := field(n.SBctl("get", "Encap", uuid(n, "Encap", "weir"), "options:csum")); got != `"true"` {
			return fmt.Errorf("csum is %s", got)
		}
		return nil
	})
	w.stop()
	o.Register = registration("weir", "lb1", geneve("192.0.2.10"), geneve("192.0.2.11"))
	o.Register.Zones = []string{"a"}
	w = watch(t, o)
	s := w.until("the director is registered otherwise", registered)
	if c := chassisNamed(&s, "weir"); !slices.Equal(c.Encaps, o.Register.Encaps) {
		t.Errorf("the chassis is %+v", c)
	}
	w.stop()
	if err := Unregister(t.Context(), o); err != nil {
		t.Error(err)
	}
	o.Register.Name = "other"
	watch(t, o).until("another name is refused", unregistered("register chassis other: permission error"))
}

// A port that is meant to be at the director is there: hosts send its packets to the director, for as long as it is meant.
func TestPortsAtTheDirector(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	h := n.Host("hv1", "192.0.2.1", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "vm", "--", "lsp-set-addresses", "vm", "fa:16:3e:00:00:05 10.0.0.5",
		"--", "lsp-add", "net", "vip", "--", "lsp-set-addresses", "vip", "02:00:00:00:00:09 10.0.0.100")
	h.Plug("vm")
	w := watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir-lb1", "lb1", geneve("192.0.2.9"))})
	w.until("the director is registered", registered)
	// The name may be asked for before or after the chassis is there.
	n.NBctl("lsp-set-options", "vip", "requested-chassis=weir-lb1")
	vip := w.port("net", "10.0.0.100", "is at the director, and up", func(p Port) bool { return isOn("weir-lb1")(p) && p.Up })
	n.NBctl("wait-until", "Logical_Switch_Port", "vip", "up=true")
	n.NBctl("--wait=hv", "sync")
	if got := sent(t, h, vip); got.vni != vip.Network.Key || got.option&0xffff != uint32(vip.Key) {
		t.Errorf("hv1 sends to port %d of network %d with VNI %d and option %#x", vip.Key, vip.Network.Key, got.vni, got.option)
	}

	n.NBctl("lsp-set-options", "vip", "requested-chassis=hv1")
	w.port("net", "10.0.0.100", "is not at the director", func(p Port) bool { return p.Chassis == nil })
	n.NBctl("lsp-set-options", "vip", "requested-chassis=weir-lb1")
	w.port("net", "10.0.0.100", "is at the director again", isOn("weir-lb1"))
	// Somebody takes it away, or the chassis is made anew.
	n.SBctl("lsp-unbind", "vip")
	w.port("net", "10.0.0.100", "is back", func(p Port) bool { return isOn("weir-lb1")(p) && p.Up })
	n.SBctl("chassis-del", "weir-lb1")
	w.port("net", "10.0.0.100", "is at the new chassis", isOn("weir-lb1"))
}
