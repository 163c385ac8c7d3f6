package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPPeer is a router, or a route reflector, that directors tell which VIPs they forward.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=weir
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="ASN",type=integer,JSONPath=`.spec.asn`
// +kubebuilder:printcolumn:name="BFD",type=string,JSONPath=`.spec.bfd.interval`,priority=1
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.status.groups`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Established",type=string,JSONPath=`.status.conditions[?(@.type=="Established")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the administrator's configuration.
	// +required
	Spec BGPPeerSpec `json:"spec"`
	// status is the result that the controller reports.
	// +optional
	Status BGPPeerStatus `json:"status,omitempty"`
}

// BGPPeerSpec describes the peer, which directors speak with it, and how.
//
// +kubebuilder:validation:XValidation:rule="!has(self.holdTime) || duration(self.holdTime) >= duration('3s') && duration(self.holdTime) <= duration('18h')",message="is not from 3s to 18h",fieldPath=".holdTime"
// +kubebuilder:validation:XValidation:rule="!has(self.restartTime) || duration(self.restartTime) >= duration('1s') && duration(self.restartTime) <= duration('4095s')",message="is not from 1s to 4095s",fieldPath=".restartTime"
// +kubebuilder:validation:XValidation:rule="!has(self.ttl) || !has(self.ttlSecurity)",message="has either ttl or ttlSecurity",fieldPath=".ttlSecurity"
type BGPPeerSpec struct {
	// address is the peer's address, IPv4 or IPv6.
	// +required
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self) && !ip(self).isLinkLocalUnicast()",message="is not an address, or a link's own"
	Address string `json:"address"`

	// asn is the peer's AS. The same AS as the group's means iBGP.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN int64 `json:"asn"`

	// port is the port that the peer listens at.
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// groups are the DirectorGroups whose directors speak with the peer; none: all groups that
	// have bgp.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=40
	Groups []string `json:"groups,omitempty"`

	// nodeSelector selects, by their labels, the nodes that speak with the peer, such as those of
	// its rack; none: all of the groups' nodes.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// segment is the tenant's network whose VIPs the peer is told, and only these; none: those in no
	// segment.
	// +optional
	Segment Segment `json:"segment,omitempty"`

	// vrf is a VRF's device, or another interface, that directors bind the session to: peers of two
	// tenants may have the same address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/ ]+$`
	VRF string `json:"vrf,omitempty"`

	// passwordSecret is the name of a Secret in weir's namespace whose key password signs the
	// session (TCP MD5). The chart has to be told its name, so that nodes may read it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PasswordSecret string `json:"passwordSecret,omitempty"`

	// bfd detects the loss of a director or of the peer at once; none: only the hold time does.
	// +optional
	BFD *BGPPeerBFD `json:"bfd,omitempty"`

	// holdTime is the time after which a silent peer, or a silent director, is given up: whole
	// seconds.
	// +optional
	HoldTime *Duration `json:"holdTime,omitempty"`

	// ttl is the TTL of packets to the peer: more than 1 for an eBGP peer behind routers.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	TTL int32 `json:"ttl,omitempty"`

	// ttlSecurity is how many hops away the peer is at most (RFC 5082).
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurity int32 `json:"ttlSecurity,omitempty"`

	// gracefulRestart: false lets the peer forget the routes of a director whose process ends,
	// although its datapath goes on.
	// +optional
	GracefulRestart *bool `json:"gracefulRestart,omitempty"`

	// restartTime is how long the peer keeps these routes: whole seconds.
	// +optional
	RestartTime *Duration `json:"restartTime,omitempty"`

	// families are the families of routes that the peer is told; none: that of its address. evpn tells
	// and learns where hosts of segments in VXLAN are.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=ipv4;ipv6;evpn
	Families []string `json:"families,omitempty"`

	// communities are the communities that routes are told with: 65000:100, 65000:1:2, no-export.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=40
	// +kubebuilder:validation:items:Pattern=`^([0-9]+(:[0-9]+){1,2}|no-export|no-advertise|no-export-subconfed|no-peer)$`
	Communities []string `json:"communities,omitempty"`

	// localPref is the local preference of routes in the same AS.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	LocalPref *int64 `json:"localPref,omitempty"`
}

// BGPPeerBFD says how a loss is detected.
//
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || duration(self.interval) >= duration('10ms') && duration(self.interval) <= duration('1m')",message="is not from 10ms to 1m",fieldPath=".interval"
type BGPPeerBFD struct {
	// interval is the time from one packet to the next, both ways.
	// +optional
	// +kubebuilder:default="100ms"
	Interval *Duration `json:"interval,omitempty"`

	// multiplier is how many packets in a row have to be missed.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	Multiplier int32 `json:"multiplier,omitempty"`

	// multihop: true if there are routers in between.
	// +optional
	Multihop *bool `json:"multihop,omitempty"`
}

// BGPPeerStatus is the state of a peer.
type BGPPeerStatus struct {
	// groups is the number of groups whose directors speak with the peer.
	// +optional
	Groups int64 `json:"groups"`
	// conditions has Ready: whether directors are told of the peer, and if not, why; and
	// Established: whether nodes have sessions with it, and if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BGPPeerList is a list of peers.
//
// +kubebuilder:object:root=true
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BGPPeer `json:"items"`
}
