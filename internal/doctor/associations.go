package doctor

import (
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
)

// associations finds servers of SCTP that tell clients of addresses beside the one that the service has
// there: clients send packets of their associations to these, past the directors.
func (x *examination) associations() {
	if x.listed == nil {
		return
	}
	found := x.listed()
	for i, l := range found {
		if i == maxListed {
			x.fail("associations", "", "%d more backends list other addresses", len(found)-maxListed)
			return
		}
		x.fail("associations of "+l.Service, fmt.Sprintf("let the server bind %s only (docs/operate/sctp.md)", l.Asked),
			"backend %s lists %s in its INIT ACK, beside %s: clients will send packets of their associations there, past the directors", l.Backend, addressesText(l.Addresses), l.Asked)
	}
}

func addressesText(list []netip.Addr) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return model.Some(texts)
}
