package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

//go:generate ../../bpf/generate -output-suffix _test encap testdata/encap.bpf.c

// way is how packets come to the host.
type way struct {
	gue, outer6, inner6 bool
}

func (w way) String() string {
	number := map[bool]string{false: "4", true: "6"}
	kind := map[bool]string{false: "ipip", true: "gue"}
	return fmt.Sprintf("%s %s in %s", kind[w.gue], number[w.inner6], number[w.outer6])
}

func ways() []way {
	var list []way
	for i := range 8 {
		list = append(list, way{i&1 != 0, i&2 != 0, i&4 != 0})
	}
	return list
}

// vip returns the VIP that is reached this way, and its largest MSS.
func (w way) vip() (netip.Addr, int) {
	if w.inner6 {
		return vip6, webMSS6
	}
	return vip4, webMSS4
}

// outer returns the outer header of a packet without anything in it.
func (w way) outer() []byte {
	outer := frame{ip(director4, host4)}
	if w.outer6 {
		outer = frame{ip(director6, host6)}
	}
	if w.gue {
		outer = append(outer, packet.UDPHeader{Src: 50000, Dst: 6080, NoChecksum: true}, packet.GUEHeader{})
	}
	if w.inner6 {
		return build(carrying(outer, packet.ProtocolIPv6))
	}
	return build(carrying(outer, packet.ProtocolIPv4))
}

// wrap makes what leaves a port for the VIPs come this way, until the returned
// function is called.
func wrap(t *testing.T, port *netlab.Port, w way) func() {
	t.Helper()
	spec, err := loadEncap()
	if err != nil {
		t.Fatal(err)
	}
	header := w.outer()
	outer := [64]byte{}
	copy(outer[:], header)
	last := func(a netip.Addr) uint32 {
		b := a.AsSlice()
		return binary.NativeEndian.Uint32(b[len(b)-4:])
	}
	for name, value := range map[string]any{
		"outer": outer, "outer_length": uint32(len(header)), "outer_ipv6": w.outer6, "gue": w.gue,
		"vip4": last(vip4), "vip6": last(vip6),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatalf("set %s: %v", name, err)
		}
	}
	var objects encapObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		t.Fatalf("load director made by hand: %+v", err)
	}
	u := uplink{name: port.Name, index: port.Index}
	if err := port.Host.Do(func() error { return putFilter(u, hookEgress, objects.Encap) }); err != nil {
		t.Fatalf("attach director made by hand: %v", err)
	}
	return func() {
		if err := port.Host.Do(func() error { return filterOf(hookEgress).Remove(u.index) }); err != nil {
			t.Errorf("detach director made by hand: %v", err)
		}
		_ = objects.Close()
	}
}
