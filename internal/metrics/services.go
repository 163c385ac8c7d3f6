package metrics

import "weir.io/weir/internal/model"

// mostBackends is how many backends have metrics of their own: those of the first services
// of the configuration. A scrape of more would take seconds, and so would each query of it.
const mostBackends = 10_000

var (
	servicePackets     = ofDirector.add("weir_service_packets_total", "Packets that were forwarded to backends of the service, also to those that are gone.", "service")
	serviceBytes       = ofDirector.add("weir_service_bytes_total", "Bytes of the IP packets that were forwarded to backends of the service, as they came in.", "service")
	serviceConnections = ofDirector.add("weir_service_connections_total", "TCP connections that clients have opened to the service: SYNs that were forwarded, those that were sent again, too.", "service")
	serviceDropped     = ofDirector.add("weir_service_dropped_packets_total", "Packets of the service that no backend got. Their reasons are in weir_packets_total.", "service")
	serviceSlots       = ofDirector.add("weir_service_slots", "Slots of the service's ring.", "service")

	serviceInfo = ofDirector.add("weir_service_info", "1, for the segment of the service's VIP (none: no tenant's): so metrics of services can be joined with it.", "service", "segment")

	segmentLimit       = ofDirector.add("weir_segment_limit", "What the segment may have, of those that have a bound: services, backends, ring-memory (bytes), source-ranges, probes-per-second, flows, packets-per-second.", "segment", "limit")
	segmentServices    = ofDirector.add("weir_segment_services", "Services whose VIPs are in the segment.", "segment")
	segmentBackends    = ofDirector.add("weir_segment_backends", "Backends that are in the segment, once per service.", "segment")
	segmentRings       = ofDirector.add("weir_segment_ring_memory_bytes", "Memory of the rings of the segment's services.", "segment")
	segmentRanges      = ofDirector.add("weir_segment_source_ranges", "Source ranges of the segment's services.", "segment")
	segmentProbes      = ofDirector.add("weir_segment_probes_per_second", "Probes of health checks that the intervals of the segment's backends ask for.", "segment")
	segmentFlows       = ofDirector.add("weir_segment_flows_remembered", "Flows of the segment's services in flow memory.", "segment")
	segmentPackets     = ofDirector.add("weir_segment_packets_total", "Packets that were forwarded for services of the segment: those that are gone count until the director's process ends, here and in the next ones.", "segment")
	segmentBytes       = ofDirector.add("weir_segment_bytes_total", "Bytes of the IP packets that were forwarded for services of the segment, as they came in.", "segment")
	segmentConnections = ofDirector.add("weir_segment_connections_total", "TCP connections that clients have opened to services of the segment: SYNs that were forwarded, those that were sent again, too.", "segment")
	segmentLimited     = ofDirector.add("weir_segment_limited_packets_total", "Packets to the segment's services, and questions that the director answers there itself, that were dropped because they were more than its limit of packets per second, since it has one and the director's process began.", "segment")
	segmentRefused     = ofDirector.add("weir_segment_flows_refused_total", "New flows of the segment's services that got no place in flow memory, or no port of full NAT, because it has as many as it may have, since it has such a limit and the director's process began.", "segment")
	segmentDropped     = ofDirector.add("weir_segment_dropped_packets_total", "Packets of the segment's services that no backend got.", "segment")

	backendPackets     = ofDirector.add("weir_backend_packets_total", "Packets that were forwarded to the backend.", "service", "backend")
	backendBytes       = ofDirector.add("weir_backend_bytes_total", "Bytes of the IP packets that were forwarded to the backend, as they came in.", "service", "backend")
	backendConnections = ofDirector.add("weir_backend_connections_total", "TCP connections that clients have opened to the backend: SYNs that were forwarded, those that were sent again, too.", "service", "backend")
	backendSlots       = ofDirector.add("weir_backend_slots", "Slots of the service's ring that the backend owns: by all of them, what part of new connections it is to get.", "service", "backend")

	leftOut = ofDirector.add("weir_backends_without_metrics",
		"Backends that have no metrics of their own, because those of the first services of the configuration are 10,000 already.")

	generations      = ofDirector.add("weir_service_generations", "Generations in the service's log: versions of its membership that connections may still need.", "service")
	oldestGeneration = ofDirector.add("weir_service_oldest_generation_timestamp_seconds", "When the oldest of them became the newest.", "service")
	slotsShared      = ofDirector.add("weir_service_slots_shared", "Slots of the service that may have connections of several backends.", "service")
	slotsHeld        = ofDirector.add("weir_service_slots_held", "Slots of the service that keep an older owner until their rows have room: changes come faster than drain lets go.", "service")
	slotsKept        = ofDirector.add("weir_service_slots_kept", "Slots of older generations in which agents report connections, or do not say that there are none.", "service")
	slotsMoved       = ofDirector.add("weir_service_slots_moved_total", "Slots of the service that got another owner, since the director started.", "service")

	probes = ofDirector.add("weir_health_probes_total",
		"Probes of backends' health, by what they said: ok, or why not.", "result")
	checkPackets = ofDirector.add("weir_health_packets_total",
		"Packets of probes that take the way of clients' packets, by what has become of them: check_sent; check_not_marked: none of theirs; check_no_way: its backend is not checked any more; check_not_ip; check_no_room: for outer headers.", "verdict")
	healthy = ofDirector.add("weir_service_backends",
		"Backends of the service that would get connections if they were healthy, by what the director's probes say: up, down, unknown.", "service", "health")
	tier   = ofDirector.add("weir_service_tier", "The tier of the service's backends that gets new connections, of services that have several.", "service")
	panics = ofDirector.add("weir_service_panic", "1 while so few of the service's backends are healthy that all to which there is a way are used.", "service")
	probed = ofDirector.add("weir_backend_up",
		"Whether the director's probes find the backend healthy. Backends that are not checked, or not yet, have none.", "service", "backend")
	strain = ofDirector.add("weir_backend_strain",
		"Connections in a second that the backend's host refuses, or has no room for in the accept queue (of UDP: datagrams in the receive buffer), by its agent's last report: of services with health.passive, where there are any.", "service", "backend", "sign")
	strained = ofDirector.add("weir_backend_strained_share",
		"What part of its share the backend keeps, of those that are strained.", "service", "backend")
	redirectProbes = ofDirector.add("weir_redirect_probes_total",
		"Probes of whether connections can be handed over to backends, by what they said: ok, or why not.", "result")
	redirected = ofDirector.add("weir_backend_redirect",
		"Whether connections are handed over to the backend, of services with mode redirect; 0: they go as the service falls back.", "service", "backend")

	loadMessages = ofDirector.add("weir_load_messages_total",
		"Messages at the port for reports of loads, since the director started, by what became of them: taken; short, foreign (none of weir's), unknown_key, forged, malformed; old_epoch (to the process before, or the first of an agent: it is told the number of this one); replayed (or overtaken by a later one).", "outcome")
	loadAgents = ofDirector.add("weir_load_agents",
		"Agents that report loads.")
	loadBackends = ofDirector.add("weir_service_load_backends",
		"Backends that may get connections of a service that is placed by load, by whether their load is known: reported, stale.", "service", "state")
	loadDegraded = ofDirector.add("weir_service_load_degraded",
		"1 while too few loads are reported, so that new connections are placed without: in turn, or with p2c of mode gue by what the director has opened itself.", "service")
	loadDegradations = ofDirector.add("weir_service_load_degradations_total",
		"How often it has become so, since the director started.", "service")
	loadConnections = ofDirector.add("weir_backend_load_connections",
		"Connections that the backend's server has open, by its agent's last report.", "service", "backend")
	loadQueue = ofDirector.add("weir_backend_load_queue",
		"Connections that wait in the accept queue of the backend's server, by its agent's last report.", "service", "backend")
	loadPressure = ofDirector.add("weir_backend_load_pressure",
		"Share of the time in which somebody waited for a CPU, of the backend's host or its server's cgroup, 0 to 1, by its agent's last report.", "service", "backend")
)

// services collects the metrics of services, and those of each backend of the first services. Loads
// have metrics only if agents have to report them.
func (v values) services(status *model.DatapathStatus) {
	v.segmentSums(status.Segments)
	v.tally(probes, status.Probes)
	v.tally(checkPackets, status.CheckPackets)
	v.tally(redirectProbes, status.RedirectProbes)
	if status.Loads != nil {
		v.tally(loadMessages, status.Loads.Messages)
		v.gauge(loadAgents, float64(status.Loads.Agents))
	}
	v.eachService(status.Services)
}

func (v values) eachService(services []model.ServiceStatus) {
	backends, without := 0, 0
	for i := range services {
		s := &services[i]
		v.service(s)
		if backends += len(s.Backends); backends > mostBackends {
			without += len(s.Backends)
			continue
		}
		for j := range s.Backends {
			v.backend(s, &s.Backends[j])
		}
	}
	v.gauge(leftOut, float64(without))
}

// segmentSums has a series for each segment with services or backends, and nothing by service.
func (v values) segmentSums(counts []model.SegmentCounts) {
	for i := range counts {
		c := &counts[i]
		of := c.ID.String()
		v.gauge(segmentServices, float64(c.Services), of)
		v.gauge(segmentBackends, float64(c.Backends), of)
		v.gauge(segmentRings, float64(c.RingMemory), of)
		v.gauge(segmentRanges, float64(c.SourceRanges), of)
		v.gauge(segmentProbes, float64(c.Probes), of)
		v.gauge(segmentFlows, float64(c.Flows), of)
		if c.Limits != nil {
			for _, l := range c.Limits.Each() {
				if l.Most > 0 {
					v.gauge(segmentLimit, float64(l.Most), of, l.Limit)
				}
			}
		}
		v.count(segmentPackets, c.Packets, of)
		v.count(segmentBytes, c.Bytes, of)
		v.count(segmentConnections, c.Opened, of)
		v.count(segmentDropped, c.Dropped, of)
		v.count(segmentLimited, c.Limited, of)
		v.count(segmentRefused, c.FlowsRefused, of)
	}
}

func (v values) service(s *model.ServiceStatus) {
	v.gauge(serviceInfo, 1, s.Name, s.Segment.String())
	v.count(servicePackets, s.Packets, s.Name)
	v.count(serviceBytes, s.Bytes, s.Name)
	v.count(serviceConnections, s.Opened, s.Name)
	v.count(serviceDropped, s.Dropped, s.Name)
	v.gauge(serviceSlots, float64(s.Slots), s.Name)
	v.count(slotsMoved, s.Log.MovedTotal, s.Name)
	v.gauge(generations, float64(s.Log.Generations), s.Name)
	oldest := 0.0
	if !s.Log.Oldest.IsZero() {
		oldest = float64(s.Log.Oldest.UnixMilli()) / 1000
	}
	v.gauge(oldestGeneration, oldest, s.Name)
	v.gauge(slotsShared, float64(s.Log.Shared), s.Name)
	v.gauge(slotsHeld, float64(s.Log.Held), s.Name)
	v.gauge(slotsKept, float64(s.Log.Kept), s.Name)
	if h := s.Health; h != nil {
		v.gauge(healthy, float64(h.Up), s.Name, string(model.HealthUp))
		v.gauge(healthy, float64(h.Down), s.Name, string(model.HealthDown))
		v.gauge(healthy, float64(h.Unknown), s.Name, string(model.HealthUnknown))
		v.is(panics, h.Panic, s.Name)
	}
	if s.Tiers != nil {
		v.gauge(tier, float64(s.Tiers.Active), s.Name)
	}
	if l := s.Loads; l != nil {
		v.gauge(loadBackends, float64(l.Reported), s.Name, "reported")
		v.gauge(loadBackends, float64(l.Stale), s.Name, "stale")
		v.is(loadDegraded, l.Degraded, s.Name)
		v.count(loadDegradations, l.Degradations, s.Name)
	}
}

// backend leaves out a load that is stale.
func (v values) backend(s *model.ServiceStatus, b *model.BackendStatus) {
	v.count(backendPackets, b.Packets, s.Name, b.Name)
	v.count(backendBytes, b.Bytes, s.Name, b.Name)
	v.count(backendConnections, b.Opened, s.Name, b.Name)
	v.gauge(backendSlots, float64(b.Slots), s.Name, b.Name)
	if b.Health != nil && b.Health.State != model.HealthUnknown {
		v.is(probed, b.Health.State == model.HealthUp, s.Name, b.Name)
	}
	if b.Strain != nil {
		v.gauge(strain, b.Strain.Refused, s.Name, b.Name, "refused")
		v.gauge(strain, b.Strain.Overflows, s.Name, b.Name, "overflows")
		v.gauge(strained, float64(b.Strain.Parts)/model.ShareParts, s.Name, b.Name)
	}
	if b.Redirect != nil {
		v.is(redirected, b.Redirect.Able, s.Name, b.Name)
	}
	if l := b.Load; l != nil && !l.Stale {
		v.gauge(loadConnections, float64(l.Connections), s.Name, b.Name)
		v.gauge(loadQueue, float64(l.Queue), s.Name, b.Name)
		v.gauge(loadPressure, l.Pressure, s.Name, b.Name)
	}
}
