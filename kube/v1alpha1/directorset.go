package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The labels of DirectorSets, and of the Leases of directors and agents.
const (
	LabelGroup = "weir.io/group" // the name of the DirectorGroup

	// LabelAgent is a label of the Leases of nodes' agents.
	LabelAgent = "weir.io/agent"
)

// DirectorSet is a part of what the directors of a group forward, as the controller has compiled
// it: Services, each with the history by which all directors are to forward it. Only the controller
// writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=weir
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Set",type=integer,JSONPath=`.spec.set`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.spec.count`
// +kubebuilder:printcolumn:name="Changes",type=integer,JSONPath=`.metadata.generation`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DirectorSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is forwarded.
	// +required
	Spec DirectorSetSpec `json:"spec"`
}

// DirectorSetSpec has some Services of a group.
//
// +kubebuilder:validation:XValidation:rule="self.group == oldSelf.group && self.set == oldSelf.set",message="a DirectorSet stays the part of the group that it is"
type DirectorSetSpec struct {
	// group is the DirectorGroup that the set is a part of.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Group string `json:"group"`

	// set is the number of the part.
	// +required
	// +kubebuilder:validation:Minimum=0
	Set int32 `json:"set"`

	// count is how many Services the set has.
	// +optional
	Count int32 `json:"count"`

	// services are the Services, in the order of their names.
	// +optional
	// +listType=map
	// +listMapKey=name
	Services []CompiledService `json:"services,omitempty"`
}

// CompiledService is one Service, ready to be forwarded.
type CompiledService struct {
	// name is the Service's namespace and name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name"`

	// set says which of the directors' sets the Service is in: kube.GROUP.SET. It stays there
	// while it exists, whatever DirectorSet it is written in.
	// +required
	// +kubebuilder:validation:Minimum=0
	Set int32 `json:"set"`

	// revision grows with each change. While a Service moves from one DirectorSet to another and
	// is in both, the higher revision counts.
	// +required
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision"`

	// vips are its addresses, behind their segment if they are in one.
	// +optional
	// +listType=atomic
	VIPs []string `json:"vips,omitempty"`

	// nodePorts are the Service's ports whose node ports each director has at its own node's
	// addresses.
	// +optional
	// +listType=atomic
	NodePorts []ServiceNodePort `json:"nodePorts,omitempty"`

	// adopts is the owner of sets of the directors whose services at the same addresses and ports it
	// takes over.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Adopts string `json:"adopts,omitempty"`

	// backends is how many backends its services have together.
	// +optional
	Backends int32 `json:"backends"`

	// generation is the newest generation in its services' histories.
	// +optional
	Generation int64 `json:"generation"`

	// generations is how many generations these histories have.
	// +optional
	Generations int32 `json:"generations"`

	// documents are the services as directors take them, one for each port and address, with
	// their histories: compressed JSON.
	// +required
	// +kubebuilder:validation:MaxLength=1500000
	Documents []byte `json:"documents"`
}

// ServiceNodePort is one of a Service's ports, and its node port.
type ServiceNodePort struct {
	// protocol is tcp, udp or sctp.
	// +required
	Protocol string `json:"protocol"`
	// port is the Service's port.
	// +required
	Port int32 `json:"port"`
	// nodePort is the port of nodes' addresses that leads to it.
	// +required
	NodePort int32 `json:"nodePort"`
}

// DirectorSetList is a list of sets.
//
// +kubebuilder:object:root=true
type DirectorSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DirectorSet `json:"items"`
}
