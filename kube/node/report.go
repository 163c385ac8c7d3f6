package node

import (
	"cmp"
	"context"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
)

// loadPace is how often a director is asked how much it has to do.
const loadPace = 15 * time.Second

// report is what the controller is told about LoadBalancers, and about the director's load.
type report struct {
	report, counts string // as the Lease's annotations have them
	load           group.Load
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
			n.report.load, n.report.loadRead = loadOf(&status), now
		}
	}
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
	c.Load = n.report.load
	n.report.report, n.report.counts = r.String(), c.String()
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
