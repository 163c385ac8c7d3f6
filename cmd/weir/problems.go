package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

// listedError is an error that the owner of the part has already put on the list of problems.
type listedError struct{ error }

// Unwrap returns what is wrong.
func (e listedError) Unwrap() error { return e.error }

// gather lists what is wrong with those parts that say so when they are asked. Only one caller asks
// at a time: else an earlier result could be listed after a later one, and problems would seem to
// end and to begin again.
func (d *director) gather() {
	d.gathering.Lock()
	defer d.gathering.Unlock()
	d.problems.Report(model.ProblemAPI, "", d.remote.Problem())
	d.problems.Warn(model.ProblemAPI, "refused", d.remote.Refused())
	d.problems.Report(model.ProblemLoads, "", d.loads.receiver.Problem())
	d.problems.Warn(model.ProblemHealth, "", d.checker.Prevented())
	d.problems.Warn(model.ProblemGroup, "listen", d.shares.problem())
	d.problems.Replace(model.ProblemBackend, append(ofBackends(d.kernel.Unreachable(mostUnreachable)), ofMoved(d.kernel.Moved(mostUnreachable))...))
	host, interfaces := upkeepProblems(d.hostStatus())
	d.problems.Replace(model.ProblemHost, append(host, d.examiner.problems()...))
	d.problems.Replace(model.ProblemInterface, slices.Concat(interfaces, ofInterfaces(d.kernel.Renamed()), ofLowered(d.kernel.Lowered(), "weir run")))
	config, sessions, view := d.Config(), d.announcers.bgp.Status(), d.bfd.View()
	d.problems.Replace(model.ProblemBGP, append(ofBGP(sessions), bgpPasswords(&config.BGP, sessions)...))
	d.problems.Replace(model.ProblemBFD, append(ofBFD(view, d.bfd.fresh()), bfdPasswords(&config, view)...))
	d.problems.Replace(model.ProblemHook, ofHooks(d.announcers.hooks.Status()))
	d.problems.Replace(model.ProblemService, append(withoutOwners(config.Services, d.keeper.Log), ofCrowds(d.kernel.Crowded())...))
	d.problems.Replace(model.ProblemNeighbor, ofNeighbor(d.announcers.neighbor.Status()))
}

// mostUnreachable bounds how many backends are listed: a link that is down may take thousands along.
const mostUnreachable = 100

// ofBackends are the problems of backends to which there is no way.
func ofBackends(unreachable []model.UnreachableBackend) []model.Problem {
	found := make([]model.Problem, len(unreachable))
	for i, b := range unreachable {
		found[i] = model.Problem{Part: b.Service + "/" + b.Backend, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("backend %q of service %q gets no packets: %s", b.Backend, b.Service, b.Why)}
	}
	return found
}

// ofMoved are the problems of next hops whose MAC address has changed. Nobody may have meant that.
func ofMoved(moved []model.MovedNeighbor) (found []model.Problem) {
	for i := range moved {
		m := &moved[i]
		p := model.Problem{Part: m.Address.String(), Severity: model.SeverityWarning}
		of := "backend " + m.Backends[0]
		if more := len(m.Backends) - 1; more > 0 {
			of += fmt.Sprintf(" and %d more", more)
		}
		if m.InTurn {
			p.Text = fmt.Sprintf("two hosts have address %v on %s, %v and %v, and get packets for %s in turn", m.Address, m.Interface, m.Now, m.Before, of)
			p.Fix = "find the host that should not have the address"
		} else {
			p.Text = fmt.Sprintf("packets for %s go to another host: address %v on %s has moved from %v to %v", of, m.Address, m.Interface, m.Before, m.Now)
			p.Fix = "nothing, if that host was replaced or a router has taken over from another one; else find the host that has taken the address"
		}
		found = append(found, p)
	}
	return found
}

// ofCrowds are the problems of services whose flows fill a table. They have no numbers, which
// change all the time.
func ofCrowds(crowds []model.CrowdedService) (found []model.Problem) {
	for _, c := range crowds {
		of := tablesCrowded[c.Table]
		found = append(found, model.Problem{Part: c.Service, Severity: model.SeverityWarning, Text: fmt.Sprintf("service %s: %s", c.Service, of.text), Fix: of.fix})
	}
	return found
}

// tablesCrowded says for each table what it means if a service's flows have no room there.
var tablesCrowded = map[string]struct{ text, fix string }{
	model.FlowMemoryTable: {"fresh flows have no room in flow memory, and most of them are its own: new connections are not remembered, and may break when backends change",
		"if this is no flood, give limits.flows more"},
	model.NATTable: {"fresh flows have no room in full NAT's table, and many in it are its own: new connections are dropped (drop_snat_full)",
		"if this is no flood, give the service's SNAT more addresses or ports"},
	model.UDPFlowsTable: {"it has its quota of the agent's UDP flows: more of its flows are remembered as those that have just begun, and may move when backends change",
		"if this is no flood, give the agent's udp-flows more"},
	model.PodsTable: {"it has its quota of the flows of pods on this host: more of its flows are remembered as those that have just begun, for a minute",
		"if this is no flood, spread its pods over more nodes"},
	model.RedirectTable: {"it has its quota of the host's redirected connections: more of its connections go as it falls back",
		"if this is no attack, spread its clients over more hosts"},
}

// withoutOwners are the problems of services without a backend for new connections. A ring needs
// owners, so the backends that last had a weight go on to get all new connections.
func withoutOwners(services []model.Service, logOf func(model.ServiceID) (model.Log, bool)) (found []model.Problem) {
	for i := range services {
		s := &services[i]
		if len(s.Backends) == 0 || slices.ContainsFunc(s.Backends, owns) {
			continue
		}
		text := fmt.Sprintf("service %s: all backends are draining or of weight 0, and none has had a weight: new connections are dropped", s.Name)
		log, _ := logOf(s.ID())
		if slices.ContainsFunc(log.Generations, func(g model.Generation) bool { return len(g.Members) > 0 }) {
			text = fmt.Sprintf("service %s: all backends are draining or of weight 0: those that were the last to have a weight get all new connections", s.Name)
		}
		found = append(found, model.Problem{Part: s.Name, Severity: model.SeverityWarning, Text: text,
			Fix: "give a backend a weight, or remove the service"})
	}
	return found
}

// owns reports whether new connections should go to a backend.
func owns(b model.Backend) bool { return b.State != model.Draining && b.Weight > 0 }

// ofBGP are the problems of wanted sessions that do not exist or have a problem, and of addresses
// where neighbors cannot connect. A problem of this host is an error; a neighbor may do something
// on purpose.
func ofBGP(s model.BGPStatus) (found []model.Problem) {
	for _, l := range s.Listen {
		if l.Problem != "" {
			found = append(found, model.Problem{Part: l.Address.String(), Text: fmt.Sprintf("passive neighbors cannot connect to %v: %s", l.Address, l.Problem)})
		}
	}
	for _, n := range s.Neighbors {
		text := ""
		switch {
		case n.State != model.SessionEstablished && n.Problem == "":
			text = fmt.Sprintf("there is no session with %s yet", n.Name())
		case n.State != model.SessionEstablished:
			text = fmt.Sprintf("there is no session with %s: %s", n.Name(), n.Problem)
		case n.Problem != "":
			text = fmt.Sprintf("the session with %s: %s", n.Name(), n.Problem)
		default:
			continue
		}
		severity := model.SeverityWarning
		if n.Own {
			severity = model.SeverityError
		}
		found = append(found, model.Problem{Part: n.Name(), Severity: severity, Text: text})
	}
	return found
}

// ofBFD are the problems of sessions that are not up, or not as configured, and of the process that
// has them, even if that problem is over. view is nil if no sessions are wanted.
func ofBFD(view *model.BFDStatus, fault string) (found []model.Problem) {
	if view == nil {
		return nil
	}
	if problem := cmp.Or(view.Problem, fault); problem != "" {
		found = append(found, model.Problem{Text: "routers are not told when the datapath is lost: " + problem})
	}
	if view.Problem != "" {
		return found // nothing is known about the sessions
	}
	for _, s := range view.Sessions {
		severity, text := model.SeverityWarning, ""
		switch {
		case strings.HasPrefix(s.Problem, bfd.NotSent):
			text = fmt.Sprintf("no packets can be sent to %v: %s", s.Neighbor, strings.TrimPrefix(s.Problem, bfd.NotSent))
		case s.Problem != "":
			severity, text = model.SeverityError, fmt.Sprintf("the session with %v: %s", s.Neighbor, s.Problem)
		case s.State != bfd.Up.String() && s.Refused != "":
			text = fmt.Sprintf("the session with %v is not up: %s", s.Neighbor, s.Refused)
		case s.State != bfd.Up.String():
			text = fmt.Sprintf("the session with %v is not up", s.Neighbor)
		default:
			continue
		}
		found = append(found, model.Problem{Part: s.Neighbor.String(), Severity: severity, Text: text})
	}
	return found
}

// ofHooks are the problems of hooks that have not taken what they are told.
func ofHooks(hooks []model.HookStatus) (found []model.Problem) {
	for _, h := range hooks {
		if !h.Current && h.Problem != "" {
			found = append(found, model.Problem{Part: h.Name, Text: fmt.Sprintf("hook %q has not taken which VIPs are up: %s", h.Name, h.Problem)})
		}
	}
	return found
}

// ofNeighbor are the reasons why VIPs are not answered for by ARP and NDP.
func ofNeighbor(s model.NeighborStatus) (found []model.Problem) {
	if s.Problem != "" {
		found = append(found, model.Problem{Text: s.Problem})
	}
	for _, i := range s.Interfaces {
		if i.Problem != "" {
			found = append(found, model.Problem{Part: i.Name, Text: fmt.Sprintf("no VIP is answered for on %s: %s", i.Name, i.Problem)})
		}
	}
	for _, v := range s.VIPs {
		if v.Problem != "" {
			found = append(found, model.Problem{Part: v.VIP.String(), Severity: model.SeverityWarning, Text: fmt.Sprintf("%v: %s", v.VIP, v.Problem)})
		}
	}
	return found
}

// problemEvents are the events of changes of the list.
func problemEvents(changes []problems.Change) []api.Event {
	events := make([]api.Event, len(changes))
	for i := range changes {
		c := &changes[i]
		events[i] = api.Event{Kind: api.EventProblem, State: api.ProblemRaised, Text: c.Text, Owner: c.Owner, Problem: &c.Problem}
		if c.Over {
			events[i].State, events[i].Text = api.ProblemResolved, "is over: "+c.Text
		}
	}
	return events
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

// examineProblems asks the director and the agent of this host what does not run, and leaves out
// what doctor has found itself. A process that does not answer is no problem.
func examineProblems(cmd *cobra.Command, sockets doctorSockets, own []doctor.Finding) (findings []doctor.Finding) {
	for _, of := range []struct{ role, socket string }{{"director", sockets.director}, {"agent", sockets.agent}} {
		list, err := askProblems(cmd, of.socket, of.role)
		var problem *api.Problem
		switch {
		case errors.Is(err, api.ErrSilent):
			findings = append(findings, doctor.Finding{Level: doctor.Fail, Check: of.role, Text: fmt.Sprintf("the %s cannot be asked: %v", of.role, err),
				Fix: "let it go on, or restart it: what it has set up goes on forwarding meanwhile"})
			continue
		case errors.Is(err, api.ErrUnreachable), errors.As(err, &problem):
			continue
		case err != nil:
			findings = append(findings, doctor.Finding{Level: doctor.Warn, Check: of.role, Text: fmt.Sprintf("the %s at %s cannot be asked: %v", of.role, of.socket, err)})
		case len(list) == 0:
			findings = append(findings, doctor.Finding{Level: doctor.OK, Check: of.role, Text: fmt.Sprintf("the %s runs all that is asked for", of.role)})
		}
		for i := range list {
			if !toldTwice(&list[i], own) {
				findings = append(findings, findingOf(of.role, &list[i]))
			}
		}
	}
	return findings
}

func askProblems(cmd *cobra.Command, socket, role string) ([]model.Problem, error) {
	client := api.NewClient(socket)
	if role == "agent" {
		status, err := client.AgentStatus(cmd.Context())
		return status.Problems, err
	}
	status, err := client.Status(cmd.Context())
	return status.Problems, err
}

func findingOf(role string, p *model.Problem) doctor.Finding {
	f := doctor.Finding{Level: doctor.Warn, Check: role + " " + string(p.Kind), Text: p.Text, Fix: p.Fix}
	if p.Severity == model.SeverityError {
		f.Level = doctor.Fail
	}
	if p.Stored != "" {
		f.Text += "; the other is in " + p.Stored
	}
	f.Text += " (since " + p.Since.Format(time.RFC3339) + ")"
	return f
}
