package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// heard is when this process last heard of each node that may be a director, by its own clock:
// nodes' clocks may be wrong.
type heard struct {
	mu sync.Mutex
	at map[string]time.Time // by the Lease's name
}

func newHeard() *heard { return &heard{at: map[string]time.Time{}} }

// handler notes that Leases are renewed, and calls changed where they say something else.
func (h *heard) handler(changed func()) cache.ResourceEventHandler {
	note := func(o any) *coordinationv1.Lease {
		l := o.(*coordinationv1.Lease)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.at[l.Name] = time.Now()
		return l
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note(o); changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			last := h.last(after.(*coordinationv1.Lease).Name)
			was, is := before.(*coordinationv1.Lease), note(after)
			if was.Annotations[group.AnnotationDirector] != is.Annotations[group.AnnotationDirector] || time.Since(last) >= group.Silence {
				changed()
			}
		},
	}
}

func (h *heard) last(lease string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[lease]
}

// candidates returns the nodes that may be directors, by their groups, and when the next of
// them is gone if nothing is heard of it until then; the zero time: never.
func (h *heard) candidates(leases cache.SharedIndexInformer, now time.Time) (byGroup map[string][]group.Candidate, next time.Time) {
	byGroup = map[string][]group.Candidate{}
	for _, l := range follow.List[coordinationv1.Lease](leases) {
		p, err := group.ReadPresence(l.Annotations[group.AnnotationDirector])
		if err != nil {
			continue // it is no director's
		}
		gone := h.last(l.Name).Add(group.Silence)
		c := group.Candidate{Node: p.Node, Addresses: p.Addresses, Unfit: p.Unfit, Gone: !now.Before(gone)}
		if !c.Gone {
			next = sooner(next, gone)
		}
		byGroup[l.Labels[v1alpha1.LabelGroup]] = append(byGroup[l.Labels[v1alpha1.LabelGroup]], c)
	}
	return byGroup, next
}
