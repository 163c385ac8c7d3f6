package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// examineBGP looks at what a session with each neighbor needs of this host. It asks no
// neighbor: a director may have a session with it, which a second one would disturb.
func examineBGP(b *model.BGP) []doctor.Finding {
	var findings []doctor.Finding
	for i := range b.Neighbors {
		findings = append(findings, examineNeighbor(&b.Neighbors[i]))
	}
	if len(b.Listen) > 0 {
		if who, is := stranger(holdersOf("tcp", model.DefaultBGPPort)); is {
			findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: "bgp", Text: fmt.Sprintf("TCP port %d, for passive neighbors, is held by %v", model.DefaultBGPPort, who),
				Fix: "see that it does not listen at the addresses of bgp.listen"})
		}
	}
	return findings
}

func examineNeighbor(n *model.BGPNeighbor) doctor.Finding {
	bad := func(level doctor.Level, fix, format string, args ...any) doctor.Finding {
		return doctor.Finding{Level: level, Check: "bgp", Text: fmt.Sprintf("neighbor %s: ", n.Name()) + fmt.Sprintf(format, args...), Fix: fix}
	}
	if err := bgp.CheckPassword(n); err != nil {
		return bad(doctor.Fail, passwordFix, "%v", err)
	}
	if on := n.On(); on != "" {
		if err := linkLocalOn(on); err != nil {
			return bad(doctor.Fail, "see that the interface is there and up, with IPv6 (net.ipv6.conf."+on+".disable_ipv6=0)", "%v", err)
		}
		if n.Interface != "" {
			return doctor.Finding{Level: doctor.OK, Check: "bgp", Text: fmt.Sprintf("neighbor %s, AS %d, whatever router advertises itself there", n.Name(), n.ASN)}
		}
	}
	local, err := localAddress(n)
	if err != nil {
		return bad(doctor.Fail, "add a route, or see that bgp.neighbors has the right address and source", "%v", err)
	}
	if info, err := os.Stat(n.PasswordFile); err == nil && info.Mode().Perm()&othersRead != 0 {
		return bad(doctor.Warn, "chmod o= "+n.PasswordFile, "everybody on this host can read its password in %s", n.PasswordFile)
	}
	return doctor.Finding{Level: doctor.OK, Check: "bgp", Text: fmt.Sprintf("neighbor %s, AS %d, from %s", n.Name(), n.ASN, local)}
}

// linkLocalOn returns why routers cannot be reached on an interface by link-local addresses; nil:
// they can.
func linkLocalOn(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("there is no interface %s", name)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", name, err)
	}
	for _, a := range addresses {
		if prefix, is := a.(*net.IPNet); is && prefix.IP.To4() == nil && prefix.IP.IsLinkLocalUnicast() {
			return nil
		}
	}
	return fmt.Errorf("%s has no link-local address", name)
}

// localAddress returns this end of a session, without opening one: connecting a datagram socket
// only looks at the routes.
func localAddress(n *model.BGPNeighbor) (netip.Addr, error) {
	dialer := net.Dialer{}
	if n.Source != nil {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(*n.Source, 0))
	}
	conn, err := dialer.Dial("udp", netip.AddrPortFrom(n.Address, n.Port).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
