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
	written   v1alpha1.CompiledService // as the API server is to have it
	documents []model.Document
	input     wanted    // the Service that the documents were made of
	due       time.Time // when they are to be made again; zero: when the input changes
	history   *group.History
	object    int // the number of the DirectorSet that it is written in
	fronts    uint64
	since     string // the first version of the DirectorSet with these fronts; empty: not written
	version   string // the first version of the DirectorSet with these services; empty: not written
}

// wanted says how a Service is to be forwarded. While its source does not change, raw is the same,
// and there is nothing to compare.
type wanted struct {
	raw      *model.Service // the first of the services that it was translated to
	services []model.Service
	ports    []v1alpha1.ServiceNodePort // node ports of the services
	adopts   string                     // the owner whose services it takes over; empty: nobody's
	before   []model.Document           // these
}

func (w wanted) same(o wanted) bool {
	return slices.Equal(w.ports, o.ports) && w.adopts == o.adopts && (w.raw != nil && w.raw == o.raw || len(w.services) == len(o.services) && reflect.DeepEqual(w.services, o.services))
}

// setObject is a DirectorSet as the API server has it, as far as is known.
type setObject struct {
	of       *v1alpha1.DirectorSet // nil: there is none yet
	services map[string]*compiled
	changed  bool // it has to be written
	loses    bool // Services to another object, which has to be written first
}

// compiledGroup is everything that the directors of a group forward.
type compiledGroup struct {
	name    string
	objects map[int]*setObject
	byName  map[string]*compiled
	due     time.Time            // the earliest of its Services' due times
	lost    map[string]*compiled // Services that are in no object or cannot be read, if known

	// newer says what of the group a later version of weir has written; nil: nothing. If it is set,
	// the whole group stays as it is: this process could only begin new histories for its Services,
	// which are in held.
	newer error
	held  map[string]*v1alpha1.CompiledService
	stays map[string]bool // Services of the group that are to move to a group that is held

	wanted map[string]wanted
	left   map[string]*compiled // Services that the group has just lost, perhaps to another group
}

func newCompiledGroup(name string) *compiledGroup {
	return &compiledGroup{name: name, objects: map[int]*setObject{}, byName: map[string]*compiled{}, lost: map[string]*compiled{}}
}

// read adds what a DirectorSet has. If a Service is in two of them because it was moving, the later
// revision counts. A Service that cannot be read was not written by a controller: it is to be
// written anew, from what is known of the group, if anything is. What was wrong is returned.
func (g *compiledGroup) read(of *v1alpha1.DirectorSet, known *compiledGroup) error {
	var errs []error
	o := &setObject{of: of, services: map[string]*compiled{}}
	g.objects[int(of.Spec.Set)] = o
	for i := range of.Spec.Services {
		w := of.Spec.Services[i]
		if g.held == nil {
			g.held = map[string]*v1alpha1.CompiledService{}
		}
		g.held[w.Name] = &of.Spec.Services[i]
		documents, err := group.Decode(&w)
		if errors.Is(err, group.ErrNewer) {
			g.newer = fmt.Errorf("DirectorSet %s: %w", of.Name, err)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("DirectorSet %s: %w", of.Name, err))
			o.changed = true
			if w, documents = known.last(w); documents == nil {
				if before := g.lost[w.Name]; before == nil || before.written.Revision <= w.Revision {
					g.lost[w.Name] = &compiled{written: w}
				}
				continue
			}
		}
		c := &compiled{written: w, documents: documents, object: int(of.Spec.Set), fronts: group.Fronts(documents), since: of.ResourceVersion, version: of.ResourceVersion}
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
	return errors.Join(errs...)
}

// keep remembers the Services that were known to be in an object and are now in none: their object
// was removed.
func (g *compiledGroup) keep(known *compiledGroup) {
	for name, c := range known.byName {
		if g.byName[name] == nil && g.lost[name] == nil {
			g.lost[name] = c
		}
	}
}

// last returns the last known state of a Service, as a later revision than the one that was read,
// and its documents; nil if it is not known.
func (g *compiledGroup) last(read v1alpha1.CompiledService) (v1alpha1.CompiledService, []model.Document) {
	if g == nil || g.byName[read.Name] == nil {
		return read, nil
	}
	c := g.byName[read.Name]
	w := c.written
	w.Revision = max(w.Revision, read.Revision) + 1
	return w, c.documents
}

// want notes how Services are to be forwarded, and returns those that cannot be forwarded beside
// the others.
func (g *compiledGroup) want(wishes []*wish) (refused []refusal) {
	g.wanted = map[string]wanted{}
	var parts []part
	for _, w := range wishes {
		g.wanted[w.key()] = wanted{&w.made.services[0], w.made.services, w.ports, w.adoption.owner, w.adoption.before}
		for i := range w.made.services {
			if mayClash(&w.made.services[i]) {
				parts = append(parts, part{service: w.made.services[i], whose: w})
			}
		}
	}
	for _, r := range clashes(parts) {
		delete(g.wanted, r.whose.key())
		refused = append(refused, r)
	}
	return refused
}

// mayClash reports whether only the backend tells which service a reply belongs to.
func mayClash(s *model.Service) bool { return s.Mode == model.NAT && !s.SNAT }

// clashes returns which Services cannot be forwarded beside others. Each is valid alone and has its
// own addresses and ports, so only services that mayClash can be in each other's way.
func clashes(parts []part) (refused []refusal) {
	for len(parts) > 0 {
		named := wrongOf(services(parts))
		if len(named) == 0 {
			return refused
		}
		var more []refusal
		parts, more = leaveOut(parts, named)
		refused = append(refused, more...)
	}
	return refused
}

// sizes returns the sizes of the DirectorSets as they are now to be written.
func (g *compiledGroup) sizes() map[int]int {
	sizes := map[int]int{}
	for n, o := range g.objects {
		for _, c := range o.services {
			sizes[n] += group.SizeOf(&c.written)
		}
	}
	return sizes
}

// set makes the group forward what is wanted. Only Services that have changed, or are due, are
// compiled. Services that come from another group bring along their histories, which elsewhere
// returns.
func (g *compiledGroup) set(notice time.Duration, elsewhere func(name string) []model.Document, now time.Time) error {
	var sizes map[int]int // counted when needed
	var others []string   // Services that have changed or are due
	for name, is := range g.wanted {
		if c := g.byName[name]; c == nil || !c.input.same(is) || !c.due.IsZero() && !now.Before(c.due) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		if sizes == nil {
			sizes = g.sizes()
		}
		if err := g.compile(name, g.wanted[name], notice, elsewhere, sizes, now); err != nil {
			return err
		}
	}
	g.due, g.left = time.Time{}, map[string]*compiled{}
	for name, c := range g.byName {
		is, wanted := g.wanted[name]
		switch {
		case wanted:
			c.input = is
			g.due = sooner(g.due, c.due)
		case !g.stays[name]:
			o := g.objects[c.object]
			delete(o.services, name)
			delete(g.byName, name)
			g.left[name] = c
			o.changed = true
		}
	}
	clear(g.lost) // the wanted ones have been made again
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
		if was := g.lost[name]; was != nil {
			revision, set = was.written.Revision, int(was.written.Set)
			if was.documents != nil {
				before = was.documents
			}
		}
	}
	if c == nil && before == nil {
		before = is.before
	}
	continued := &group.History{}
	if c != nil && c.history != nil {
		continued = c.history
	}
	documents := continued.Advance(before, is.services, notice, now)
	due := group.Due(documents, now)
	if c != nil && sameDocuments(before, documents) && slices.Equal(c.written.NodePorts, is.ports) && c.written.Adopts == is.adopts {
		c.due, c.history = due, continued
		return nil
	}
	next := &compiled{documents: documents, due: due, history: continued, fronts: group.Fronts(documents)}
	if c != nil && c.fronts == next.fronts {
		next.since = c.since
	}
	if c != nil && c.input.same(is) { // its history alone is another
		next.version = c.version
	}
	var err error
	if next.written, err = group.Encode(name, max(set, 0), revision+1, documents); err != nil {
		return err
	}
	next.written.NodePorts, next.written.Adopts = is.ports, is.adopts
	size := group.SizeOf(&next.written)
	switch {
	case c == nil:
		if next.object = group.Place(size, sizes); set < 0 {
			next.written.Set = int32(next.object)
		}
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

// object returns a DirectorSet as it is to be written.
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
