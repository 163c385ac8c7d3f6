package engine

import (
	"cmp"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// evpnOf returns what other VTEPs are told of this director's networks in VXLAN: that it is a VTEP of each, its own
// addresses there, and its VIPs that have a service that is up. It is a pure function, as Routes.
func evpnOf(desired *model.Config, report *Report) (e model.EVPN) {
	vtep := desired.Director.VTEP
	if !vtep.Given() || !slices.ContainsFunc(desired.BGP.Neighbors, func(n model.BGPNeighbor) bool { return slices.Contains(n.Families, model.BGPEVPN) }) {
		return e
	}
	segments := map[model.Segment]*model.SegmentSettings{}
	for i := range desired.Segments {
		segments[desired.Segments[i].ID] = &desired.Segments[i]
	}
	for i := range desired.Services {
		if in := desired.Services[i].Segment; segments[in] == nil {
			segments[in] = &model.SegmentSettings{ID: in}
		}
	}
	up := vipsUp(report)
	for id, settings := range segments {
		if id.Kind != model.SegmentVXLAN {
			continue // Geneve has no encapsulation of its own in EVPN's routes here
		}
		mac := settings.MACAt(&vtep)
		of := model.EVPNSegment{VNI: settings.Wire().ID, VTEP: cmp.Or(vtep.Address(false), vtep.Address(true)), Entries: []model.EVPNEntry{{MAC: mac}}}
		for _, a := range settings.Addresses {
			of.Entries = append(of.Entries, model.EVPNEntry{MAC: mac, IP: a})
		}
		for _, vip := range up {
			if vip.Segment == id {
				of.Entries = append(of.Entries, model.EVPNEntry{MAC: mac, IP: vip.Address})
			}
		}
		e.Segments = append(e.Segments, of)
	}
	slices.SortFunc(e.Segments, func(a, b model.EVPNSegment) int { return cmp.Compare(a.VNI, b.VNI) })
	return e
}

// stayingEntries are the entries that were told and still should be, in the segments that there are now.
func stayingEntries(told, next model.EVPN) (stays model.EVPN, gone bool) {
	known := map[uint32][]model.EVPNEntry{}
	for _, s := range next.Segments {
		known[s.VNI] = s.Entries
	}
	for _, s := range told.Segments {
		entries := slices.DeleteFunc(slices.Clone(s.Entries), func(e model.EVPNEntry) bool { return !slices.Contains(known[s.VNI], e) })
		gone = gone || len(entries) < len(s.Entries)
		s.Entries = entries
		stays.Segments = append(stays.Segments, s)
	}
	return stays, gone
}

// HostsOf are the hosts that other VTEPs have told of, by the segments whose networks on the wire they are in.
func HostsOf(segments []model.SegmentSettings, learned model.EVPNLearned) map[model.Segment][]model.SegmentHost {
	by := map[uint32]model.Segment{}
	for i := range segments {
		if s := &segments[i]; s.ID.Kind == model.SegmentVXLAN {
			by[s.Wire().ID] = s.ID
		}
	}
	hosts := map[model.Segment][]model.SegmentHost{}
	for _, h := range learned.Hosts {
		segment, known := by[h.VNI]
		if !known {
			segment = model.Segment{Kind: model.SegmentVXLAN, ID: h.VNI}
		}
		if h.IP.IsValid() {
			hosts[segment] = append(hosts[segment], model.SegmentHost{Address: h.IP, MAC: h.MAC, VTEP: h.VTEP, VNI: h.Label})
		}
	}
	return hosts
}

// VTEPsOf are the VTEPs that have told that they are in this director's networks, or have hosts there.
func VTEPsOf(learned model.EVPNLearned) (vteps []netip.Addr) {
	for _, v := range learned.VTEPs {
		vteps = append(vteps, v.VTEP)
	}
	for _, h := range learned.Hosts {
		vteps = append(vteps, h.VTEP) // a host that has no IP address yet, too
	}
	slices.SortFunc(vteps, netip.Addr.Compare)
	return slices.Compact(vteps)
}
