package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
)

// loadPace is how often a director is asked how much it has to do, and for its problems.
const loadPace = 15 * time.Second

// report is what the controller is told about LoadBalancers, and about the director's load.
type report struct {
	report, counts, others string // as the Lease's annotations have them

	othersRead     time.Time
	otherTags      map[string]string // the tags of others' sets, by their owners
	load           group.Load
	problems       []group.Problem
	ovn            *model.OVNStatus // nil: the director has none, or has not said so
	read, loadRead time.Time
}

// balancers returns the names of the services of LoadBalancers that the group forwards.
func (s *sets) balancers() map[string]bool {
	names := map[string]bool{}
	for name, d := range s.decoded {
		if !isBalancer(name) {
			continue
		}
		for i := range d.documents {
			names[d.documents[i].Service.Name] = true
		}
	}
	return names
}

// isBalancer reports whether a DirectorSet's Service is a LoadBalancer.
func isBalancer(name string) bool { return strings.HasPrefix(name, pool.LoadBalancer+" ") }

// examine asks the director what it has found about the members of LoadBalancers, and what it has
// counted, as often as the Lease is renewed: the Lease tells it. Without an answer the controller is
// told what was last found; the Lease says that the director does not answer.
func (n *Node) examine(ctx context.Context, now time.Time) {
	if now.Sub(n.report.read) < group.Renew || !n.answers.Load() {
		return
	}
	n.report.read = now
	ctx, cancel := context.WithTimeout(ctx, group.Renew)
	defer cancel()
	if now.Sub(n.report.loadRead) >= loadPace {
		if status, err := n.director.client.Status(ctx); err == nil {
			n.report.load, n.report.problems, n.report.ovn, n.report.loadRead = loadOf(&status), problemsOf(status.Problems), status.OVN, now
		}
	}
	n.lookForOthers(ctx, now)
	var services []model.ServiceStatus
	names := n.sets.balancers()
	if n.role.state != active {
		clear(names)
	}
	if len(names) > 0 {
		all, err := n.director.client.Services(ctx)
		if err != nil {
			return
		}
		services = all
	}
	r, c := examined(services, names)
	c.Load, r.Problems = n.report.load, n.report.problems
	n.report.report, n.report.counts = r.String(), c.String()
}

// othersPace is how often others' sets are read anew, whose logs change although the sets do not.
const othersPace = 30 * time.Second

// lookForOthers finds out which services the director has that are not of the group: they may be in
// the way of the group's, or be taken over.
func (n *Node) lookForOthers(ctx context.Context, now time.Time) {
	sets, err := n.director.client.Sets(ctx)
	if err != nil {
		return
	}
	tags, fixed := map[string]string{}, map[string]bool{}
	for _, s := range sets {
		if !strings.HasPrefix(s.Owner, n.director.prefix+".") && s.Services > 0 {
			tags[s.Owner], fixed[s.Owner] = s.ETag, s.Fixed
		}
	}
	if maps.Equal(tags, n.report.otherTags) && (len(tags) == 0 || now.Sub(n.report.othersRead) < othersPace) {
		return
	}
	var others group.Others
	for _, owner := range slices.Sorted(maps.Keys(tags)) {
		documents, err := n.director.client.Documents(ctx, owner)
		if err != nil {
			return // with the next look
		}
		for _, d := range documents {
			others.Services = append(others.Services, group.Other{Owner: owner, Fixed: fixed[owner], Document: d})
		}
	}
	n.report.others, n.report.otherTags, n.report.othersRead = others.String(), tags, now
}

// examined returns what is to be told about services of these names.
func examined(services []model.ServiceStatus, names map[string]bool) (r group.Report, c group.Counts) {
	r.Services, c.Services = map[string]group.ServiceReport{}, map[string]group.Count{}
	for i := range services {
		s := &services[i]
		if !names[s.Name] {
			continue
		}
		one := group.ServiceReport{Checked: s.Health != nil}
		for j := range s.Backends {
			b := &s.Backends[j]
			why := b.Unreachable
			if h := b.Health; why == "" && h != nil {
				switch h.State {
				case model.HealthDown:
					why = cmp.Or(h.Detail, h.Reason, "its probes fail")
				case model.HealthUnknown:
					one.Unknown = append(one.Unknown, b.Name)
				}
			}
			if why != "" {
				if one.Down == nil {
					one.Down = map[string]string{}
				}
				one.Down[b.Name] = shortened(why)
			}
		}
		r.Services[s.Name] = one
		c.Services[s.Name] = group.Count{s.Packets, s.Bytes, s.Opened, s.Dropped}
	}
	return r, c
}

// problemsOf returns what users of Kubernetes are told of a director's problems: those because of which
// the group does not run as it says. Sessions with routers, sets and members are told elsewhere.
func problemsOf(all []model.Problem) (list []group.Problem) {
	for i := range all {
		switch p := &all[i]; p.Kind {
		case model.ProblemFile, model.ProblemDatapath, model.ProblemInterface, model.ProblemRestart, model.ProblemNeighbor, model.ProblemSegment:
			list = append(list, group.Problem{Text: shortened(p.Text), Segment: p.Segment})
		}
	}
	return list
}

// loadOf returns how much of what a director can do is taken.
func loadOf(s *api.Status) (l group.Load) {
	for i := range s.CPUs {
		l.Utilization += s.CPUs[i].Utilization / float64(len(s.CPUs))
	}
	for _, part := range [][2]float64{{float64(s.Services), float64(s.Limits.Services)}, {float64(s.Backends), float64(s.Limits.Backends)},
		{float64(s.RingMemory), float64(s.Limits.RingMemory)}, {float64(s.Flows.Remembered), float64(s.Limits.Flows)}} {
		if part[1] > 0 {
			l.Used = max(l.Used, part[0]/part[1])
		}
	}
	return l
}
