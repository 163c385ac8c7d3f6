package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AddressPool has addresses that Services of type LoadBalancer may get.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=weir
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Assigned",type=integer,JSONPath=`.status.assigned`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the administrator's configuration.
	// +required
	Spec AddressPoolSpec `json:"spec"`
	// status is the result that the controller reports.
	// +optional
	Status AddressPoolStatus `json:"status,omitempty"`
}

// AddressPoolSpec says which addresses the pool has, and which Services may get them.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.namespaces) && has(self.namespaceSelector))",message="has either namespaces or namespaceSelector",fieldPath=".namespaceSelector"
type AddressPoolSpec struct {
	// addresses are single addresses (203.0.113.7), prefixes with all of their addresses
	// (203.0.113.0/28) and ranges (203.0.113.10-203.0.113.20), of both families. No two pools may
	// have an address in common: if two do, the older one is used.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Addresses []AddressRange `json:"addresses"`

	// priority says from which of the pools that a Service may use an address is taken first:
	// from the one with the highest priority, and among equals from the first by name. Pools of
	// the controller's file have priority 0.
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// onRequest keeps the pool for Services that name it, or an address of it, in their
	// annotations.
	// +optional
	OnRequest bool `json:"onRequest,omitempty"`

	// avoidBuggyIPs leaves out IPv4 addresses that end in .0 or .255, which some routers and
	// hosts take for broadcasts.
	// +optional
	AvoidBuggyIPs bool `json:"avoidBuggyIPs,omitempty"`

	// shareAcrossNamespaces lets Services of all namespaces with the same annotation
	// weir.io/sharing-key share an address of the pool. Otherwise the Service that has an address
	// first names the other namespaces that may share it, in its annotation
	// weir.io/sharing-namespaces.
	// +optional
	ShareAcrossNamespaces bool `json:"shareAcrossNamespaces,omitempty"`

	// namespaces are the namespaces whose Services may have its addresses. Without these and a
	// namespaceSelector: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// namespaceSelector selects, by their labels, the namespaces whose Services may have its
	// addresses.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// serviceSelector selects, by their labels, the Services that may have its addresses; none:
	// all.
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`
}

// AddressRange is one address, a prefix, or the first and the last address of a range.
//
// +kubebuilder:validation:MinLength=2
// +kubebuilder:validation:MaxLength=91
// +kubebuilder:validation:XValidation:rule="self.contains('-') ? self.split('-').size() == 2 && self.split('-').all(a, isIP(a)) : self.contains('/') ? isCIDR(self) : isIP(self)",message="is not an address (203.0.113.7), a prefix (203.0.113.0/28) or a range (203.0.113.10-203.0.113.20)"
// +kubebuilder:validation:XValidation:rule="!self.contains('-') || self.split('-').size() != 2 || !self.split('-').all(a, isIP(a)) || ip(self.split('-')[0]).family() == ip(self.split('-')[1]).family()",message="begins in one family and ends in the other"
// +kubebuilder:validation:XValidation:rule="!self.contains('/') || !isCIDR(self) || cidr(self) == cidr(self).masked()",message="has bits behind its prefix: write 203.0.113.0/28 for the prefix that 203.0.113.1/28 is in"
type AddressRange string

// AddressPoolStatus is the state of a pool.
type AddressPoolStatus struct {
	// assigned is how many of the pool's addresses Services have.
	// +optional
	Assigned int64 `json:"assigned"`
	// conditions has Ready: whether addresses are taken from the pool, and if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressPool `json:"items"`
}
