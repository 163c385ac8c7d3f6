package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// SegmentHosts are hosts of one tenant's network.
type SegmentHosts struct {
	ID    Segment       `json:"id"`
	Hosts []SegmentHost `json:"hosts"`
}

// MaxSegmentHosts is how many hosts of tenants' networks a director has room for, of all segments and sources together.
const MaxSegmentHosts = 1 << 16

// TooManyHosts says that a director has no room for so many hosts.
func TooManyHosts(count int) string {
	return fmt.Sprintf("%d hosts in all are more than the %d that a director has room for", count, MaxSegmentHosts)
}

// SegmentProblem is what does not run of a tenant's network; of none: of tenants' networks together.
type SegmentProblem struct {
	Segment Segment
	Text    string
}

// ValidateHosts says what is wrong with a list of segments with their hosts, for a director with this configuration.
func ValidateHosts(list []SegmentHosts, c *Config) FieldErrors {
	v := validation{config: c, elsewhere: true}
	vtep := &c.Director.VTEP
	first := map[Segment]int{}
	count := 0
	for i := range list {
		if count += len(list[i].Hosts); count > MaxSegmentHosts {
			continue // this is told once, below
		}
		s := &list[i]
		at := func(field string) string { return fmt.Sprintf("segments[%d].%s", i, field) }
		if s.ID == (Segment{}) {
			v.errs.add(at("id"), "is required")
			continue
		}
		if problem := segmentProblem(s.ID); problem != "" || !s.ID.IsOverlay() {
			v.errs.add(at("id"), "%s is not vxlan:VNI or geneve:VNI", s.ID)
			continue
		}
		if !vtep.Given() {
			v.errs.addWithOther(at("id"), "director.vtep", "needs director.vtep, where its tunnels end")
		}
		if other, dup := first[s.ID]; dup {
			v.errs.addWithOther(at("id"), fmt.Sprintf("segments[%d].id", other), "%s is named twice", s.ID)
		} else {
			first[s.ID] = i
		}
		v.segmentHosts(at("hosts"), s.ID, s.Hosts)
	}
	if count > MaxSegmentHosts {
		v.errs.add("segments", "%s", TooManyHosts(count))
	}
	return v.errs
}

// segmentHosts checks the hosts of a tenant's network.
func (v *validation) segmentHosts(path string, in Segment, hosts []SegmentHost) {
	seen, macs := map[netip.Addr]int{}, MACsApart{}
	whole := !slices.ContainsFunc(hosts, func(h SegmentHost) bool { return h.MAC.IsZero() || !h.VTEP.IsValid() })
	for j := range hosts {
		h := &hosts[j]
		here := func(field string) string { return fmt.Sprintf("%s[%d].%s", path, j, field) }
		v.host(h, here)
		if h.Options != "" && in.Kind != SegmentGeneve {
			v.errs.add(here("geneve-options"), "is only for Geneve, and the host is in %s", in)
		}
		if other, dup := seen[h.Address]; dup {
			v.errs.addWithOther(here("address"), fmt.Sprintf("%s[%d].address", path, other), "%s is named twice", h.Address)
			continue
		}
		seen[h.Address] = j
		if own := v.ownInside().refuse(in, h); own != nil {
			v.refuseHost(here(own.field), own)
		}
		if !whole { // which of several hosts is at the wrong place may depend on what could not be read
			continue
		}
		if other, problem := macs.Find(h, j); problem != "" {
			v.errs.addWithOther(here("mac"), fmt.Sprintf("%s[%d].mac", path, other), "%s", problem)
		}
	}
}

// refuseHost says why a host cannot be what is said of it. Where a set has the VIP, the mistake is told of the set.
func (v *validation) refuseHost(path string, own *ownHost) {
	other := own.other
	if v.elsewhere {
		other = "" // in another text
	}
	if own.service >= v.own && own.service >= 0 && !v.elsewhere {
		path, other = other, path
	}
	v.errs.addWithOther(path, other, "%s", own.problem)
}

// HostSource is what has said where a host of a tenant's network is.
type HostSource string

// The sources. Of two that contradict each other the one that is named first here counts.
const (
	HostsOfConfiguration HostSource = "configuration"
	HostsOfAPI           HostSource = "api"
	HostsOfOVN           HostSource = "ovn"
	HostsOfEVPN          HostSource = "evpn"
)

// HostSources are all of them, in the order in which they count.
var HostSources = []HostSource{HostsOfConfiguration, HostsOfAPI, HostsOfOVN, HostsOfEVPN}

// SegmentsStatus is what a director knows of tenants' networks.
type SegmentsStatus struct {
	Sources  []HostSourceStatus `json:"sources" doc:"that say where hosts are, besides the configuration"`
	Segments []SegmentStatus    `json:"segments"`
}

// Count adds what is counted of segments, what the configuration's checks ask for, and their limits.
func (s *SegmentsStatus) Count(counts []SegmentCounts, c *Config) {
	of := make(map[Segment]SegmentCounts, len(counts))
	for _, c := range counts {
		of[c.ID] = c
	}
	probes := UsageBySegment(c.Services)
	for i := range s.Segments {
		one := &s.Segments[i]
		one.Counts = of[one.ID]
		one.Counts.Probes = probes[one.ID].Probes()
		if limits, key := c.LimitsOf(one.ID); key != "" {
			one.Counts.Limits = &limits
		}
	}
}

// Note adds what does not run of segments.
func (s *SegmentsStatus) Note(problems []SegmentProblem) {
	of := make(map[Segment]*SegmentStatus, len(s.Segments))
	for i := range s.Segments {
		of[s.Segments[i].ID] = &s.Segments[i]
	}
	for _, p := range problems {
		if one := of[p.Segment]; one != nil {
			one.Problems = append(one.Problems, p.Text)
		}
	}
}

// HostSourceStatus is how far what a source has said can be trusted.
type HostSourceStatus struct {
	Source HostSource `json:"source" enum:"api,ovn,evpn"`
	Hosts  int        `json:"hosts" doc:"that it has said, in all segments"`
	Since  time.Time  `json:"since" doc:"of what it says: when it has last said something else, or, if it is lost, when it was"`
	Lost   string     `json:"lost,omitempty" doc:"why what it says may have changed; what it has last said goes on"`
}

// SegmentStatus is what a director knows of one tenant's network.
type SegmentStatus struct {
	ID        Segment      `json:"id"`
	VNI       uint32       `json:"vni,omitempty" doc:"on the wire, in VXLAN and Geneve"`
	MAC       MAC          `json:"mac,omitzero" doc:"of this director in it"`
	Addresses []netip.Addr `json:"addresses" doc:"this director's own in it"`
	// SNATAddresses are full NAT's sources in it.
	SNATAddresses []netip.Addr        `json:"snat-addresses,omitempty" doc:"this director's sources of full NAT in it; none: those in other networks"`
	Network       string              `json:"network,omitempty" doc:"OVN's"`
	Services      []string            `json:"services" doc:"whose VIPs or backends are in it"`
	Counts        SegmentCounts       `json:"counts" doc:"what its services and backends use and count"`
	Hosts         []SegmentHostStatus `json:"hosts"`
	Problems      []string            `json:"problems,omitempty"`
}

// SegmentHostStatus is where a host of a tenant's network is, and which source says so.
type SegmentHostStatus struct {
	SegmentHost `json:",inline"`

	Source HostSource `json:"source" enum:"configuration,api,ovn,evpn"`
	// Others say that it is elsewhere.
	Others []OtherHost `json:"others,omitempty" doc:"sources that say something else, and do not count"`
}

// OtherHost is what a source says that does not count.
type OtherHost struct {
	SegmentHost `json:",inline"`

	Source HostSource `json:"source" enum:"api,ovn,evpn"`
}
