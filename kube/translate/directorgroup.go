package translate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// DirectorGroup is a DirectorGroup that was read.
type DirectorGroup struct {
	Of       *v1alpha1.DirectorGroup
	Options  Options         // for Services that have no ServicePolicy
	Policies ServicePolicies // read with the group's options as defaults
	Notice   time.Duration   // before new generations place connections

	services, namespaces labels.Selector // nil: any
	snatPorts            model.PortRange // of full NAT, at nodes' addresses
}

// ReadDirectorGroup returns the options that Services have by a DirectorGroup over those of the
// controller's file, or what is wrong with the group that its schema cannot refuse.
func ReadDirectorGroup(g *v1alpha1.DirectorGroup, o Options) (*DirectorGroup, error) {
	read := &DirectorGroup{Of: g}
	var err error
	if read.services, err = selector("spec.serviceSelector", g.Spec.ServiceSelector); err != nil {
		return nil, err
	}
	if read.namespaces, err = selector("spec.namespaceSelector", g.Spec.NamespaceSelector); err != nil {
		return nil, err
	}
	if g.Spec.Mode != "" {
		if err := o.Mode.UnmarshalText([]byte(g.Spec.Mode)); err != nil {
			return nil, fmt.Errorf("spec.mode: %w", err)
		}
	}
	if g.Spec.Backends != "" {
		if err := o.Backends.UnmarshalText([]byte(g.Spec.Backends)); err != nil {
			return nil, fmt.Errorf("spec.backends: %w", err)
		}
	}
	if g.Spec.SNAT != nil {
		o.SNAT = *g.Spec.SNAT
	}
	if g.Spec.MTU != 0 {
		o.MTU = uint16(g.Spec.MTU)
	}
	// Agents of nodes follow what groups forward, and accept tunnels from the groups' nodes.
	o.NoAgents = ""
	if g.Spec.Namespace != "" {
		o.NoAgents = fmt.Sprintf("pods that are directors, as those of DirectorGroup %s, forward in mode nat alone", g.Name)
	}
	o.NodeHealth = o.NodeHealth && o.To() == Nodes
	if zone := g.Spec.NodeSelector[corev1.LabelTopologyZone]; zone != "" {
		o.Zone = zone // all of the group's directors are there
	}
	if why := o.Check(); why != "" {
		return nil, fmt.Errorf("spec.mode: %s", why)
	}
	read.Options = o
	if g.Spec.SNATPorts != "" {
		if err := read.snatPorts.UnmarshalText([]byte(g.Spec.SNATPorts)); err != nil {
			return nil, fmt.Errorf("spec.snatPorts: %w", err)
		}
	}
	var notice model.Duration
	if err := notice.UnmarshalText([]byte(g.Spec.Notice)); err != nil {
		return nil, fmt.Errorf("spec.notice: %w", err)
	}
	read.Notice = time.Duration(notice)
	return read, nil
}

// Selects reports whether a Service or a Gateway in a namespace with these labels is one of the
// group's.
func (g *DirectorGroup) Selects(o metav1.Object, namespace map[string]string) bool {
	return (g.services == nil || g.services.Matches(labels.Set(o.GetLabels()))) && (g.namespaces == nil || g.namespaces.Matches(labels.Set(namespace)))
}
