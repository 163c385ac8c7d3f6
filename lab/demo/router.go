package demo

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// The ASes of the router and of the directors, and how fast BFD finds that the other end is lost:
// in 300 ms.
const (
	routerAS      = 65000
	directorAS    = 65001
	bfdInterval   = 100 // ms
	bfdMultiplier = 3
)

// router is FRR on the router, which learns from the directors which VIPs they forward.
type router struct {
	host  *netlab.Host
	watch *routerlab.Watch
	vips  []netip.Prefix
}

// startRouter starts FRR; it returns nil if FRR is not installed.
func startRouter(top *topology, rows []*row) (*router, error) {
	watch, err := routerlab.WatchRoutes(top.router)
	if err != nil {
		return nil, err
	}
	r := &router{host: top.router, watch: watch}
	for _, row := range rows {
		r.vips = append(r.vips, netip.PrefixFrom(row.vip, row.vip.BitLen()))
	}
	frr, err := routerlab.StartFRR(top.router, routerlab.FRRConfig{BFD: "bfd\n", BGP: fmt.Sprintf(`hostname router
router bgp %d
 bgp router-id 10.0.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as %d
 neighbor directors advertisement-interval 0
 neighbor directors bfd %d %d %d
 bgp listen range 10.0.0.0/16 peer-group directors
 address-family ipv4 unicast
  maximum-paths 16
  neighbor directors activate
 exit-address-family
 address-family ipv6 unicast
  maximum-paths 16
  neighbor directors activate
 exit-address-family
`, routerAS, directorAS, bfdMultiplier, bfdInterval, bfdInterval)})
	if errors.Is(err, routerlab.ErrNoFRR) {
		watch.Close()
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Other programs on this machine would make BFD late, which would then find a link lost that
	// was not cut.
	return r, frr.Realtime()
}

// bgp is what a director, counted from 0, is told of the router: one session, for VIPs of
// both families.
func bgp(director int) model.BGP {
	return model.BGP{ASN: directorAS, RouterID: uplinkAddress(director, uplinkHost, false), Neighbors: []model.BGPNeighbor{{
		Address: uplinkAddress(director, routerHost, false), ASN: routerAS,
		Families: []model.BGPFamily{model.BGPIPv4, model.BGPIPv6}, NextHop: []netip.Addr{uplinkAddress(director, uplinkHost, true)},
		BFD: &model.BGPNeighborBFD{Interval: bfdInterval * model.Duration(1e6), Multiplier: bfdMultiplier},
	}}}
}

// sendsTo returns for how many of the VIPs the router's kernel sends packets to a director.
func (r *router) sendsTo(director int) (vips int, err error) {
	for _, vip := range r.vips {
		hops, err := routerlab.NextHops(r.host, vip)
		if err != nil {
			return 0, err
		}
		if slices.Contains(hops, uplinkAddress(director, uplinkHost, vip.Addr().Is6())) {
			vips++
		}
	}
	return vips, nil
}

// changes returns how often a route to a VIP has come, changed or gone.
func (r *router) changes() (times int) {
	for _, vip := range r.vips {
		times += r.watch.Changes(vip)
	}
	return times
}
