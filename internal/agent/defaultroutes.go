package agent

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel lists all routes of the main table or none, and a router may have a million. The host
// is looked at every second. So if there are more than manyRoutes routes, they are listed again
// only after routesRest, not with each look.
const (
	manyRoutes = 5000
	routesRest = 30 * time.Second
)

// defaultRoutes are the interfaces by which default routes of the main table leave. The zero value
// knows none yet.
type defaultRoutes struct {
	indexes []int
	rests   time.Time // not listed again before
}

// forget makes the next call of list list them again.
func (d *defaultRoutes) forget() { d.rests = time.Time{} }

// list returns the interfaces, each once, in order.
func (d *defaultRoutes) list(now time.Time) ([]int, error) {
	if now.Before(d.rests) {
		return slices.Clone(d.indexes), nil
	}
	count := 0
	var indexes []int
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	err := netlink.RouteListFilteredIter(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		count++
		if r.Dst == nil || isDefault(r.Dst) {
			indexes = append(indexes, leavesBy(&r)...)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	slices.Sort(indexes)
	d.indexes = slices.Compact(indexes)
	if d.forget(); count > manyRoutes {
		d.rests = now.Add(routesRest)
	}
	return slices.Clone(d.indexes), nil
}

func leavesBy(r *netlink.Route) (indexes []int) {
	if r.LinkIndex != 0 {
		indexes = append(indexes, r.LinkIndex)
	}
	for _, hop := range r.MultiPath {
		indexes = append(indexes, hop.LinkIndex)
	}
	return indexes
}

func isDefault(dst *net.IPNet) bool {
	ones, _ := dst.Mask.Size()
	return ones == 0
}
