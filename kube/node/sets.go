package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// sets are what the controller wants the group's directors to forward, as it was last read.
type sets struct {
	group   string                           // the group of the sets; empty: all groups
	objects map[string]*v1alpha1.DirectorSet // by name
	decoded map[string]decoded               // by the Service's name
	version string                           // the newest of the objects that were all read
	// unread are Services that could never be read since the process began, by their names, and
	// why. The director may still have their sets from before.
	unread map[string]unread

	// Results from these are kept until something else is read: there may be thousands, and it is
	// asked for all the time.
	whole  map[string]*v1alpha1.DirectorSet // that were read last, if nothing was wrong with any; nil: something was
	parts  map[int][]decoded                // as bySet returns them
	stale  bool                             // parts are from an earlier read
	reads  int                              // Services that were looked at, for tests
	sums   uint64                           // as fronts returns it
	places []group.VIP                      // as vips returns them
}

type unread struct {
	of  *v1alpha1.CompiledService
	why error
}

// decoded is a Service whose documents were read.
type decoded struct {
	group     string // the group whose directors forward it
	of        *v1alpha1.CompiledService
	documents []model.Document
	fronts    uint64 // of these
	sum       uint64 // of their text: an equal revision may be of other documents, if the controller did not know of it
	lost      bool   // its DirectorSet no longer exists
}

// read takes in the existing DirectorSets. A missing one has been lost: a controller that wants
// nothing forwarded writes an empty one. For one that is not as the controller writes it, the
// earlier one stays.
func (s *sets) read(list []*v1alpha1.DirectorSet) error {
	if s.isWhole(list) {
		return nil
	}
	if s.objects == nil {
		s.objects = map[string]*v1alpha1.DirectorSet{}
	}
	s.stale, s.whole = true, nil
	var errs []error
	there := map[string]bool{}
	for _, o := range list {
		if !group.IsNamed(o) || s.group != "" && o.Spec.Group != s.group {
			continue
		}
		there[o.Name] = true
		if has := len(o.Spec.Services); has != int(o.Spec.Count) && s.objects[o.Name] != nil {
			errs = append(errs, fmt.Errorf("DirectorSet %s: has %d services, and says that they are %d", o.Name, has, o.Spec.Count))
			continue
		}
		s.objects[o.Name] = o
	}
	next := map[string]decoded{}
	s.unread = map[string]unread{}
	for _, name := range slices.SortedFunc(maps.Keys(s.objects), func(a, b string) int {
		return cmp.Or(cmp.Compare(place(!there[a]), place(!there[b])), cmp.Compare(a, b))
	}) {
		o := s.objects[name]
		for i := range o.Spec.Services {
			s.reads++
			c := &o.Spec.Services[i]
			if other, twice := next[c.Name]; twice && (other.of.Revision >= c.Revision || !other.lost && !there[name]) {
				continue // it is about to be taken out of the one in which it is older, or was in a lost one
			}
			if before, known := s.decoded[c.Name]; known && (before.of == c || before.of.Revision == c.Revision && string(before.of.Documents) == string(c.Documents)) {
				next[c.Name] = decoded{o.Spec.Group, c, before.documents, before.fronts, before.sum, !there[name]}
				continue
			}
			documents, err := group.Decode(c)
			if err != nil {
				errs = append(errs, fmt.Errorf("DirectorSet %s: %w", name, err))
				if before, known := s.decoded[c.Name]; known {
					next[c.Name] = before
				} else if _, twice := next[c.Name]; !twice {
					s.unread[c.Name] = unread{c, err}
				}
				continue
			}
			sum := fnv.New64a()
			sum.Write(c.Documents) // it never fails
			next[c.Name] = decoded{o.Spec.Group, c, documents, group.Fronts(documents), sum.Sum64(), !there[name]}
			delete(s.unread, c.Name)
		}
	}
	s.decoded = next
	if len(errs) == 0 {
		s.version = newest(s.objects)
		s.whole = make(map[string]*v1alpha1.DirectorSet, len(list))
		for _, o := range list {
			s.whole[o.Name] = o
		}
	}
	return errors.Join(errs...)
}

// forget makes a DirectorSet count as never read.
func (s *sets) forget(name string) {
	delete(s.objects, name)
	s.whole = nil
}

// isWhole reports whether objects are the very ones that were read last, with nothing wrong.
func (s *sets) isWhole(list []*v1alpha1.DirectorSet) bool {
	if s.whole == nil || len(list) != len(s.whole) {
		return false
	}
	for _, o := range list {
		if s.whole[o.Name] != o {
			return false
		}
	}
	return true
}

// newest returns the newest version of any object. Watches deliver objects in the order of
// versions, so all older ones have been read.
func newest(objects map[string]*v1alpha1.DirectorSet) (version string) {
	for _, o := range objects {
		if order, err := resourceversion.CompareResourceVersion(version, o.ResourceVersion); version == "" || err == nil && order < 0 {
			version = o.ResourceVersion
		}
	}
	return version
}

// fronts tells apart what all Services together are reached at, and all that LoadBalancers are.
func (s *sets) fronts() uint64 {
	s.follow()
	return s.sums
}

// follow finds out what follows from what was read last.
func (s *sets) follow() {
	if s.parts != nil && !s.stale {
		return
	}
	s.stale = false
	before := s.parts
	s.parts, s.places, s.sums = s.partsNow(), s.vipsNow(), 0
	for n, part := range s.parts {
		if was := before[n]; sameParts(was, part) {
			s.parts[n] = was
		}
	}
	for name, d := range s.decoded {
		h := fnv.New64a()
		is := d.fronts
		if isBalancer(name) { // whose status says whether directors forward by its last change
			is = d.sum
		}
		h.Write(binary.BigEndian.AppendUint64([]byte(name), is)) // it never fails
		s.sums += h.Sum64()
	}
}

// sameParts reports whether directors that were given the one have the other.
func sameParts(a, b []decoded) bool {
	return slices.EqualFunc(a, b, func(a, b decoded) bool {
		return a.of.Name == b.of.Name && a.of.Revision == b.of.Revision && a.sum == b.sum
	})
}

// place orders elements that are behind after the others.
func place(behind bool) int {
	if behind {
		return 1
	}
	return 0
}

// bySet returns the Services of each of the directors' sets, in the order of their names. A set
// whose DirectorSet has none is empty. One with a Service that cannot be read is left out: it stays
// as it is.
func (s *sets) bySet() map[int][]decoded {
	s.follow()
	return s.parts
}

func (s *sets) partsNow() map[int][]decoded {
	all := map[int][]decoded{}
	for _, o := range s.objects {
		all[int(o.Spec.Set)] = nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.decoded)) {
		d := s.decoded[name]
		all[int(d.of.Set)] = append(all[int(d.of.Set)], d)
	}
	for _, u := range s.unread {
		delete(all, int(u.of.Set))
	}
	return all
}

// lacks adds which sets stay as they are because a part of them cannot be read, and why.
func (s *sets) lacks(not map[int]error) map[int]error {
	for _, name := range slices.Sorted(maps.Keys(s.unread)) {
		if not == nil {
			not = map[int]error{}
		}
		u := s.unread[name]
		not[int(u.of.Set)] = fmt.Errorf("it stays as it is: %w", u.why)
	}
	return not
}

// vips returns all addresses, in order.
func (s *sets) vips() []group.VIP {
	s.follow()
	return s.places
}

func (s *sets) vipsNow() []group.VIP {
	seen := map[group.VIP]bool{}
	for _, d := range s.decoded {
		for i := range d.documents {
			seen[group.VIP{Segment: d.documents[i].Service.Segment, Address: d.documents[i].Service.VIP}] = true
		}
	}
	for _, u := range s.unread { // it may be forwarded as it was before this process
		for _, text := range u.of.VIPs {
			if vip, err := group.ParseVIP(text); err == nil {
				seen[vip] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), group.VIP.Compare)
}

// director is the local weir run.
type director struct {
	client *api.Client
	prefix string // of the owners of its sets: kube
	group  string
	log    *slog.Logger
	has    map[int][]decoded // the Services that each set was last put with
	parts  map[int]part      // sets that were put without, or with an earlier state of, Services that the director refuses
	ports  *string           // the key of the node ports that were last put; empty: it has none; nil: it is not known
	leaves []string          // the sources that it says it leaves to the kernel there; nil: they are not known
}

// part is what of a set the director does not take.
type part struct {
	of    []decoded         // the set
	why   map[string]string // by the Services' names
	again time.Time         // when it is tried again
}

// tryAgain is how often a Service is tried again that the director refuses, while it does not change.
const tryAgain = 5 * time.Second

// put makes the director forward these sets. It puts only changed sets. It returns why some are not
// taken, by their numbers, and why Services of others are not, by their names: such a Service must not
// keep those of others from being forwarded, and stays what it was.
func (d *director) put(ctx context.Context, all map[int][]decoded, now time.Time) (not map[int]error, without map[string]string) {
	// Sets that shrink come first: a Service that has moved must be in one set only.
	for _, n := range slices.SortedFunc(maps.Keys(all), func(a, b int) int { return cmp.Or(cmp.Compare(len(all[a]), len(all[b])), cmp.Compare(a, b)) }) {
		if had, known := d.has[n]; known && sameParts(had, all[n]) {
			continue
		}
		if p, is := d.parts[n]; is && sameParts(p.of, all[n]) && now.Before(p.again) {
			without = joined(without, p.why)
			continue
		}
		has, why, err := d.putParts(ctx, n, all[n])
		if err != nil {
			if not == nil {
				not = map[int]error{}
			}
			not[n] = err
			continue
		}
		if d.has == nil {
			d.has, d.parts = map[int][]decoded{}, map[int]part{}
		}
		d.has[n] = has
		if delete(d.parts, n); len(why) > 0 {
			d.parts[n] = part{all[n], why, now.Add(tryAgain)}
			without = joined(without, why)
		}
	}
	return not, without
}

func joined(all, more map[string]string) map[string]string {
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, more)
	return all
}

// putParts puts a set. What the director refuses of it by name stays what it was or, if it was not
// there, is left out. It returns what the director has, and why it does not have the rest.
func (d *director) putParts(ctx context.Context, n int, all []decoded) (has []decoded, why map[string]string, err error) {
	owner, taken := group.Owner(d.prefix, d.group, n), map[string]bool{}
	for has = all; ; {
		var documents []model.Document
		var whose []string
		for _, one := range has {
			for range one.documents {
				whose = append(whose, one.of.Name)
			}
			documents = append(documents, one.documents...)
		}
		if err = d.putOne(ctx, owner, documents); err == nil {
			return has, why, nil
		}
		named := namedIn(err, whose)
		if len(named) == 0 {
			return nil, nil, err
		}
		if d.adopt(ctx, has, named, taken) {
			continue // without what it had in the set of another owner
		}
		var rest []decoded
		for _, one := range has {
			text, refused := named[one.of.Name]
			if !refused {
				rest = append(rest, one)
				continue
			}
			if _, again := why[one.of.Name]; again {
				continue // its earlier state is refused, too
			}
			why = joined(why, map[string]string{one.of.Name: text})
			if at := slices.IndexFunc(d.has[n], func(h decoded) bool { return h.of.Name == one.of.Name && h.sum != one.sum }); at >= 0 {
				rest = append(rest, d.has[n][at])
			}
		}
		has = rest
	}
}

// namedIn returns what a refusal says of Services, by the fields that it names, where whose has the
// Service of each field.
func namedIn(err error, whose []string) map[string]string {
	var problem *api.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusConflict && problem.Status != http.StatusUnprocessableEntity {
		return nil
	}
	named := map[string]string{}
	for _, e := range problem.Errors {
		_, number, found := strings.Cut(e.Field, "[")
		number, _, _ = strings.Cut(number, "]")
		i, err := strconv.Atoi(number)
		if !found || err != nil || i < 0 || i >= len(whose) {
			return nil // of the set as a whole
		}
		if _, known := named[whose[i]]; !known {
			named[whose[i]] = shortened(e.Detail)
		}
	}
	return named
}

// adopt takes services out of the set of another owner whose place they have in the group's, for
// those Services that are to take them over and were not put because of them. It reports whether it
// has taken any.
func (d *director) adopt(ctx context.Context, all []decoded, named map[string]string, taken map[string]bool) bool {
	any := false
	for _, one := range all {
		name, owner := one.of.Name, one.of.Adopts
		if _, refused := named[name]; !refused || owner == "" || taken[name] || strings.HasPrefix(owner, d.prefix+".") {
			continue
		}
		taken[name] = true
		set, err := d.client.Set(ctx, owner)
		if err != nil {
			continue // it has none, or is asked again with the next try
		}
		rest := slices.DeleteFunc(slices.Clone(set.Services), func(s model.Service) bool {
			return slices.ContainsFunc(one.documents, func(d model.Document) bool { return d.Service.ID() == s.ID() })
		})
		text, err := json.Marshal(api.Set{Services: rest})
		if err != nil || len(rest) == len(set.Services) {
			continue
		}
		if _, err = d.client.PutSet(ctx, owner, api.SetText{JSON: true, Text: text}, api.Condition{Tags: []string{set.Tag}}); err != nil {
			d.log.Warn("services are not taken over", "owner", owner, "by", name, "error", err)
			continue
		}
		d.log.Info("services are taken over", "owner", owner, "by", name, "services", len(set.Services)-len(rest))
		any = true
	}
	return any
}

// putOne puts one set.
func (d *director) putOne(ctx context.Context, owner string, documents []model.Document) error {
	change, err := d.client.PutDocuments(ctx, owner, documents)
	if err != nil {
		return err
	}
	d.log.Info("the director has another set", "owner", owner, "services", len(documents), "added", len(change.Added), "changed", len(change.Changed), "removed", len(change.Removed))
	return nil
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

// forget forgets what is known about the director: another process may have nothing.
func (d *director) forget() { d.has, d.parts, d.ports, d.leaves = nil, nil, nil, nil }

// empty takes out everything in the group's sets.
func (d *director) empty(ctx context.Context) error {
	owned, err := d.owned(ctx)
	if err != nil {
		return err
	}
	d.forget()
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
	if len(errs) == 0 {
		d.ports = new(string)
	}
	return errors.Join(errs...)
}
