package datapath

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// sysctl is a setting of the kernel for one interface, and the value that it has to have.
type sysctl struct {
	file, value string
	not         string // the only value that is wrong; empty: all others are
}

// wantedSysctls let the kernel's routing table be used for NAT replies that come in on an
// interface: bpf_fib_lookup answers only where forwarding is on. Only for families that have
// replies: switching it on for IPv6 makes the kernel forget default routes that it has from
// advertisements, on any interface.
func (d *Datapath) wantedSysctls(flags uint32, services []*service) (wanted []sysctl) {
	if flags&uint32(directorSettingsFlagSETTINGS_REPLIES) == 0 {
		return nil
	}
	replies4, replies6, owns := haveReplies(services, true), haveReplies(services, false), ownsVIP(services)
	for _, name := range slices.Concat(d.own, slices.Sorted(maps.Keys(d.takesReplies)), taggedReplies(services)) {
		if replies4 {
			wanted = append(wanted, sysctlOf("1", "ipv4", "conf", name, "forwarding"))
			// Replies for which there is no neighbour yet reach the kernel as the VIP's. Where that
			// is an address of this host, it would take them for forged.
			if owns {
				wanted = append(wanted, sysctlOf("1", "ipv4", "conf", name, "accept_local"))
			}
		}
		if replies6 {
			// A router does not learn routes from advertisements unless told to (accept_ra 2).
			learns := sysctlOf("2", "ipv6", "conf", name, "accept_ra")
			learns.not = "1"
			wanted = append(wanted, learns, sysctlOf("1", "ipv6", "conf", name, "forwarding"))
		}
	}
	return wanted
}

func sysctlOf(value string, path ...string) sysctl {
	return sysctl{file: filepath.Join(append([]string{"/proc/sys/net"}, path...)...), value: value}
}

// wrong returns the value, if it is another one than it has to be.
func (s *sysctl) wrong() (value string, is bool) {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return "", false // of an interface that is gone, or a family that the host has not
	}
	value = strings.TrimSpace(string(text))
	return value, value != s.value && (s.not == "" || value == s.not)
}

func (s *sysctl) set() error {
	if err := os.WriteFile(s.file, []byte(s.value), 0); err != nil {
		return fmt.Errorf("switch forwarding on for NAT replies: %w", err)
	}
	return nil
}

// switchOn sets what is wanted from now on. What has been already is left to Parts: somebody has
// changed it.
func (d *Datapath) switchOn(wanted []sysctl) {
	kept := make(map[sysctl]bool, len(wanted))
	for _, s := range wanted {
		kept[s] = true
		value, wrong := s.wrong()
		if d.sysctls[s] || !wrong {
			continue
		}
		if err := s.set(); err != nil {
			d.log.Warn("switch forwarding on for NAT replies", "file", s.file, "error", err)
			continue
		}
		d.log.Info("switched on for NAT replies", "file", s.file, "was", value)
	}
	d.sysctls = kept
}

// sysctlDifferences are those that somebody has changed. (RTNLGRP_..._NETCONF tells of forwarding
// alone, and not who.)
func (d *Datapath) sysctlDifferences() (found []upkeep.Difference, err error) {
	for s := range d.sysctls {
		if value, wrong := s.wrong(); wrong {
			what := strings.ReplaceAll(strings.TrimPrefix(s.file, "/proc/sys/"), "/", ".")
			found = append(found, upkeep.Difference{What: what, Found: fmt.Sprintf("is %s instead of %s", value, s.value), Repair: s.set})
		}
	}
	return found, nil
}

// haveReplies says whether services of a family have backends that are nat.
func haveReplies(services []*service, is4 bool) bool {
	return slices.ContainsFunc(services, func(s *service) bool {
		return s.key.vip.Is4() == is4 && slices.ContainsFunc(s.order, func(b *backend) bool { return b.desired.Mode == model.NAT })
	})
}

// ownsVIP reports whether the IPv4 VIP of a service with replies is an address of this host.
func ownsVIP(services []*service) bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	own := map[netip.Addr]bool{}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			own[p.Addr()] = true
		}
	}
	return slices.ContainsFunc(services, func(s *service) bool {
		return own[s.key.vip] && slices.ContainsFunc(s.order, func(b *backend) bool { return b.desired.Mode == model.NAT })
	})
}

// taggedReplies are the VLAN interfaces that the kernel gets replies of nat by: what comes with a
// tag it has to route (bpf/nat.h, find_route).
func taggedReplies(services []*service) (names []string) {
	seen, known := map[int]bool{}, map[uint32]string{}
	for _, s := range services {
		for _, b := range s.order {
			if b.vlan == 0 || b.desired.Mode != model.NAT || seen[b.link] {
				continue
			}
			seen[b.link] = true
			if name := interfaceName(uint32(b.link), known); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}
