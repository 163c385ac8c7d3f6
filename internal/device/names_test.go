package device

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// An interface is found by all of its names; an interface's own name goes before another's other
// name.
func TestCurrentNames(t *testing.T) {
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", AltNames: []string{"enp1s0", "uplink"}}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth1", AltNames: []string{"enp2s0"}}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "enp2s0"}},
	}
	got := CurrentNames(links, []string{"uplink", "eth1", "enp2s0", "enp1s0", "gone0"})
	if want := []string{"eth0", "eth1", "enp2s0", "eth0", "gone0"}; !slices.Equal(got, want) {
		t.Errorf("the names now are %q, want %q", got, want)
	}
}
