package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// countPace is how often counts alone change a LoadBalancer's status: they change all the time.
const countPace = 30 * time.Second

// The states of listeners and members in statuses.
const (
	stateUp        = "up"
	stateDown      = "down"
	stateDegraded  = "degraded"
	stateError     = "error"
	stateUnknown   = "unknown"
	stateUnchecked = "unchecked"
	stateDraining  = "draining"
	stateDisabled  = "disabled"
	stateEmpty     = "empty"
)

// counted is what directors are known to have counted for a LoadBalancer.
type counted struct {
	name  pool.Service
	uid   types.UID
	last  map[string]map[string]group.Count // by service and director
	sums  map[string]group.Count            // by listener
	wrote time.Time                         // when counts were last written
}

// balancerStatus writes what is known of a LoadBalancer into its status.
func (c *Controller) balancerStatus(p *plan, w *wish, s *v1alpha1.LoadBalancerStatus, now time.Time) {
	b := w.balancer
	of := outlook{balancer: b, services: w.made.services}
	if w.chosen != nil {
		s.Group = w.chosen.Of.Name
		of.directors = p.read.staff[s.Group].directors
		if g := c.groups.groups[s.Group]; g != nil {
			of.compiled = g.byName[w.key()]
		}
	} else if b.Of.Spec.Group != "" {
		s.Group = b.Of.Spec.Group
	}
	if s.Segment = ""; b.Segment != (model.Segment{}) {
		s.Segment = b.Segment.String()
	}
	had := s.Addresses
	s.Addresses = nil
	for _, a := range w.addresses { // in the status an address means that it is forwarded, or was
		if w.forwarded || b.Down() || slices.Contains(had, a.String()) {
			s.Addresses = append(s.Addresses, a.String())
		}
	}
	of.look()
	s.Directors = int32(len(of.has))
	before := s.Listeners
	s.Listeners = of.listeners()
	c.count(w, &of, s, before, now)
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: shortened(message), ObservedGeneration: b.Of.Generation})
	}
	accepted, reason, message := w.accepted()
	set(v1alpha1.Accepted, accepted, reason, message)
	programmed, reason, message := of.programmed(w, accepted, p.unsaid.unanswered)
	set(v1alpha1.Programmed, programmed, reason, message)
	degraded, reason, message := of.degraded(s.Listeners)
	set(v1alpha1.Degraded, degraded, reason, message)
}

// accepted says whether a LoadBalancer can be forwarded.
func (w *wish) accepted() (status metav1.ConditionStatus, reason, message string) {
	// What cannot be forwarded has no services; else the problems are of parts, and are told by events.
	why, text := texts(w.problems[asking], w.problems[governing], w.problems[claiming], w.problems[assigning])
	if why == "" && (w.kept || len(w.made.services) == 0) && !w.balancer.Down() {
		why, text = texts(w.problems[forwarding])
	}
	if why == "" && w.over {
		why, text = texts(w.problems[accepting])
	}
	if why != "" {
		return metav1.ConditionFalse, string(why), text
	}
	_, text = texts(w.problems[forwarding])
	if text == "" {
		text = "it can be forwarded by DirectorGroup " + w.chosen.Of.Name
	}
	return metav1.ConditionTrue, v1alpha1.ReasonAccepted, text
}

// outlook is what the directors of a LoadBalancer's group say about it.
type outlook struct {
	balancer  *translate.LoadBalancer
	services  []model.Service // that directors are to forward
	directors []group.Candidate
	compiled  *compiled // nil: it is not written

	has   []group.Candidate // that forward it as it is written now
	lacks []string          // why the others do not
}

// look finds out which directors forward what is written.
func (o *outlook) look() {
	if o.compiled == nil || len(o.services) == 0 || o.compiled.version == "" {
		return
	}
	for _, d := range o.directors {
		if why := d.Taken.Lacks(o.compiled.written.Set, o.compiled.written.Name, o.compiled.version); why != "" {
			o.lacks = append(o.lacks, d.Node+" "+why)
		} else {
			o.has = append(o.has, d)
		}
	}
}

// programmed says whether directors forward it as its spec says.
func (o *outlook) programmed(w *wish, accepted metav1.ConditionStatus, unanswered string) (status metav1.ConditionStatus, reason, message string) {
	_, refused := texts(w.problems[accepting])
	switch {
	case accepted != metav1.ConditionTrue && len(w.made.services) > 0:
		return metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, "it is not accepted; directors go on as it was before"
	case accepted != metav1.ConditionTrue:
		return metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, "it is not accepted"
	case o.balancer.Down():
		return metav1.ConditionFalse, v1alpha1.ReasonAdminDown, "its adminState, or that of all of its listeners, is down"
	case unanswered != "":
		return metav1.ConditionUnknown, v1alpha1.ReasonPending, unanswered
	case refused != "":
		return metav1.ConditionFalse, v1alpha1.ReasonNotForwarded, refused
	case len(o.has) == 0:
		return metav1.ConditionFalse, v1alpha1.ReasonPending, "no director forwards it yet: " + strings.Join(o.lacks, "; ")
	case len(o.lacks) > 0:
		return metav1.ConditionTrue, v1alpha1.ReasonForwarded, fmt.Sprintf("%d of %d directors forward it so: %s", len(o.has), len(o.directors), strings.Join(o.lacks, "; "))
	}
	return metav1.ConditionTrue, v1alpha1.ReasonForwarded, fmt.Sprintf("%d of %d directors forward it so", len(o.has), len(o.directors))
}

// degraded says whether members or directors are missing.
func (o *outlook) degraded(listeners []v1alpha1.LoadBalancerListenerStatus) (status metav1.ConditionStatus, reason, message string) {
	var down []string
	known := false
	for i := range listeners {
		l := &listeners[i]
		known = known || l.State != stateUnknown && l.State != stateDown
		for j := range l.Members {
			if m := &l.Members[j]; m.State == stateDown {
				down = append(down, fmt.Sprintf("%s of listener %s: %s", m.Name, l.Name, m.Reason))
			}
		}
	}
	switch {
	case len(down) > 0:
		more := ""
		if len(down) > mostSaid {
			more = fmt.Sprintf("; and %d more", len(down)-mostSaid)
		}
		return metav1.ConditionTrue, v1alpha1.ReasonMembersDown, fmt.Sprintf("%d members are down: %s%s", len(down), strings.Join(down[:min(len(down), mostSaid)], "; "), more)
	case len(o.lacks) > 0:
		return metav1.ConditionTrue, v1alpha1.ReasonDirectors, strings.Join(o.lacks, "; ")
	case o.troubled() != "":
		return metav1.ConditionTrue, v1alpha1.ReasonDirectors, o.troubled()
	case !known:
		return metav1.ConditionUnknown, v1alpha1.ReasonUnknown, "no director has reported it"
	}
	return metav1.ConditionFalse, v1alpha1.ReasonHealthy, "all members get connections, or may get them"
}

// troubled says what directors report is wrong with the segment of the addresses.
func (o *outlook) troubled() string {
	var list []string
	for i := range o.directors {
		for _, p := range o.directors[i].Report.Problems {
			if p.Segment == o.balancer.Segment && p.Segment != (model.Segment{}) {
				list = append(list, o.directors[i].Node+": "+p.Text)
			}
		}
	}
	return strings.Join(list, "; ")
}

// listeners returns the states of the listeners, in their order.
func (o *outlook) listeners() (list []v1alpha1.LoadBalancerListenerStatus) {
	of := map[string][]*model.Service{}
	for i := range o.services {
		s := &o.services[i]
		name := o.balancer.ListenerOf(s.Name)
		of[name] = append(of[name], s)
	}
	for i := range o.balancer.Of.Spec.Listeners {
		name := o.balancer.Of.Spec.Listeners[i].Name
		one := v1alpha1.LoadBalancerListenerStatus{Name: name, State: stateUnknown}
		services := of[name]
		if len(services) == 0 {
			if o.balancer.IsDown(i) {
				one.State = stateDown
			}
			list = append(list, one)
			continue
		}
		for j := range services[0].Backends {
			one.Members = append(one.Members, o.member(services, &services[0].Backends[j]))
		}
		one.State = stateOf(one.Members)
		list = append(list, one)
	}
	return list
}

// stateOf returns a listener's state by those of its members.
func stateOf(members []v1alpha1.LoadBalancerMemberStatus) string {
	count := map[string]int{}
	for i := range members {
		count[members[i].State]++
	}
	serves := count[stateUp] + count[stateUnchecked] + count[stateDraining]
	switch {
	case len(members) == 0:
		return stateEmpty
	case count[stateDown] > 0 && serves == 0 && count[stateUnknown] == 0:
		return stateError
	case count[stateDown] > 0:
		return stateDegraded
	case serves == 0 && count[stateUnknown] > 0:
		return stateUnknown
	}
	return stateUp
}

// member returns a member's state: it is down if one director finds it down in one of the
// listener's services, because some clients then do not reach it.
func (o *outlook) member(services []*model.Service, b *model.Backend) v1alpha1.LoadBalancerMemberStatus {
	m := v1alpha1.LoadBalancerMemberStatus{Name: b.Name}
	switch b.State {
	case model.Down:
		m.State, m.Directors = stateDisabled, int32(len(o.has))
		return m
	case model.Draining:
		m.State, m.Directors = stateDraining, int32(len(o.has))
		return m
	}
	count := map[string]int32{}
	why := ""
	for _, d := range o.has {
		state := stateUp
		for _, s := range services {
			r, known := d.Report.Services[s.Name]
			text, down := r.Down[b.Name]
			switch {
			case down:
				state = stateDown
				if why == "" || text < why {
					why = text
				}
			case state == stateDown:
			case !known || slices.Contains(r.Unknown, b.Name):
				state = stateUnknown
			case !r.Checked && state == stateUp:
				state = stateUnchecked
			}
		}
		count[state]++
	}
	for _, state := range []string{stateDown, stateUp, stateUnchecked, stateUnknown} {
		if n := count[state]; n > 0 || state == stateUnknown {
			m.State, m.Directors = state, n
			break
		}
	}
	if m.State == stateDown {
		m.Reason = shortened(why)
	}
	return m
}

// count sums up what directors have counted. Sums go on where the status has left them, whatever
// directors come and go. Counts alone are not written more often than once in countPace.
func (c *Controller) count(w *wish, o *outlook, s *v1alpha1.LoadBalancerStatus, before []v1alpha1.LoadBalancerListenerStatus, now time.Time) {
	k := c.counts[w.key()]
	if k == nil || k.uid != o.balancer.Of.UID {
		k = &counted{name: w.name(), uid: o.balancer.Of.UID, last: map[string]map[string]group.Count{}, sums: map[string]group.Count{}}
		for i := range before {
			if t := before[i].Statistics; t != nil {
				k.sums[before[i].Name] = group.Count{uint64(t.Packets), uint64(t.Bytes), uint64(t.Connections), uint64(t.Dropped)}
			}
		}
		c.counts[w.key()] = k
	}
	for i := range o.services {
		name := o.services[i].Name
		listener := o.balancer.ListenerOf(name)
		sum, goesOn := k.sums[listener]
		for _, d := range o.directors {
			is, known := d.Counts.Services[name]
			if !known {
				continue
			}
			last, seen := k.last[name][d.Node]
			if k.last[name] == nil {
				k.last[name] = map[string]group.Count{}
			}
			k.last[name][d.Node] = is
			if !seen && goesOn && k.wrote.IsZero() {
				continue // an earlier process has written a sum with these
			}
			for j := range is {
				if is[j] < last[j] { // the director began anew
					last[j] = 0
				}
				sum[j] += is[j] - last[j]
			}
		}
		k.sums[listener] = sum
	}
	due := now.Sub(k.wrote) >= countPace
	for i := range s.Listeners {
		l := &s.Listeners[i]
		sum, known := k.sums[l.Name]
		at := slices.IndexFunc(before, func(b v1alpha1.LoadBalancerListenerStatus) bool { return b.Name == l.Name })
		switch {
		case at >= 0 && before[at].Statistics != nil && !due:
			l.Statistics = before[at].Statistics
		case known:
			l.Statistics = &v1alpha1.LoadBalancerStatistics{Packets: int64(sum[0]), Bytes: int64(sum[1]), Connections: int64(sum[2]), Dropped: int64(sum[3])}
		}
	}
	if due && len(o.services) > 0 {
		k.wrote = now
	}
}
