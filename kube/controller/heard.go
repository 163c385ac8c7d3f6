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
	at map[string]time.Time // by the Lease's namespace and name
}

func newHeard() *heard { return &heard{at: map[string]time.Time{}} }

// handler notes that Leases are renewed, and calls changed where they say something else.
func (h *heard) handler(changed func()) cache.ResourceEventHandler {
	note := func(o any) *coordinationv1.Lease {
		l := o.(*coordinationv1.Lease)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.at[keyOf(l)] = time.Now()
		return l
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note(o); changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			last := h.last(after.(*coordinationv1.Lease))
			was, is := before.(*coordinationv1.Lease), note(after)
			if was.Annotations[group.AnnotationDirector] != is.Annotations[group.AnnotationDirector] || time.Since(last) >= group.Silence {
				changed()
			}
		},
	}
}

func (h *heard) last(lease *coordinationv1.Lease) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[keyOf(lease)]
}

func keyOf(l *coordinationv1.Lease) string { return l.Namespace + "/" + l.Name }

// of names a group's Leases: whoever may write some elsewhere is no director of it.
type of struct{ group, namespace string }

// candidates returns who may be a director, and when the next of them is gone if nothing is
// heard of it until then; the zero time: never.
func (h *heard) candidates(leases cache.SharedIndexInformer, now time.Time) (by map[of][]group.Candidate, next time.Time) {
	by = map[of][]group.Candidate{}
	for _, l := range follow.List[coordinationv1.Lease](leases) {
		p, err := group.ReadPresence(l.Annotations[group.AnnotationDirector])
		if err != nil {
			continue // it is no director's
		}
		gone := h.last(l).Add(group.Silence)
		c := group.Candidate{Node: p.Node, Addresses: p.Addresses, Unfit: p.Unfit, Gone: !now.Before(gone)}
		if !c.Gone {
			next = sooner(next, gone)
		}
		key := of{l.Labels[v1alpha1.LabelGroup], l.Namespace}
		by[key] = append(by[key], c)
	}
	return by, next
}
