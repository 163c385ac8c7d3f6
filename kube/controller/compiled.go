package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// compiled is a Service of a group as its directors forward it.
type compiled struct {
	written   v1alpha1.CompiledService // as it is to be in the API server
	documents []model.Document
	input     wanted    // that they were made of
	due       time.Time // when they are to be made again; zero: when the input is another
	history   *group.History
	object    int // the number of the DirectorSet that it is written in
}

// wanted is what a Service is to be forwarded as. While it was translated from the same, raw is
// the same, and there is nothing to compare.
type wanted struct {
	raw      *model.Service // the first one of what it was translated to
	services []model.Service
}

func (w wanted) same(o wanted) bool {
	return w.raw != nil && w.raw == o.raw || len(w.services) == len(o.services) && reflect.DeepEqual(w.services, o.services)
}

// setObject is a DirectorSet as it is in the API server, by what is known.
type setObject struct {
	of       *v1alpha1.DirectorSet // nil: there is none yet
	services map[string]*compiled
	changed  bool // it has to be written
	loses    bool // to another one, which has to be written before
}

// compiledGroup is all that the directors of a group forward.
type compiledGroup struct {
	name    string
	objects map[int]*setObject
	byName  map[string]*compiled
	due     time.Time // the first of the Services'

	wanted map[string]wanted
}

func newCompiledGroup(name string) *compiledGroup {
	return &compiledGroup{name: name, objects: map[int]*setObject{}, byName: map[string]*compiled{}}
}

// read adds what a DirectorSet has. Of a Service that is in two, while it moved, the later one
// counts.
func (g *compiledGroup) read(of *v1alpha1.DirectorSet) error {
	o := &setObject{of: of, services: map[string]*compiled{}}
	g.objects[int(of.Spec.Set)] = o
	for i := range of.Spec.Services {
		w := of.Spec.Services[i]
		documents, err := group.Decode(&w)
		if err != nil {
			return fmt.Errorf("DirectorSet %s: %w", of.Name, err)
		}
		c := &compiled{written: w, documents: documents, object: int(of.Spec.Set)}
		if other := g.byName[w.Name]; other != nil {
			if other.written.Revision >= w.Revision {
				o.changed = true // without it
				continue
			}
			delete(g.objects[other.object].services, w.Name)
			g.objects[other.object].changed = true
		}
		o.services[w.Name], g.byName[w.Name] = c, c
	}
	return nil
}

// want notes what Services are to be forwarded as, and which of them cannot be beside the
// others.
func (g *compiledGroup) want(wishes []*wish) (refused []refusal) {
	g.wanted = map[string]wanted{}
	var parts []part
	for _, w := range wishes {
		g.wanted[w.name().String()] = wanted{&w.made.services[0], w.made.services}
		for _, s := range w.made.services {
			parts = append(parts, part{service: s, whose: w})
		}
	}
	for _, r := range clashes(parts) {
		delete(g.wanted, r.whose.name().String())
		refused = append(refused, r)
	}
	return refused
}

// clashes returns which Services cannot be forwarded beside others. Each alone is valid, and
// their addresses and ports are their own, so only those can be in each other's way whose
// backends' replies are told apart by the backend alone.
func clashes(parts []part) (refused []refusal) {
	parts = slices.DeleteFunc(parts, func(p part) bool { return p.service.Mode != model.NAT || p.service.SNAT })
	for len(parts) > 0 {
		c := model.Config{Services: services(parts)}
		c.Director.Limits = model.Limits{Services: model.MaxServices, Backends: model.MaxBackends, RingMemory: model.MaxRingMemory, Fragments: model.MaxFragments, SourceRanges: model.MaxSourceRanges}
		c.SetDefaults()
		var errs model.FieldErrors
		errors.As(c.Validate(), &errs)
		named := map[int]string{}
		for _, e := range errs {
			if i, found := serviceIn(e.Path); found && i < len(parts) && named[i] == "" {
				named[i] = e.Problem
			}
		}
		if len(named) == 0 {
			return refused
		}
		var more []refusal
		parts, more = leaveOut(parts, named)
		refused = append(refused, more...)
	}
	return refused
}

// sizes returns how large the DirectorSets become.
func (g *compiledGroup) sizes() map[int]int {
	sizes := map[int]int{}
	for n, o := range g.objects {
		for _, c := range o.services {
			sizes[n] += group.SizeOf(&c.written)
		}
	}
	return sizes
}

// set makes what is wanted what the group forwards. Only what
// is another one, or due, is compiled. Those that come from another group bring their histories
// along, which elsewhere returns.
func (g *compiledGroup) set(notice time.Duration, elsewhere func(name string) []model.Document, now time.Time) error {
	var sizes map[int]int // counted when it is needed
	g.due = time.Time{}
	for _, name := range slices.Sorted(maps.Keys(g.wanted)) {
		is, c := g.wanted[name], g.byName[name]
		if c == nil || !c.input.same(is) || !c.due.IsZero() && !now.Before(c.due) {
			if sizes == nil {
				sizes = g.sizes()
			}
			if err := g.compile(name, is, notice, elsewhere, sizes, now); err != nil {
				return err
			}
			c = g.byName[name]
		}
		c.input = is
		g.due = sooner(g.due, c.due)
	}
	for name, c := range g.byName {
		if _, wanted := g.wanted[name]; !wanted {
			o := g.objects[c.object]
			delete(o.services, name)
			delete(g.byName, name)
			o.changed = true
		}
	}
	return nil
}

// compile makes one Service's documents, and notes where they are to be written.
func (g *compiledGroup) compile(name string, is wanted, notice time.Duration, elsewhere func(string) []model.Document, sizes map[int]int, now time.Time) error {
	c := g.byName[name]
	var before []model.Document
	revision, set := int64(0), -1
	if c != nil {
		before, revision, set = c.documents, c.written.Revision, int(c.written.Set)
	} else {
		before = elsewhere(name)
	}
	continued := &group.History{}
	if c != nil && c.history != nil {
		continued = c.history
	}
	documents := continued.Advance(before, is.services, notice, now)
	due := group.Due(documents, now)
	if c != nil && sameDocuments(before, documents) {
		c.due, c.history = due, continued
		return nil
	}
	next := &compiled{documents: documents, due: due, history: continued}
	var err error
	if next.written, err = group.Encode(name, max(set, 0), revision+1, documents); err != nil {
		return err
	}
	size := group.SizeOf(&next.written)
	switch {
	case c == nil:
		next.object = group.Place(size, sizes)
		next.written.Set = int32(next.object)
	case sizes[c.object]-group.SizeOf(&c.written)+size > group.Full && len(g.objects[c.object].services) > 1:
		without := maps.Clone(sizes)
		without[c.object] = group.Full
		next.object = group.Place(size, without)
	default:
		next.object = c.object
	}
	if c != nil {
		o := g.objects[c.object]
		delete(o.services, name)
		sizes[c.object] -= group.SizeOf(&c.written)
		if next.object != c.object {
			o.changed, o.loses = true, true
		}
	}
	o := g.objects[next.object]
	if o == nil {
		o = &setObject{services: map[string]*compiled{}}
		g.objects[next.object] = o
	}
	o.services[name], g.byName[name], o.changed = next, next, true
	sizes[next.object] += size
	return nil
}

// object returns the DirectorSet as it is to be written.
func (g *compiledGroup) object(number int, owner metav1.OwnerReference) *v1alpha1.DirectorSet {
	o := g.objects[number]
	of := &v1alpha1.DirectorSet{}
	if o.of != nil {
		of = o.of.DeepCopy()
	} else {
		of.Name = group.ObjectName(g.name, number)
	}
	of.Labels, of.OwnerReferences = map[string]string{v1alpha1.LabelGroup: g.name}, []metav1.OwnerReference{owner}
	of.Spec = v1alpha1.DirectorSetSpec{Group: g.name, Set: int32(number), Count: int32(len(o.services))}
	for _, c := range o.services {
		of.Spec.Services = append(of.Spec.Services, c.written)
	}
	slices.SortFunc(of.Spec.Services, func(a, b v1alpha1.CompiledService) int { return cmp.Compare(a.Name, b.Name) })
	return of
}

// sooner returns the earlier of two times; the zero time is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
