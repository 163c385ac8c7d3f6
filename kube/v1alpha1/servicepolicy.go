package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServicePolicy says how weir forwards Services of its namespace. What it leaves out is as the
// controller's file says, else weir's default. If several select a Service, only the one with the
// highest priority counts, and among equals the oldest.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=servicepolicies,categories=weir
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policy`
// +kubebuilder:printcolumn:name="Health",type=string,JSONPath=`.spec.health.kind`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServicePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the configuration by the owner of the Services.
	// +required
	Spec ServicePolicySpec `json:"spec"`
	// status is the result that the controller reports.
	// +optional
	Status ServicePolicyStatus `json:"status,omitempty"`
}

// ServicePolicySpec says which Services it is for, and how they are forwarded.
type ServicePolicySpec struct {
	// selector selects Services of the namespace by their labels; empty: all.
	// +required
	Selector metav1.LabelSelector `json:"selector"`

	// priority says which policy counts for a Service that several select.
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// mode is how packets reach backends. A Service's annotation weir.io/mode overrules it. gue
	// reaches pods, through weir agent on their nodes; so does ipip if backends are pods, in
	// networks that route pods' addresses.
	// +optional
	// +kubebuilder:validation:Enum=nat;l2dsr;ipip;gue
	Mode string `json:"mode,omitempty"`

	Placement `json:",inline"`
}

// Placement says how connections are placed on the backends of a Service, or of a listener of a
// LoadBalancer, and which backends are good.
//
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy == 'maglev' || !has(self.affinity) || self.affinity == 'flow'",message="a policy other than maglev spreads connections over all backends, and this affinity wants those of a client or a port on one",fieldPath=".affinity"
// +kubebuilder:validation:XValidation:rule="!has(self.affinityPrefix) || has(self.affinity) && self.affinity == 'source-ip'",message="is for affinity source-ip",fieldPath=".affinityPrefix"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || !has(self.maxDrain) || duration(self.drain) <= duration(self.maxDrain)",message="is shorter than drain",fieldPath=".maxDrain"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || duration(self.drain) >= duration('1ms') && duration(self.drain) <= duration('24h')",message="is not from 1ms to 24h",fieldPath=".drain"
// +kubebuilder:validation:XValidation:rule="!has(self.maxDrain) || duration(self.maxDrain) >= duration('1ms') && duration(self.maxDrain) <= duration('720h')",message="is not from 1ms to 720h",fieldPath=".maxDrain"
type Placement struct {
	// policy is how new connections are placed. All but maglev are for TCP; UDP ports stay with
	// maglev, and so do all in mode gue.
	// +optional
	// +kubebuilder:validation:Enum=maglev;random;round-robin;least-conn;p2c
	Policy string `json:"policy,omitempty"`

	// affinity says which connections have the same backend: those of a flow, of a client's address,
	// or of a destination port. A Service's spec.sessionAffinity ClientIP is source-ip whatever this
	// says.
	// +optional
	// +kubebuilder:validation:Enum=flow;source-ip;destination-port
	Affinity string `json:"affinity,omitempty"`

	// affinityPrefix is how many bits of the client's address count with affinity source-ip, of IPv4
	// (1 to 32) and of IPv6 (1 to 128), as in 24/64; none: all.
	// +optional
	// +kubebuilder:validation:Pattern=`^([1-9]|[12][0-9]|3[0-2])/([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$`
	AffinityPrefix string `json:"affinityPrefix,omitempty"`

	// drain is how long after a change of backends directors remember at least where connections
	// were: 1ms to 24h; none: 1m, and 10m in mode gue.
	// +optional
	Drain *Duration `json:"drain,omitempty"`

	// maxDrain is how long they remember it at most: up to 720h.
	// +optional
	MaxDrain *Duration `json:"maxDrain,omitempty"`

	// minHealthy is how many backends of a port have to be up for its VIP to be announced: by
	// what Kubernetes says and by health. With fewer, directors forward what still comes. 0: the
	// VIP is always announced.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MinHealthy *int32 `json:"minHealthy,omitempty"`

	// health says how directors find out which backends are healthy, in addition to what
	// Kubernetes says.
	// +optional
	Health *Health `json:"health,omitempty"`
}

// Duration is a number with a unit, or several: 500ms, 1m30s.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
type Duration string

// ServicePolicyStatus is the state of a policy.
type ServicePolicyStatus struct {
	// services is how many Services the policy applies to.
	// +optional
	Services int64 `json:"services"`
	// conditions has Ready: whether the policy is used, and if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServicePolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type ServicePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ServicePolicy `json:"items"`
}
