package neighbor

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// groups are the multicast groups of an interface to which hosts send their questions about IPv6
// addresses. Without them network cards, and switches that follow MLD, drop the questions.
type groups struct {
	index   int
	sockets []int // each may be in as many groups as the kernel gives it memory for
	where   map[netip.Addr]int
}

// groupsPerSocket fits the least memory that a kernel gives the options of one socket
// (net.core.optmem_max, 20 kB before Linux 6.7).
const groupsPerSocket = 128

// set replaces the groups by those of these addresses.
func (g *groups) set(vips []netip.Addr) error {
	want := map[netip.Addr]bool{}
	for _, a := range vips {
		if a.Is6() {
			want[solicitedNode(a)] = true
		}
	}
	var errs []error
	for group, fd := range g.where {
		if !want[group] {
			errs = append(errs, g.option(fd, unix.IPV6_LEAVE_GROUP, group))
			delete(g.where, group)
		}
	}
	for group := range want {
		if _, in := g.where[group]; in {
			continue
		}
		fd, err := g.room()
		if err == nil {
			err = g.option(fd, unix.IPV6_JOIN_GROUP, group)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		g.where[group] = fd
	}
	return errors.Join(errs...)
}

// room returns a socket that can join one more group.
func (g *groups) room() (fd int, err error) {
	in := map[int]int{}
	for _, fd := range g.where {
		in[fd]++
	}
	for _, fd := range g.sockets {
		if in[fd] < groupsPerSocket {
			return fd, nil
		}
	}
	fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket for multicast groups: %w", err)
	}
	g.sockets = append(g.sockets, fd)
	return fd, nil
}

func (g *groups) option(fd, option int, group netip.Addr) error {
	err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, option, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(g.index)})
	if err != nil {
		return fmt.Errorf("join or leave the group %s: %w", group, err)
	}
	return nil
}

// close leaves all groups.
func (g *groups) close() {
	for _, fd := range g.sockets {
		unix.Close(fd)
	}
	g.sockets, g.where = nil, map[netip.Addr]int{}
}
