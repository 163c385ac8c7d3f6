package engine

import (
	"cmp"
	"slices"

	"weir.io/weir/internal/model"
)

// evpnOf returns what other VTEPs are told of this director's networks in VXLAN: that it is a VTEP of each, its own
// addresses there, and its VIPs that have a service that is up. It is a pure function, as Routes.
func evpnOf(desired *model.Config, report *Report) (e model.EVPN) {
	vtep, up := desired.Director.VTEP, vipsUp(report)
	for id, settings := range desired.EVPNSegments() {
		mac := settings.MACAt(&vtep)
		of := model.EVPNSegment{VNI: settings.Wire().ID, VTEP: cmp.Or(vtep.Address(false), vtep.Address(true)), Entries: []model.EVPNEntry{{MAC: mac}}}
		for _, a := range slices.Concat(settings.Addresses, settings.SNATAddresses) {
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
