package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Director is what one director must know about itself.
type Director struct {
	Interfaces []string `json:"interfaces"` // where clients' packets come in
	// ReplyInterfaces are further interfaces, by which full NAT's replies come, and whose driver
	// runs no program: those of overlays.
	ReplyInterfaces []string       `json:"reply-interfaces,omitempty"`
	XDP             XDPMode        `json:"xdp,omitempty"`           // how to attach; default auto
	TunnelSource    []netip.Prefix `json:"tunnel-source,omitempty"` // outer source per family; default: the egress interface's address
	SNAT            SNAT           `json:"snat"`
	ICMPRate        uint32         `json:"icmp-rate,omitempty"` // generated ICMP errors per second and CPU
	Limits          Limits         `json:"limits"`
	Steering        Steering       `json:"steering,omitzero"`
	FanOut          FanOut         `json:"fan-out,omitzero"` // other CPUs that get packets
	Group           []netip.Addr   `json:"group,omitempty"`  // of all directors of the group, including this one, on the link that they share
	// FlowPort is the TCP port at which the group's directors tell each other what they remember of
	// flows; 0: they do not. nil: the default.
	FlowPort *uint16 `json:"flow-port,omitempty"`
	// Neighbor is how the director answers for VIPs itself, where there is no router to tell.
	Neighbor Neighbor `json:"neighbor,omitzero"`
	// VTEP is where tunnels of tenants' networks in VXLAN and Geneve end.
	VTEP VTEP `json:"vtep,omitzero"`
	// KernelSources are the sources whose packets it leaves to its kernel, for services with the
	// key of the same name.
	KernelSources []netip.Prefix `json:"kernel-sources,omitempty"`
	// Owners bound the sets of some owners, when they are put.
	Owners []OwnerLimits `json:"owners,omitempty"`
	// SegmentLimits bound each segment that has no limits of its own, but for none.
	SegmentLimits SegmentLimits `json:"segment-limits,omitzero"`
	// ExecChecks says how the programs of checks run; nil: by the defaults.
	ExecChecks *ExecChecks `json:"exec-checks,omitempty"`
	Store      Store       `json:"store,omitzero"`
}

// The defaults of a director's keys.
const (
	DefaultICMPRate     = 1000 // as Linux's net.ipv4.icmp_msgs_per_sec
	DefaultServices     = 4096
	DefaultBackends     = 65536
	DefaultRingMemory   = 64 << 20
	DefaultFragments    = 65536
	DefaultFlows        = 1 << 20
	DefaultFlowPort     = 6082
	DefaultSourceRanges = 65536
)

// SNAT is where full NAT takes source addresses and ports from.
type SNAT struct {
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Ports     PortRange    `json:"ports,omitzero"`
	// Announce has the director announce the addresses, and those of the directors whose flows it
	// knows: these come to it if their own director is lost.
	Announce bool `json:"announce,omitempty"`
}

// Limits bound the kernel memory that a director may take. They are fixed when
// the maps are made.
type Limits struct {
	Services   uint32 `json:"services,omitempty"`    // services
	Backends   uint32 `json:"backends,omitempty"`    // backends, counted once per service
	RingMemory uint64 `json:"ring-memory,omitempty"` // bytes of all rings, old and new
	Fragments  uint32 `json:"fragments,omitempty"`   // fragmented packets under way
	Flows      uint32 `json:"flows,omitempty"`       // flows that are remembered, on all CPUs together
	// SourceRanges are the prefixes in source-ranges of all services together.
	SourceRanges uint32 `json:"source-ranges,omitempty"`
}

// XDPMode is how the director's program is attached.
type XDPMode string

// The ways to attach.
const (
	XDPAuto    XDPMode = "auto"    // native, or generic where the driver has no XDP
	XDPNative  XDPMode = "native"  // native or an error
	XDPGeneric XDPMode = "generic" // generic: slow, but everywhere
)

var xdpModeNames = names[XDPMode]{kind: "xdp mode", list: []name[XDPMode]{{XDPAuto, "auto"}, {XDPNative, "native"}, {XDPGeneric, "generic"}}}

// Names returns all names.
func (XDPMode) Names() []string { return xdpModeNames.texts() }

// DefaultSNATPorts ends where Linux's default range of ephemeral ports begins
// (net.ipv4.ip_local_port_range, 32768-60999): a connection that the director's
// host itself opens from the same address can then never have a source port that
// full NAT gave to a client's connection.
var DefaultSNATPorts = PortRange{First: 1024, Last: 32767}

// FlowPortOrDefault returns the port at which the group's directors tell each other of flows; 0:
// they do not.
func (d *Director) FlowPortOrDefault() uint16 {
	if d.FlowPort == nil {
		return DefaultFlowPort
	}
	return *d.FlowPort
}

func (d *Director) setDefaults() {
	d.XDP = cmp.Or(d.XDP, XDPAuto)
	d.ICMPRate = cmp.Or(d.ICMPRate, DefaultICMPRate)
	d.SNAT.Ports = cmp.Or(d.SNAT.Ports, DefaultSNATPorts)
	d.Limits.setDefaults()
	d.Store.Etcd.setDefaults()
	d.Neighbor.setDefaults()
	d.Steering.setDefaults()
	d.VTEP.setDefaults()
	if d.Interfaces == nil {
		d.Interfaces = []string{}
	}
}

func (l *Limits) setDefaults() {
	l.Services = cmp.Or(l.Services, DefaultServices)
	l.Backends = cmp.Or(l.Backends, DefaultBackends)
	l.RingMemory = cmp.Or(l.RingMemory, DefaultRingMemory)
	l.Fragments = cmp.Or(l.Fragments, DefaultFragments)
	l.Flows = cmp.Or(l.Flows, DefaultFlows)
	l.SourceRanges = cmp.Or(l.SourceRanges, DefaultSourceRanges)
}

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

// MostLimits bound services that no director's limits bound, or not yet.
var MostLimits = Limits{Services: MaxServices, Backends: MaxBackends, RingMemory: MaxRingMemory, Fragments: MaxFragments, SourceRanges: MaxSourceRanges}

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
	oneOf(v, "director.xdp", xdpModeNames, d.XDP)
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
	v.execChecks()
	v.answering()
	v.steering()
	if d.FanOut.Given() && d.Steering.Given() {
		v.errs.addWithOther("director.fan-out", "director.steering", "is for NICs with fewer receive queues than CPUs, and steering for those with more: one of them")
	}
	v.store()
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

// maxGroup is GROUP_MAX in bpf/abi/types.h.
const maxGroup = 64

// group checks the directors among which fragments are divided; ownAddresses()
// compares them with VIPs.
func (v *validation) group() {
	group := v.config.Director.Group
	if len(group) > maxGroup {
		v.errs.add("director.group", "%d are more than %d", len(group), maxGroup)
	}
	v.hosts("director.group", group)
}

// snat checks full NAT's source addresses by themselves; ownAddresses() compares
// them with VIPs.
func (v *validation) snat() {
	s := &v.config.Director.SNAT
	v.hosts("director.snat.addresses", s.Addresses)
	if len(s.Addresses) > maxSNATAddresses {
		v.errs.add("director.snat.addresses", "%d are more than %d", len(s.Addresses), maxSNATAddresses)
	}
	if s.Announce && !v.config.BGP.Given() && !v.config.Director.Neighbor.Given() {
		v.errs.add("director.snat.announce", "needs bgp or director.neighbor, by which addresses are announced")
	}
	if s.Announce && len(s.Addresses) == 0 {
		v.errs.add("director.snat.announce", "needs director.snat.addresses")
	}
	switch {
	case s.Ports.First == 0 || s.Ports.Last < s.Ports.First:
		v.errs.add("director.snat.ports", "%s is not a range of ports from 1 to 65535", s.Ports)
	case int(s.Ports.Last)-int(s.Ports.First)+1 < minSNATPorts:
		v.errs.add("director.snat.ports", "%s are fewer than %d ports", s.Ports, minSNATPorts)
	}
}

// ShareLimits bound how much of a director's limits something may take: an owner's set, or a segment. Zero
// is no bound.
type ShareLimits struct {
	Services     uint32 `json:"services,omitempty"`
	Backends     uint32 `json:"backends,omitempty"` // counted once per service
	RingMemory   uint64 `json:"ring-memory,omitempty"`
	SourceRanges uint32 `json:"source-ranges,omitempty"`
	// ProbesPerSecond is how many probes of health checks the intervals of all backends may ask for.
	ProbesPerSecond uint32 `json:"probes-per-second,omitempty"`
}

// Excess is a limit, and how much there would be of what it bounds.
type Excess struct {
	Limit     string // as director.limits has it
	Most, Has uint64
}

// amount writes the most that there may be: "1 service", "20 probes-per-second".
func (e *Excess) amount() string {
	what, per, of := strings.Cut(e.Limit, "-per-")
	if e.Most == 1 {
		what = strings.TrimSuffix(what, "s")
	}
	if of {
		what += "-per-" + per
	}
	return fmt.Sprintf("%d %s", e.Most, what)
}

// Exceeded returns the limits that a usage exceeds, and that it exceeds by more than it did before.
func (l *ShareLimits) Exceeded(now, before Usage) (all []Excess) {
	for _, one := range l.Each() {
		if has := now.Of(one.Limit); one.Most > 0 && has > one.Most && has > before.Of(one.Limit) {
			all = append(all, Excess{one.Limit, one.Most, has})
		}
	}
	return all
}

// Each returns all limits; Most is 0 where there is none.
func (l *ShareLimits) Each() []Excess {
	return []Excess{{"services", uint64(l.Services), 0}, {"backends", uint64(l.Backends), 0}, {"ring-memory", l.RingMemory, 0}, {"source-ranges", uint64(l.SourceRanges), 0},
		{"probes-per-second", uint64(l.ProbesPerSecond), 0}}
}

// OwnerLimits bound one owner's set.
type OwnerLimits struct {
	Owner       string `json:"owner"`
	ShareLimits `json:",inline"`
}

// Usage is how much of a director's limits services use.
type Usage struct {
	Services, Backends, RingMemory, SourceRanges uint64
	// ProbesPerHour are of all their backends: an interval may be long.
	ProbesPerHour uint64
}

// UsageOf counts what services use.
func UsageOf(services []Service) (t Usage) {
	t.Services, t.RingMemory = uint64(len(services)), Config{Services: services}.RingMemory()
	for i := range services {
		t.Backends += uint64(len(services[i].Backends))
		t.SourceRanges += uint64(len(services[i].SourceRanges))
		for j := range services[i].Backends {
			t.ProbesPerHour += services[i].probesPerHour(&services[i].Backends[j])
		}
	}
	return t
}

// Add adds what others use.
func (t *Usage) Add(more Usage) {
	t.Services += more.Services
	t.Backends += more.Backends
	t.RingMemory += more.RingMemory
	t.SourceRanges += more.SourceRanges
	t.ProbesPerHour += more.ProbesPerHour
}

// Of returns how much is used of the limit of this name, as director.limits has it.
func (t Usage) Of(limit string) uint64 {
	return map[string]uint64{"services": t.Services, "backends": t.Backends, "ring-memory": t.RingMemory, "source-ranges": t.SourceRanges, "probes-per-second": t.Probes()}[limit]
}

// Probes returns how many probes there are a second, a part of one as one.
func (t Usage) Probes() uint64 { return (t.ProbesPerHour + 3599) / 3600 }

// Refuse says how an owner's services exceed the limits of its set, or nothing.
func (l OwnerLimits) Refuse(services []Service) string {
	for _, e := range l.Exceeded(UsageOf(services), Usage{}) {
		return fmt.Sprintf("owner %q may have %s by director.owners, and this set has %d", l.Owner, e.amount(), e.Has)
	}
	return ""
}

// owners checks the owners whose sets have limits.
func (v *validation) owners() {
	first := map[string]int{}
	for i, o := range v.config.Director.Owners {
		path := fmt.Sprintf("director.owners[%d].owner", i)
		if err := CheckOwner(o.Owner); err != nil {
			v.errs.add(path, "%v", err)
		}
		if at, dup := first[o.Owner]; dup {
			v.errs.addWithOther(path, fmt.Sprintf("director.owners[%d].owner", at), "%q is already that of director.owners[%d]", o.Owner, at)
			continue
		}
		first[o.Owner] = i
	}
}

// RingMemory returns the bytes that the rings of all services take.
func (c Config) RingMemory() uint64 {
	sizes, total := ringSizes{}, uint64(0)
	for i := range c.Services {
		total += sizes.memory(&c.Services[i])
	}
	return total
}

// ringSizes are the sizes of default rings, by backends.
type ringSizes map[int]uint32

// memory returns the bytes that a service's ring takes.
func (sizes ringSizes) memory(s *Service) uint64 {
	size, n := s.RingSize, min(len(s.Backends), MaxRingSize/slotsPerBackend)
	if size == 0 && sizes[n] == 0 {
		sizes[n] = DefaultRingSize(n)
	}
	memory := ringMemory(cmp.Or(size, sizes[n])) + quicMemory(s)
	if s.Tiered() {
		memory *= 2 // the next ring of another tier has its place already
	}
	return memory
}

// RingMemoryTaken returns the bytes that a director takes for rings: besides what the limit counts, there
// is room for the owners of slots, two bytes for each slot of eight, and a line that is not full for
// each service.
func (l Limits) RingMemoryTaken() uint64 {
	return l.RingMemory/4*5 + uint64(l.Services)*ringLine
}

// Refuse returns which limits are exceeded, and by how much.
func (l Limits) Refuse(t Usage) (errs FieldErrors) {
	for _, one := range []struct {
		name       string
		most       uint64
		what, note string
	}{
		{"services", uint64(l.Services), "%d services are", ""},
		{"backends", uint64(l.Backends), "%d backends are", " (a backend counts once per service)"},
		{"source-ranges", uint64(l.SourceRanges), "%d source ranges are", ""},
		{"ring-memory", l.RingMemory, "rings of %d bytes are", ""},
	} {
		if n, limit := t.Of(one.name), "director.limits."+one.name; n > one.most {
			errs.addWithOther("services", limit, one.what+" more than "+limit+", %d"+one.note, n, one.most)
		}
	}
	return errs
}

// limits checks that the services fit in the memory that the director may take.
func (v *validation) limits() {
	usage := UsageOf(v.config.Services)
	usage.SourceRanges += uint64(len(v.config.Director.KernelSources))
	v.errs = append(v.errs, v.config.Director.Limits.Refuse(usage)...)
}
