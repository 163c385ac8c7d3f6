package metrics

import "weir.io/weir/internal/model"

var (
	agentProblems = ofAgent.add("weir_agent_problems", problemsHelp, "kind", "severity")
	agentBuild    = ofAgent.add("weir_agent_build_info", "1, for the agent's version and the version of Go that it was built with.", "version", "goversion")

	agentPackets = ofAgent.add("weir_agent_packets_total",
		"Packets that came in or left by the agent's interfaces, by what became of them.", "reason")
	agentBytes = ofAgent.add("weir_agent_bytes_total", "Bytes of the packets that came in or left by the agent's interfaces, by what became of them.", "reason")

	unwrappedPackets = ofAgent.add("weir_agent_service_packets_total", "Packets of the service that were unwrapped; several that the kernel coalesced count once.", "service")
	unwrappedBytes   = ofAgent.add("weir_agent_service_bytes_total", "Bytes of the packets of the service that were unwrapped, without their outer headers.", "service")

	noPlace = ofAgent.add("weir_agent_service_no_place_total", "Packets whose flow would have stayed in the agent's memory, and found no place within the service's quota.", "service")

	redirectedOpened = ofAgent.add("weir_redirect_connections_total",
		"Connections of this host's clients that backends have got: directors do not count their packets.", "service")
	redirectedNow = ofAgent.add("weir_redirect_connections_remembered",
		"Connections of this host's clients with backends that the agent remembers: those that are open, and some that have ended.", "service")
	redirectedPackets = ofAgent.add("weir_redirect_packets_total",
		"Packets of redirected connections that this host's clients have sent and received; several that the kernel coalesced count once.", "service", "direction")
	redirectedBytes = ofAgent.add("weir_redirect_bytes_total",
		"Bytes of the IP packets of redirected connections that this host's clients have sent and received.", "service", "direction")
	redirectEvents = ofAgent.add("weir_redirect_events_total",
		"What has happened to SYNs and SYN-ACKs of redirected services.", "service", "event")
	fallbacks = ofAgent.add("weir_redirect_fallbacks_total",
		"Connections that go as their service falls back, by why. What a backend's host counts, the client's has as again, too.",
		"service", "host", "cause")
	agentReports = ofAgent.add("weir_agent_reports_total",
		"Reports of this host's connections to directors by their API, since the agent started, by what became of them: taken, failed.", "director", "result")
	agentReported = ofAgent.add("weir_agent_report_directors",
		"Directors that this host's connections are reported to by their API, by whether they take all of the last report: taking, failing.", "state")
	agentLoads = ofAgent.add("weir_agent_load_messages_total",
		"Reports of this host's loads to directors, since the agent started, by their result: sent, failed.", "result")
	agentLoadDirectors = ofAgent.add("weir_agent_load_directors",
		"Directors that this host's loads are reported to, by whether they have answered: known, silent.", "state")
)

func (v values) agent(status *model.AgentStatus) {
	for _, r := range status.Reasons {
		v.count(agentPackets, r.Packets, r.Name)
		v.count(agentBytes, r.Bytes, r.Name)
	}
	for _, s := range status.Services {
		v.count(unwrappedPackets, s.Packets, s.Name)
		v.count(unwrappedBytes, s.Bytes, s.Name)
		v.count(noPlace, s.NoPlace, s.Name)
	}
	v.upkeep(status.Upkeep)
	failing := 0
	for i := range status.Directors {
		d := &status.Directors[i]
		v.count(agentReports, d.Taken, d.Director, "taken")
		v.count(agentReports, d.Failed, d.Director, "failed")
		if d.Problem != "" {
			failing++
		}
	}
	if all := len(status.Directors); all > 0 {
		v.gauge(agentReported, float64(all-failing), "taking")
		v.gauge(agentReported, float64(failing), "failing")
	}
	if l := status.Loads; l != nil {
		v.count(agentLoads, l.Sent, "sent")
		v.count(agentLoads, l.Failed, "failed")
		v.gauge(agentLoadDirectors, float64(l.Known), "known")
		v.gauge(agentLoadDirectors, float64(l.Directors-l.Known), "silent")
	}
	for i := range status.Redirects {
		r := &status.Redirects[i]
		v.count(redirectedOpened, r.Opened, r.Name)
		v.gauge(redirectedNow, float64(r.Connections), r.Name)
		v.count(redirectedPackets, r.SentPackets, r.Name, "sent")
		v.count(redirectedPackets, r.ReceivedPackets, r.Name, "received")
		v.count(redirectedBytes, r.SentBytes, r.Name, "sent")
		v.count(redirectedBytes, r.ReceivedBytes, r.Name, "received")
		for _, e := range r.Events {
			v.count(redirectEvents, e.Count, r.Name, e.Name)
			if host := model.FallbackHost(e.Name); host != "" {
				v.count(fallbacks, e.Count, r.Name, host, e.Name)
			}
		}
	}
}
