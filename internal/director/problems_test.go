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

// An address that another VTEP has taken is a problem, for as long as it is contested.
func TestContestedAddressesAreProblems(t *testing.T) {
	taken := model.EVPNHost{VNI: 5001, MAC: model.MAC{2, 5: 9}, VTEP: netip.MustParseAddr("10.0.0.9"), Sequence: 4}
	address := taken
	address.IP = netip.MustParseAddr("192.168.0.100")
	status := model.BGPStatus{EVPN: []model.EVPNStatus{{VNI: 5000}, {VNI: 5001, Contested: []model.EVPNHost{taken, address}}}}
	found := bgpProblems(status)
	if len(found) != 2 || found[0].Part != "MAC address 02:00:00:00:00:09 in VNI 5001" || found[1].Part != "192.168.0.100 in VNI 5001" ||
		!strings.Contains(found[1].Text, "the VTEP 10.0.0.9 has taken it") || found[1].Severity != model.SeverityWarning {
		t.Errorf("the problems are %+v", found)
	}
}

func TestEVPNNeedsAVTEP(t *testing.T) {
	c := &model.Config{BGP: model.BGP{Neighbors: []model.BGPNeighbor{{Address: netip.MustParseAddr("10.0.0.1"), Families: []model.BGPFamily{model.BGPIPv4}},
		{Address: netip.MustParseAddr("10.0.0.2"), Families: []model.BGPFamily{model.BGPEVPN}}}}}
	if found := evpnProblems(c); len(found) != 1 || found[0].Part != "10.0.0.2" || found[0].Fix == "" {
		t.Errorf("without a VTEP the problems are %+v", found)
	}
	c.Director.VTEP.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if found := evpnProblems(c); len(found) > 0 {
		t.Errorf("with a VTEP the problems are %+v", found)
	}
}
