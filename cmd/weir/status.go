package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

func newStatus() *cobra.Command {
	var out output
	var conn connection
	var agent, alive bool
	shown := func(err error, list []model.Problem) error {
		if err == nil && !alive {
			err = judge(list)
		}
		return err
	}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a director, or an agent, does and counts",
		Long: "status shows what a director, or an agent, does and counts, and what does not run of\n" +
			"what was asked for. If that is something with severity error, the exit status is 5;\n" +
			"with --alive it is 0 as long as the process answers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if agent && !cmd.Flags().Changed("socket") {
				conn.socket = api.DefaultAgentSocket
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			if !agent && cmd.Flags().Changed("socket") {
				role, err := client.Role(cmd.Context())
				if err != nil {
					return err
				}
				agent = role == api.RoleAgent
			}
			if agent {
				status, err := client.AgentStatus(cmd.Context())
				if err != nil {
					return err
				}
				return shown(out.write(cmd.OutOrStdout(), status, func(t *table) { agentTable(t, status) }), status.Problems)
			}
			status, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			return shown(out.write(cmd.OutOrStdout(), status, func(t *table) { statusTable(t, status) }), status.Problems)
		},
	}
	out.add(cmd)
	conn.add(cmd)
	cmd.Flags().BoolVar(&alive, "alive", false, "end with 0 if the process answers, whatever does not run")
	cmd.Flags().BoolVar(&agent, "agent", false, "ask the agent instead (its default socket is "+api.DefaultAgentSocket+")")
	return cmd
}

func infoTable(t *table, info api.Info) {
	t.row("version", info.Version)
	t.row("host", info.Host)
	t.row("process", fmt.Sprintf("%d, since %s", info.PID, info.Started.Format(time.RFC3339)))
	applied := "no version of it has run yet"
	if !info.Applied.IsZero() {
		applied = "applied " + info.Applied.Format(time.RFC3339)
	}
	t.row("configuration", info.File+", "+applied)
	if !info.Changed.IsZero() {
		t.row("last change", info.Changed.Format(time.RFC3339)+", also by sets, drains and checks")
	}
	problemRows(t, info.Problems)
}

// limitedTable has what a client for some segments alone is told: all else is zero.
func limitedTable(t *table, s *api.Status) {
	t.row("version", s.Version)
	problemRows(t, s.Problems)
	t.row("services", s.Services)
	t.row("backends", s.Backends)
	t.row("ring memory", fmt.Sprintf("%d bytes", s.RingMemory))
	t.row("flows remembered", s.Flows.Remembered)
	for _, service := range s.Panic {
		t.row("panic", service+panicText)
	}
	t.line("")
	t.line("This client is for some segments alone: it is told of them, and not of the director.")
}

// panicText says what panic is.
const panicText = ": too few backends are healthy by their checks, which are not believed: all that can be reached are used"

func statusTable(t *table, s api.Status) {
	if s.PID == 0 {
		limitedTable(t, &s)
		return
	}
	infoTable(t, s.Info)
	if s.Revision > 0 {
		t.row("group's revision", s.Revision)
	}
	t.row("services", fmt.Sprintf("%d of %d", s.Services, s.Limits.Services))
	t.row("backends", fmt.Sprintf("%d of %d", s.Backends, s.Limits.Backends))
	t.row("ring memory", fmt.Sprintf("%d of %d bytes", s.RingMemory, s.Limits.RingMemory))
	t.row("flows remembered", fmt.Sprintf("%d of %d", s.Flows.Remembered, s.Limits.Flows))
	if s.NAT != nil {
		t.row("flows of full NAT", fmt.Sprintf("%d of %d, %d fresh; %d of other directors", s.NAT.Flows, s.NAT.Places, s.NAT.Fresh, s.NAT.Shared))
	}
	t.row("slots settling", s.Flows.Settling)
	for _, e := range s.Flows.Events {
		if e.Count > 0 {
			t.row("flows "+strings.TrimPrefix(e.Name, "flow_"), e.Count)
		}
	}
	for _, e := range s.Flows.Imported {
		if e.Count > 0 {
			t.row("flows "+strings.Replace(e.Name, "_", ", ", 1), e.Count)
		}
	}
	for _, e := range s.QUIC {
		if e.Count > 0 {
			t.row(strings.Replace(e.Name, "_", " ", 1), e.Count)
		}
	}
	for _, e := range s.Asks {
		if e.Count > 0 {
			t.row("redirection "+strings.ReplaceAll(strings.TrimPrefix(e.Name, "ask_"), "_", " "), e.Count)
		}
	}
	for _, e := range s.Left {
		if e.Count > 0 {
			t.row("generations "+strings.ReplaceAll(e.Name, "_", "-"), e.Count)
		}
	}
	if a := s.Agents; a.Reporting+a.Silent > 0 {
		t.row("agents reporting", a.Reporting)
		t.row("agents silent", a.Silent)
	}
	if s.Agents.Refused > 0 {
		t.row("agents' reports refused", s.Agents.Refused)
	}
	loadsRows(t, s.Loads)
	if s.Strangers > 0 {
		t.row("strangers refused", s.Strangers)
	}
	for _, e := range s.Probes {
		if e.Count > 0 {
			t.row("probes "+e.Name, e.Count)
		}
	}
	if c := s.Capture; c.Begun > 0 {
		t.row("captures", fmt.Sprintf("%d of %d packets; left out: %d over the rate, %d not read in time", c.Begun, c.Matched, c.Limited, c.Lost))
	}
	if c := s.Capture.Running; c != nil {
		t.row("capture runs", fmt.Sprintf("for %s since %s, for %v or %d packets", c.Client, c.Since.Format(time.RFC3339), c.Wanted.Duration, c.Wanted.Packets))
	}
	for i := range s.Overrides {
		o := &s.Overrides[i]
		t.row("override", fmt.Sprintf("%s/%s: %s", o.Service, o.Backend, overrideText(&o.Override)))
	}
	for _, service := range s.Panic {
		t.row("panic", service+panicText)
	}
	t.line("")
	t.row("INTERFACE", "XDP", "MTU")
	for _, i := range s.Interfaces {
		t.row(i.Name, xdpText(&i), i.MTU)
	}
	if f := s.FanOut; f != nil {
		t.line("")
		t.row("fan-out", fmt.Sprintf("%d packets to CPUs %s; %d handled there, %d dropped", f.Given, list(f.CPUs), f.Taken, f.Dropped))
	}
	steeringTable(t, s.Steering)
	neighborTable(t, s.Neighbor)
	hostSourcesTable(t, &s)
	peersTable(t, s.Peers)
	hooksTable(t, s.Hooks)
	cpusTable(t, s.CPUs)
	reasonsTable(t, s.Reasons)
}

// steeringTable is left out if no flow is to be steered.
func steeringTable(t *table, s *model.SteeringStatus) {
	if s == nil {
		return
	}
	t.line("")
	t.row("flows steered", fmt.Sprintf("%d of %d, %d packets", s.Flows, s.Most, s.Packets))
	t.row("INTERFACE", "STEERS", "RULES", "ROOM", "OTHERS", "INSERTED", "DELETED", "REFUSED", "LOST", "QUEUES", "PROBLEM")
	for _, l := range s.Interfaces {
		queues := make([]string, len(l.Queues))
		for i, q := range l.Queues {
			queues[i] = fmt.Sprintf("%d:%s", q.Queue, q.Service)
		}
		t.row(l.Name, steersText(l.Works), l.Rules, l.Room, l.Others, l.Inserted, l.Deleted, l.Refused, l.Lost, strings.Join(queues, " "), l.Problem)
	}
}

func steersText(works bool) string {
	if works {
		return "yes"
	}
	return "no"
}

// xdpText says how the program runs on an interface, or why it does not.
func xdpText(i *model.InterfaceStatus) string {
	switch {
	case i.Index == 0:
		return "is not there"
	case i.XDP == "":
		return "not attached"
	}
	return i.XDP
}

// loadsRows are left out if no loads are reported.
func loadsRows(t *table, l *model.LoadStatus) {
	if l == nil {
		return
	}
	for _, at := range l.Listens {
		t.row("loads heard at", at)
	}
	if l.Problem != "" {
		t.row("loads not heard", l.Problem)
	}
	t.row("agents reporting loads", l.Agents)
	for _, m := range l.Messages {
		if m.Count > 0 {
			t.row("reports of loads "+strings.ReplaceAll(m.Name, "_", " "), m.Count)
		}
	}
}

// peersTable is left out if the director does not share what it remembers.
func peersTable(t *table, peers []model.PeerStatus) {
	if len(peers) == 0 {
		return
	}
	since := func(at time.Time) string {
		if at.IsZero() {
			return "no"
		}
		return at.Format(time.RFC3339)
	}
	t.line("")
	t.row("DIRECTOR", "TELLS-SINCE", "FLOWS", "IS-TOLD-SINCE", "FLOWS", "SLOW", "GARBAGE", "PROBLEM")
	for _, p := range peers {
		t.row(p.Director, since(p.Shares), p.Heard, since(p.Listens), p.Shared, p.Slow, p.Garbage, p.Problem)
	}
}

// hooksTable is left out if there are no hooks.
func hooksTable(t *table, hooks []model.HookStatus) {
	if len(hooks) == 0 {
		return
	}
	t.line("")
	t.row("HOOK", "STATE", "UP", "CALLS", "FAILED", "LAST-TOOK", "PROBLEM")
	for _, h := range hooks {
		took := "never"
		if !h.Took.IsZero() {
			took = h.Took.Format(time.RFC3339)
		}
		t.row(h.Name, hookState(&h), h.Up, h.Calls, h.Failures, took, h.Problem)
	}
}

// hookState says how much a hook has been told.
func hookState(h *model.HookStatus) string {
	switch {
	case h.Running:
		return "runs"
	case h.Current:
		return "current"
	}
	return "waits"
}

// cpusTable is left out if the kernel does not let CPUs be watched.
func cpusTable(t *table, cpus []model.CPUStatus) {
	if len(cpus) == 0 {
		return
	}
	t.line("")
	t.row("CPU", "UTILIZATION", "BUSY", "FULLNESS")
	for _, c := range cpus {
		t.row(c.CPU, fmt.Sprintf("%.3f", c.Utilization), fmt.Sprintf("%.3f", c.Busy), fmt.Sprintf("%.3f", c.Fullness))
	}
}

func agentTable(t *table, s api.AgentStatus) {
	infoTable(t, s.Info)
	if l := s.Loads; l != nil {
		t.row("loads reported to", fmt.Sprintf("%d of %d directors, every %v", l.Known, l.Directors, time.Duration(l.Interval)))
		t.row("reports of loads", fmt.Sprintf("%d sent, %d not", l.Sent, l.Failed))
		if l.Problem != "" {
			t.row("loads not reported", l.Problem)
		}
	}
	for _, d := range s.Directors {
		last := "never"
		if !d.Last.IsZero() {
			last = d.Last.Format(time.RFC3339)
		}
		t.row("reports to "+d.Director, fmt.Sprintf("%d taken, the last at %s; %d failed", d.Taken, last, d.Failed))
	}
	t.line("")
	t.row("INTERFACE", "INGRESS", "EGRESS", "REDIRECT", "MTU", "WHY-NO-XDP")
	for _, i := range s.Interfaces {
		t.row(i.Name, i.Ingress, i.Egress, i.Redirect, i.MTU, i.NoXDP)
	}
	t.line("")
	t.row("SERVICE", "VIP", "PROTOCOL", "PORT", "MSS", "PACKETS", "BYTES")
	for _, service := range s.Services {
		t.row(service.Name, service.VIP, service.Protocol, service.Port, service.MSS, service.Packets, service.Bytes)
	}
	podsTable(t, s.Pods)
	redirectsTable(t, s.Redirects)
	reasonsTable(t, s.Reasons)
}

// podsTable is left out if no backend is a pod of the host.
func podsTable(t *table, pods []model.AgentPod) {
	if len(pods) == 0 {
		return
	}
	t.line("")
	t.row("SERVICE", "POD", "PORT", "FLOWS")
	for _, p := range pods {
		t.row(p.Service, p.Address, p.Port, p.Flows)
	}
}

// redirectsTable is left out if no service is redirected.
func redirectsTable(t *table, redirects []model.AgentRedirect) {
	if len(redirects) == 0 {
		return
	}
	t.line("")
	t.row("REDIRECTED", "VIP", "OPENED", "CONNECTIONS", "SENT-PACKETS", "SENT-BYTES", "RECEIVED-PACKETS", "RECEIVED-BYTES")
	for _, r := range redirects {
		t.row(r.Name, r.VIP, r.Opened, r.Connections, r.SentPackets, r.SentBytes, r.ReceivedPackets, r.ReceivedBytes)
	}
	t.line("")
	t.row("REDIRECTED", "EVENT", "COUNT", "FALLBACK-OF")
	for _, r := range redirects {
		for _, e := range r.Events {
			if e.Count > 0 {
				t.row(r.Name, e.Name, e.Count, model.FallbackHost(e.Name))
			}
		}
	}
}

// reasonsTable lists the reasons whose counters are not zero.
func reasonsTable(t *table, reasons []model.Counter) {
	t.line("")
	t.row("REASON", "PACKETS", "BYTES")
	for _, r := range reasons {
		if r.Packets > 0 {
			t.row(r.Name, r.Packets, r.Bytes)
		}
	}
}

// hostSourcesTable is left out if the configuration alone says where hosts of tenants' networks are.
func hostSourcesTable(t *table, s *api.Status) {
	if len(s.HostSources) > 0 {
		t.line("")
		t.row("HOSTS-BY", "HOSTS", "SINCE", "LOST")
	}
	for _, of := range s.HostSources {
		t.row(of.Source, of.Hosts, of.Since.Format(time.RFC3339), of.Lost)
	}
	o := s.OVN
	if o == nil {
		return
	}
	t.line("")
	is := "connected to"
	if !o.Connected {
		is = "not connected to"
	}
	t.row("ovn", fmt.Sprintf("%s %s since %s, %d networks, %d ports", is, cmp.Or(o.Endpoint, "any endpoint"), o.Since.Format(time.RFC3339), o.Networks, o.Ports))
	if o.Problem != "" {
		t.row("ovn database", o.Problem)
	}
	chassis := o.Chassis + ", registered"
	if !o.Registered {
		chassis = o.Chassis + ", not registered"
	}
	if o.Unregistered != "" {
		chassis += ": " + o.Unregistered
	}
	t.row("ovn chassis", chassis)
	if o.IPsec {
		t.row("ovn ipsec", "is on: OVN's hosts take no packets from this director")
	}
}

// neighborTable is left out if the director answers for no VIP itself.
func neighborTable(t *table, s model.NeighborStatus) {
	if len(s.Interfaces) == 0 {
		return
	}
	t.line("")
	if s.Director.IsValid() {
		t.row("answers as", s.Director)
	}
	if s.Lease != "" {
		t.row("lease of VIPs", s.Lease)
	}
	if s.Draining {
		t.row("draining", "others answer for the VIPs")
	}
	if s.Problem != "" {
		t.row("problem", s.Problem)
	}
	t.row("ANSWERS-ON", "MAC", "ANNOUNCED", "ANSWERED", "LIMITED", "CONFLICTS", "PROBLEM")
	for _, i := range s.Interfaces {
		t.row(i.Place(), i.MAC, i.Announced, i.Answered, i.Limited, i.Conflicts, i.Problem)
	}
	t.line("")
	t.row("VIP", "ANSWERS", "OWNER", "SINCE", "INTERFACES", "PROBLEM")
	for _, v := range s.VIPs {
		who, owner, since := "another director", "", ""
		switch v.State {
		case model.NeighborAnswers:
			who, since = "this director", v.Since.Format(time.RFC3339)
		case model.NeighborNobody:
			who = "nobody"
		}
		if v.Owner.IsValid() {
			owner = v.Owner.String()
		}
		t.row(v.Of(), who, owner, since, list(v.Interfaces), v.Problem)
	}
}

// problemRows are left out if there are no problems.
func problemRows(t *table, list []model.Problem) {
	for i := range list {
		p := &list[i]
		what := string(p.Severity)
		text := fmt.Sprintf("%s: %s", p.Kind, p.Text)
		if p.Stored != "" {
			text += "; the other is in " + p.Stored
		}
		if p.Fix != "" {
			text += "; fix: " + p.Fix
		}
		t.row(what, fmt.Sprintf("%s (since %s)", text, p.Since.Format(time.RFC3339)))
	}
}

// problemsError says why a command ends with exitProblems; what it printed says the rest.
type problemsError struct{ count int }

// Error counts the problems.
func (e problemsError) Error() string {
	if e.count == 1 {
		return "1 thing that was asked for does not run: see the error line"
	}
	return fmt.Sprintf("%d things that were asked for do not run: see the error lines", e.count)
}

// judge returns an error if what was shown has problems.
func judge(list []model.Problem) error {
	count := 0
	for i := range list {
		if list[i].Severity == model.SeverityError {
			count++
		}
	}
	if count > 0 {
		return problemsError{count}
	}
	return nil
}
