package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// lease is how the controller hears of the node's director, or agent.
type lease struct {
	client      coordinationv1client.LeaseInterface
	name, of    string                // and the node, or the pod
	label, says string                // a label's name, and the annotation
	value       string                // of the label
	known       *coordinationv1.Lease // the content that was last written; nil: it is not known
	renewed     time.Time
}

func directorLease(client coordinationv1client.LeaseInterface, of, node string) lease {
	return lease{client: client, name: group.LeaseName(of, node), of: node, label: v1alpha1.LabelGroup, value: of, says: group.AnnotationDirector}
}

func agentLease(client coordinationv1client.LeaseInterface, node string) lease {
	return lease{client: client, name: group.AgentLeaseName(node), of: node, label: v1alpha1.LabelAgent, value: "true", says: group.AnnotationAgent}
}

// renew writes the Lease if its content has changed, or it is time to. Counts always change, and
// need not be told at once. The Lease is deleted with its owner; nil: it has none.
func (l *lease) renew(ctx context.Context, owner *metav1.OwnerReference, text string, more map[string]string, now time.Time) error {
	if l.known != nil && l.known.Annotations[l.says] == text && l.known.Annotations[group.AnnotationReport] == more[group.AnnotationReport] && l.known.Annotations[group.AnnotationOthers] == more[group.AnnotationOthers] && now.Sub(l.renewed) < group.Renew {
		return nil
	}
	seconds, at := int32(group.Silence/time.Second), metav1.NewMicroTime(now)
	if l.known == nil {
		there, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read Lease %s: %w", l.name, err)
		}
		if err == nil {
			l.known = there
		}
	}
	next := &coordinationv1.Lease{}
	if l.known != nil {
		next = l.known.DeepCopy()
	}
	next.Name = l.name
	next.Labels, next.Annotations, next.OwnerReferences = map[string]string{l.label: l.value}, map[string]string{l.says: text}, nil
	for name, text := range more {
		if text != "" {
			next.Annotations[name] = text
		}
	}
	if owner != nil {
		next.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = &l.of, &seconds, &at
	var written *coordinationv1.Lease
	var err error
	if l.known == nil {
		written, err = l.client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		written, err = l.client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		l.known = nil // another client has changed it, or it is gone
		return fmt.Errorf("write Lease %s: %w", l.name, err)
	}
	l.known, l.renewed = written, now
	return nil
}

// owner is the owner of the director's Lease: its DirectorGroup, or its pod, because no other pod
// will have its name.
func (n *Node) owner(g *v1alpha1.DirectorGroup) *metav1.OwnerReference {
	if n.Pod != nil && n.Pod.UID != "" {
		return &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: n.Pod.Name, UID: n.Pod.UID}
	}
	return &metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DirectorGroup", Name: g.Name, UID: g.UID}
}

// said is what a director's Lease is to say.
type said struct {
	presence               group.Presence
	report, counts, others string // as the annotations have them
}

// leaseWriter keeps the Lease up to date in the background: a slow API server must not delay what the
// director forwards. Use newLeaseWriter.
type leaseWriter struct {
	lease lease
	wake  chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	of   *metav1.OwnerReference
	is   said
	last error // of the last time
}

func newLeaseWriter(l lease) *leaseWriter {
	return &leaseWriter{lease: l, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// report has the content written soon, if it is new or it is time to.
func (t *leaseWriter) report(of *metav1.OwnerReference, is said) {
	t.mu.Lock()
	t.of, t.is = of, is
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// err returns the error of the last write.
func (t *leaseWriter) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// run writes the Lease until the context ends.
func (t *leaseWriter) run(ctx context.Context) {
	defer close(t.ended)
	for {
		select {
		case <-t.wake:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		of, is := t.of, t.is
		t.mu.Unlock()
		err := t.write(ctx, of, is)
		t.mu.Lock()
		t.last = err
		t.mu.Unlock()
	}
}

// write writes the Lease now. No other method of the leaseWriter may be running.
func (t *leaseWriter) write(ctx context.Context, of *metav1.OwnerReference, is said) error {
	ctx, cancel := context.WithTimeout(ctx, group.Renew)
	defer cancel()
	return t.lease.renew(ctx, of, is.presence.String(), map[string]string{group.AnnotationReport: is.report, group.AnnotationCounts: is.counts, group.AnnotationOthers: is.others}, time.Now())
}
