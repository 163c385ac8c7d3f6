package netlab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is a network namespace with a name.
type Host struct {
	Name string // in the lab

	lab    *Lab
	ns     netns.NsHandle
	nl     *netlink.Handle
	ports  int            // interfaces given a name so far
	tables map[string]int // routing tables, by the source that each is for
	bridge netlink.Link   // of a switch
}

func (h *Host) create() error {
	ns, err := newNamespace(h.Namespace())
	if err != nil {
		return err
	}
	h.ns = ns
	// Routes only: by itself it also opens xfrm and netfilter, which some kernels lack.
	if h.nl, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	// The effective rp_filter is the larger of all's and the interface's, and
	// interfaces take over default's.
	for _, conf := range []string{"all", "default"} {
		h.Sysctl("net.ipv4.conf."+conf+".rp_filter", "0")
		h.Sysctl("net.ipv6.conf."+conf+".accept_dad", "0")
		h.Sysctl("net.ipv6.conf."+conf+".accept_ra", "0")
		h.Sysctl("net.ipv6.conf."+conf+".router_solicitations", "0")
	}
	// A router of the lab takes the hash that the sending socket gave a packet,
	// because it is still there, and Linux changes it with each retransmission
	// (since 5.18 unless told not to): flows would move between next hops.
	h.Sysctl("net.core.txrehash", "0")
	return os.MkdirAll(h.Dir(), 0o755)
}

// release closes what the host holds open, so that its namespace can go.
func (h *Host) release() {
	if h.nl != nil {
		h.nl.Close()
	}
	if h.ns.IsOpen() {
		h.ns.Close()
	}
}

// Namespace returns the name under /run/netns, as ip and nsenter take it.
func (h *Host) Namespace() string { return h.lab.prefix + "-" + h.Name }

// Dir returns a directory of the host's own, removed with the lab.
func (h *Host) Dir() string { return filepath.Join(h.lab.dir, h.Name) }

// BPFFS returns the directory of a BPF file system of the host's own. What is
// pinned there goes with the lab.
func (h *Host) BPFFS() string {
	dir := filepath.Join(h.Dir(), "bpf")
	h.lab.try(func() error {
		if err := os.Mkdir(dir, 0o700); os.IsExist(err) {
			return nil
		} else if err != nil {
			return err
		}
		return unix.Mount("bpf", dir, "bpf", 0, "")
	}, "host %s: BPF file system", h.Name)
	return dir
}

// Do runs f with the thread in the host's namespace. Sockets and processes that
// f makes are the host's. Goroutines that f starts are not in the namespace.
func (h *Host) Do(f func() error) error {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("own network namespace: %w", err)
	}
	defer own.Close()
	if err := unix.Setns(int(h.ns), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace of %s: %w", h.Name, err)
	}
	// Deferred, because f may panic or end its test. A thread that cannot return
	// stays locked and ends with its goroutine.
	defer func() {
		if unix.Setns(int(own), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Sysctl writes a kernel setting. Its parts are separated by dots, or by slashes
// when one of them has a dot.
func (h *Host) Sysctl(key, value string) {
	h.lab.try(func() error {
		return h.Do(func() error { return os.WriteFile(sysctlPath(key), []byte(value), 0o644) })
	}, "host %s: sysctl %s=%s", h.Name, key, value)
}

func sysctlPath(key string) string {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	return filepath.Join("/proc/sys", key)
}

// Address adds addresses (10.0.0.1/24) to an interface of the host. They can be
// used at once: there is no duplicate address detection.
func (h *Host) Address(dev string, addresses ...string) {
	for _, address := range addresses {
		h.lab.try(func() error {
			a, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD
			}
			link, err := h.nl.LinkByName(dev)
			if err != nil {
				return err
			}
			return h.nl.AddrAdd(link, a)
		}, "host %s: address %s on %s", h.Name, address, dev)
	}
}

// Route adds a route to a prefix ("default" is everything of the next hop's
// family). Over several next hops it is an ECMP route.
func (h *Host) Route(prefix string, nexthops ...string) {
	h.lab.try(func() error {
		route, err := parseRoute(prefix, nexthops)
		if err != nil {
			return err
		}
		return h.nl.RouteReplace(route)
	}, "host %s: route %s via %v", h.Name, prefix, nexthops)
}

// RouteFrom adds a route for packets from one of the host's own addresses only, or
// from a prefix where the host is a router. Given again, it replaces the one before.
func (h *Host) RouteFrom(source, prefix string, nexthops ...string) {
	h.lab.try(func() error {
		route, err := parseRoute(prefix, nexthops)
		if err != nil {
			return err
		}
		rule := netlink.NewRule()
		if rule.Src, err = netlink.ParseIPNet(source); err != nil {
			return err
		}
		if rule.Src.IP.To4() == nil {
			rule.Family = netlink.FAMILY_V6
		}
		// A table of its own for each source, above the kernel's (253 to 255).
		table, known := h.tables[source]
		if !known {
			table = 1001 + len(h.tables)
			if h.tables == nil {
				h.tables = map[string]int{}
			}
			h.tables[source] = table
		}
		route.Table, rule.Table = table, table
		if err := h.nl.RouteReplace(route); err != nil || known {
			return err
		}
		return h.nl.RuleAdd(rule)
	}, "host %s: route %s from %s via %v", h.Name, prefix, source, nexthops)
}

func parseRoute(prefix string, nexthops []string) (*netlink.Route, error) {
	route := &netlink.Route{}
	for _, nexthop := range nexthops {
		gw := net.ParseIP(nexthop)
		if gw == nil {
			return nil, fmt.Errorf("next hop %q is not an address", nexthop)
		}
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: gw})
	}
	switch len(nexthops) {
	case 0:
		return nil, fmt.Errorf("no next hop")
	case 1:
		route.Gw, route.MultiPath = route.MultiPath[0].Gw, nil
	}
	if prefix == "default" {
		prefix = "0.0.0.0/0"
		if net.ParseIP(nexthops[0]).To4() == nil {
			prefix = "::/0"
		}
	}
	_, dst, err := net.ParseCIDR(prefix)
	route.Dst = dst
	return route, err
}

// Neighbor adds a permanent neighbor, so that no host has to ask for it.
func (h *Host) Neighbor(dev, address string, mac net.HardwareAddr) {
	h.lab.try(func() error {
		link, err := h.nl.LinkByName(dev)
		if err != nil {
			return err
		}
		return h.nl.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(address), HardwareAddr: mac})
	}, "host %s: neighbor %s on %s", h.Name, address, dev)
}
