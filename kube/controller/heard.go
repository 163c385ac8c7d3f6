package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// heard has when this process last heard of each node that may be a director, by its own clock:
// nodes' clocks may be wrong.
type heard struct {
	mu   sync.Mutex
	at   map[string]time.Time // by the Lease's namespace and name
	said map[string]said      // by the same key
}

// said is what a node last said of itself, and when.
type said struct {
	presence group.Presence
	at       time.Time
	texts    [3]string // of the report, the counts and the others, which were read of these
	report   group.Report
	counts   group.Counts
	others   group.Others
}

// read takes in what a Lease says besides the presence. What cannot be read changes nothing: the
// node writes its Lease again.
func (s *said) read(l *coordinationv1.Lease) {
	texts := [3]string{l.Annotations[group.AnnotationReport], l.Annotations[group.AnnotationCounts], l.Annotations[group.AnnotationOthers]}
	if texts[0] != s.texts[0] {
		if r, err := group.ReadReport(texts[0]); err == nil {
			s.report = r
		}
	}
	if texts[1] != s.texts[1] {
		if c, err := group.ReadCounts(texts[1]); err == nil {
			s.counts = c
		}
	}
	if texts[2] != s.texts[2] {
		if o, err := group.ReadOthers(texts[2]); err == nil {
			s.others = o
		}
	}
	s.texts = texts
}

func newHeard() *heard { return &heard{at: map[string]time.Time{}, said: map[string]said{}} }

// handler notes that Leases are renewed, and calls changed when they say something new.
func (h *heard) handler(changed func()) cache.ResourceEventHandler {
	note := func(o any) *coordinationv1.Lease {
		l := o.(*coordinationv1.Lease)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.at[key(l)] = time.Now()
		return l
	}
	says := func(l *coordinationv1.Lease) (list [4]string) {
		for i, name := range []string{group.AnnotationDirector, group.AnnotationReport, group.AnnotationOthers, group.AnnotationAgent} {
			list[i] = l.Annotations[name]
		}
		return list
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note(o); changed() },
		DeleteFunc: func(o any) { h.forget(o); changed() },
		UpdateFunc: func(before, after any) {
			last := h.last(after.(*coordinationv1.Lease))
			was, is := before.(*coordinationv1.Lease), note(after)
			if says(was) != says(is) || time.Since(last) >= group.Silence {
				changed()
			}
		},
	}
}

func (h *heard) last(lease *coordinationv1.Lease) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[key(lease)]
}

// of identifies a group's Leases: a Lease in another namespace makes no director of the group.
type of struct{ group, namespace string }

// candidates returns the candidates for directors, and when the next of them is gone if nothing is
// heard of it until then; the zero time: never.
func (h *heard) candidates(leases cache.SharedIndexInformer, now time.Time) (by map[of][]group.Candidate, next time.Time) {
	by = map[of][]group.Candidate{}
	for _, l := range follow.List[coordinationv1.Lease](leases) {
		key := of{l.Labels[v1alpha1.LabelGroup], l.Namespace}
		s, is := h.presence(key.group, l)
		if !is {
			continue // not a director's Lease
		}
		gone := s.at.Add(group.Silence)
		c := group.Candidate{Presence: s.presence, Gone: !now.Before(gone), Report: s.report, Counts: s.counts, Others: s.others}
		if !c.Gone {
			next = sooner(next, gone)
		}
		by[key] = append(by[key], c)
	}
	return by, next
}

// presence returns what a node says of itself in its Lease, and when that was last heard.
// Unreadable text, which the node itself does not write, changes nothing until the node has not
// been heard of for too long: the node writes its Lease again at once.
func (h *heard) presence(of string, l *coordinationv1.Lease) (said, bool) {
	p, err := group.ReadPresence(of, l.Name, l.Annotations[group.AnnotationDirector])
	h.mu.Lock()
	defer h.mu.Unlock()
	at := key(l)
	if err == nil {
		next := h.said[at]
		next.presence, next.at = p, h.at[at]
		next.read(l)
		h.said[at] = next
	}
	last, is := h.said[at]
	return last, is && l.Name == group.LeaseName(of, last.presence.Node)
}

// forget forgets a node whose Lease is gone.
func (h *heard) forget(o any) {
	if left, is := o.(cache.DeletedFinalStateUnknown); is {
		o = left.Obj
	}
	if l, is := o.(*coordinationv1.Lease); is {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.at, key(l))
		delete(h.said, key(l))
	}
}

// agents returns what is known about nodes' agents, by node name, and when the next agent becomes
// silent if nothing is heard of it until then; the zero time: never. Leases of other namespaces do
// not count.
func (h *heard) agents(leases cache.SharedIndexInformer, namespace string, now time.Time) (by map[string]translate.Agent, next time.Time) {
	by = map[string]translate.Agent{}
	for _, l := range follow.List[coordinationv1.Lease](leases) {
		p, err := group.ReadAgentPresence(l.Annotations[group.AnnotationAgent])
		if err != nil || l.Namespace != namespace {
			continue
		}
		silent := h.last(l).Add(group.Silence)
		switch {
		case p.Unfit != "" || !now.Before(silent):
			by[p.Node] = translate.AgentSilent
		default:
			by[p.Node], next = translate.AgentRuns, sooner(next, silent)
		}
	}
	return by, next
}

// nodes returns the existing nodes, with their agents.
func (c *Controller) nodes(now time.Time) (nodes []translate.Node) {
	agents, next := c.heard.agents(c.cache.agent, c.Namespace, now)
	nodes, c.silence = c.cache.nodes(), next
	for i := range nodes {
		nodes[i].Agent = agents[nodes[i].Name]
	}
	return nodes
}

// silent reports whether some agent may not have been heard of for too long.
func (c *Controller) silent(now time.Time) bool {
	return !c.silence.IsZero() && !now.Before(c.silence)
}
