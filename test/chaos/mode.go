package main

import (
	"fmt"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
)

// mode is a way to bring packets to backends: one of weir's, or a rival's.
type mode struct {
	name  string
	weir  model.Mode
	snat  bool
	agent bool // weir agent is on the backends' hosts
	// forgetful is a plain Maglev: no generation stays, and agents keep what they get.
	forgetful bool
	what      string
}

// modes are those that --mode takes.
var modes = []mode{
	{name: "gue", weir: model.GUE, agent: true, what: "GUE tunnels to agents"},
	{name: "ipip", weir: model.IPIP, agent: true, what: "IPIP tunnels, undone by agents that do nothing else"},
	{name: "l2dsr", weir: model.L2DSR, agent: true, what: "the backend's MAC address"},
	{name: "nat", weir: model.NAT, what: "the backend's address, replies through a director"},
	{name: "snat", weir: model.NAT, snat: true, what: "full NAT"},
	{name: "maglev", weir: model.GUE, agent: true, forgetful: true, what: "a plain Maglev without memory, for comparison"},
}

func findMode(name string) (mode, error) {
	i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
	if i < 0 {
		return mode{}, fmt.Errorf("unknown mode %q; there are %s", name, modeNames())
	}
	return modes[i], nil
}

func modeNames() string {
	var names []string
	for _, m := range modes {
		names = append(names, m.name)
	}
	return strings.Join(names, ", ")
}

// translates reports whether backends have ports of their own.
func (m mode) translates() bool { return m.weir == model.NAT }

// viaGroup reports whether replies must be routed through a director.
func (m mode) viaGroup() bool { return m.translates() && !m.snat }
