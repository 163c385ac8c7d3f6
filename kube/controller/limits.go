package controller

import (
	"context"
	"fmt"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// Quota is how much of the directors' limits the Services and Gateways of one namespace may take,
// in all groups together. Zero means no bound.
type Quota struct {
	Services     uint64 `json:"services"` // one for each port and address
	Backends     uint64 `json:"backends"` // counted once per service
	SourceRanges uint64 `json:"source-ranges"`
	RingMemory   uint64 `json:"ring-memory"` // bytes
}

// Quotas are the quotas of namespaces.
type Quotas struct {
	Each Quota            // of each namespace that is not named
	Of   map[string]Quota // by namespace
}

func (q Quotas) of(namespace string) Quota {
	if own, named := q.Of[namespace]; named {
		return own
	}
	return q.Each
}

// usage is how much services take of directors' limits, in the order of usageNames.
type usage [4]uint64

var usageNames = [len(usage{})]string{"services", "backends", "source-ranges", "ring-memory"}

func (q Quota) most() usage { return usage{q.Services, q.Backends, q.SourceRanges, q.RingMemory} }

func (t usage) plus(o usage) usage {
	for i := range t {
		t[i] += o[i]
	}
	return t
}

// within reports whether no value is more than the other's.
func (t usage) within(o usage) bool {
	for i := range t {
		if t[i] > o[i] {
			return false
		}
	}
	return true
}

func usageOf(services []model.Service) usage {
	t := model.UsageOf(services)
	return usage{t.Services, t.Backends, t.SourceRanges, t.RingMemory}
}

// space is the room for some Services and Gateways, and how much of it they have taken.
type space struct {
	name  string               // of the limits, up to the name of one
	names [len(usage{})]string // of each limit
	most  usage                // zero: no bound
	used  usage
}

// why says what there is no room for, or nothing. The text does not depend on what others take,
// because a different text would be reported as a new problem.
func (s *space) why(more usage) string {
	for i, most := range s.most {
		switch {
		case most == 0 || more[i] == 0 || s.used[i]+more[i] <= most:
		case more[i] > most:
			return fmt.Sprintf("%s%s is %d, and it takes %d", s.name, s.names[i], most, more[i])
		default:
			return fmt.Sprintf("%s%s is %d, of which less is left than the %d that it takes", s.name, s.names[i], most, more[i])
		}
	}
	return ""
}

// limits are the known limits of the file's directors.
type limits struct {
	most   usage // zero: not known
	others usage // taken by other owners, the file for one
}

// fit says which Services and Gateways have no room in directors or their namespaces' quotas: a
// demand beyond these takes nothing from others. Those that are forwarded and have not grown come
// first, then the others; among each, the oldest come first.
func (p *plan) fit(quotas Quotas, file limits) {
	spaces := map[*translate.DirectorGroup]*space{nil: {name: "director.limits.", names: usageNames, most: file.most, used: file.others}}
	for _, g := range p.read.groups {
		spaces[g] = spaceOf(g.Of)
	}
	namespaces := map[string]*space{}
	over := map[*wish]string{}
	for _, w := range p.inOrder() {
		if len(w.made.services) == 0 {
			continue
		}
		need, name := w.usage(), w.name().Namespace
		if namespaces[name] == nil {
			namespaces[name] = &space{name: "the quota of namespace " + name + " for ", names: usageNames, most: quotas.of(name).most()}
		}
		quota, directors := namespaces[name], spaces[w.group]
		why := quota.why(need)
		if why == "" && directors != nil {
			why = directors.why(need)
		}
		if why != "" {
			over[w] = why
			continue
		}
		quota.used = quota.used.plus(need)
		if directors != nil {
			directors.used = directors.used.plus(need)
		}
		w.fitted = &need
	}
	p.exceed(over)
}

// inOrder returns Services and Gateways in the order in which they get room.
func (p *plan) inOrder() []*wish {
	first := make([]*wish, 0, len(p.of))
	var rest []*wish
	for _, w := range p.of { // the oldest first
		if w.runs() {
			first = append(first, w)
		} else {
			rest = append(rest, w)
		}
	}
	return append(first, rest...)
}

// runs reports whether the wish had room when it took at least as much as now. If an earlier
// process gave it room, its status says so.
func (w *wish) runs() bool {
	if w.fitted != nil {
		return w.usage().within(*w.fitted)
	}
	return !w.over && w.service != nil && len(w.service.Status.LoadBalancer.Ingress) > 0
}

// usage returns what it takes of directors, counted once for each translation.
func (w *wish) usage() usage {
	if w.made.usage == nil {
		t := usageOf(w.made.services)
		w.made.usage = &t
	}
	return *w.made.usage
}

// exceed notes which Services and Gateways have no room.
func (p *plan) exceed(over map[*wish]string) {
	for _, w := range p.of {
		why, is := over[w]
		if is != w.over {
			p.revision++
		}
		if is != w.over || p.over[w] != why {
			p.unsettled[w] = true
		}
	}
	for w := range over {
		w.fitted = nil
	}
	for _, w := range p.of {
		_, w.over = over[w]
	}
	p.over = over
}

// beyond returns the Services and Gateways without room, as directors' refusals.
func (p *plan) beyond() (refused []refusal) {
	for _, w := range p.of {
		if why, is := p.over[w]; is {
			refused = append(refused, refusal{w, why})
		}
	}
	return refused
}

// lacksRoom reports whether something that the file's directors are to forward has no room.
func (p *plan) lacksRoom() bool {
	for w := range p.over {
		if w.group == nil {
			return true
		}
	}
	return false
}

// spaceOf returns the room that the directors of a group have.
func spaceOf(g *v1alpha1.DirectorGroup) *space {
	s := &space{name: "DirectorGroup " + g.Name + ": spec.limits.", names: [...]string{"services", "backends", "sourceRanges", "ringMemory"},
		most: usage{model.DefaultServices, model.DefaultBackends, model.DefaultSourceRanges, model.DefaultRingMemory}}
	if l := g.Spec.Limits; l != nil {
		for i, n := range []int64{int64(l.Services), int64(l.Backends), int64(l.SourceRanges), l.RingMemory} {
			if n > 0 {
				s.most[i] = uint64(n)
			}
		}
	}
	return s
}

// ask asks a director for its limits and, as long as something has no room, for what others take of
// them: they may have freed some. Without an answer the numbers stay as they were. If no director
// has ever answered, nothing is counted, and the directors refuse what is too much.
func (w *setWriter) ask(ctx context.Context, p *plan) {
	lacks := p.lacksRoom()
	if w.limits.most != (usage{}) && w.revision == p.revision && w.taken && !lacks {
		return
	}
	if lacks && w.limits.others != (usage{}) {
		w.countOthers(ctx)
	}
	for _, d := range w.directors {
		if s, err := d.Client.Status(ctx); err == nil {
			l := s.Limits
			w.limits.most = usage{uint64(l.Services), uint64(l.Backends), uint64(l.SourceRanges), l.RingMemory}
			return
		}
	}
}

// countOthers counts what owners other than Kubernetes take of the directors, and reports whether
// that has changed.
func (w *setWriter) countOthers(ctx context.Context) bool {
	for _, d := range w.directors {
		sets, err := d.Client.Sets(ctx)
		var others usage
		for _, other := range sets {
			if other.Owner == w.owner || err != nil {
				continue
			}
			var set api.Set
			if set, err = d.Client.Set(ctx, other.Owner); err == nil {
				others = others.plus(usageOf(set.Services))
			}
		}
		if err == nil {
			if c, err := d.Client.Config(ctx); err == nil {
				others[2] += uint64(len(c.Director.KernelSources))
			}
			changed := others != w.limits.others
			w.limits.others = others
			return changed
		}
	}
	return false
}
