package main

import (
	"fmt"
	"net"
	"net/netip"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/neighbor"
)

// examineAnswers looks at what a director that answers for VIPs itself needs of this host.
func examineAnswers(c *model.Config) []doctor.Finding {
	n := &c.Director.Neighbor
	if !n.Given() {
		return nil
	}
	finding := func(level doctor.Level, fix, format string, args ...any) doctor.Finding {
		return doctor.Finding{Level: level, Check: "neighbor", Text: fmt.Sprintf(format, args...), Fix: fix}
	}
	var findings []doctor.Finding
	for i := range n.Interfaces {
		name := n.Interfaces[i].Name
		if prefixes, problem := neighbor.Examine(&n.Interfaces[i]); problem != "" {
			findings = append(findings, finding(doctor.Fail, "", "no VIP is answered for on %s: %s", name, problem))
		} else {
			findings = append(findings, finding(doctor.OK, "", "VIPs in %s are answered for on %s", list(prefixes), name))
		}
	}
	if c.Director.Store.Etcd.Given() {
		if own, _, err := divideGroup(c.Director.Group); err != nil || len(own) == 0 {
			findings = append(findings, finding(doctor.Fail, "put this host's address in director.group", "none of the addresses in director.group is this host's, so it answers for nothing"))
		}
	}
	return append(findings, examineTaken(c)...)
}

// examineTaken looks for VIPs that the kernel answers for, too.
func examineTaken(c *model.Config) (findings []doctor.Finding) {
	if !c.Director.Neighbor.Given() {
		return nil
	}
	for _, a := range vipsOnInterfaces(c.Services) {
		findings = append(findings, doctor.Finding{Level: doctor.Fail, Check: "neighbor", Fix: fmt.Sprintf("ip addr del %s dev %s", a.prefix, a.name),
			Text: fmt.Sprintf("%s is an address of %s: the kernel answers for it also when another director owns it", a.prefix.Addr(), a.name)})
	}
	return findings
}

// hostAddress is an address of an interface of this host.
type hostAddress struct {
	prefix netip.Prefix
	name   string
}

// vipsOnInterfaces returns the VIPs that this host has as addresses, where the kernel would answer
// for them. On lo they are for a backend, whose agent sees to it that the kernel does not answer.
func vipsOnInterfaces(services []model.Service) (found []hostAddress) {
	vips := map[netip.Addr]bool{}
	for i := range services {
		vips[services[i].VIP] = true
	}
	interfaces, _ := net.Interfaces() // without a list nothing is found
	for i := range interfaces {
		if interfaces[i].Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, _ := interfaces[i].Addrs()
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && vips[prefix.Addr()] {
				found = append(found, hostAddress{prefix, interfaces[i].Name})
			}
		}
	}
	return found
}
