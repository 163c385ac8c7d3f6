package model

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// The largest limits. An index of a backend has to leave room for flags, and larger limits have
// never been tried.
const (
	MaxServices   = 65536
	MaxBackends   = 1 << 20
	MaxRingMemory = 64 << 30
	MaxFragments  = 1 << 20
	MinFlows      = 1024
	MaxFlows      = 1 << 28
	MinUDPFlows   = 1024
	MaxUDPFlows   = 1 << 24

	MaxSourceRanges = 1 << 20
)

// Full NAT uses ports by the bucket, and names its addresses in a header as large
// as one (SNAT_SOURCES_MAX, SNAT_BUCKET in bpf/abi/snat_types.h).
const (
	maxSNATAddresses = 62
	minSNATPorts     = 16
)

// maxInterfaceName is IFNAMSIZ - 1 (linux/if.h).
const maxInterfaceName = 15

// director checks what one director is told about itself.
func (v *validation) director() {
	d := &v.config.Director
	v.interfaces("director.interfaces", d.Interfaces)
	v.interfaces("director.reply-interfaces", d.ReplyInterfaces)
	for i, name := range d.ReplyInterfaces {
		if at := slices.Index(d.Interfaces, name); at >= 0 {
			v.errs.addWithOther(fmt.Sprintf("director.reply-interfaces[%d]", i), fmt.Sprintf("director.interfaces[%d]", at),
				"%q is one of director.interfaces, where replies are taken anyway", name)
		}
	}
	switch d.XDP {
	case XDPAuto, XDPNative, XDPGeneric:
	default:
		v.errs.add("director.xdp", "unknown xdp mode %q (one of auto, generic, native)", d.XDP)
	}
	v.tunnelSource()
	v.snat()
	v.group()
	v.limit("director.limits.services", uint64(d.Limits.Services), 1, MaxServices)
	v.limit("director.limits.backends", uint64(d.Limits.Backends), 1, MaxBackends)
	v.limit("director.limits.ring-memory", d.Limits.RingMemory, 4096, MaxRingMemory)
	v.limit("director.limits.fragments", uint64(d.Limits.Fragments), 1, MaxFragments)
	v.limit("director.limits.flows", uint64(d.Limits.Flows), MinFlows, MaxFlows)
	v.limit("director.limits.source-ranges", uint64(d.Limits.SourceRanges), 1, MaxSourceRanges)
	v.prefixes("director.kernel-sources", d.KernelSources)
	v.owners()
	v.answering()
	v.store()
}

func (v *validation) limit(path string, value, low, high uint64) {
	if value < low || value > high {
		v.errs.add(path, "%d is out of range %d to %d", value, low, high)
	}
}

func (v *validation) agent() {
	v.interfacePatterns("agent.interfaces", v.config.Agent.Interfaces)
	v.interfacePatterns("agent.reply-interfaces", v.config.Agent.ReplyInterfaces)
	v.namespaces()
	v.prefixes("agent.guests", v.config.Agent.Guests)
	v.agentStore()
	if flows := v.config.Agent.UDPFlows; flows != nil && *flows != 0 {
		v.limit("agent.udp-flows", uint64(*flows), MinUDPFlows, MaxUDPFlows)
	}
}

// MaxNamespaces bounds Agent.Namespaces: all of them are searched for a packet whose connection is
// in none.
const MaxNamespaces = 16

func (v *validation) namespaces() {
	names := v.config.Agent.Namespaces
	if len(names) > MaxNamespaces {
		v.errs.add("agent.namespaces", "are %d, at most %d are looked at", len(names), MaxNamespaces)
	}
	seen := make(map[string]int, len(names))
	for i, name := range names {
		at := fmt.Sprintf("agent.namespaces[%d]", i)
		if name == "" || name == "." || name == ".." || !strings.HasPrefix(name, "/") && strings.Contains(name, "/") {
			v.errs.add(at, "%q is neither a name of ip netns nor a path from the root", name)
		}
		if first, dup := seen[name]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("agent.namespaces[%d]", first), "%q is named twice", name)
			continue
		}
		seen[name] = i
	}
}

// interfacePatterns checks names of interfaces that may be patterns.
func (v *validation) interfacePatterns(path string, names []string) {
	v.interfaces(path, names)
	for i, name := range names {
		if _, err := filepath.Match(name, ""); err != nil {
			v.errs.add(fmt.Sprintf("%s[%d]", path, i), "%q is no pattern: %v", name, err)
		}
	}
}

// IsInterfacePattern reports whether a name of interfaces is a pattern (path/filepath.Match), which
// any number of interfaces may match, also none.
func IsInterfacePattern(name string) bool { return strings.ContainsAny(name, `*?[\\`) }

func (v *validation) interfaces(path string, names []string) {
	seen := make(map[string]int, len(names))
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if problem := interfaceProblem(name); problem != "" {
			v.errs.add(at, "%s", problem)
		}
		if first, dup := seen[name]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("%s[%d]", path, first), "%q is named twice", name)
			continue
		}
		seen[name] = i
	}
}

// directors checks where agents accept tunnels from.
func (v *validation) directors() {
	v.prefixes("directors", v.config.Directors)
}

func (v *validation) prefixes(path string, list []netip.Prefix) {
	for i, p := range list {
		if problem := prefixProblem(p); problem != "" {
			v.errs.add(fmt.Sprintf("%s[%d]", path, i), "%s %s", prefixText(p), problem)
		}
	}
}

// tunnelSource checks the outer source addresses, also against what agents
// would accept: a source outside it loses every packet, silently.
func (v *validation) tunnelSource() {
	first := make(map[bool]int)
	for i, p := range v.config.Director.TunnelSource {
		at := fmt.Sprintf("director.tunnel-source[%d]", i)
		if problem := prefixProblem(p); problem != "" {
			v.errs.add(at, "%s %s", prefixText(p), problem)
			continue
		}
		if j, dup := first[p.Addr().Is4()]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("director.tunnel-source[%d]", j),
				"%s is the second %s prefix; one per family", p, family(p.Addr()))
			continue
		}
		first[p.Addr().Is4()] = i
		if len(v.config.Directors) > 0 && !covered(p, v.config.Directors) {
			v.errs.addWithOther(at, "directors",
				"%s is not inside any prefix of directors, so agents would drop what comes from it", p)
		}
	}
}

func covered(p netip.Prefix, by []netip.Prefix) bool {
	for _, b := range by {
		if b.IsValid() && b.Bits() <= p.Bits() && b.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

func prefixProblem(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "is not an address or prefix"
	case p.Bits() == 0:
		return "is every address there is"
	case p.Masked() != p:
		return fmt.Sprintf("has bits beyond its length; write %s, or %s for one address", p.Masked(), p.Addr())
	}
	return addressProblem(p.Addr())
}

// prefixText writes one address without its length, as a file would have it.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// maxGroup is GROUP_MAX in bpf/abi/types.h.
const maxGroup = 64

// group checks the directors among which fragments are divided; ownAddresses()
// compares them with VIPs.
func (v *validation) group() {
	group := v.config.Director.Group
	if len(group) > maxGroup {
		v.errs.add("director.group", "%d are more than %d", len(group), maxGroup)
	}
	seen := make(map[netip.Addr]int, len(group))
	for i, a := range group {
		at := fmt.Sprintf("director.group[%d]", i)
		if problem := addressProblem(a); problem != "" {
			v.errs.add(at, "%s %s", a, problem)
			continue
		}
		if first, dup := seen[a]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("director.group[%d]", first), "%s is named twice", a)
			continue
		}
		seen[a] = i
	}
}

// snat checks full NAT's source addresses by themselves; ownAddresses() compares
// them with VIPs.
func (v *validation) snat() {
	s := &v.config.Director.SNAT
	seen := make(map[netip.Addr]int, len(s.Addresses))
	for i, a := range s.Addresses {
		at := fmt.Sprintf("director.snat.addresses[%d]", i)
		if problem := addressProblem(a); problem != "" {
			v.errs.add(at, "%s %s", a, problem)
			continue
		}
		if first, dup := seen[a]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("director.snat.addresses[%d]", first), "%s is named twice", a)
			continue
		}
		seen[a] = i
	}
	if len(s.Addresses) > maxSNATAddresses {
		v.errs.add("director.snat.addresses", "%d are more than %d", len(s.Addresses), maxSNATAddresses)
	}
	switch {
	case s.Ports.First == 0 || s.Ports.Last < s.Ports.First:
		v.errs.add("director.snat.ports", "%s is not a range of ports from 1 to 65535", s.Ports)
	case int(s.Ports.Last)-int(s.Ports.First)+1 < minSNATPorts:
		v.errs.add("director.snat.ports", "%s are fewer than %d ports", s.Ports, minSNATPorts)
	}
}

// interfaceProblem says why an interface cannot have a name, or nothing.
func interfaceProblem(name string) string {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n"):
		return fmt.Sprintf("%q is not a name that an interface can have", name)
	case len(name) > maxInterfaceName:
		return fmt.Sprintf("%q is longer than the %d bytes of an interface name", name, maxInterfaceName)
	}
	return ""
}
