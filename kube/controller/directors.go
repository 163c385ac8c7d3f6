package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// version identifies an object with one spec, whatever its status.
type version struct {
	uid        types.UID
	generation int64
}

// listGroups lists DirectorGroups and BGPPeers.
func (r *resources) listGroups(c *caches) {
	r.allGroups, r.allPeers = follow.List[v1alpha1.DirectorGroup](c.group), follow.List[v1alpha1.BGPPeer](c.peer)
	slices.SortFunc(r.allGroups, func(a, b *v1alpha1.DirectorGroup) int {
		return cmp.Or(cmp.Compare(b.Spec.Priority, a.Spec.Priority), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.allPeers, func(a, b *v1alpha1.BGPPeer) int { return cmp.Compare(a.Name, b.Name) })
	for _, g := range r.allGroups {
		r.versions = append(r.versions, version{g.UID, g.Generation})
	}
	for _, p := range r.allPeers {
		r.versions = append(r.versions, version{p.UID, p.Generation})
	}
}

// readGroups reads DirectorGroups and BGPPeers. An invalid one is not used, and its status says
// why.
func (c *Controller) readGroups(r *resources) {
	r.told, r.peers = map[types.UID]metav1.Condition{}, map[types.UID]int64{}
	for _, g := range r.allGroups {
		read, err := translate.ReadDirectorGroup(g, c.Translate)
		if err == nil {
			var policies []*translate.ServicePolicy
			for _, p := range r.all {
				if one, err := translate.ReadServicePolicy(p, read.Options); err == nil {
					policies = append(policies, one)
				}
			}
			read.Policies = translate.NewServicePolicies(policies)
			r.groups = append(r.groups, read)
		}
		r.told[g.UID] = conditionOf(g, v1alpha1.ReasonInvalid, err, "Services that it selects are forwarded by its directors")
	}
	for _, p := range r.allPeers {
		read, err := translate.ReadBGPPeer(p)
		for _, g := range r.groups {
			if err == nil && read.Serves(g.Of) {
				r.peers[p.UID]++
				err = read.Valid(g.Of.Spec.BGP.ASN)
			}
		}
		if err != nil {
			r.peers[p.UID] = 0
		}
		r.told[p.UID] = conditionOf(p, v1alpha1.ReasonInvalid, err, "directors of its groups speak with it")
	}
}

// governs returns the group whose directors forward a Service or a Gateway, and the policy that it
// has; nil: the file's directors do, and it has none.
func (r *resources) governs(o metav1.Object, namespaceOf func(metav1.Object) map[string]string) (*translate.DirectorGroup, *translate.ServicePolicy) {
	for _, g := range r.groups {
		if g.Selects(o, namespaceOf(o)) {
			return g, g.Policies.For(o)
		}
	}
	return nil, r.policies.For(o)
}

// governs returns the group whose directors forward a wish, and its policy.
func (p *plan) governs(w *wish, namespaceOf func(metav1.Object) map[string]string) (*translate.DirectorGroup, *translate.ServicePolicy) {
	switch {
	case w.balancer == nil:
		return p.read.governs(w.object(), namespaceOf)
	case w.leaves.IsZero():
		return w.chosen, nil
	case w.group != nil: // it goes on where it was
		if at := slices.IndexFunc(p.read.groups, func(g *translate.DirectorGroup) bool { return g.Of.UID == w.group.Of.UID }); at >= 0 {
			return p.read.groups[at], nil
		}
	}
	return nil, nil
}

// optionsOf returns the options of what a group and a policy govern, over those of the file.
func optionsOf(file translate.Options, g *translate.DirectorGroup, p *translate.ServicePolicy) translate.Options {
	switch {
	case p != nil:
		return p.Options
	case g != nil:
		return g.Options
	}
	return file
}

// namespaceOf returns the labels of an object's namespace.
func (c *Controller) namespaceOf(o metav1.Object) map[string]string {
	return c.labelsOf(o.GetNamespace())
}

func (c *Controller) labelsOf(namespace string) map[string]string {
	if n := follow.One[corev1.Namespace](c.cache.namespace, namespace); n != nil {
		return n.Labels
	}
	return nil
}

// staff chooses the directors of each group, and returns when to look again. The directors chosen
// before are in the groups' status, so the next process chooses the same ones.
func (c *Controller) staff(r *resources, now time.Time) (next time.Time) {
	if c.cache.lease == nil {
		return next
	}
	candidates, next := c.heard.candidates(c.cache.lease, now)
	r.staff = map[string]staff{}
	for _, g := range r.groups {
		// The status that was written last may not have been read yet.
		before, known := c.chosen[g.Of.UID]
		if now := follow.One[v1alpha1.DirectorGroup](c.cache.group, g.Of.Name); !known && now != nil {
			for _, d := range now.Status.Directors {
				before = append(before, d.Node)
			}
		}
		want, key := int(g.Of.Spec.Directors), of{g.Of.Name, c.Namespace}
		if pods := g.Of.Spec.Namespace; pods != "" { // the pods have their own number, and all forward
			want, key.namespace = math.MaxInt, pods
		}
		chosen, standby := group.Assign(want, before, candidates[key])
		r.staff[g.Of.Name] = staff{chosen, standby, candidates[key]}
		var nodes []string
		for _, d := range chosen {
			nodes = append(nodes, d.Node)
		}
		c.chosen[g.Of.UID] = nodes
	}
	return next
}

// repaired is the reason of the event that something of a group was not as the controller had
// written it.
const repaired = "Repaired"

// reportGroup reports to users what was wrong with a group, by an event on it.
func (c *Controller) reportGroup(name, reason, text string) {
	if g := follow.One[v1alpha1.DirectorGroup](c.cache.group, name); g != nil {
		of := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DirectorGroup", Name: name, UID: g.UID}
		c.events.events.Event(of, corev1.EventTypeWarning, reason, shortened(text))
	}
}

// staff has the directors of a group, and how many more nodes could be directors.
type staff struct {
	directors []group.Candidate
	standby   int
	all       []group.Candidate // all candidates that were heard of, also those that are neither
}

// unstaffed returns which Services are not forwarded because their group has no directors.
func (p *plan) unstaffed() (refused []refusal) {
	for _, w := range p.of {
		if w.group != nil && !w.over && len(w.made.services) > 0 && len(p.read.staff[w.group.Of.Name].directors) == 0 {
			refused = append(refused, refusal{w, fmt.Sprintf("DirectorGroup %s has no directors: %s", w.group.Of.Name, nobody(w.group.Of))})
		}
	}
	return refused
}

// nobody says why a group has no directors.
func nobody(g *v1alpha1.DirectorGroup) string {
	if g.Spec.Namespace != "" {
		return "no pod of namespace " + g.Spec.Namespace + " runs one"
	}
	return "no node runs one that has the group's labels and is neither cordoned nor unready"
}

// unselected returns which Services are not forwarded because no group selects them and there are
// no other directors.
func (p *plan) unselected() (refused []refusal) {
	for _, w := range p.of {
		if w.group == nil && !w.over && len(w.made.services) > 0 {
			refused = append(refused, refusal{w, "no DirectorGroup selects it, and the controller's file names no directors"})
		}
	}
	return refused
}

// writeGroups writes the statuses of groups and peers that have changed.
func (c *Controller) writeGroups(ctx context.Context, p *plan) error {
	var errs []error
	r := p.read
	for _, before := range r.allGroups {
		before = latest(c.cache.group, before)
		after := before.DeepCopy()
		condition := r.told[before.UID]
		s, read := r.staff[before.Name]
		if !read { // an unreadable group changes nothing else
			meta.SetStatusCondition(&after.Status.Conditions, condition)
			errs = append(errs, c.writeStatus(ctx, v1alpha1.DirectorGroups, before.Status, after.Status, after))
			continue
		}
		after.Status.Directors = nil
		for _, d := range s.directors {
			after.Status.Directors = append(after.Status.Directors, v1alpha1.Director{Node: d.Node, Addresses: d.Addresses})
		}
		if w := c.ways[before.UID]; w != nil {
			after.Status.Ways = w.status()
		}
		after.Status.Active, after.Status.Standby = int32(len(s.directors)), int32(s.standby)
		if g := c.groups.groups[before.Name]; g != nil {
			after.Status.Services, after.Status.Sets = int64(max(len(g.byName), len(g.held))), int32(len(g.objects))
			if g.newer != nil && condition.Status == metav1.ConditionTrue {
				condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, newer, shortened(g.why())
			}
		}
		if condition.Status == metav1.ConditionTrue {
			switch want := int(before.Spec.Directors); {
			case len(s.directors) == 0:
				condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonNoNode, nobody(before)
			case len(s.directors) < want:
				condition.Reason, condition.Message = v1alpha1.ReasonFewer, fmt.Sprintf("%d of %d directors: nobody else could be one", len(s.directors), want)
			}
		}
		meta.SetStatusCondition(&after.Status.Conditions, condition)
		if ports, wanted := nodePortsOf(before, s); wanted {
			meta.SetStatusCondition(&after.Status.Conditions, ports)
		} else {
			meta.RemoveStatusCondition(&after.Status.Conditions, ports.Type)
		}
		if ovn, wanted := ovnOf(before, s.directors); wanted {
			meta.SetStatusCondition(&after.Status.Conditions, ovn)
		} else {
			meta.RemoveStatusCondition(&after.Status.Conditions, ovn.Type)
		}
		meta.SetStatusCondition(&after.Status.Conditions, problemsOf(before, s.directors))
		after.Status.KernelSources = (&translate.DirectorGroup{Of: before}).KernelSources(p.nodes)
		errs = append(errs, c.writeStatus(ctx, v1alpha1.DirectorGroups, before.Status, after.Status, after))
	}
	for _, before := range r.allPeers {
		before = latest(c.cache.peer, before)
		after := before.DeepCopy()
		after.Status.Groups = r.peers[before.UID]
		meta.SetStatusCondition(&after.Status.Conditions, r.told[before.UID])
		meta.SetStatusCondition(&after.Status.Conditions, r.established(before))
		errs = append(errs, c.writeStatus(ctx, v1alpha1.BGPPeers, before.Status, after.Status, after))
	}
	return errors.Join(errs...)
}

// ovnOf returns the condition of a group that says whether its directors follow OVN, by what they say; false: they
// are not to.
func ovnOf(g *v1alpha1.DirectorGroup, directors []group.Candidate) (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1alpha1.OVN, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonFollowed, ObservedGeneration: g.Generation,
		Message: fmt.Sprintf("%d directors follow OVN's Southbound database, and its hosts know them", len(directors))}
	var wrong []string
	for i := range directors {
		switch d := &directors[i]; {
		case d.OVN == nil:
			wrong = append(wrong, d.Node+": its weir-kube has not said so yet, or is of a version that knows no OVN")
		case *d.OVN != "":
			wrong = append(wrong, d.Node+": "+*d.OVN)
		}
	}
	if len(directors) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNotFollowed, "the group has no directors"
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNotFollowed
		c.Message = shortened(fmt.Sprintf("%d of %d directors do not follow OVN: %s", len(wrong), len(directors), strings.Join(wrong[:min(len(wrong), mostSaid)], "; ")))
	}
	return c, g.Spec.OVN != nil
}

// problemsOf returns the condition of a group that says what its directors report is wrong with
// themselves.
func problemsOf(g *v1alpha1.DirectorGroup, directors []group.Candidate) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.Problems, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNone, Message: "no director reports a problem", ObservedGeneration: g.Generation}
	var list []string
	for i := range directors {
		for _, p := range directors[i].Report.Problems {
			list = append(list, directors[i].Node+": "+p.Text)
		}
	}
	if len(list) > 0 {
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonReported
		condition.Message = shortened(fmt.Sprintf("%d: %s", len(list), strings.Join(list[:min(len(list), mostSaid)], "; ")))
	}
	return condition
}

// latest returns an object as it was read last: its status may have changed.
func latest[T any, P interface {
	*T
	metav1.Object
}](i cache.SharedIndexInformer, before P) P {
	if now := P(follow.One[T](i, key(before))); now != nil && now.GetUID() == before.GetUID() {
		return now
	}
	return before
}

// mostSaid is how many nodes a condition names with what is wrong.
const mostSaid = 3

// established returns the condition of a peer that says whether all nodes that are to speak with it
// do, by what the nodes themselves say.
func (r *resources) established(p *v1alpha1.BGPPeer) metav1.Condition {
	speak := 0
	var wrong []string
	for _, s := range r.staff {
		for _, c := range s.all {
			why, told := c.Peers[p.Name]
			switch {
			case !told || c.Gone:
			case why == "":
				speak++
			default:
				wrong = append(wrong, c.Node+": "+why)
			}
		}
	}
	slices.Sort(wrong) // so that the order alone does not change the condition
	condition := metav1.Condition{Type: v1alpha1.Established, ObservedGeneration: p.Generation}
	switch {
	case len(wrong) > 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonDown
		condition.Message = fmt.Sprintf("%d of %d nodes have no session with it: %s", len(wrong), len(wrong)+speak, strings.Join(wrong[:min(len(wrong), mostSaid)], "; "))
	case speak > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.ReasonSpeaks, fmt.Sprintf("%d nodes have a session with it", speak)
	default:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, v1alpha1.ReasonNobody, "no node has said that it speaks with it"
	}
	return condition
}
