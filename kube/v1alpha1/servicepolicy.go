package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServicePolicy is how weir forwards Services of its namespace. What it leaves out is as the
// controller's file says, else weir's default. Of several that select a Service the one with
// the highest priority counts alone, and among equals the oldest.
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

	// spec is what the owner of the Services says.
	// +required
	Spec ServicePolicySpec `json:"spec"`
	// status is what the controller has made of it.
	// +optional
	Status ServicePolicyStatus `json:"status,omitempty"`
}

// ServicePolicySpec is which Services, and how they are forwarded.
//
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy == 'maglev' || !has(self.affinity) || self.affinity == 'flow'",message="a policy other than maglev spreads a client's connections over all backends, and source-ip wants them on one",fieldPath=".affinity"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || !has(self.maxDrain) || duration(self.drain) <= duration(self.maxDrain)",message="is shorter than drain",fieldPath=".maxDrain"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || duration(self.drain) >= duration('1ms') && duration(self.drain) <= duration('24h')",message="is not from 1ms to 24h",fieldPath=".drain"
// +kubebuilder:validation:XValidation:rule="!has(self.maxDrain) || duration(self.maxDrain) >= duration('1ms') && duration(self.maxDrain) <= duration('720h')",message="is not from 1ms to 720h",fieldPath=".maxDrain"
type ServicePolicySpec struct {
	// selector selects Services of the namespace by their labels; empty: all of them.
	// +required
	Selector metav1.LabelSelector `json:"selector"`

	// priority says which policy counts for a Service that several select.
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// mode is how packets reach backends. A Service's annotation weir.io/mode overrules it.
	// +optional
	// +kubebuilder:validation:Enum=nat;l2dsr;ipip
	Mode string `json:"mode,omitempty"`

	// policy is how new connections are placed. All but maglev are for TCP; UDP ports stay with
	// maglev.
	// +optional
	// +kubebuilder:validation:Enum=maglev;random;round-robin;least-conn
	Policy string `json:"policy,omitempty"`

	// affinity is by what clients are told apart: by each flow, or by their address alone. A
	// Service's spec.sessionAffinity ClientIP is source-ip whatever this says.
	// +optional
	// +kubebuilder:validation:Enum=flow;source-ip
	Affinity string `json:"affinity,omitempty"`

	// drain is for how long after a change of backends directors remember, at least, where
	// connections were: 1ms to 24h.
	// +optional
	Drain *Duration `json:"drain,omitempty"`

	// maxDrain is for how long they do at most: up to 720h.
	// +optional
	MaxDrain *Duration `json:"maxDrain,omitempty"`

	// health is how directors find out which backends are healthy, beside what Kubernetes says.
	// +optional
	Health *Health `json:"health,omitempty"`
}

// Duration is a number with a unit, or several: 500ms, 1m30s.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
type Duration string

// Health is how backends are probed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.http) || self.kind in ['http', 'https']",message="is for the kinds http and https",fieldPath=".http"
// +kubebuilder:validation:XValidation:rule="self.kind != 'https' || has(self.http) && has(self.http.host)",message="https needs http.host: the name that the certificate has to be for",fieldPath=".kind"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || duration(self.interval) >= duration('10ms') && duration(self.interval) <= duration('1h')",message="is not from 10ms to 1h",fieldPath=".interval"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('1ms') && duration(self.timeout) <= duration('1m')",message="is not from 1ms to 1m",fieldPath=".timeout"
type Health struct {
	// kind is what a probe is. none: there are none, also no node-health. https asks for the
	// name http.host, which the certificate has to be for.
	// +required
	// +kubebuilder:validation:Enum=none;tcp;syn;http;https;icmp
	Kind string `json:"kind"`

	// port is probed; none: the one that the backend serves.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// interval is from one probe of a backend to the next: 10ms to 1h.
	// +optional
	Interval *Duration `json:"interval,omitempty"`

	// timeout is of one probe: 1ms to 1m.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// rise is how many successes in a row make a backend healthy.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Rise int32 `json:"rise,omitempty"`

	// fall is how many failures in a row make it unhealthy.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Fall int32 `json:"fall,omitempty"`

	// http is the request, with the kinds http and https; none: GET /.
	// +optional
	HTTP *HealthHTTP `json:"http,omitempty"`
}

// HealthHTTP is a request, and which answers are good.
type HealthHTTP struct {
	// path is asked for; none: /.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	Path string `json:"path,omitempty"`

	// host is what the request names; none: the backend's address and port.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!"$-.0->A-~]+$`
	Host string `json:"host,omitempty"`

	// status are the codes (200) and ranges of codes (200-399) of good answers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=7
	// +kubebuilder:validation:items:Pattern=`^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$`
	Status []string `json:"status,omitempty"`
}

// ServicePolicyStatus is what has become of a policy.
type ServicePolicyStatus struct {
	// services is how many Services are forwarded by it.
	// +optional
	Services int64 `json:"services"`
	// conditions are Ready: whether it is used, and if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServicePolicyList is several policies.
//
// +kubebuilder:object:root=true
type ServicePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ServicePolicy `json:"items"`
}
