package datapath

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// TestSetPods: a pod's entry has its host's address and next hop, or its own in ipip, and
// follows it to another host. A pod of this host gets its packets up the stack, also where
// the kernel would send them to it.
func TestSetPods(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	host, other, own := netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.1")
	pod := netip.MustParseAddrPort("10.0.0.99:8080")
	for _, a := range []netip.Addr{host, other, pod.Addr()} {
		addNeighbor(t, a)
	}
	d := openTest(t, model.Limits{})
	set := func(mode model.Mode, at netip.Addr) abi.Backend {
		t.Helper()
		table := tableOf(1, 1, 0)
		b := &table.Services[0].Backends[0]
		b.Address, b.Port, b.Host, b.Mode = pod.Addr(), pod.Port(), at, mode
		must(t, d.Set(table))
		for _, s := range d.services {
			return d.entries.Entries[s.order[0].index]
		}
		return abi.Backend{}
	}
	name := func(e abi.Backend) uint32 { return binary.BigEndian.Uint32(e.Vip.Bytes[:]) }
	const local, pods = uint8(abi.BackendFlagBACKEND_LOCAL), uint8(abi.BackendFlagBACKEND_POD)
	for _, c := range []struct {
		what  string
		mode  model.Mode
		host  netip.Addr
		to    netip.Addr
		mac   model.MAC
		flags uint8
		mtu   uint16
	}{
		{"to a host", model.GUE, host, host, neighborMAC(host), pods, 1500 - 100},
		{"to another one", model.GUE, other, other, neighborMAC(other), pods, 1500 - 100},
		{"by ipip", model.IPIP, other, pod.Addr(), neighborMAC(pod.Addr()), pods, 1500 - 20},
		{"of this host", model.GUE, own, own, model.MAC{}, pods | local, 0xffff - 100},
		{"of this host, by ipip", model.IPIP, own, pod.Addr(), model.MAC{}, pods | local, 0xffff - 20},
	} {
		e := set(c.mode, c.host)
		if e.Address != abi.AddressBytes(c.to) || model.MAC(e.Mac) != c.mac || e.Flags != c.flags || e.Mtu != c.mtu || e.State != uint8(abi.BackendStateBACKEND_ACTIVE) || abi.BigEndian16(e.Port) != pod.Port() {
			t.Errorf("%s: the entry is %+v", c.what, e)
		}
		if got := name(e); got != model.PodName(pod) {
			t.Errorf("%s: the host is told %#x, want %#x", c.what, got, model.PodName(pod))
		}
		if (e.Ifindex == 0) != (c.flags&local != 0) {
			t.Errorf("%s: packets leave by interface %d", c.what, e.Ifindex)
		}
	}
	// All pods are this host's, and so is the address that tunnels come from.
	set(model.GUE, own)
	if got := settingsOf(t, d).TunnelSource4; got != be32(own.As4()) {
		t.Errorf("tunnels come from %#x, want this host's address", got)
	}
}
