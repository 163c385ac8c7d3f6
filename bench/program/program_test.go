package program

import (
	"context"
	"errors"
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
	this := thisVersion(t)
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			b, err := New(context.Background(), netlab.ForTest(t), ipv6, this)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			costs, err := b.Measure(t.Context(), 1000)
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

// thisVersion is weir as it was built last.
func thisVersion(t *testing.T) Version {
	t.Helper()
	t.Chdir("../..")
	object, err := os.ReadFile("internal/datapath/director_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := process.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return Version{Name: "a", Object: object, Binary: binary}
}

// A packet of no service is not taken for a forwarded one.
func TestPacketsMustBeForwarded(t *testing.T) {
	b, err := New(context.Background(), netlab.ForTest(t), false, thisVersion(t))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.load(); err != nil {
		t.Fatal(err)
	}
	defer b.unload()
	for _, turn := range b.turns {
		if turn.subject.Way != "l2dsr" {
			continue
		}
		turn.frame[32]++ // of the destination
		if err := turn.again.set(turn.settings, turn.frame); err != nil {
			t.Fatal(err)
		}
		if err := turn.again.named(calling).leavesItsPacket(turn.port, turn.queue, turn.frame); !errors.Is(err, errNotForwarded) {
			t.Errorf("a packet to an address that is no VIP: %v, want that it is not forwarded", err)
		}
	}
}

// Two identical versions run in turns, and a packet of an open connection leaves longer by its row
// than the SYN that began it.
func TestVersions(t *testing.T) {
	first := thisVersion(t)
	second := first
	first.Hands, second.Name = true, "b"
	v, err := NewVersions(t.Context(), netlab.ForTest(t), false, first, second)
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
	if _, err := newAgain(_AgainBytes, director, nil); err == nil || !strings.Contains(err.Error(), `there is no program "director"`) {
		t.Errorf("an object without a director: %v", err)
	}
	if _, err := newAgain([]byte("no object"), director, nil); err == nil {
		t.Error("what is no object is loaded")
	}
}
