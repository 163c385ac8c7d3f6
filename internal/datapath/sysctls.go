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

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// sysctl is a setting of the kernel for one interface, and the value that it must have.
type sysctl struct {
	file, value string
	not         string // the only value that is wrong; empty: every other value is
}

// wantedSysctls let the kernel's routing table be used for NAT replies that come in on an
// interface: bpf_fib_lookup answers only where forwarding is on. They are only for families that
// have replies: switching forwarding on for IPv6 makes the kernel forget default routes that it has
// from advertisements, on any interface.
func (d *Datapath) wantedSysctls(flags uint32, services []*service) (wanted []sysctl) {
	if flags&uint32(abi.SettingsFlagSETTINGS_REPLIES) == 0 {
		return nil
	}
	replies4, replies6, owns := haveReplies(services, true), haveReplies(services, false), ownsVIP(services)
	for _, name := range slices.Concat(d.own, slices.Sorted(maps.Keys(d.takesReplies)), taggedReplies(services)) {
		if replies4 {
			wanted = append(wanted, sysctlOf("1", "ipv4", "conf", name, "forwarding"))
			// Replies without a known neighbor reach the kernel with the VIP as their source. If
			// the VIP is an address of this host, the kernel would take them for forged.
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

// wrong returns the value, if it is not as it has to be.
func (s *sysctl) wrong() (value string, is bool) {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return "", false // the interface is gone, or the host lacks the family
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

// switchOn sets settings that are wanted from now on. Those that were wanted before are left to
// Parts: another program has changed them.
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

// sysctlDifferences are the settings that other programs have changed. (RTNLGRP_..._NETCONF reports
// only forwarding, and not which program changed it.)
func (d *Datapath) sysctlDifferences() (found []upkeep.Difference, err error) {
	for s := range d.sysctls {
		if value, wrong := s.wrong(); wrong {
			what := strings.ReplaceAll(strings.TrimPrefix(s.file, "/proc/sys/"), "/", ".")
			found = append(found, upkeep.Difference{What: what, Found: fmt.Sprintf("is %s instead of %s", value, s.value), Repair: s.set})
		}
	}
	return found, nil
}

// haveReplies says whether services of a family have backends of mode nat.
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

// taggedReplies are the VLAN interfaces by which the kernel gets replies of nat: it has to route
// packets that come with a tag (bpf/director/nat/nat.h, find_route).
func taggedReplies(services []*service) (names []string) {
	seen, known := map[int]bool{}, map[uint32]string{}
	for _, s := range services {
		for _, b := range s.order {
			if b.vlan == 0 || b.desired.Mode != model.NAT || seen[b.link] {
				continue
			}
			seen[b.link] = true
			if name := device.NameOf(uint32(b.link), known); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}
