package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// lease is how the controller hears of the node.
type lease struct {
	client  coordinationv1client.LeaseInterface
	group   string
	pod     *Pod                  // whose it is; nil: a node's
	known   *coordinationv1.Lease // as it was written last; nil: that is not known
	renewed time.Time
}

// renew says what the node is, if that is another thing than before or it is time to.
func (l *lease) renew(ctx context.Context, g *v1alpha1.DirectorGroup, p group.Presence, now time.Time) error {
	text := p.String()
	if l.known != nil && l.known.Annotations[group.AnnotationDirector] == text && now.Sub(l.renewed) < group.Renew {
		return nil
	}
	name, seconds, at := group.LeaseName(l.group, p.Node), int32(group.Silence/time.Second), metav1.NewMicroTime(now)
	if l.known == nil {
		there, err := l.client.Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read Lease %s: %w", name, err)
		}
		if err == nil {
			l.known = there
		}
	}
	next := &coordinationv1.Lease{}
	if l.known != nil {
		next = l.known.DeepCopy()
	}
	next.Name = name
	next.Labels, next.Annotations = map[string]string{v1alpha1.LabelGroup: l.group}, map[string]string{group.AnnotationDirector: text}
	next.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DirectorGroup", Name: g.Name, UID: g.UID}}
	if l.pod != nil && l.pod.UID != "" { // no other pod will have its name
		next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: l.pod.Name, UID: l.pod.UID}}
	}
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = &p.Node, &seconds, &at
	var written *coordinationv1.Lease
	var err error
	if l.known == nil {
		written, err = l.client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		written, err = l.client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		l.known = nil // somebody else has changed it, or it is gone
		return fmt.Errorf("write Lease %s: %w", name, err)
	}
	l.known, l.renewed = written, now
	return nil
}
