package datapath

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

func TestForeignProgramIsNamed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	must(t, netlink.LinkSetXdpFdWithFlags(wire, d.kernel.program.FD(), unix.XDP_FLAGS_DRV_MODE))
	// It is not fought over, and does not stand in the way of the others.
	table := tableOf(1, 1, 0)
	table.Interfaces = []string{"wire1", "wire0", "nowhere0"}
	must(t, d.Set(table))
	on := func() (list []string) {
		for _, i := range statusOf(t, d).Interfaces {
			list = append(list, fmt.Sprintf("%s %v %s", i.Name, i.Index != 0, i.XDP))
		}
		return list
	}
	if got, want := on(), []string{"nowhere0 false ", "wire0 true ", "wire1 true native"}; !slices.Equal(got, want) {
		t.Errorf("interfaces are %q, want %q", got, want)
	}
	looks := d.Parts(nil)
	wantDifference(t, looks, "xdp", "wire0", "has not the director's program", "another XDP program (id ")
	wantDifference(t, looks, "interfaces", "nowhere0", "is not there", "")
	must(t, netlink.LinkSetXdpFdWithFlags(wire, -1, unix.XDP_FLAGS_DRV_MODE))
	must(t, repair(t, looks, "xdp"))
	if got, want := on(), []string{"nowhere0 false ", "wire0 true native", "wire1 true native"}; !slices.Equal(got, want) {
		t.Errorf("interfaces are %q, want %q", got, want)
	}
	// Interfaces that leave the table keep the program as long as an interface that came
	// into it is missing.
	table.Interfaces = []string{"nowhere0"}
	must(t, d.Set(table))
	if pins, _ := filepath.Glob("/sys/fs/bpf/weir/xdp-*"); len(pins) != 2 {
		t.Errorf("%q are attached, want wire0 and wire1 until nowhere0 is there", pins)
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nowhere0"}, PeerName: "nowhere1"}))
	eventually(t, "the program is on the interface that has come", func() bool { return slices.Equal(on(), []string{"nowhere0 true native"}) })
	must(t, d.Set(table))
	if pins, _ := filepath.Glob("/sys/fs/bpf/weir/xdp-*"); !slices.Equal(pins, []string{"/sys/fs/bpf/weir/xdp-nowhere0"}) {
		t.Errorf("%q are attached, want nowhere0 alone", pins)
	}
}

// TestGenericWhereDriverHasNone: the loopback driver has no native XDP.
func TestGenericWhereDriverHasNone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	table := tableOf(1, 1, 0)
	table.Interfaces = []string{"lo"}
	native, err := Open(Options{Pin: "/sys/fs/bpf/weir", Mode: model.XDPNative})
	must(t, err)
	defer native.Close()
	must(t, native.Set(table))
	wantDifference(t, native.Parts(nil), "xdp", "lo", "has not the director's program", "driver has no native XDP")
	must(t, native.Close())
	auto := openTest(t, model.Limits{})
	must(t, auto.Set(table))
	if i := statusOf(t, auto).Interfaces; len(i) != 1 || i[0].XDP != "generic" {
		t.Errorf("interfaces are %+v, want lo with generic XDP", i)
	}
}
