package ovn

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir.io/weir/lab/ovnlab"
)

// What a header has to say is what a host of OVN says for the same port: in the flows of one host for a
// port on another.
func TestWireIsOVNs(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{Geneve, VXLAN} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			n := ovnlab.New(t, ovnlab.Options{})
			hv1, hv2 := n.Host("hv1", "192.0.2.1", string(kind)), n.Host("hv2", "192.0.2.2", string(kind))
			n.NBctl("--wait=hv", "ls-add", "other", "--", "ls-add", "net",
				"--", "lsp-add", "net", "here", "--", "lsp-set-addresses", "here", "fa:16:3e:00:00:05 10.0.0.5",
				"--", "lsp-add", "net", "there", "--", "lsp-set-addresses", "there", "fa:16:3e:00:00:06 10.0.0.6")
			hv1.Plug("here")
			hv2.Plug("there")
			w := watch(t, Options{Endpoints: []string{n.SB}})
			here := w.port("net", "10.0.0.5", "is up on hv1", func(p Port) bool { return isOn("hv1")(p) && p.Up })
			there := w.port("net", "10.0.0.6", "is up on hv2", func(p Port) bool { return isOn("hv2")(p) && p.Up })
			if _, err := there.Tunnel([]Encap{{Kind: kind, IP: address("192.0.2.9")}}); err != nil {
				t.Error(err)
			}
			vni, options, err := there.Wire(kind, here.Key)
			if err != nil {
				t.Fatal(err)
			}
			n.NBctl("--wait=hv", "sync")
			got := sent(t, hv1, there)
			if got.vni != vni {
				t.Errorf("hv1 sends with VNI %#x, and Wire says %#x", got.vni, vni)
			}
			if kind == VXLAN {
				if len(options) != 0 {
					t.Errorf("VXLAN has options: %x", options)
				}
				return
			}
			// The ingress port's key is moved into the upper half of what the egress port's is loaded into.
			if egress := binary.BigEndian.Uint32(options[4:]) & 0xffff; got.option != egress {
				t.Errorf("hv1 sends with the option %#x, and Wire says %#x", got.option, egress)
			}
			class := fmt.Sprintf("%#x,%#x,%d", binary.BigEndian.Uint16(options), options[2], int(options[3])*4)
			if table := strings.Fields(hv1.TLVs()); !slices.ContainsFunc(table, func(word string) bool { return strings.HasPrefix(word, class) }) &&
				!strings.Contains(strings.Join(table, " "), "0x102 0x80 4") {
				t.Errorf("hv1's option is not of class, type and length %s:\n%s", class, hv1.TLVs())
			}
		})
	}
}

// A host gives a packet from a registered director to the VM, for whatever address it is in the end: and it
// does not if the packet's header says anything else.
func TestHostsTakeWhatWireSays(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{Geneve, VXLAN} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			n := ovnlab.New(t, ovnlab.Options{})
			h := n.Host("hv1", "192.0.2.1", string(kind))
			n.NBctl("--wait=hv", "ls-add", "net", "--", "lsp-add", "net", "other", "--", "lsp-add", "net", "p0",
				"--", "lsp-set-addresses", "p0", "fa:16:3e:00:00:06 10.0.0.6")
			h.Plug("p0")
			w := watch(t, Options{Endpoints: []string{n.SB}, Register: registration("weir", "lb1", Encap{Kind: kind, IP: address("192.0.2.9")})})
			w.until("the director is registered", registered)
			p := w.port("net", "10.0.0.6", "is up on hv1", func(p Port) bool { return isOn("hv1")(p) && p.Up })
			wait(t, "hv1 has a tunnel to the director", func() error {
				if got := tunnelTo(h, "192.0.2.9"); !slices.Equal(got, []string{string(kind)}) || field(tunnelPort(h)) == "-1" {
					return fmt.Errorf("it has %q", got)
				}
				return nil
			})
			n.NBctl("--wait=hv", "sync")
			vni, options, err := p.Wire(kind, 0)
			if err != nil {
				t.Fatal(err)
			}
			vm := field(h.Vsctl("get", "Interface", "p0", "ofport"))
			takes := func(vni uint32, options []byte) bool {
				packet := fmt.Sprintf("in_port=%s,tun_src=192.0.2.9,tun_dst=192.0.2.1,tun_id=%#x,udp,dl_src=02:00:00:00:00:09,dl_dst=%s,nw_src=198.51.100.7,nw_dst=203.0.113.10,nw_ttl=64,udp_src=1,udp_dst=53",
					tunnelPort(h), vni, p.MAC(address("10.0.0.6")))
				if len(options) > 0 {
					packet += fmt.Sprintf(",tun_metadata0=0x%x", options[4:])
				}
				out := h.Trace(packet)
				t.Logf("%s\n%s", packet, out)
				return regexp.MustCompile(`(?m)^ *output:` + vm + `$`).MatchString(out)
			}
			if !takes(vni, options) {
				t.Error("hv1 does not give the packet to the VM")
			}
			if takes(vni^1, options) || takes(vni^1<<12, options) {
				t.Error("hv1 gives the VM packets of another network or port")
			}
			if kind == Geneve && takes(vni, nil) {
				t.Error("hv1 gives the VM packets without OVN's option")
			}
		})
	}
}

// tunnelPort is the number of the host's tunnel to the director.
func tunnelPort(h *ovnlab.Host) string {
	return field(h.Vsctl("--bare", "--columns=ofport", "find", "Interface", `options:remote_ip="192.0.2.9"`))
}

// wire is what a flow loads before it sends.
type wire struct{ vni, option uint32 }

var (
	toVNI    = regexp.MustCompile(`set_field:(0x[0-9a-f]+)(?:/0x[0-9a-f]+)?->tun_id`)
	toOption = regexp.MustCompile(`set_field:(0x[0-9a-f]+)(?:/0x[0-9a-f]+)?->tun_metadata0`)
)

// sent returns what a host says in packets to a port on another host.
func sent(t *testing.T, h *ovnlab.Host, to Port) wire {
	t.Helper()
	match := fmt.Sprintf("reg15=%#x,metadata=%#x ", to.Key, to.Network.Key)
	var seen strings.Builder
	for table := 30; table < 50; table++ { // which one it is differs between versions
		for flow := range strings.Lines(h.Flows(table)) {
			if !strings.Contains(flow, match) {
				continue
			}
			seen.WriteString(flow)
			vni := toVNI.FindStringSubmatch(flow)
			if vni == nil {
				continue
			}
			w := wire{vni: number(t, vni[1])}
			if option := toOption.FindStringSubmatch(flow); option != nil {
				w.option = number(t, option[1])
			}
			return w
		}
	}
	t.Fatalf("%s has no flow to %s in a tunnel:\n%s", h.Name, to.Name, &seen)
	return wire{}
}

func number(t *testing.T, text string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// The formats of ovn-architecture(7), and what has no room in them.
func TestWire(t *testing.T) {
	port := func(network uint32, key uint16) *Port {
		return &Port{Name: "p", Key: key, Network: Network{Name: "net", Key: network}}
	}
	for _, c := range []struct {
		port    *Port
		kind    Kind
		ingress uint16
		vni     uint32
		options string
		says    string
	}{
		{port(0xabcdef, 0x7ffe), Geneve, 0x7fff, 0xabcdef, "01028001" + "7fff7ffe", ""},
		{port(1, 2), Geneve, 0, 1, "01028001" + "00000002", ""},
		{port(1, 2), Geneve, 0x8000, 0, "", "32768 is greater than 32767"},
		{port(0xabc, 0x7ff), VXLAN, 3, 0x7ffabc, "", ""},
		{port(0x1000, 1), VXLAN, 0, 0, "", "network net has the key 4096"},
		{port(1, 0x800), VXLAN, 0, 0, "", "port p has the key 2048"},
		{port(1, 1), "stt", 0, 0, "", `"stt"`},
	} {
		vni, options, err := c.port.Wire(c.kind, c.ingress)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s to port %d of network %d: the error is %v, and does not say %q", c.kind, c.port.Key, c.port.Network.Key, err, c.says)
			}
		case err != nil || vni != c.vni || fmt.Sprintf("%x", options) != c.options:
			t.Errorf("%s to port %d of network %d: %#x %x %v, want %#x %s", c.kind, c.port.Key, c.port.Network.Key, vni, options, err, c.vni, c.options)
		}
	}
}

// Which of a host's ends of tunnels is used: that of the best kind that both have, in a family that both
// have, and at the address that the port wants.
func TestTunnel(t *testing.T) {
	both := []Encap{geneve("192.0.2.1"), geneve("192.0.2.2"), geneve("2001:db8::1"), vxlan("192.0.2.1")}
	for _, c := range []struct {
		own, has []Encap
		wants    []string
		want     string
	}{
		{[]Encap{geneve("192.0.2.9")}, both, nil, "geneve 192.0.2.1"},
		{[]Encap{geneve("192.0.2.9"), vxlan("192.0.2.9")}, both, []string{"192.0.2.2"}, "geneve 192.0.2.2"},
		{[]Encap{geneve("192.0.2.9")}, both, []string{"2001:db8::1"}, "geneve 192.0.2.1"},
		{[]Encap{geneve("2001:db8::9")}, both, nil, "geneve 2001:db8::1"},
		{[]Encap{vxlan("192.0.2.9")}, both, nil, "vxlan 192.0.2.1"},
		{[]Encap{vxlan("2001:db8::9")}, both, nil, "chassis hv1 has no end of tunnels that this host could reach: it has geneve 192.0.2.1, geneve 192.0.2.2, geneve 2001:db8::1, vxlan 192.0.2.1, this host vxlan 2001:db8::9"},
		{[]Encap{geneve("192.0.2.9")}, nil, nil, "chassis hv1 has no end of tunnels that this host could reach: it has none, this host geneve 192.0.2.9"},
	} {
		p := Port{Name: "p", Chassis: &Chassis{Name: "hv1", Encaps: c.has}, encaps: addresses(c.wants...)}
		e, err := p.Tunnel(c.own)
		got := string(e.Kind) + " " + e.IP.String()
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("from %v to %v at %v: %s, want %s", c.own, c.has, c.wants, got, c.want)
		}
	}
	if _, err := (&Port{Name: "p"}).Tunnel(both); err == nil || !strings.Contains(err.Error(), "on no host") {
		t.Error("a port without a host:", err)
	}
}
