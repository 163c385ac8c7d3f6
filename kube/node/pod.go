package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a director that is deployed with an application: it is in the pods' network, and the
// pod takes the node's place in its group.
type Pod struct {
	Name      string
	UID       types.UID    // its Lease goes with it; empty: with the DirectorGroup
	Addresses []netip.Addr // its own, one of a family
	BPFFS     string       // the directory of all the group's pods' on this node; empty: none
}

// facts returns the facts about the pod. A pod that exists may be a director.
func (p *Pod) facts() facts {
	f := facts{Name: p.Name, RouterID: routerID(p.Name), Pod: true}
	for _, a := range p.Addresses {
		if a.Is4() {
			f.V4, f.RouterID = a, a
		} else {
			f.V6 = a
		}
	}
	return f
}

// leaving tells the controller that the pod has been told to end: its director withdraws its
// routes by itself.
func (n *Node) leaving() error {
	g := n.role.group
	if g == nil || n.Socket == "" {
		return nil
	}
	f := n.Pod.facts()
	f.Unfit = "its pod has been told to end"
	return n.leaseWriter.write(context.Background(), n.owner(g), said{presence: n.presence(g, &f)}) // the context of the process has ended
}

// sweep removes the pinned objects of pods that are gone. A pod that ends by itself leaves an empty
// directory, and a killed one its maps, which would never be used again.
func (n *Node) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(n.Pod.BPFFS)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for what pods have left: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() == n.Pod.Name {
			continue
		}
		// A pod is known before anything of it is on a node.
		_, err := n.core.Pods(n.Namespace).Get(ctx, e.Name(), metav1.GetOptions{})
		if err == nil {
			continue
		}
		if apierrors.IsNotFound(err) {
			if err = os.RemoveAll(filepath.Join(n.Pod.BPFFS, e.Name())); err == nil {
				n.log.Info("what a pod has left is removed", "pod", e.Name())
				continue
			}
		}
		errs = append(errs, fmt.Errorf("remove what pod %s has left: %w", e.Name(), err))
	}
	return errors.Join(errs...)
}
