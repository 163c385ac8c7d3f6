package director

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/bgp"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/daemon"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/health"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// gather lists the problems of those parts that do not list them themselves. Callers take turns: else
// an earlier result could be listed after a later one, and problems would seem to end and to begin
// again.
func (d *Director) gather() {
	d.gathering.Lock()
	defer d.gathering.Unlock()
	d.Problems.Report(model.ProblemAPI, "", d.remote.Problem())
	d.Problems.Warn(model.ProblemAPI, "refused", d.remote.Refused())
	d.Problems.Report(model.ProblemLoads, "", d.loads.receiver.Problem())
	d.Problems.Replace(model.ProblemHealth, healthProblems(d.checker.Prevented(), d.checker.Late()))
	d.Problems.Warn(model.ProblemGroup, "listen", d.members.problem())
	d.Problems.Replace(model.ProblemBackend, append(unreachableProblems(d.kernel.Unreachable(mostUnreachable)), movedProblems(d.kernel.Moved(mostUnreachable))...))
	host, interfaces := daemon.UpkeepProblems(d.host.Status(), d.notices.Problem())
	d.Problems.Replace(model.ProblemHost, append(host, d.examiner.Problems()...))
	d.Problems.Replace(model.ProblemInterface, slices.Concat(interfaces, d.fanOutProblems(), renamedProblems(d.kernel.Renamed()), daemon.MTUProblems(d.kernel.Lowered(), "weir run")))
	config, sessions, view := d.Config(), d.announcers.bgp.Status(), d.bfd.View()
	d.Problems.Replace(model.ProblemBGP, slices.Concat(bgpProblems(sessions), bgpPasswordProblems(&config.BGP, sessions), evpnProblems(&config)))
	d.Problems.Replace(model.ProblemBFD, append(bfdProblems(view, d.bfd.newFault()), bfdPasswordProblems(&config, view)...))
	d.Problems.Replace(model.ProblemHook, hookProblems(d.announcers.hooks.Status()))
	d.Problems.Replace(model.ProblemService, slices.Concat(ownerlessProblems(config.Services, d.controller.Log), tierProblems(d.engine.Report().Services), daemon.CrowdProblems(d.kernel.Crowded())))
	d.Problems.Replace(model.ProblemSteering, steeringProblems(d.steering.Status()))
	d.Problems.Replace(model.ProblemSegment, d.segmentProblems())
	for _, source := range model.HostSources[1:] {
		d.Problems.Warn(model.ProblemStore, "hosts-"+string(source), d.segments.Amiss(source))
	}
	d.Problems.Replace(model.ProblemNeighbor, neighborProblems(d.announcers.neighbor.Status()))
}

// healthProblems are why probes cannot be made, and of which segments they are made too late.
func healthProblems(prevented error, late []health.Late) (problems []model.Problem) {
	if prevented != nil {
		problems = append(problems, model.Problem{Severity: model.SeverityWarning, Text: prevented.Error()})
	}
	for _, l := range late {
		p := model.Problem{Segment: l.Segment, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("probes of segment %s begin too late: as many as it may have at a time wait for answers", l.Segment),
			Fix:  "remove backends that do not answer, or give their checks a shorter timeout or a longer interval"}
		if l.Segment != (model.Segment{}) {
			p.Part = l.Segment.String()
		}
		if l.Service != "" {
			p.Part = l.Service
			p.Text = fmt.Sprintf("the programs that check backends of service %q are run too late: as many as may run at a time do", l.Service)
			p.Fix = "make the program faster, give the check a longer interval or a shorter timeout, or raise director.exec-checks.at-once"
		}
		problems = append(problems, p)
	}
	return problems
}

// mostUnreachable bounds how many backends of one segment are looked at: a link that is down may take thousands along.
const mostUnreachable = 100

// unreachableProblems are the problems of backends to which there is no way.
func unreachableProblems(unreachable []model.UnreachableBackend) []model.Problem {
	found := make([]model.Problem, len(unreachable))
	for i, b := range unreachable {
		found[i] = model.Problem{Part: b.Service + "/" + b.Backend, Segment: b.Segment, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("backend %q of service %q gets no packets: %s", b.Backend, b.Service, b.Why)}
	}
	return found
}

// movedProblems are the problems of next hops whose MAC address has changed. Nobody may have meant that.
func movedProblems(moved []model.MovedNeighbor) (found []model.Problem) {
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

// ownerlessProblems are the problems of services without a backend for new connections. A ring needs
// owners, so the backends that last had a weight go on to get all new connections.
func ownerlessProblems(services []model.Service, logOf func(model.ServiceID) (model.Log, bool)) (found []model.Problem) {
	for i := range services {
		s := &services[i]
		if !s.Ownerless() {
			continue
		}
		text := fmt.Sprintf("service %s: all backends are draining or of weight 0, and none has had a weight: new connections are dropped", s.Name)
		log, _ := logOf(s.ID())
		if slices.ContainsFunc(log.Generations, func(g model.Generation) bool { return len(g.Members) > 0 }) {
			text = fmt.Sprintf("service %s: all backends are draining or of weight 0: those that were the last to have a weight get all new connections", s.Name)
		}
		found = append(found, model.Problem{Part: s.Name, Segment: s.Segment, Severity: model.SeverityWarning, Text: text,
			Fix: "give a backend a weight, or remove the service"})
	}
	return found
}

// tierProblems are the services whose new connections do not go to the first tier. The text has no numbers of backends that
// come and go: each would be a problem of its own.
func tierProblems(services []engine.ServiceReport) (found []model.Problem) {
	for i := range services {
		if s := &services[i]; s.Tier > 0 {
			found = append(found, model.Problem{Part: s.Name, Segment: s.ID.Segment, Severity: model.SeverityWarning,
				Text: fmt.Sprintf("service %s: tier %d gets new connections, because fewer than min-healthy (%d) backends of the tiers above it are healthy", s.Name, s.Tier, s.Tiers.Needs),
				Fix:  "weir backends " + s.Name + " shows what their checks say"})
		}
	}
	return found
}

// evpnProblems are the neighbors that should exchange EVPN with a director that is no VTEP.
func evpnProblems(c *model.Config) (found []model.Problem) {
	for _, i := range c.EVPNWithoutVTEP() {
		name := c.BGP.Neighbors[i].Name()
		found = append(found, model.Problem{Part: name, Severity: model.SeverityWarning, Text: fmt.Sprintf("neighbor %s: %s", name, model.EVPNNeedsVTEP),
			Fix: "give director.vtep and start the director again, or take evpn out of the neighbor's families"})
	}
	return found
}

// bgpProblems are the problems of wanted sessions that do not exist or have a problem, and of addresses
// where neighbors cannot connect. A problem of this host is an error; a neighbor may do something
// on purpose.
func bgpProblems(s model.BGPStatus) (found []model.Problem) {
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
	for i := range s.EVPN {
		e := &s.EVPN[i]
		for _, h := range e.Contested {
			address := fmt.Sprintf("MAC address %v", h.MAC)
			if h.IP.IsValid() {
				address = h.IP.String()
			}
			found = append(found, model.Problem{Part: fmt.Sprintf("%s in VNI %d", address, e.VNI), Severity: model.SeverityWarning,
				Text: fmt.Sprintf("%s in VNI %d is to be at this director, and the VTEP %v has taken it (EVPN, MAC address %v, sequence number %d): its packets go there", address, e.VNI, h.VTEP, h.MAC, h.Sequence)})
		}
	}
	return found
}

// bfdProblems are the problems of sessions that are not up, or not as configured, and of the process that
// has them, even if that problem is over. view is nil if no sessions are wanted.
func bfdProblems(view *model.BFDStatus, fault string) (found []model.Problem) {
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
			text = fmt.Sprintf("no packets can be sent to %s: %s", s.Name(), strings.TrimPrefix(s.Problem, bfd.NotSent))
		case s.Problem != "":
			severity, text = model.SeverityError, fmt.Sprintf("the session with %s: %s", s.Name(), s.Problem)
		case s.State != bfd.Up.String() && s.Refused != "":
			text = fmt.Sprintf("the session with %s is not up: %s", s.Name(), s.Refused)
		case s.State != bfd.Up.String():
			text = fmt.Sprintf("the session with %s is not up", s.Name())
		default:
			continue
		}
		found = append(found, model.Problem{Part: s.Name(), Severity: severity, Text: text})
	}
	return found
}

// hookProblems are the problems of hooks that have not taken the current VIPs.
func hookProblems(hooks []model.HookStatus) (found []model.Problem) {
	for _, h := range hooks {
		if !h.Current && h.Problem != "" {
			found = append(found, model.Problem{Part: h.Name, Text: fmt.Sprintf("hook %q has not taken which VIPs are up: %s", h.Name, h.Problem)})
		}
	}
	return found
}

// neighborProblems are the reasons why VIPs are not answered for by ARP and NDP.
func neighborProblems(s model.NeighborStatus) (found []model.Problem) {
	if s.Problem != "" {
		found = append(found, model.Problem{Text: s.Problem})
	}
	for _, i := range s.Interfaces {
		if i.Problem != "" {
			at := i.Place().String()
			found = append(found, model.Problem{Part: at, Text: fmt.Sprintf("no VIP is answered for on %s: %s", at, i.Problem)})
		}
	}
	for _, v := range s.VIPs {
		if v.Problem != "" {
			found = append(found, model.Problem{Part: v.Of().String(), Severity: model.SeverityWarning, Text: fmt.Sprintf("%v: %s", v.Of(), v.Problem)})
		}
	}
	return found
}

// renamedProblems are the interfaces that the configuration knows by a former name: after the next
// boot of the host they would not be found.
func renamedProblems(renamed map[string]string) (found []model.Problem) {
	for name, now := range renamed {
		found = append(found, model.Problem{Part: now, Severity: model.SeverityWarning,
			Text: fmt.Sprintf("interface %s is called %s now", name, now), Fix: "name it so in director.interfaces"})
	}
	return found
}

// bgpPasswordProblems are the problems of sessions that go on, and could not begin again: their password
// cannot be read any more. A session that is not there says so itself.
func bgpPasswordProblems(c *model.BGP, s model.BGPStatus) (found []model.Problem) {
	goesOn := map[string]bool{}
	for _, n := range s.Neighbors {
		goesOn[n.Name()] = n.State == model.SessionEstablished && n.Problem == ""
	}
	for i := range c.Neighbors {
		n := &c.Neighbors[i]
		if err := bgp.CheckPassword(n); err != nil && goesOn[n.Name()] {
			found = append(found, notAgain(n.Name(), err))
		}
	}
	return found
}

// bfdPasswordProblems are the same of BFD. view is nil if no sessions are wanted.
func bfdPasswordProblems(c *model.Config, view *model.BFDStatus) (found []model.Problem) {
	if view == nil {
		return nil
	}
	goesOn := map[string]bool{}
	for _, s := range view.Sessions {
		goesOn[s.Name()] = s.State == bfd.Up.String() && s.Problem == ""
	}
	for _, s := range c.BFDSessions(nil) {
		if s.Authentication == nil || !goesOn[s.Name()] {
			continue
		}
		if err := bfd.CheckPassword(s.Authentication); err != nil {
			found = append(found, notAgain(s.Name(), err))
		}
	}
	return found
}

func notAgain(neighbor string, err error) model.Problem {
	return model.Problem{Part: neighbor, Severity: model.SeverityWarning, Fix: bgp.PasswordFix,
		Text: fmt.Sprintf("the session with %s goes on, and cannot begin again: %v", neighbor, err)}
}

// controllerProblems is the list of problems for the controller, which does not know the file's name or
// where sets are stored.
type controllerProblems struct{ d *Director }

// Report lists what does not run.
func (l controllerProblems) Report(kind model.ProblemKind, part string, err error) {
	l.d.Problems.Report(kind, l.part(kind, part), l.d.located(err))
}

// Warn lists what runs, but not in all of its parts.
func (l controllerProblems) Warn(kind model.ProblemKind, part string, err error) {
	l.d.Problems.Warn(kind, l.part(kind, part), l.d.located(err))
}

func (l controllerProblems) part(kind model.ProblemKind, part string) string {
	if kind == model.ProblemFile {
		return l.d.File()
	}
	return part
}

// located adds the places of a refusal's fields, and where the sets that they contradict are
// stored.
func (d *Director) located(err error) error {
	var refused *desired.RefusedError
	if !errors.As(err, &refused) {
		return err
	}
	text, _ := config.ReadFile(d.File()) // without it there are no lines
	var all []error
	for _, r := range refused.Refusals {
		all = append(all, &daemon.PlacedError{Err: r, At: d.placeOf(r, text)})
	}
	return errors.Join(all...)
}

// placeOf returns where the two sides of a refusal are: one in the file, whose text is given, the
// other in an owner's set; or both in sets.
func (d *Director) placeOf(r desired.Refusal, text []byte) model.Place {
	at, inFile := model.Place{Field: r.Path, Owner: r.Owner}, r.Path
	switch {
	case r.Owner == "" || r.Owner == store.OwnerFile:
		at.Owner = r.With
	case r.With == store.OwnerFile:
		inFile = r.Other
	default:
		at.Stored = d.storedIn(r.Owner)
		return at
	}
	at.File, at.Line = d.File(), config.Line(text, inFile)
	if at.Owner != "" && at.Owner != store.OwnerFile {
		at.Stored = d.storedIn(at.Owner)
	}
	return at
}

// storedIn says where an owner's set is.
func (d *Director) storedIn(owner string) string {
	if e := d.first.Store.Etcd; d.group != nil {
		return fmt.Sprintf("the etcd of %v, %s, owner %q", e.Endpoints, e.Prefix, owner)
	}
	return filepath.Join(daemon.StateDirectory(d.first.Store), owner+".json")
}
