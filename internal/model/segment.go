package model

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// VTEP is where tunnels of tenants' networks in VXLAN and Geneve end at a director. The zero value: nowhere.
type VTEP struct {
	Addresses  []netip.Addr `json:"addresses"`             // of this host: one, or one per family
	VLAN       uint16       `json:"vlan,omitempty"`        // tag of the frames that come to them; 0: none
	VXLANPort  uint16       `json:"vxlan-port,omitempty"`  // UDP
	GenevePort uint16       `json:"geneve-port,omitempty"` // UDP
	// Peers are VTEPs from which packets are taken, besides those of the hosts that are known.
	Peers []netip.Prefix `json:"peers,omitempty"`
}

// The UDP ports that IANA has assigned.
const (
	DefaultVXLANPort  = 4789
	DefaultGenevePort = 6081
)

// Given reports whether the director is a VTEP.
func (v *VTEP) Given() bool { return len(v.Addresses) > 0 }

// IsZero reports whether no key is given.
func (v VTEP) IsZero() bool {
	return !v.Given() && v.VLAN == 0 && v.VXLANPort == 0 && v.GenevePort == 0 && len(v.Peers) == 0
}

// Overhead is the OverlayOverhead of its tunnels: of its larger family.
func (v *VTEP) Overhead() int { return OverlayOverhead(v.Address(true).IsValid()) }

// OverlayOverhead is how many bytes there are between the beginnings of the outer IP header and of the one inside: IP,
// UDP (RFC 768), VXLAN (RFC 7348) or Geneve (RFC 8926), both without options, and Ethernet.
func OverlayOverhead(six bool) int {
	const ipv4, ipv6, udp, overlay, ethernet = 20, 40, 8, 8, 14
	if six {
		return ipv6 + udp + overlay + ethernet
	}
	return ipv4 + udp + overlay + ethernet
}

// Address returns the VTEP's address of a family; invalid: it has none.
func (v *VTEP) Address(six bool) netip.Addr {
	for _, a := range v.Addresses {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

func (v *VTEP) setDefaults() {
	if !v.Given() {
		return
	}
	if v.VXLANPort == 0 {
		v.VXLANPort = DefaultVXLANPort
	}
	if v.GenevePort == 0 {
		v.GenevePort = DefaultGenevePort
	}
}

// SegmentSettings are what a director knows of a tenant's network.
type SegmentSettings struct {
	ID Segment `json:"id"`
	// Interface is the director's interface on whose link a VLAN is: the trunk, or the VLAN's own; empty: the
	// first of the director's that has it.
	Interface string `json:"interface,omitempty"`
	// Addresses are this director's own in the network, one per family at most: those that it probes backends
	// from. No interface needs to have them.
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	MAC       MAC            `json:"mac,omitzero"`    // of this director in VXLAN and Geneve; zero: one that is made of its VTEP address
	VNI       uint32         `json:"vni,omitempty"`   // on the wire, if it is another one than the ID's
	MTU       uint16         `json:"mtu,omitempty"`   // largest IP packet in VXLAN and Geneve; 0: what the way to the VTEP has room for
	Peers     []netip.Prefix `json:"peers,omitempty"` // the only VTEPs from which its packets are taken; none: all that are known
	// Gateway is the router in it that knows the way to clients elsewhere, for replies of nat.
	Gateway []netip.Addr `json:"gateway,omitempty"`
	// SNATAddresses are full NAT's sources in VXLAN and Geneve, one per family at most, in the place of
	// Director.SNAT.Addresses, whose ports they have. No interface needs to have them.
	SNATAddresses []netip.Addr `json:"snat-addresses,omitempty"`
	// Hosts are where its hosts are.
	Hosts []SegmentHost `json:"hosts,omitempty"`
	// Network is the logical switch of OVN that it is: then OVN says where its hosts are, and its VNI.
	Network string `json:"network,omitempty"`
	// Limits bound what it takes of the director's; nil: see Director.SegmentLimits.
	Limits *SegmentLimits `json:"limits,omitempty"`
}

// SegmentInterfaces returns the interfaces that are given for segments.
func (c *Config) SegmentInterfaces() map[Segment]string {
	given := map[Segment]string{}
	for i := range c.Segments {
		if s := &c.Segments[i]; s.Interface != "" {
			given[s.ID] = s.Interface
		}
	}
	return given
}

// SeesTags reports whether the director has to see VLAN tags: of clients' packets, of answers, or of tunnels.
func (c *Config) SeesTags() bool {
	if c.Director.VTEP.VLAN != 0 || c.InVLANs() {
		return true
	}
	return slices.ContainsFunc(c.Services, func(s Service) bool {
		return s.Segment.Kind == SegmentVLAN || slices.ContainsFunc(s.Backends, func(b Backend) bool {
			return b.ModeIn(s) == NAT && b.TenantIn(&s).Kind == SegmentVLAN
		})
	})
}

// InOverlays reports whether services or their backends are in tenants' networks in VXLAN or Geneve.
func (c *Config) InOverlays() bool {
	return slices.ContainsFunc(c.Services, func(s Service) bool {
		return s.Segment.IsOverlay() || slices.ContainsFunc(s.Backends, func(b Backend) bool { return b.TenantIn(&s).IsOverlay() })
	})
}

// AddressIn returns this director's own address of a family in a segment; invalid: it has none.
func (c *Config) AddressIn(segment Segment, six bool) netip.Addr {
	for i := range c.Segments {
		if s := &c.Segments[i]; s.ID == segment {
			return s.AddressOf(six)
		}
	}
	return netip.Addr{}
}

// AddressOf returns this director's own address of a family in the network; invalid: it has none.
func (s *SegmentSettings) AddressOf(six bool) netip.Addr { return ofFamily(s.Addresses, six) }

// SNATAddressOf returns full NAT's source of a family in the network; invalid: it is the same as in others.
func (s *SegmentSettings) SNATAddressOf(six bool) netip.Addr { return ofFamily(s.SNATAddresses, six) }

// ofFamily returns the first address of a family; invalid: there is none.
func ofFamily(addresses []netip.Addr, six bool) netip.Addr {
	if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is6() == six }); i >= 0 {
		return addresses[i]
	}
	return netip.Addr{}
}

// TakesFrom reports whether packets of the network are taken from a VTEP where one of its hosts is.
func (s *SegmentSettings) TakesFrom(vtep netip.Addr) bool {
	return len(s.Peers) == 0 || covered(netip.PrefixFrom(vtep, vtep.BitLen()), s.Peers)
}

// InVLANs reports whether the director has addresses of its own in VLANs of tenants.
func (c *Config) InVLANs() bool {
	return slices.ContainsFunc(c.Segments, func(s SegmentSettings) bool { return s.ID.Kind == SegmentVLAN && len(s.Addresses) > 0 })
}

// SegmentHost is where a host of a tenant's network in VXLAN or Geneve is.
type SegmentHost struct {
	Address netip.Addr    `json:"address"`
	MAC     MAC           `json:"mac"`
	VTEP    netip.Addr    `json:"vtep"`
	VNI     uint32        `json:"vni,omitempty"` // on the wire, to it; 0: the segment's
	Options GeneveOptions `json:"geneve-options,omitempty"`
}

// SegmentMAC is where a MAC address of a tenant's network is, whose IP addresses may not be known.
type SegmentMAC struct {
	MAC  MAC        `json:"mac"`
	VTEP netip.Addr `json:"vtep"`
	VNI  uint32     `json:"vni,omitempty"` // as that of SegmentHost
}

// GeneveOptions are options of Geneve's header (RFC 8926, section 3.5), as on the wire.
type GeneveOptions string

// maxGeneveOptions is VTEP_OPTIONS_MAX in bpf/abi/vtep_types.h.
const maxGeneveOptions = 24

// Critical reports whether some option must be known to the receiver.
func (o GeneveOptions) Critical() bool {
	for at := 0; at+4 <= len(o); at += 4 + int(o[at+3]&0x1f)*4 {
		if o[at+2]&0x80 != 0 {
			return true
		}
	}
	return false
}

// MarshalText writes each option as its class, type and data in hexadecimal: "0102:80:00010002".
func (o GeneveOptions) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// String returns what MarshalText writes.
func (o GeneveOptions) String() string {
	var options []string
	for at := 0; at+4 <= len(o); {
		end := min(len(o), at+4+int(o[at+3]&0x1f)*4)
		options = append(options, fmt.Sprintf("%x:%x:%x", string(o[at:at+2]), string(o[at+2:at+3]), string(o[at+4:end])))
		at = end
	}
	return strings.Join(options, ",")
}

// UnmarshalText reads what MarshalText writes.
func (o *GeneveOptions) UnmarshalText(text []byte) error {
	*o = ""
	if len(text) == 0 {
		return nil
	}
	var all []byte
	for option := range strings.SplitSeq(string(text), ",") {
		parts := strings.Split(option, ":")
		wrong := fmt.Errorf("geneve option %q is not CLASS:TYPE:DATA in hexadecimal, as 0102:80:00010002, with data of whole words", option)
		if len(parts) != 3 || len(parts[0]) != 4 || len(parts[1]) != 2 {
			return wrong
		}
		header, err := hex.DecodeString(parts[0] + parts[1])
		data, err2 := hex.DecodeString(parts[2])
		if err != nil || err2 != nil || len(data)%4 != 0 || len(data) > 31*4 {
			return wrong
		}
		all = append(append(append(all, header...), byte(len(data)/4)), data...)
	}
	if len(all) > maxGeneveOptions {
		return fmt.Errorf("geneve options of %d bytes are more than %d", len(all), maxGeneveOptions)
	}
	*o = GeneveOptions(all)
	return nil
}

// Tag returns the VLAN that the backend's packets leave with, as the configuration says; 0: it does not.
func (b *Backend) Tag() uint16 {
	if b.VLAN == 0 && b.Segment != nil && b.Segment.Kind == SegmentVLAN && b.Segment.ID <= maxVLAN {
		return uint16(b.Segment.ID)
	}
	return b.VLAN
}

// Leaves reports whether the backend is in another segment than its service, by its key segment.
func (b *Backend) Leaves(s *Service) bool { return b.Segment != nil && *b.Segment != s.Segment }

// Place returns where the configuration says that the backend is in VXLAN or Geneve; without a VTEP: it does not.
func (b *Backend) Place() SegmentHost {
	if !b.VTEP.IsValid() {
		return SegmentHost{}
	}
	return SegmentHost{Address: b.Address, MAC: b.MAC, VTEP: b.VTEP, VNI: b.VNI, Options: b.GeneveOptions}
}

// IsOverlay reports whether the segment is in VXLAN or Geneve: a network that this director reaches as a VTEP.
func (s Segment) IsOverlay() bool { return s.Kind == SegmentVXLAN || s.Kind == SegmentGeneve }

// segments checks what the director knows of tenants' networks.
func (v *validation) segments() {
	v.vtep()
	first := map[Segment]int{}
	hosts := 0
	for i := range v.config.Segments {
		s := &v.config.Segments[i]
		hosts += len(s.Hosts)
		at := func(field string) string { return fmt.Sprintf("segments[%d].%s", i, field) }
		if problem := segmentProblem(s.ID); problem != "" || s.ID == (Segment{}) {
			v.errs.add(at("id"), "%s is not vlan:ID, vxlan:VNI or geneve:VNI", s.ID)
			continue
		}
		if other, dup := first[s.ID]; dup {
			v.errs.addWithOther(at("id"), fmt.Sprintf("segments[%d].id", other), "%s is named twice", s.ID)
		}
		first[s.ID] = i
		if s.ID.IsOverlay() {
			v.overlaySettings(s, at)
		} else {
			v.vlanSettings(s, at)
		}
		v.onePerFamily(at("addresses"), s.Addresses)
		v.onePerFamily(at("gateway"), s.Gateway)
		v.snatInside(s, at)
	}
	if hosts > MaxSegmentHosts {
		v.errs.add("segments", "%s", TooManyHosts(hosts))
	}
	v.vnis()
	v.networks()
}

// snatInside checks full NAT's sources in a segment. Their flows have the ports of the director's one address of the
// family, so that a reply's port says which flow it is of.
func (v *validation) snatInside(s *SegmentSettings, at func(string) string) {
	v.onePerFamily(at("snat-addresses"), s.SNATAddresses)
	if len(s.SNATAddresses) > 0 && !s.ID.IsOverlay() {
		v.errs.add(at("snat-addresses"), "is for VXLAN and Geneve: in %s backends get director.snat.addresses", s.ID)
		return
	}
	for j, a := range s.SNATAddresses {
		here, of := fmt.Sprintf("%s[%d]", at("snat-addresses"), j), 0
		for _, own := range v.config.Director.SNAT.Addresses {
			if own.Is6() == a.Is6() {
				of++
			}
		}
		if of != 1 {
			v.errs.addWithOther(here, "director.snat.addresses", "%s has the ports of the one %s address in director.snat.addresses, where %d are", a, family(a), of)
		}
		if slices.Contains(s.Addresses, a) {
			v.errs.addWithOther(here, at("addresses"), "%s is in addresses, too: answers to health checks come there", a)
		}
		if slices.Contains(s.Gateway, a) {
			v.errs.addWithOther(here, at("gateway"), "%s is the gateway's", a)
		}
	}
}

// vnis checks that each network on the wire is of one segment.
func (v *validation) vnis() {
	first := map[Segment]int{}
	for i := range v.config.Segments {
		s := &v.config.Segments[i]
		if !s.ID.IsOverlay() {
			continue
		}
		wire := s.Wire()
		if other, dup := first[wire]; dup && v.config.Segments[other].ID != s.ID { // else it is said of the id
			v.errs.addWithOther(fmt.Sprintf("segments[%d].vni", i), fmt.Sprintf("segments[%d]", other), "%s is already that of %s", wire, v.config.Segments[other].ID)
		}
		first[wire] = i
	}
	v.impliedVNIs(first)
}

// impliedVNIs checks segments that are named by services and backends alone, whose VNI is their ID: on the wire it
// must be of no other segment.
func (v *validation) impliedVNIs(first map[Segment]int) {
	given := map[Segment]bool{}
	for i := range v.config.Segments {
		given[v.config.Segments[i].ID] = true
	}
	said := map[Segment]bool{}
	check := func(segment Segment, path string) {
		other, taken := first[segment]
		if taken && !given[segment] && !said[segment] {
			said[segment] = true
			v.errs.addWithOther(path, fmt.Sprintf("segments[%d].vni", other), "%s is on the wire that of %s: give it another vni in segments", segment, v.config.Segments[other].ID)
		}
	}
	for i := range v.config.Services {
		s := &v.config.Services[i]
		check(s.Segment, servicePath(i, "segment"))
		for j := range s.Backends {
			if b := &s.Backends[j]; b.Segment != nil {
				check(*b.Segment, backendPath(i, j, "segment"))
			}
		}
	}
}

// Wire returns the segment's kind with the VNI that its packets have.
func (s *SegmentSettings) Wire() Segment {
	if s.VNI == 0 {
		return s.ID
	}
	return Segment{Kind: s.ID.Kind, ID: s.VNI}
}

func (v *validation) overlaySettings(s *SegmentSettings, at func(string) string) {
	if !v.config.Director.VTEP.Given() {
		v.errs.addWithOther(at("id"), "director.vtep", "needs director.vtep, where its tunnels end")
	}
	if s.Interface != "" {
		v.errs.add(at("interface"), "is only for a VLAN: routes lead to the VTEPs of %s", s.ID)
	}
	if s.VNI > maxVNI {
		v.errs.add(at("vni"), "%d is larger than %d", s.VNI, maxVNI)
	}
	if s.MTU != 0 && (s.MTU < minMTU4 || s.MTU > maxMTU) {
		v.errs.add(at("mtu"), "%d is out of range %d to %d", s.MTU, minMTU4, maxMTU)
	}
	v.prefixes(at("peers"), s.Peers)
	v.network(s, at)
	v.segmentHosts(at("hosts"), s.ID, s.Hosts)
}

const maxVNI = 1<<24 - 1

func (v *validation) host(h *SegmentHost, at func(string) string) {
	if problem := addressProblem(h.Address); problem != "" {
		v.errs.add(at("address"), "%s", withAddress(h.Address, problem))
	}
	if h.MAC.IsZero() {
		v.errs.add(at("mac"), "is required")
	}
	if problem := addressProblem(h.VTEP); problem != "" {
		v.errs.add(at("vtep"), "%s", withAddress(h.VTEP, problem))
	} else {
		v.vtepFamily(at("vtep"), h.VTEP)
	}
	if h.VNI > maxVNI {
		v.errs.add(at("vni"), "%d is larger than %d", h.VNI, maxVNI)
	}
}

// vtepFamily checks that this director is a VTEP of another one's family.
func (v *validation) vtepFamily(path string, vtep netip.Addr) {
	if own := &v.config.Director.VTEP; own.Given() && !own.Address(vtep.Is6()).IsValid() {
		v.errs.addWithOther(path, "director.vtep.addresses", "%s is %s, and this director is a VTEP with no such address", vtep, family(vtep))
	}
}

func (v *validation) vlanSettings(s *SegmentSettings, at func(string) string) {
	if s.Interface != "" {
		if problem := interfaceProblem(s.Interface); problem != "" {
			v.errs.add(at("interface"), "%s", problem)
		}
	}
	const only = "is only for VXLAN and Geneve"
	for field, given := range map[string]bool{"mac": !s.MAC.IsZero(), "vni": s.VNI != 0, "mtu": s.MTU != 0, "peers": len(s.Peers) > 0, "gateway": len(s.Gateway) > 0, "hosts": len(s.Hosts) > 0, "network": s.Network != ""} {
		if given {
			v.errs.add(at(field), only)
		}
	}
}

// onePerFamily checks addresses of hosts, of which there is one per family at most.
func (v *validation) onePerFamily(path string, list []netip.Addr) {
	v.hosts(path, list)
	for i, a := range list {
		if first := slices.IndexFunc(list, func(o netip.Addr) bool { return o.Is4() == a.Is4() }); first < i && a != list[first] {
			v.errs.addWithOther(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%s[%d]", path, first), "%s is the second %s address; one per family", a, family(a))
		}
	}
}

// vtep checks where tunnels of tenants' networks end.
func (v *validation) vtep() {
	d := &v.config.Director
	t := &d.VTEP
	if !t.Given() {
		if !t.IsZero() {
			v.errs.add("director.vtep.addresses", "is required")
		}
		return
	}
	v.onePerFamily("director.vtep.addresses", t.Addresses)
	if t.VLAN > maxVLAN {
		v.errs.add("director.vtep.vlan", "%d is out of range 1 to %d", t.VLAN, maxVLAN)
	}
	if t.VXLANPort == t.GenevePort {
		v.errs.addWithOther("director.vtep.geneve-port", "director.vtep.vxlan-port", "%d is the port of both: packets do not say which they are", t.GenevePort)
	}
	v.prefixes("director.vtep.peers", t.Peers)
	const together = "is not available with director.vtep yet: NICs and other CPUs would be chosen by what is outside of a tunnel"
	if d.Steering.Given() {
		v.errs.addWithOther("director.steering", "director.vtep", together)
	}
	if d.FanOut.Given() {
		v.errs.addWithOther("director.fan-out", "director.vtep", together)
	}
}

// segmentProblem says why there is no such segment, or nothing.
func segmentProblem(s Segment) string {
	outer, inner := s.ID>>12, s.ID&0xfff
	switch {
	case s == Segment{}:
		return ""
	case s.IsOverlay() && s.ID <= maxVNI:
		return ""
	case s.Kind == SegmentVLAN && outer <= maxVLAN && inner > 0 && inner <= maxVLAN:
		return ""
	}
	return fmt.Sprintf("%s is not none, vlan:ID with an ID from 1 to %d, vxlan:VNI or geneve:VNI", s, maxVLAN)
}

// backendOverlay checks the keys of a backend in a tenant's network in VXLAN or Geneve.
func (v *validation) backendOverlay(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	if b.Segment != nil {
		if problem := segmentProblem(*b.Segment); problem != "" {
			v.errs.add(backendPath(i, j, "segment"), "%s", problem)
			return
		}
		if b.Segment.Kind == SegmentVLAN && b.Segment.ID > 0xfff && *b.Segment != s.Segment {
			v.errs.addWithOther(backendPath(i, j, "segment"), servicePath(i, "segment"), "%s is not the service's: packets get one tag at most", *b.Segment)
		}
		if b.VLAN != 0 {
			v.errs.addWithOther(backendPath(i, j, "segment"), backendPath(i, j, "vlan"), "and vlan say the same: give one of them")
		}
	}
	in := b.TenantIn(s)
	if !in.IsOverlay() {
		for field, given := range map[string]bool{"vtep": b.VTEP.IsValid(), "vni": b.VNI != 0, "geneve-options": b.GeneveOptions != ""} {
			if given {
				v.errs.add(backendPath(i, j, field), "is only for a backend in VXLAN or Geneve: this one is in segment %s", in)
			}
		}
		return
	}
	if b.Segment != nil && len(v.config.Director.Interfaces) > 0 && !v.config.Director.VTEP.Given() {
		v.errs.addWithOther(backendPath(i, j, "segment"), "director.vtep", "%s needs director.vtep, where its tunnels end", in)
	}
	if b.VTEP.IsValid() {
		if problem := addressProblem(b.VTEP); problem != "" {
			v.errs.add(backendPath(i, j, "vtep"), "%s", withAddress(b.VTEP, problem))
		}
		v.vtepFamily(backendPath(i, j, "vtep"), b.VTEP)
		if b.MAC.IsZero() {
			v.errs.addWithOther(backendPath(i, j, "mac"), backendPath(i, j, "vtep"), "is required with vtep: the backend's own in its network")
		}
	}
	if b.VNI > maxVNI {
		v.errs.add(backendPath(i, j, "vni"), "%d is larger than %d", b.VNI, maxVNI)
	}
	if b.GeneveOptions != "" && in.Kind != SegmentGeneve {
		v.errs.add(backendPath(i, j, "geneve-options"), "is only for Geneve, and the backend is in %s", in)
	}
	if (b.VNI != 0 || b.GeneveOptions != "") && !b.VTEP.IsValid() {
		v.errs.add(backendPath(i, j, "vtep"), "is required with vni and geneve-options")
	}
	for field, given := range map[string]bool{"interface": b.Interface != "", "host": b.Host.IsValid()} {
		if given {
			v.errs.add(backendPath(i, j, field), "is not for a backend in VXLAN or Geneve: routes lead to its VTEP")
		}
	}
	v.tunnelInside(i, j, in)
	if b.RedirectsIn(s) {
		v.errs.addWithOther(backendPath(i, j, "segment"), servicePath(i, "mode"), "mode redirect is not available in VXLAN and Geneve")
	}
}

// tunnelInside checks that tunnels of ipip and gue to a backend in a tenant's network have a source there, which its
// agent takes.
func (v *validation) tunnelInside(i, j int, in Segment) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	mode, own := b.ModeIn(*s), v.config.AddressIn(in, b.Address.Is6())
	switch {
	case mode != IPIP && mode != GUE || !v.config.Director.VTEP.Given():
	case !own.IsValid():
		v.errs.addWithOther(backendPath(i, j, "segment"), "segments", "%s needs an %s address of this director in %s (segments[].addresses): its tunnels come from there", mode, family(b.Address), in)
	case len(v.config.Directors) > 0 && !covered(netip.PrefixFrom(own, own.BitLen()), v.config.Directors):
		v.errs.addWithOther(backendPath(i, j, "segment"), "directors", "%s is this director's address in %s, and not inside any prefix of directors, so agents would drop its tunnels of %s", own, in, mode)
	}
}

// MACAt returns the MAC address that a VTEP has in the segment.
func (s *SegmentSettings) MACAt(vtep *VTEP) MAC {
	if !s.MAC.IsZero() {
		return s.MAC
	}
	return VTEPMAC(vtep.Addresses, s.ID)
}

// VTEPMAC returns the MAC address that a VTEP has in a network where none is configured: locally administered,
// and made of its addresses, so that no other VTEP has it.
func VTEPMAC(vtep []netip.Addr, segment Segment) (mac MAC) {
	of := sha256.New()
	for _, a := range vtep {
		of.Write(a.AsSlice())
	}
	_ = binary.Write(of, binary.BigEndian, segment.Key())
	copy(mac[:], of.Sum(nil))
	mac[0] = mac[0]&^1 | 2
	return mac
}
