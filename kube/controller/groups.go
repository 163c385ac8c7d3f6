package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// groupWriter writes what the directors of each group forward into the cluster's DirectorSets.
// These are its store: each Service's history continues from there.
type groupWriter struct {
	client rest.Interface
	log    *slog.Logger
	report func(group, reason, text string) // reports to users what was wrong with a group

	stale    bool // something else has changed a DirectorSet, or may have
	groups   map[string]*compiledGroup
	known    map[string]*compiledGroup // the groups as they were before they had to be read again
	revision uint64                    // of the last plan that was written
	refused  []refusal                 // in that plan
}

// put makes the groups forward what the plan wants. Services that are in each other's way are left
// out and returned, and so are those of a group that is held. A wanted Service that cannot be read
// is written anew.
func (w *groupWriter) put(ctx context.Context, p *plan, now time.Time) (refused []refusal, err error) {
	if due := w.due(); w.groups != nil && !w.stale && w.revision == p.revision && (due.IsZero() || now.Before(due)) {
		return w.refused, nil
	}
	if err := w.load(ctx); err != nil {
		return nil, err
	}
	wishes, refused := w.wishes(p)
	for _, g := range w.groups {
		g.left = nil
	}
	for _, g := range p.read.groups {
		c := w.groups[g.Of.Name]
		if c == nil {
			c = newCompiledGroup(g.Of.Name)
			w.groups[g.Of.Name] = c
		}
		if c.newer != nil {
			continue
		}
		refused = append(refused, c.want(wishes[g])...)
		if err := c.set(g.Notice, w.history, now); err != nil {
			w.stale = true
			return refused, err
		}
	}
	if err := errors.Join(w.write(ctx, p.read.groups), w.clear(ctx, p.read.allGroups)); err != nil {
		w.stale = true // the API server's state is not known
		return refused, err
	}
	w.revision, w.refused = p.revision, refused
	return refused, nil
}

// wishes returns what each group is to forward, without Services that concern groups that are held.
func (w *groupWriter) wishes(p *plan) (of map[*translate.DirectorGroup][]*wish, refused []refusal) {
	of = map[*translate.DirectorGroup][]*wish{}
	stays := map[string]bool{}
	for _, one := range p.of {
		if one.group == nil || one.over || len(one.made.services) == 0 {
			continue
		}
		held := w.heldBy(one.key())
		if g := w.groups[one.group.Of.Name]; held == nil && g != nil && g.newer != nil {
			held, stays[one.key()] = g, true
		}
		if held != nil {
			refused = append(refused, refusal{one, held.why()})
			continue
		}
		if why := one.adoption.obstacle; why != "" {
			refused = append(refused, refusal{one, why})
			continue
		}
		of[one.group] = append(of[one.group], one)
	}
	for _, g := range w.groups {
		g.stays = stays
	}
	return of, refused
}

// history returns a Service's documents from the group that it is in, or has just left.
func (w *groupWriter) history(name string) []model.Document {
	for _, g := range w.groups {
		if c := cmp.Or(g.byName[name], g.left[name]); c != nil {
			return c.documents
		}
	}
	return nil
}

// load reads all DirectorSets, unless their contents are known.
func (w *groupWriter) load(ctx context.Context) error {
	if w.groups != nil && !w.stale {
		return nil
	}
	if w.groups != nil {
		w.known = w.groups
	}
	w.stale, w.groups = true, nil
	var list v1alpha1.DirectorSetList
	if err := w.client.Get().Resource(v1alpha1.DirectorSets).Do(ctx).Into(&list); err != nil {
		return fmt.Errorf("read the DirectorSets: %w", err)
	}
	groups, damaged := map[string]*compiledGroup{}, map[string][]error{}
	slices.SortFunc(list.Items, func(a, b v1alpha1.DirectorSet) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list.Items {
		of := &list.Items[i]
		if !group.IsNamed(of) {
			w.log.Warn("a DirectorSet is not the controller's; nobody forwards it", "name", of.Name, "group", of.Spec.Group)
			w.report(of.Spec.Group, repaired, fmt.Sprintf("DirectorSet %s is not the controller's, and forwarded by nobody: remove it", of.Name))
			continue
		}
		g := groups[of.Spec.Group]
		if g == nil {
			g = newCompiledGroup(of.Spec.Group)
			groups[of.Spec.Group] = g
		}
		if err := g.read(of, w.known[of.Spec.Group]); err != nil {
			damaged[of.Spec.Group] = append(damaged[of.Spec.Group], err)
		}
	}
	w.hold(groups)
	for name, errs := range damaged {
		if groups[name].newer == nil {
			err := errors.Join(errs...)
			w.log.Warn("a DirectorSet has what cannot be read, which only somebody else can have written; it is written anew", "error", err)
			w.report(name, repaired, "what cannot be read is written anew: "+err.Error())
		}
	}
	for name, known := range w.known { // also a group without any object left
		if groups[name] == nil {
			groups[name] = newCompiledGroup(name)
		}
		if groups[name].newer == nil {
			groups[name].keep(known)
		}
	}
	w.stale, w.groups, w.known = false, groups, nil
	return nil
}

// write writes changed objects: first those that gain Services, then those that lose them to
// others, so that each Service is always in one.
func (w *groupWriter) write(ctx context.Context, groups []*translate.DirectorGroup) error {
	var errs []error
	for _, loses := range []bool{false, true} {
		for _, read := range groups {
			g := w.groups[read.Of.Name]
			for _, number := range slices.Sorted(maps.Keys(g.objects)) {
				if o := g.objects[number]; o.changed && o.loses == loses {
					errs = append(errs, w.writeObject(ctx, g, number, read.Of))
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func (w *groupWriter) writeObject(ctx context.Context, g *compiledGroup, number int, of *v1alpha1.DirectorGroup) error {
	object := g.object(number, metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DirectorGroup", Name: of.Name, UID: of.UID, Controller: new(true)})
	o := g.objects[number]
	request := w.client.Put().Name(object.Name)
	if o.of == nil {
		request = w.client.Post()
	}
	written := &v1alpha1.DirectorSet{}
	if err := request.Resource(v1alpha1.DirectorSets).Body(object).Do(ctx).Into(written); err != nil {
		return fmt.Errorf("write DirectorSet %s: %w", object.Name, err)
	}
	w.log.Debug("a DirectorSet is written", "name", object.Name, "services", len(object.Spec.Services), "generation", written.Generation)
	for _, c := range o.services {
		c.since, c.version = cmp.Or(c.since, written.ResourceVersion), cmp.Or(c.version, written.ResourceVersion)
	}
	o.of, o.changed, o.loses = written, false, false
	o.of.Spec.Services = nil // the group has them
	return nil
}

// clear removes the DirectorSets of groups that no longer exist: their directors drain by
// themselves when they learn of it.
func (w *groupWriter) clear(ctx context.Context, there []*v1alpha1.DirectorGroup) error {
	var errs []error
	for name, g := range w.groups {
		if slices.ContainsFunc(there, func(g *v1alpha1.DirectorGroup) bool { return g.Name == name }) {
			continue
		}
		for _, o := range g.objects {
			err := w.client.Delete().Resource(v1alpha1.DirectorSets).Name(o.of.Name).Do(ctx).Error()
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("remove DirectorSet %s of a group that is no more: %w", o.of.Name, err))
			}
		}
		if len(errs) == 0 {
			delete(w.groups, name)
		}
	}
	return errors.Join(errs...)
}

// due returns when a history has to be looked at next; the zero time: never.
func (w *groupWriter) due() (first time.Time) {
	for _, g := range w.groups {
		first = sooner(first, g.due)
	}
	return first
}

// follow compares the DirectorSets that were read with those that are known. What was read may be
// older than what this process has written, but not newer. A set that was written must be there,
// unless it was removed or has not been read yet: in these cases all sets are read again.
func (w *groupWriter) follow(read []*v1alpha1.DirectorSet) {
	there, ours := map[types.UID]*v1alpha1.DirectorSet{}, map[types.UID]bool{}
	for _, of := range read {
		there[of.UID] = of
	}
	for _, g := range w.groups {
		for _, o := range g.objects {
			if o.of == nil {
				continue
			}
			ours[o.of.UID] = true
			if of := there[o.of.UID]; of == nil || of.Generation > o.of.Generation {
				w.stale = true
			}
		}
	}
	for uid, of := range there { // something else has made one, or a removed one is still read
		w.stale = w.stale || !ours[uid] && group.IsNamed(of)
	}
}

// sameDocuments compares by value: documents that were read have no spare capacity, and nil where
// others have empty slices.
func sameDocuments(a, b []model.Document) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, err1 := a[i].MarshalJSON()
		y, err2 := b[i].MarshalJSON()
		if err1 != nil || err2 != nil || string(x) != string(y) {
			return false
		}
	}
	return true
}
