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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// uplink is an interface at which tunnels come in, or with replies one that pods' answers alone
// are looked at that leave by it.
type uplink struct {
	name  string
	index int
	mtu   int
	// bridge is the index of the bridge that it is a port of; 0: it is none.
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

// findUplinks returns the interfaces that are named or, when none are, those that
// have a default route or a backend's address.
func findUplinks(names []string, config model.Config, at map[netip.Addr]int) ([]uplink, error) {
	var links []netlink.Link
	for _, name := range names {
		if model.IsInterfacePattern(name) {
			found, err := matching([]string{name})
			if err != nil {
				return nil, err
			}
			links = append(links, found...)
			continue
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		links = append(links, link)
	}
	if len(names) == 0 {
		guessed, err := guessUplinks(config, at)
		if err != nil {
			return nil, err
		}
		links = guessed
	}
	if len(links) == 0 && len(names) > 0 {
		return nil, fmt.Errorf("no interface is like %s (agent.interfaces or --interface)", strings.Join(names, ", "))
	}
	if len(links) == 0 {
		return nil, errors.New("no interface has a default route or a backend's address: name it (agent.interfaces or --interface)")
	}
	var uplinks []uplink
	for _, link := range links {
		a := link.Attrs()
		bridge, err := bridgeOf(a)
		if err != nil {
			return nil, err
		}
		uplinks = append(uplinks, uplink{name: a.Name, index: a.Index, mtu: a.MTU, bridge: bridge})
	}
	replies, err := findReplies(config.Agent.ReplyInterfaces, uplinks)
	if err != nil {
		return nil, err
	}
	uplinks = append(uplinks, replies...)
	slices.SortFunc(uplinks, func(a, b uplink) int { return cmp.Compare(a.index, b.index) })
	return slices.Compact(uplinks), nil
}

// findReplies returns the interfaces that pods' answers may leave by besides. They come and go:
// one that is not there is none.
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

// matching returns the interfaces whose names are these, or like these patterns.
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
			is, err := filepath.Match(name, a.Name) // that it is a pattern was checked when it was read
			return is && err == nil
		}
		if a.Flags&net.FlagLoopback == 0 && slices.ContainsFunc(names, like) {
			found = append(found, link)
		}
	}
	return found, nil
}

// isGone reports whether an interface is there no more, as of a pod that has ended meanwhile.
func isGone(u uplink) bool {
	_, err := netlink.LinkByIndex(u.index)
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
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
	if err != nil {
		return 0, fmt.Errorf("find what interface %s is a port of: %w", port.Name, err)
	}
	if master.Type() != "bridge" {
		return 0, nil
	}
	return port.MasterIndex, nil
}

func guessUplinks(config model.Config, at map[netip.Addr]int) ([]netlink.Link, error) {
	indexes, err := defaultRoutes()
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
		if err != nil {
			return nil, fmt.Errorf("interface %d: %w", index, err)
		}
		if link.Attrs().Flags&net.FlagLoopback == 0 {
			links = append(links, link)
		}
	}
	return links, nil
}

// defaultRoutes returns the interfaces that default routes of the main table
// leave by.
func defaultRoutes() ([]int, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var indexes []int
	for _, r := range routes {
		if r.Dst != nil && !isDefault(r.Dst) {
			continue
		}
		if r.LinkIndex != 0 {
			indexes = append(indexes, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	return indexes, nil
}

func isDefault(dst *net.IPNet) bool {
	ones, _ := dst.Mask.Size()
	return ones == 0
}

// smallestMTU returns the MTU that everything must fit: a reply need not leave by
// the interface that its connection's packets come in at.
func smallestMTU(uplinks []uplink) int {
	uplinks = entrances(uplinks)
	mtu := uplinks[0].mtu
	for _, u := range uplinks {
		mtu = min(mtu, u.mtu)
	}
	return mtu
}
