package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// sets are what the controller wants the group's directors to forward, as it was read last.
type sets struct {
	objects map[string]*v1alpha1.DirectorSet // by name
	decoded map[string]decoded               // by the Service's name
}

// decoded is a Service whose documents were read.
type decoded struct {
	of        *v1alpha1.CompiledService
	documents []model.Document
}

// read takes in the DirectorSets that there are. One that is not there any more has been lost:
// a controller that wants nothing to be forwarded writes an empty one.
func (s *sets) read(list []*v1alpha1.DirectorSet) error {
	if s.objects == nil {
		s.objects = map[string]*v1alpha1.DirectorSet{}
	}
	for _, o := range list {
		s.objects[o.Name] = o
	}
	next := map[string]decoded{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[name]
		for i := range o.Spec.Services {
			c := &o.Spec.Services[i]
			if other, twice := next[c.Name]; twice && other.of.Revision >= c.Revision {
				continue // it is about to be taken out of the one in which it is older
			}
			if before, known := s.decoded[c.Name]; known && (before.of == c || before.of.Revision == c.Revision && string(before.of.Documents) == string(c.Documents)) {
				next[c.Name] = decoded{c, before.documents}
				continue
			}
			documents, err := group.Decode(c)
			if err != nil {
				errs = append(errs, fmt.Errorf("DirectorSet %s: %w", name, err))
				if before, known := s.decoded[c.Name]; known {
					next[c.Name] = before
				}
				continue
			}
			next[c.Name] = decoded{c, documents}
		}
	}
	s.decoded = next
	return errors.Join(errs...)
}

// bySet returns the Services of each of the directors' sets, in the order of their names. A
// set whose DirectorSet has none is empty.
func (s *sets) bySet() map[int][]decoded {
	all := map[int][]decoded{}
	for _, o := range s.objects {
		all[int(o.Spec.Set)] = nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.decoded)) {
		d := s.decoded[name]
		all[int(d.of.Set)] = append(all[int(d.of.Set)], d)
	}
	return all
}

// vips returns all addresses, in order.
func (s *sets) vips() []netip.Addr {
	seen := map[netip.Addr]bool{}
	for _, d := range s.decoded {
		for i := range d.documents {
			seen[d.documents[i].Service.VIP] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), netip.Addr.Compare)
}

// director is the local weir run.
type director struct {
	client *api.Client
	prefix string // of the owners of its sets: kube
	group  string
	log    *slog.Logger
	has    map[int]string // what each set was put with last: the Services' names and revisions
}

// put makes these what the director forwards. Only sets that are another one are put.
func (d *director) put(ctx context.Context, all map[int][]decoded) error {
	var errs []error
	// What shrinks first: a Service that has moved belongs to one.
	for _, n := range slices.SortedFunc(maps.Keys(all), func(a, b int) int { return cmp.Or(cmp.Compare(len(all[a]), len(all[b])), cmp.Compare(a, b)) }) {
		var is strings.Builder
		var documents []model.Document
		for _, one := range all[n] {
			fmt.Fprintf(&is, "%s %d\n", one.of.Name, one.of.Revision)
			documents = append(documents, one.documents...)
		}
		if had, known := d.has[n]; known && had == is.String() {
			continue
		}
		change, err := d.client.PutDocuments(ctx, group.Owner(d.prefix, d.group, n), documents)
		if err != nil {
			errs = append(errs, fmt.Errorf("put set %d to the director: %w", n, err))
			continue
		}
		if d.has == nil {
			d.has = map[int]string{}
		}
		d.has[n] = is.String()
		d.log.Info("the director has another set", "set", n, "services", len(documents), "added", len(change.Added), "changed", len(change.Changed), "removed", len(change.Removed))
	}
	return errors.Join(errs...)
}

// owned returns which of the director's sets are the group's, and how many services they have.
func (d *director) owned(ctx context.Context) (map[string]int, error) {
	list, err := d.client.Sets(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the director for its sets: %w", err)
	}
	owned := map[string]int{}
	for _, s := range list {
		if strings.HasPrefix(s.Owner, d.prefix+"."+d.group+".") {
			owned[s.Owner] = s.Services
		}
	}
	return owned, nil
}

// empty takes everything out that the group's sets have.
func (d *director) empty(ctx context.Context) error {
	owned, err := d.owned(ctx)
	if err != nil {
		return err
	}
	d.has = nil
	var errs []error
	for owner, services := range owned {
		if services == 0 {
			continue
		}
		if _, err := d.client.PutDocuments(ctx, owner, nil); err != nil {
			errs = append(errs, fmt.Errorf("empty the set of %s: %w", owner, err))
			continue
		}
		d.log.Info("a set is empty now, because the node is no director of the group", "owner", owner, "services", services)
	}
	return errors.Join(errs...)
}
