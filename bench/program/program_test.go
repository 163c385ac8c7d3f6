package program

import (
	"context"
	"fmt"
	"testing"

	"weir.io/weir/internal/netlab"
)

// Every way forwards its packet of both families and leaves it as it was, or there is
// nothing to measure.
func TestMeasure(t *testing.T) {
	t.Chdir("../..")
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			b, err := New(context.Background(), netlab.ForTest(t), ipv6)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			costs, err := b.Measure(1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{Swap, Move, "l2dsr", "ipip", "ipip6", "gue", "gue6", "nat", "snat"} {
				if _, found := costs[name]; !found {
					t.Errorf("%s is not measured, only %v", name, costs)
				}
			}
		})
	}
}

// A packet that is of no service is not taken for one that was forwarded.
func TestPacketsMustBeForwarded(t *testing.T) {
	t.Chdir("../..")
	b, err := New(context.Background(), netlab.ForTest(t), false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, p := range b.programs {
		if p.name != "l2dsr" {
			continue
		}
		p.frame[32]++ // of the destination
		if err := p.leavesItsPacket(b.port); err == nil {
			t.Error("a packet to an address that is no VIP is taken for forwarded")
		}
	}
}
