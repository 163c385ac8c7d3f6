package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// uplink is an interface at which tunnels come in. With replies, the programs look only at pods'
// answers that leave by it.
type uplink struct {
	name  string
	index int
	mtu   int
	// bridge is the index of the bridge that it is a port of; 0: it is not a port.
	bridge  int
	replies bool
}

// addresses returns the addresses of this host, by interface.
func addresses() (map[netip.Addr]int, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	at := make(map[netip.Addr]int, len(list))
	for _, a := range list {
		if address, ok := netip.AddrFromSlice(a.IP); ok {
			at[address.Unmap()] = a.LinkIndex
		}
	}
	return at, nil
}

// noMTU is the MTU that is assumed while there is no interface: no packets come in then.
const noMTU = 1500

// wait is something of the host that is asked for and is not there.
type wait struct{ what, found string }

// noUplink is what the agent waits for if no interface is named and none can be guessed.
const noUplink = "an interface with a default route or a backend's address"

// findUplinks returns the interfaces that are named or, if none are, those that have a default
// route or a backend's address; and what is missing of these. In place of those that are missing,
// interfaces that have the agent's programs keep them: one that was renamed, one whose default
// route is being changed, or those of an earlier configuration.
func findUplinks(names []string, config model.Config, at map[netip.Addr]int, has func(index int) bool, defaults func() ([]int, error)) (uplinks []uplink, waits []wait, err error) {
	links, waits, err := namedLinks(names)
	if err == nil && len(names) == 0 {
		if links, err = guessUplinks(config, at, defaults); err == nil && len(links) == 0 {
			waits = []wait{{noUplink, "is not there: name one (agent.interfaces or --interface)"}}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if len(waits) > 0 {
		kept, err := keptLinks(links, config.Agent.ReplyInterfaces, has)
		if err != nil {
			return nil, nil, err
		}
		for i := range waits {
			waits[i].found += keptText(kept)
		}
		links = append(links, kept...)
	}
	for _, link := range links {
		a := link.Attrs()
		bridge, err := bridgeOf(a)
		if err != nil {
			return nil, nil, err
		}
		uplinks = append(uplinks, uplink{name: a.Name, index: a.Index, mtu: a.MTU, bridge: bridge})
		if a.Flags&net.FlagUp == 0 {
			waits = append(waits, wait{a.Name, "is down"})
		}
	}
	replies, err := findReplies(config.Agent.ReplyInterfaces, uplinks)
	if err != nil {
		return nil, nil, err
	}
	uplinks = append(uplinks, replies...)
	slices.SortFunc(uplinks, func(a, b uplink) int { return cmp.Compare(a.index, b.index) })
	return slices.Compact(uplinks), waits, nil
}

// namedLinks returns the interfaces of these names and patterns, and the names that no interface
// has.
func namedLinks(names []string) (links []netlink.Link, waits []wait, err error) {
	for _, name := range names {
		if model.IsInterfacePattern(name) {
			found, err := matching([]string{name})
			if err != nil {
				return nil, nil, err
			}
			links = append(links, found...)
			continue
		}
		link, err := netlink.LinkByName(name)
		switch {
		case isNotFound(err):
			waits = append(waits, wait{name, "is not there"})
		case err != nil:
			return nil, nil, fmt.Errorf("interface %s: %w", name, err)
		default:
			links = append(links, link)
		}
	}
	if len(names) > 0 && len(links)+len(waits) == 0 {
		waits = []wait{{"an interface like " + strings.Join(names, ", "), "is not there (agent.interfaces or --interface)"}}
	}
	return links, waits, nil
}

// keptLinks returns the interfaces that have the agent's programs, and are neither among those that
// were found nor among those by which pods' answers leave.
func keptLinks(found []netlink.Link, replies []string, has func(index int) bool) (kept []netlink.Link, err error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	others, err := matching(replies)
	if err != nil {
		return nil, err
	}
	others = append(others, found...)
	for _, link := range all {
		is := func(o netlink.Link) bool { return o.Attrs().Index == link.Attrs().Index }
		if has(link.Attrs().Index) && !slices.ContainsFunc(others, is) {
			kept = append(kept, link)
		}
	}
	return kept, nil
}

func keptText(kept []netlink.Link) string {
	if len(kept) == 0 {
		return ""
	}
	names := make([]string, len(kept))
	for i, link := range kept {
		names[i] = link.Attrs().Name
	}
	return "; until then the programs stay at " + strings.Join(names, ", ")
}

func isNotFound(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

// findReplies returns the other interfaces by which pods' answers may leave. They come and go: one
// that is not there is not waited for.
func findReplies(names []string, uplinks []uplink) (list []uplink, err error) {
	links, err := matching(names)
	for _, link := range links {
		a := link.Attrs()
		is := func(u uplink) bool { return u.index == a.Index }
		// Programs look for IP behind an Ethernet header.
		if a.EncapType != "ether" || slices.ContainsFunc(uplinks, is) || slices.ContainsFunc(list, is) {
			continue
		}
		list = append(list, uplink{name: a.Name, index: a.Index, mtu: a.MTU, replies: true})
	}
	return list, err
}

// matching returns the interfaces with one of these names, or that match one of these patterns.
func matching(names []string) (found []netlink.Link, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range all {
		a := link.Attrs()
		like := func(name string) bool {
			is, err := filepath.Match(name, a.Name) // patterns were checked when they were read
			return is && err == nil
		}
		if a.Flags&net.FlagLoopback == 0 && !device.Made(link) && slices.ContainsFunc(names, like) {
			found = append(found, link)
		}
	}
	return found, nil
}

// isGone reports whether an interface is no longer there, such as that of a pod that has ended.
func isGone(index int) bool {
	_, err := netlink.LinkByIndex(index)
	return isNotFound(err)
}

// entrances returns the uplinks at which tunnels come in.
func entrances(uplinks []uplink) (list []uplink) {
	for _, u := range uplinks {
		if !u.replies {
			list = append(list, u)
		}
	}
	return list
}

// bridgeOf returns the index of the bridge that an interface is a port of, or 0.
func bridgeOf(port *netlink.LinkAttrs) (int, error) {
	if port.MasterIndex == 0 {
		return 0, nil
	}
	master, err := netlink.LinkByIndex(port.MasterIndex)
	if isNotFound(err) {
		return 0, nil // it is gone meanwhile
	}
	if err != nil {
		return 0, fmt.Errorf("find what interface %s is a port of: %w", port.Name, err)
	}
	if master.Type() != "bridge" {
		return 0, nil
	}
	return port.MasterIndex, nil
}

func guessUplinks(config model.Config, at map[netip.Addr]int, defaults func() ([]int, error)) ([]netlink.Link, error) {
	indexes, err := defaults()
	if err != nil {
		return nil, err
	}
	for _, s := range config.Services {
		for _, b := range s.Backends {
			if index, ok := at[hostOf(&b)]; ok {
				indexes = append(indexes, index)
			}
		}
	}
	slices.Sort(indexes)
	var links []netlink.Link
	for _, index := range slices.Compact(indexes) {
		link, err := netlink.LinkByIndex(index)
		if isNotFound(err) {
			continue // it is gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("interface %d: %w", index, err)
		}
		if link.Attrs().Flags&net.FlagLoopback == 0 {
			links = append(links, link)
		}
	}
	return links, nil
}

// smallestMTU returns the MTU that everything must fit: a reply need not leave by
// the interface that its connection's packets come in at.
func smallestMTU(uplinks []uplink) int {
	uplinks = entrances(uplinks)
	if len(uplinks) == 0 {
		return noMTU
	}
	mtu := uplinks[0].mtu
	for _, u := range uplinks {
		mtu = min(mtu, u.mtu)
	}
	return mtu
}

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
