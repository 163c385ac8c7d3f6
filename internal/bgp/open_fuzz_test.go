package bgp

import (
	"net/netip"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// FuzzAgree: whatever a neighbor says first, it is refused with a reason, or there are
// families in which routes can be told.
func FuzzAgree(f *testing.F) {
	w := &want{asn: 65001, routerID: netip.MustParseAddr("10.0.0.1"), neighbor: model.BGPNeighbor{
		Address: netip.MustParseAddr("10.0.0.2"), ASN: 65002, HoldTime: model.Duration(9e9), Families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6}}}
	open := func(asn uint32, capabilities ...gobgp.ParameterCapabilityInterface) []byte {
		m, err := gobgp.NewBGPOpenMessage(23456, 9, netip.MustParseAddr("10.0.0.2"), []gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(append(capabilities, gobgp.NewCapFourOctetASNumber(asn)))})
		if err != nil {
			f.Fatal(err)
		}
		text, err := m.Serialize()
		if err != nil {
			f.Fatal(err)
		}
		return text[gobgp.BGP_HEADER_LENGTH:]
	}
	good := open(65002, gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_UC), gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_UC))
	f.Add(uint8(gobgp.BGP_MSG_OPEN), good)
	f.Add(uint8(gobgp.BGP_MSG_OPEN), open(65003))
	f.Add(uint8(gobgp.BGP_MSG_OPEN), open(65002, gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_VPN)))
	f.Add(uint8(gobgp.BGP_MSG_OPEN), good[:len(good)-3])
	f.Add(uint8(gobgp.BGP_MSG_KEEPALIVE), []byte{})
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		if len(body) > gobgp.BGP_MAX_MESSAGE_LENGTH-gobgp.BGP_HEADER_LENGTH {
			return // what is read is no longer
		}
		var p *peer
		var err error
		memlab.Bound{PerByte: 200, AtLeast: 1 << 20}.Check(t, len(body), func() { p, err = agree(w, message{kind, body}) })
		if (p == nil) == (err == nil) {
			t.Fatalf("there are both or neither of %+v and %v", p, err)
		}
		if p != nil && (len(p.families) == 0 || p.hold <= 0) {
			t.Fatalf("a session with %+v", p)
		}
	})
}
