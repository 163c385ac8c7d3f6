package metrics

import "weir.io/weir/internal/model"

// The metrics of those that a director talks to: the other directors of its group, routers, and hosts
// on the link.
var (
	importedFlows = ofDirector.add("weir_flows_told_total",
		"Flows that other directors have told, by what became of them.", "outcome")
	peerFlows = ofDirector.add("weir_peer_flows_total",
		"Flows that went between this director and another one, by direction: heard, told.", "director", "direction")
	peerConnected = ofDirector.add("weir_peer_connected",
		"Whether what another director remembers is heard, and whether it is told what this one does.", "director", "direction")
	peerProblems = ofDirector.add("weir_peer_problems_total",
		"How often a director was too slow to be told what is new, so that it was told everything again, and how often it could not be understood (garbage).", "director", "problem")
	strangers = ofDirector.add("weir_peer_strangers_total",
		"Connections of those who wanted to be told of flows, and did not dial from a director's address, could not show its certificate, or gave way in the handshake to newer ones of the same address. A director that has just started may be among them for a moment.")

	sessionUp        = ofDirector.add("weir_bgp_session_up", "Whether there is a BGP session with the neighbor, 10.0.0.1%red in VRF red: 1 or 0.", "neighbor")
	sessionAnnounced = ofDirector.add("weir_bgp_routes_announced", "Routes that the neighbor has been told.", "neighbor")
	sessionsLost     = ofDirector.add("weir_bgp_sessions_lost_total", "Sessions with the neighbor that have ended, since the director started.", "neighbor")
	evpnRoutes       = ofDirector.add("weir_bgp_evpn_routes", "EVPN routes that the neighbor has been told (sent), and of the director's segments those that it has told (received), also while its session is lost (stale).", "neighbor", "kind")
	evpnMalformed    = ofDirector.add("weir_bgp_evpn_malformed_total", "EVPN routes of the neighbor that could not be read, and count as withdrawn.", "neighbor")
	listens          = ofDirector.add("weir_bgp_listener_up", "Whether passive neighbors, all of them, can connect to an address of bgp.listen: 1 or 0.", "listen")

	bfdProcess  = ofDirector.add("weir_bfd_process_up", "Whether the process that speaks BFD answers: 1 or 0.")
	bfdDiscards = ofDirector.add("weir_bfd_packets_discarded_total", "Packets to the ports of BFD that changed nothing, by why, since weir bfd started.", "reason")
	bfdUp       = ofDirector.add("weir_bfd_session_up", "Whether the BFD session is up: 1 or 0.", "neighbor", "source", "hops")
	bfdLost     = ofDirector.add("weir_bfd_sessions_lost_total", "How often the BFD session was lost by a failure, since weir bfd started.", "neighbor", "source", "hops")

	neighborVIPs = ofDirector.add("weir_neighbor_vips",
		"VIPs for which somebody is to answer by ARP and NDP, by who does: answers (this director), other, nobody.", "state")
	neighborLease = ofDirector.add("weir_neighbor_lease_held",
		"Whether this director has the lease that it answers by, in a group: 1 or 0.")
	neighborMoves = ofDirector.add("weir_neighbor_moves_total",
		"VIPs that this director began to answer for, and ceased to, by direction: taken, lost.", "direction")
	neighborFrames = ofDirector.add("weir_neighbor_frames_total",
		"Frames of ARP and NDP about VIPs, by the VIPs' segment (empty: none) and what they were: announced, answered, limited (not answered, there were too many), conflict (of another host that claims a VIP).",
		"interface", "segment", "kind")

	segmentHosts = ofDirector.add("weir_segment_hosts",
		"Hosts of tenants' networks whose place a source says: api, ovn, evpn. What a lost source has said last counts.", "source")
	segmentSourceLost = ofDirector.add("weir_segment_source_lost",
		"Whether what a source says of where hosts of tenants' networks are may have changed, because it is lost: 1 or 0.", "source")
	segmentSourceSince = ofDirector.add("weir_segment_source_since_seconds",
		"When a source has last said something else of where hosts are, or when it was lost, in seconds since 1970.", "source")
	ovnConnected  = ofDirector.add("weir_ovn_connected", "Whether changes of OVN's Southbound database are seen: 1 or 0.")
	ovnRegistered = ofDirector.add("weir_ovn_registered", "Whether this director is among OVN's chassis, so that OVN's hosts take its packets: 1 or 0.")
	ovnNetworks   = ofDirector.add("weir_ovn_networks", "Logical switches that OVN has.")
	ovnPorts      = ofDirector.add("weir_ovn_ports", "Ports of VMs and containers that OVN has.")
)

// segments leaves out metrics of what a director does not have.
func (v values) segments(status *model.DatapathStatus) {
	for _, s := range status.HostSources {
		v.gauge(segmentHosts, float64(s.Hosts), string(s.Source))
		v.is(segmentSourceLost, s.Lost != "", string(s.Source))
		v.gauge(segmentSourceSince, float64(s.Since.Unix()), string(s.Source))
	}
	if o := status.OVN; o != nil {
		v.is(ovnConnected, o.Connected)
		v.is(ovnRegistered, o.Registered)
		v.gauge(ovnNetworks, float64(o.Networks))
		v.gauge(ovnPorts, float64(o.Ports))
	}
}

func (v values) peers(status *model.DatapathStatus) {
	v.tally(importedFlows, status.Flows.Imported)
	v.count(strangers, status.Strangers)
	for _, p := range status.Peers {
		director := p.Director.String()
		v.count(peerFlows, p.Heard, director, "heard")
		v.count(peerFlows, p.Shared, director, "told")
		v.count(peerProblems, p.Slow, director, "slow")
		v.count(peerProblems, p.Garbage, director, "garbage")
		v.is(peerConnected, !p.Shares.IsZero(), director, "heard")
		v.is(peerConnected, !p.Listens.IsZero(), director, "told")
	}
}

func (v values) bgp(status model.BGPStatus) {
	for _, l := range status.Listen {
		v.is(listens, l.Problem == "", l.Address.String())
	}
	for _, n := range status.Neighbors {
		v.is(sessionUp, n.State == model.SessionEstablished, n.Name())
		v.gauge(sessionAnnounced, float64(n.Announced), n.Name())
		v.count(sessionsLost, n.Losses, n.Name())
		if e := n.EVPN; e != nil {
			v.gauge(evpnRoutes, float64(e.Sent), n.Name(), "sent")
			v.gauge(evpnRoutes, float64(e.Received), n.Name(), "received")
			v.gauge(evpnRoutes, float64(e.Stale), n.Name(), "stale")
			v.count(evpnMalformed, e.Malformed, n.Name())
		}
	}
}

// bfd collects nothing if BFD is not configured.
func (v values) bfd(status *model.BFDStatus) {
	if status == nil {
		return
	}
	v.is(bfdProcess, status.PID != 0 && status.Problem == "")
	v.tally(bfdDiscards, status.Discards)
	for _, s := range status.Sessions {
		source, hops := "", "one"
		if s.Source.IsValid() {
			source = s.Source.String()
		}
		if s.Multihop {
			hops = "several"
		}
		v.is(bfdUp, s.State == "up", s.Name(), source, hops)
		v.count(bfdLost, s.Losses, s.Name(), source, hops)
	}
}

// neighbor leaves out metrics of what a director does not do.
func (v values) neighbor(s *model.NeighborStatus) {
	if s.IsZero() {
		return
	}
	count := map[model.NeighborState]int{}
	for i := range s.VIPs {
		count[s.VIPs[i].State]++
	}
	for _, state := range model.NeighborStates {
		v.gauge(neighborVIPs, float64(count[state]), string(state))
	}
	if s.Lease != "" {
		v.is(neighborLease, s.Lease == model.LeaseHeld)
	}
	v.count(neighborMoves, s.Taken, "taken")
	v.count(neighborMoves, s.Lost, "lost")
	for _, i := range s.Interfaces {
		of := "" // as before there were segments: to Prometheus that is no label
		if i.Segment != (model.Segment{}) {
			of = i.Segment.String()
		}
		v.count(neighborFrames, i.Announced, i.Name, of, "announced")
		v.count(neighborFrames, i.Answered, i.Name, of, "answered")
		v.count(neighborFrames, i.Limited, i.Name, of, "limited")
		v.count(neighborFrames, i.Conflicts, i.Name, of, "conflict")
	}
}
