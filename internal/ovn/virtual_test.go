package ovn

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/lab/ovnlab"
)

// virtual waits for a virtual port of a network.
func (w *watcher) virtual(network, name, what string, right func(Virtual) bool) (found Virtual) {
	w.t.Helper()
	w.until(fmt.Sprintf("virtual port %s %s", name, what), func(s *Snapshot) error {
		n, err := s.Network(network)
		if err != nil {
			return err
		}
		all := s.Virtual(n.ID)
		i := slices.IndexFunc(all, func(v Virtual) bool { return v.Name == name })
		if i < 0 {
			return fmt.Errorf("it is not among %+v", all)
		}
		if found = all[i]; !right(found) {
			return fmt.Errorf("it is %+v, at %+v", found, found.Chassis)
		}
		return nil
	})
	return found
}

func isAt(chassis, parent string) func(Virtual) bool {
	return func(v Virtual) bool { return v.Chassis != nil && v.Chassis.Name == chassis && v.Parent == parent }
}

func isAtNone(v Virtual) bool { return v.Chassis == nil && v.Parent == "" }

// A virtual port one of whose parents is at the director is there, too, and the router sends the address's packets to
// that parent; for as long as it is one, and unless a VM has the address.
func TestVirtualPorts(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{})
	h := n.Host("hv1", "192.0.2.1", "geneve")
	n.NBctl("--wait=hv", "ls-add", "net", "--", "ls-add", "other",
		"--", "lr-add", "router", "--", "lrp-add", "router", "to-net", "02:00:00:00:01:01", "10.0.0.1/24",
		"--", "lsp-add", "net", "from-net", "--", "lsp-set-type", "from-net", "router", "--", "lsp-set-addresses", "from-net", "router", "--", "lsp-set-options", "from-net", "router-port=to-net",
		"--", "lsp-add", "net", "vm", "--", "lsp-set-addresses", "vm", "fa:16:3e:00:00:05 10.0.0.5",
		"--", "lsp-add", "net", "own", "--", "lsp-set-addresses", "own", "02:00:00:00:00:09 10.0.0.9",
		"--", "lsp-add", "other", "elsewhere", "--", "lsp-set-options", "elsewhere", "requested-chassis=weir-lb1",
		"--", "lsp-add", "net", "vip", "--", "lsp-set-addresses", "vip", "fa:16:3e:00:00:64 10.0.0.100", "--", "lsp-set-type", "vip", "virtual",
		"--", "lsp-set-options", "vip", "virtual-ip=10.0.0.100", "virtual-parents=vm,elsewhere,own")
	h.Plug("vm")
	w := watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir-lb1", "lb1", geneve("192.0.2.9"))})
	w.until("the director is registered", registered)
	w.virtual("net", "vip", "is at no host", isAtNone) // elsewhere is a port of another network
	s, _ := w.now()
	if network, _ := s.Network("net"); len(s.Ports(network.ID)) != 2 || s.Status.Ports != 3 {
		t.Errorf("vm and own are the network's ports, with elsewhere there are 3, and it is %+v of %d", s.Ports(network.ID), s.Status.Ports)
	}

	n.NBctl("lsp-set-options", "own", "requested-chassis=weir-lb1")
	v := w.virtual("net", "vip", "is at the director", isAt("weir-lb1", "own"))
	if want := []string{"vm", "elsewhere", "own"}; !slices.Equal(v.Parents, want) {
		t.Errorf("its parents are %v, not %v", v.Parents, want)
	}
	n.NBctl("wait-until", "Logical_Switch_Port", "vip", "up=true")
	n.NBctl("--wait=sb", "sync")
	resolves := func() string {
		for line := range strings.Lines(n.SBctl("lflow-list", "router")) {
			if strings.Contains(line, "lr_in_arp_resolve") && strings.Contains(line, "reg0 == 10.0.0.100)") {
				return line
			}
		}
		return "nothing"
	}
	if got := resolves(); !strings.Contains(got, "eth.dst = 02:00:00:00:00:09;") {
		t.Errorf("the router sends packets for the virtual port by: %s", got)
	}

	// A VM announces the address: its host says so. Later it has it no more.
	n.SBctl("set", "Port_Binding", "vip", "chassis="+uuid(n, "Chassis", "hv1"), "virtual_parent=vm")
	w.virtual("net", "vip", "is the VM's", isAt("hv1", "vm"))
	n.NBctl("lsp-set-options", "own", "requested-chassis=hv1")
	w.port("net", "10.0.0.9", "is not at the director", func(p Port) bool { return p.Chassis == nil || p.Chassis.Name != "weir-lb1" })
	n.NBctl("lsp-set-options", "own", "requested-chassis=weir-lb1")
	w.port("net", "10.0.0.9", "is at the director again", isOn("weir-lb1"))
	w.virtual("net", "vip", "is still the VM's", isAt("hv1", "vm"))
	n.SBctl("clear", "Port_Binding", "vip", "chassis", "virtual_parent")
	w.virtual("net", "vip", "is at the director again", isAt("weir-lb1", "own"))

	// Another director may have it, too: it has when the first leaves.
	n.NBctl("lsp-add", "net", "others", "--", "lsp-set-addresses", "others", "02:00:00:00:00:0a 10.0.0.10", "--", "lsp-set-options", "others", "requested-chassis=weir-lb2",
		"--", "lsp-set-options", "vip", "virtual-ip=10.0.0.100", "virtual-parents=vm,own,others")
	other := Options{Endpoints: []string{n.SB}, Register: registration("weir-lb2", "lb2", geneve("192.0.2.10"))}
	second := watch(t, other)
	second.port("net", "10.0.0.10", "is at the second director", isOn("weir-lb2"))
	w.virtual("net", "vip", "is still at the first", isAt("weir-lb1", "own"))
	w.stop()
	second.virtual("net", "vip", "stays while its chassis does", isAt("weir-lb1", "own"))
	if err := Unregister(t.Context(), Options{Endpoints: []string{n.SB}, Register: registration("weir-lb1", "lb1", geneve("192.0.2.9"))}); err != nil {
		t.Fatal(err)
	}
	second.virtual("net", "vip", "is at the second director", isAt("weir-lb2", "others"))
	second.stop()
	n.NBctl("lsp-del", "others")
	if err := Unregister(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w = watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir-lb1", "lb1", geneve("192.0.2.9"))})
	w.virtual("net", "vip", "is at the first director again", isAt("weir-lb1", "own"))

	// What is allowed changes.
	n.NBctl("lsp-set-options", "vip", "virtual-ip=10.0.0.100", "virtual-parents=vm")
	w.virtual("net", "vip", "is at no host", isAtNone)
	n.NBctl("lsp-set-options", "vip", "virtual-ip=10.0.0.100", "virtual-parents=vm,own")
	w.virtual("net", "vip", "is at the director again", isAt("weir-lb1", "own"))
	n.NBctl("lsp-del", "own")
	w.virtual("net", "vip", "is at no host", isAtNone)

	// It becomes a usual port, and virtual again.
	n.NBctl("lsp-set-type", "vip", "", "--", "lsp-set-options", "vip", "requested-chassis=weir-lb1")
	w.port("net", "10.0.0.100", "is at the director", isOn("weir-lb1"))
	n.NBctl("lsp-set-type", "vip", "virtual", "--", "lsp-set-options", "vip", "virtual-ip=10.0.0.100", "virtual-parents=vm")
	w.virtual("net", "vip", "is at no host", isAtNone)
	s, _ = w.now()
	if network, _ := s.Network("net"); len(s.Ports(network.ID)) != 1 {
		t.Errorf("vm alone is left, and it is %+v", s.Ports(network.ID))
	}
}
