package director

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
)

// A session whose password is gone goes on until it is lost: that is said while the session is there,
// and while it is not, the session says so itself.
func TestLostPasswordsAreProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	neighbor := netip.MustParseAddr("10.0.0.2")
	c := model.Config{
		BGP: model.BGP{Neighbors: []model.BGPNeighbor{{Address: neighbor, PasswordFile: file}, {Address: netip.MustParseAddr("10.0.0.3")}}},
		BFD: model.BFD{Neighbors: []model.BFDNeighbor{{Address: neighbor, Authentication: &model.BFDAuthentication{PasswordFile: file}}}},
	}
	c.SetDefaults()
	for _, test := range []struct {
		up   bool
		text string // of the file; empty: it is gone
		want bool
	}{{true, "secret\n", false}, {true, "", true}, {true, "\nsecret", true}, {false, "", false}} {
		_ = os.Remove(file) // it may not be there
		if test.text != "" {
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		bgp, session := model.SessionConnecting, bfd.Down
		if test.up {
			bgp, session = model.SessionEstablished, bfd.Up
		}
		for kind, found := range map[string][]model.Problem{
			"BGP": bgpPasswordProblems(&c.BGP, model.BGPStatus{Neighbors: []model.BGPNeighborStatus{{Address: neighbor, State: bgp}, {Address: c.BGP.Neighbors[1].Address, State: bgp}}}),
			"BFD": bfdPasswordProblems(&c, &model.BFDStatus{Sessions: []model.BFDSessionStatus{{Neighbor: neighbor, State: session.String()}}}),
		} {
			if (len(found) == 1) != test.want || test.want && (found[0].Part != "10.0.0.2" || !strings.HasPrefix(found[0].Text, "the session with 10.0.0.2 goes on, and cannot begin again: ")) {
				t.Errorf("%s, session there: %t, file %q: it lists %+v", kind, test.up, test.text, found)
			}
		}
	}
}
