package metrics

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir.io/weir/internal/model"
)

const problemsHelp = "Things that were asked for and do not run now, by their kind and severity: error, or warning where it runs, and not in all of its parts or not for long."

var (
	build            = ofDirector.add("weir_build_info", "1, for the director's version and the version of Go that it was built with.", "version", "goversion")
	directorProblems = ofDirector.add("weir_problems", problemsHelp, "kind", "severity")
	upkeepRepairs    = ofDirector.add("weir_upkeep_repairs_total",
		"Things of a part of the host that were not as they should be and that weir has put right, since the process started.", "part")

	utilization = ofDirector.add("weir_datapath_utilization",
		"Share of the CPU's capacity for packets that was in use in the last 10 seconds, 0 to 1.", "cpu")
	packets = ofDirector.add("weir_packets_total",
		"Packets that came in on the director's interfaces, by what became of them.", "reason")
	bytes = ofDirector.add("weir_bytes_total",
		"Bytes of the IP packets that came in on the director's interfaces, by what became of them.", "reason")
	flows = ofDirector.add("weir_flows_remembered",
		"Flows whose backend the director remembers.")
	natFlows = ofDirector.add("weir_full_nat_flows",
		"Flows in full NAT's table, by how far what was seen shows that they are flows: fresh ones give way.", "class")
	natPlaces = ofDirector.add("weir_full_nat_places",
		"Flows that full NAT's table has places for: addresses, ports and protocols.")
	natShared = ofDirector.add("weir_full_nat_shared_flows",
		"Full NAT's flows of other directors' addresses, which this director goes on with.")
	flowEvents = ofDirector.add("weir_flow_memory_events_total",
		"What has happened to flow memory: flows inserted, packets of flows that found no place (refused), flows taken over from the table of version 0.1, not told to the group at once.", "event")
	quic = ofDirector.add("weir_quic_packets_total",
		"Packets of services with quic, by what their connection IDs said: found, unknown, down, other.", "event")
	asks = ofDirector.add("weir_ask_redirect_events_total",
		"What has happened to SYNs of services with ask-redirect, and to answers that say which backend this director asked.", "event")
	left = ofDirector.add("weir_generations_left_total",
		"Generations that have left their service's log, by why: drained (nobody knew of connections, or others had no room), gone (none of their members is a backend any more), repeated (by a newer one, in a full log), max_drain. In a group each is counted by one director.", "cause")
	refused = ofDirector.add("weir_api_refused_total",
		"Callers of the API over TCP that were refused, by the cause: certificate (they refuse api.cert), client_certificate (api.client-ca refuses theirs), unknown (of no client), nothing_shown (neither a token nor a certificate: so browsers begin), handshake (the connection ended in the handshake for another cause, such as another version of TLS).", "cause")
	hopsMoved = ofDirector.add("weir_next_hops_moved_total",
		"How often the MAC address of a next hop to backends has changed since the process started: another host has its address, a replaced one or a stranger.")
	agents = ofDirector.add("weir_agents",
		"Backends whose agents report their connections to the group, and those that did and are silent for more than a minute.", "state")
	reports = ofDirector.add("weir_reports_total",
		"Reports of connections that agents have made by this director's API, by what became of them.", "result")

	steeredFlows = ofDirector.add("weir_steered_flows",
		"Flows that NICs lead to receive queues of their own, or will within a second.")
	steeredPackets = ofDirector.add("weir_steered_packets_total",
		"Packets that have gone to their backends by their flows' rules in NICs, without the usual way.")
	steeredElsewhere = ofDirector.add("weir_steered_flows_elsewhere",
		"Flows that have rules in NICs, and whose packets come by other receive queues than the rules say.")
	steersFlows = ofDirector.add("weir_nic_steers",
		"1 if the interface's NIC steers flows, perhaps not all that it should, 0 if it steers none.", "interface")
	steeringRules = ofDirector.add("weir_nic_rules",
		"Rules in the NIC's flow table, by whose they are: own, others.", "interface", "of")
	steeringRoom = ofDirector.add("weir_nic_rules_room",
		"Rules that fit into the NIC's flow table, of all users together.", "interface")
	steeringChanges = ofDirector.add("weir_nic_rule_changes_total",
		"What has become of rules in the NIC's flow table, since the process started: inserted, deleted, refused (by the NIC), lost (it no longer had them).", "interface", "event")

	fanOutPackets = ofDirector.add("weir_fan_out_packets_total",
		"Packets that the CPUs of receive queues have given to others, by what became of them: taken (handled there), dropped (there was no room, at least so many).", "result")

	captureRunning = ofDirector.add("weir_capture_running",
		"Whether somebody captures packets, for which another program forwards: 1 or 0.")
	captures = ofDirector.add("weir_captures_total",
		"Captures that have begun since the director started.")
	capturePackets = ofDirector.add("weir_capture_packets_total",
		"Packets that captures wanted, by what became of them there: taken, limited (over the rate), lost (not read in time). All are forwarded.", "result")

	hookCurrent = ofDirector.add("weir_hook_current",
		"Whether the hook has taken which VIPs are up now: 1 or 0.", "hook")
	hookCalls = ofDirector.add("weir_hook_calls_total",
		"Calls of the hook that have ended, since the director started, by their result: ok, failed.", "hook", "result")
)

func (v values) build(d *prometheus.Desc, version string) {
	v.gauge(d, 1, version, runtime.Version())
}

// problems counts the things that a process was asked for and that do not run.
func (v values) problems(d *prometheus.Desc, list []model.Problem) {
	type of struct {
		kind     model.ProblemKind
		severity model.Severity
	}
	counts := map[of]int{}
	for _, one := range list {
		counts[of{one.Kind, one.Severity}]++
	}
	for _, row := range model.ProblemKinds {
		for _, severity := range []model.Severity{model.SeverityError, model.SeverityWarning} {
			v.gauge(d, float64(counts[of{row.Kind, severity}]), string(row.Kind), string(severity))
		}
	}
}

// upkeep is the same for directors and agents. A thing that could not be put right is a problem, and
// is counted as one.
func (v values) upkeep(parts []model.Upkeep) {
	for i := range parts {
		v.count(upkeepRepairs, parts[i].Repairs, parts[i].Part)
	}
}

func (v values) director(status *model.DatapathStatus) {
	for _, cpu := range status.CPUs {
		v.gauge(utilization, cpu.Utilization, strconv.Itoa(cpu.CPU))
	}
	for _, r := range status.Reasons {
		v.count(packets, r.Packets, r.Name)
		v.count(bytes, r.Bytes, r.Name)
	}
	v.gauge(flows, float64(status.Flows.Remembered))
	if nat := status.NAT; nat != nil {
		v.gauge(natFlows, float64(nat.Fresh), model.FreshFlow.String())
		v.gauge(natFlows, float64(nat.Flows-nat.Fresh), model.ProvedFlow.String())
		v.gauge(natPlaces, float64(nat.Places))
		v.gauge(natShared, float64(nat.Shared))
	}
	v.tally(flowEvents, status.Flows.Events)
	v.tally(quic, status.QUIC)
	v.tally(asks, status.Asks)
	v.tally(left, status.Left)
	v.tally(refused, status.Refused)
	v.count(hopsMoved, status.HopsMoved)
	v.gauge(agents, float64(status.Agents.Reporting), "reporting")
	v.gauge(agents, float64(status.Agents.Silent), "silent")
	v.count(reports, status.Agents.Taken, "taken")
	v.count(reports, status.Agents.Refused, "refused")
	v.upkeep(status.Upkeep)
	v.capture(&status.Capture)
	for _, h := range status.Hooks {
		v.is(hookCurrent, h.Current, h.Name)
		v.count(hookCalls, h.Calls-h.Failures, h.Name, "ok")
		v.count(hookCalls, h.Failures, h.Name, "failed")
	}
	v.steering(status.Steering)
	if f := status.FanOut; f != nil {
		v.count(fanOutPackets, f.Taken, "taken")
		v.count(fanOutPackets, f.Dropped, "dropped")
	}
	v.peers(status)
	v.neighbor(&status.Neighbor)
	v.segments(status)
	v.services(status)
}

// steering has no values if no flow is to be steered.
func (v values) steering(s *model.SteeringStatus) {
	if s == nil {
		return
	}
	v.gauge(steeredFlows, float64(s.Flows))
	v.count(steeredPackets, s.Packets)
	v.gauge(steeredElsewhere, float64(s.Elsewhere))
	for _, l := range s.Interfaces {
		v.is(steersFlows, l.Works, l.Name)
		v.gauge(steeringRules, float64(l.Rules), l.Name, "own")
		v.gauge(steeringRules, float64(l.Others), l.Name, "others")
		v.gauge(steeringRoom, float64(l.Room), l.Name)
		v.count(steeringChanges, l.Inserted, l.Name, "inserted")
		v.count(steeringChanges, l.Deleted, l.Name, "deleted")
		v.count(steeringChanges, l.Refused, l.Name, "refused")
		v.count(steeringChanges, l.Lost, l.Name, "lost")
	}
}

func (v values) capture(c *model.CaptureStatus) {
	v.is(captureRunning, c.Running != nil)
	v.count(captures, c.Begun)
	v.count(capturePackets, c.Matched-c.Limited-c.Lost, "taken")
	v.count(capturePackets, c.Limited, "limited")
	v.count(capturePackets, c.Lost, "lost")
}
