// Package v1alpha1 is weir's custom resources: what cluster administrators and owners of
// Services say in Kubernetes' own way. The schemas in kube/chart/crds are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=weir.io
package v1alpha1

//go:generate go tool controller-gen object crd paths=. output:crd:dir=../chart/crds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all kinds of this package.
var GroupVersion = schema.GroupVersion{Group: "weir.io", Version: "v1alpha1"}

// The names of the kinds in URLs.
const (
	AddressPools    = "addresspools"
	ServicePolicies = "servicepolicies"
	DirectorGroups  = "directorgroups"
	BGPPeers        = "bgppeers"
	DirectorSets    = "directorsets"
	LoadBalancers   = "loadbalancers"
)

// AddToScheme makes the kinds known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &AddressPool{}, &AddressPoolList{}, &ServicePolicy{}, &ServicePolicyList{},
		&DirectorGroup{}, &DirectorGroupList{}, &BGPPeer{}, &BGPPeerList{}, &DirectorSet{}, &DirectorSetList{},
		&LoadBalancer{}, &LoadBalancerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Ready is the type of the condition that says whether an object is used.
const Ready = "Ready"

// Established is the type of the condition that says whether nodes have sessions with a BGPPeer.
const Established = "Established"

// NodePorts is the type of the condition that says whether a DirectorGroup's directors have node
// ports, if they are to have any.
const NodePorts = "NodePorts"

// OVN is the type of the condition that says whether a DirectorGroup's directors follow OVN, if they
// are to.
const OVN = "OVN"

// The reasons of the condition OVN.
const (
	ReasonFollowed    = "Followed"    // all directors follow the database, and OVN's hosts know them
	ReasonNotFollowed = "NotFollowed" // some do not
)

// Problems is the type of the condition that says whether a DirectorGroup's directors have problems.
const Problems = "Problems"

// The reasons of the condition Problems.
const (
	ReasonNone     = "None"     // they report none
	ReasonReported = "Reported" // some director runs otherwise than the group says
)

// The types of a LoadBalancer's conditions.
const (
	Accepted   = "Accepted"   // it can be forwarded
	Programmed = "Programmed" // directors forward it as its spec says
	Degraded   = "Degraded"   // members or directors are missing
)

// The reasons of a LoadBalancer's conditions.
const (
	ReasonAccepted     = "Accepted"     // it can be forwarded
	ReasonNotAllowed   = "NotAllowed"   // its namespace may not use a segment or an address
	ReasonConflict     = "Conflict"     // another object has an address
	ReasonNoAddress    = "NoAddress"    // it lacks an address
	ReasonNoGroup      = "NoGroup"      // no DirectorGroup can forward it
	ReasonForwarded    = "Forwarded"    // directors forward it
	ReasonNotForwarded = "NotForwarded" // directors do not forward it
	ReasonPending      = "Pending"      // directors have not said yet that they forward it
	ReasonAdminDown    = "AdminDown"    // its adminState is down
	ReasonHealthy      = "Healthy"      // nothing is missing
	ReasonMembersDown  = "MembersDown"  // some members are down
	ReasonDirectors    = "Directors"    // some directors do not forward it
	ReasonUnknown      = "Unknown"      // no director has reported it yet
)

// The reasons of the condition NodePorts.
const (
	ReasonTaken    = "Taken"    // all directors have the node ports
	ReasonNotTaken = "NotTaken" // some lack node ports; there kube-proxy has these
)

// The reasons of the condition Established.
const (
	ReasonSpeaks = "Speaks" // all nodes that are to speak with it do
	ReasonDown   = "Down"   // some nodes have no session, or none has
	ReasonNobody = "Nobody" // no node is to speak with it
)

// The reasons of the condition Ready.
const (
	ReasonInUse   = "InUse"   // it is used as it says
	ReasonInvalid = "Invalid" // it has an error that a schema cannot refuse, and is not used
	ReasonNoNode  = "NoNode"  // no node, or pod, can be a director of the group
	ReasonFewer   = "Fewer"   // fewer nodes can be directors than are wanted; it is used
	ReasonNewer   = "Newer"   // a later version of weir has written parts that cannot be read; it stays as it is
	ReasonOverlap = "Overlap" // it has addresses that an older pool has, and is not used
)
