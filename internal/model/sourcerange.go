package model

import (
	"fmt"
	"net/netip"
)

// SourceRange returns the longest of a service's source ranges that a client is in; false: it is in
// none. A service without source ranges is for all clients.
func SourceRange(ranges []netip.Prefix, client netip.Addr) (longest netip.Prefix, within bool) {
	for _, p := range ranges {
		if p.Contains(client) && (!within || p.Bits() > longest.Bits()) {
			longest, within = p, true
		}
	}
	return longest, within || len(ranges) == 0
}

// sourceRanges checks a service's source ranges.
func (v *validation) sourceRanges(i int) {
	s := &v.config.Services[i]
	for j, p := range s.SourceRanges {
		path := fmt.Sprintf("%s[%d]", servicePath(i, "source-ranges"), j)
		switch {
		case !p.IsValid():
			v.errs.add(path, "%s is not an address or prefix", p)
		case p.Addr().Is4In6():
			v.errs.add(path, "%s is an IPv4 prefix in IPv6 clothing; write it as IPv4", p)
		case p.Masked() != p:
			v.errs.add(path, "%s has bits beyond its length; write %s, or %s for one address", p, p.Masked(), p.Addr())
		case s.VIP.IsValid() && p.Addr().Is4() != s.VIP.Is4():
			v.errs.addWithOther(path, servicePath(i, "vip"), "%s is %s and VIP %s is %s: no client of it is there",
				prefixText(p), family(p.Addr()), s.VIP, family(s.VIP))
		}
	}
}
