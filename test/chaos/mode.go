package main

import (
	"fmt"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// mode is a way to bring packets to backends: one of weir's, or a rival's.
type mode struct {
	name string
	weir model.Mode
	// policy is the policy of the TCP service.
	policy model.Policy
	snat   bool
	agent  bool // weir agent runs on the backends' hosts
	// forgetful is a plain Maglev: no old generation is kept, and agents pass no packets on.
	forgetful bool
	// redirects: the client's host has an agent, too.
	redirects bool
	dnat      bool // no weir at all
	what      string
}

// modes are the modes that --mode accepts.
var modes = []mode{
	{name: "gue", weir: model.GUE, agent: true, what: "weir: GUE tunnels to agents"},
	{name: "p2c", weir: model.GUE, policy: model.P2C, agent: true, what: "weir: the same, new TCP connections by load"},
	{name: "ipip", weir: model.IPIP, agent: true, what: "weir: IPIP tunnels, undone by agents that do nothing else"},
	{name: "round-robin", weir: model.IPIP, policy: model.RoundRobin, agent: true, what: "weir: the same, new TCP connections in turn"},
	{name: "redirect", weir: model.Redirect, policy: model.RoundRobin, agent: true, redirects: true, what: "weir: new TCP connections in turn, handed over; GUE tunnels for what is not"},
	{name: "l2dsr", weir: model.L2DSR, agent: true, what: "weir: the backend's MAC address"},
	{name: "nat", weir: model.NAT, what: "weir: the backend's address, replies through a director"},
	{name: "snat", weir: model.NAT, snat: true, what: "weir: full NAT"},
	{name: "maglev", weir: model.GUE, agent: true, forgetful: true, what: "weir as a plain Maglev without memory, for comparison"},
	{name: "dnat", dnat: true, what: "iptables DNAT with conntrack, for comparison"},
}

func findMode(name string) (mode, error) {
	i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
	if i < 0 {
		return mode{}, fmt.Errorf("unknown mode %q; there are %s", name, modeNames())
	}
	return modes[i], nil
}

// findModes returns the modes of a comma-separated list.
func findModes(names string) ([]mode, error) {
	var list []mode
	for name := range strings.SplitSeq(names, ",") {
		m, err := findMode(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

func modeNames() string {
	var names []string
	for _, m := range modes {
		names = append(names, m.name)
	}
	return strings.Join(names, ", ")
}

// of returns the mode of a protocol's services.
func (m mode) of(p model.Protocol) model.Mode {
	if m.redirects && p == model.UDP {
		return model.DefaultFallback
	}
	return m.weir
}

// translates reports whether backends have ports of their own.
func (m mode) translates() bool { return m.weir == model.NAT }

// hidesClients reports whether backends see a director in the client's place.
func (m mode) hidesClients() bool { return m.snat || m.dnat }

// viaGroup reports whether replies must be routed through a director.
func (m mode) viaGroup() bool { return m.translates() && !m.snat }
