package program

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Every way forwards its packet of both families and restores it; otherwise there is nothing to
// measure.
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

// A packet of no service is not taken for a forwarded one.
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
		if err := p.leavesItsPacket(b.port, p.frame); err == nil {
			t.Error("a packet to an address that is no VIP is taken for forwarded")
		}
	}
}

// Two identical versions run in turns, and a packet of an open connection leaves longer by its row
// than the SYN that began it.
func TestVersions(t *testing.T) {
	t.Chdir("../..")
	object, err := os.ReadFile("internal/datapath/director_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := process.Binary()
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVersions(t.Context(), netlab.ForTest(t), false, Version{Name: "a", Object: object, Binary: binary, Hands: true}, Version{Name: "b", Object: object, Binary: binary})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	least, err := v.Least(t.Context(), 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range v.Subjects() {
		if least[subject] <= 0 {
			t.Errorf("%+v took %g ns", subject, least[subject])
		}
	}
	// With SYNs: gue and gue6, and the ways that hand over, of one version; the subjects that
	// forward nothing appear once.
	if want := 2*(len(Ways)+2) + len(Handing) + len(putBack); len(least) != want {
		t.Errorf("%d subjects, want %d: %v", len(least), want, least)
	}
	growth := map[Subject]uint32{}
	for _, turn := range v.turns {
		growth[turn.subject] = turn.settings.growth
	}
	for _, subject := range []Subject{{Version: "a", Way: "gue"}, {Version: "b", Way: "gue"}} {
		of := subject
		of.SYN = true
		if growth[subject] != 40 || growth[of] != 32 {
			t.Errorf("version %s makes packets of gue longer by %d bytes, SYNs by %d; want 40, of which 8 name the backup, and 32", subject.Version, growth[subject], growth[of])
		}
	}
}

// An object without a director is not measured.
func TestObjectWithoutDirector(t *testing.T) {
	if _, err := newAgain(_AgainBytes, nil); err == nil || !strings.Contains(err.Error(), `there is no program "director"`) {
		t.Errorf("an object without a director: %v", err)
	}
	if _, err := newAgain([]byte("no object"), nil); err == nil {
		t.Error("what is no object is loaded")
	}
}
