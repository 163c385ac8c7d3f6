package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// A neighbor that knows AS numbers of 16 bits only has a session, and reads its routes.
func TestOldNeighbor(t *testing.T) {
	n := newNeighbor(t, "192.0.2.1/32")
	c, _ := n.accept()
	old, err := gobgp.NewBGPOpenMessage(theirAS, 90, netip.MustParseAddr("10.0.0.9"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.write(time.Second, old, gobgp.NewBGPKeepAliveMessage()); err != nil {
		t.Fatal(err)
	}
	for {
		m := n.read(c)
		if m.kind != gobgp.BGP_MSG_UPDATE {
			continue
		}
		// AS_PATH (type 2), one sequence, of one number of two bytes.
		if want := "\x40\x02\x04\x02\x01\xfd\xe9"; !strings.Contains(string(m.body), want) {
			t.Errorf("the neighbor is told % x, without the path % x", m.body, want)
		}
		break
	}
	n.eventually("have a session", func(s model.BGPNeighborStatus) bool { return s.State == model.SessionEstablished })
}

// Numbers of more than 16 bits are AS_TRANS in the path of such a neighbor, and the whole path is
// beside it, for those behind it; a neighbor of such a number cannot be one of them.
func TestPathOfOldNeighbors(t *testing.T) {
	const large = 4200000001
	for _, c := range []struct {
		asn     uint32
		old     bool
		prepend uint8
		want    string
	}{
		{ourAS, false, 0, "[65001] []"},
		{large, false, 1, "[4200000001 4200000001] []"},
		{ourAS, true, 1, "[65001 65001] []"},
		{large, true, 0, "[23456] [4200000001]"},
		{large, true, 2, "[23456 23456 23456] [4200000001 4200000001 4200000001]"},
	} {
		w := &want{asn: c.asn, neighbor: model.BGPNeighbor{ASN: theirAS}}
		path, whole := asPath(w, &peer{old: c.old}, advertisement{attributes: model.BGPAttributes{Prepend: c.prepend}})
		var numbers, beside []uint32
		for _, part := range path.(*gobgp.PathAttributeAsPath).Value {
			numbers = append(numbers, part.GetAS()...)
		}
		if whole != nil {
			for _, part := range whole.(*gobgp.PathAttributeAs4Path).Value {
				beside = append(beside, part.AS...)
			}
		}
		if got := fmt.Sprint(numbers, beside); got != c.want {
			t.Errorf("AS %d, old %v: %s, want %s", c.asn, c.old, got, c.want)
		}
		prefixes := []gobgp.PathNLRI{{}}
		prefixes[0].NLRI, _ = gobgp.NewIPAddrPrefix(prefix("192.0.2.1/32"))
		text, err := announcement(w, &peer{old: c.old}, advertisement{family: model.BGPIPv4, nextHop: loopback, attributes: model.BGPAttributes{Prepend: c.prepend}}, prefixes).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(text), "\xfa\x56\xea\x01"); has != (c.asn == large) {
			t.Errorf("AS %d, old %v: % x", c.asn, c.old, text)
		}
	}
	n := newNeighbor(t)
	w := &want{asn: ourAS, routerID: netip.MustParseAddr("10.0.0.1"), neighbor: n.config}
	w.neighbor.ASN = large
	old, err := gobgp.NewBGPOpenMessage(gobgp.AS_TRANS, 90, netip.MustParseAddr("10.0.0.9"), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := old.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agree(w, message{gobgp.BGP_MSG_OPEN, text[19:]}); err == nil || !strings.Contains(err.Error(), "does not know AS numbers of 32 bits") {
		t.Errorf("a neighbor whose number it cannot say itself: %v", err)
	}
}

// A disagreement of both sides is reported for as long as there is no session, also when the
// neighbor no longer answers.
func TestDisagreementIsRemembered(t *testing.T) {
	n := newNeighbor(t)
	c, _ := n.accept()
	if err := c.write(time.Second, n.hello(64999, 90)); err != nil {
		t.Fatal(err)
	}
	n.ends(c)
	for range 2 {
		c, _ = n.accept()
		c.Close()
		n.eventually("say both", func(s model.BGPNeighborStatus) bool {
			return s.Problem == "it has closed the connection; when both talked last: it is of AS 64999, and the configuration says 65000"
		})
	}
	n.establish(helper)
	n.eventually("say nothing any more", func(s model.BGPNeighborStatus) bool { return s.Problem == "" })
}
