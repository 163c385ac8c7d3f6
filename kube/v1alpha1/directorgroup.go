package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DirectorGroup says which nodes or pods run directors, and which Services these forward. All
// directors of a group forward the same Services by the same history, and tell routers or hosts the
// same VIPs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=weir
// +kubebuilder:printcolumn:name="Directors",type=integer,JSONPath=`.status.active`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.spec.directors`
// +kubebuilder:printcolumn:name="Standby",type=integer,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.directors[*].node`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a group begins the names of its sets: at most 40 of a-z, 0-9 and -"
type DirectorGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the administrator's configuration.
	// +required
	Spec DirectorGroupSpec `json:"spec"`
	// status is the result that the controller reports.
	// +optional
	Status DirectorGroupStatus `json:"status,omitempty"`
}

// DirectorGroupSpec says where directors run, what they forward, and which routers or hosts they
// tell.
//
// +kubebuilder:validation:XValidation:rule="!has(self.backends) || self.backends == 'nodes' || !has(self.mode) || self.mode != 'l2dsr'",message="pods are reached in the modes nat, gue and ipip alone",fieldPath=".mode"
// +kubebuilder:validation:XValidation:rule="!has(self.backends) || self.backends == 'pods' || !has(self.mode) || self.mode != 'gue'",message="mode gue reaches pods alone",fieldPath=".backends"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.mode) || self.mode == 'nat'",message="directors that are pods forward in mode nat alone",fieldPath=".mode"
// +kubebuilder:validation:XValidation:rule="!has(self.neighbor) || !has(self.neighbor.interfaces) || self.neighbor.interfaces.all(i, i in self.interfaces)",message="has interfaces that the group does not have",fieldPath=".neighbor.interfaces"
// +kubebuilder:validation:XValidation:rule="!has(self.drain) || duration(self.drain) >= duration('0s') && duration(self.drain) <= duration('1h')",message="is not from 0s to 1h",fieldPath=".drain"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.nodeSelector)",message="pods are directors wherever they run: a group with a namespace has no nodeSelector",fieldPath=".nodeSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.neighbor)",message="pods have no link with clients: a group with a namespace has no neighbor",fieldPath=".neighbor"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.nodePorts)",message="pods have no node ports: a group with a namespace has no nodePorts",fieldPath=".nodePorts"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.replyInterfaces)",message="pods have one interface: a group with a namespace has no replyInterfaces",fieldPath=".replyInterfaces"
// +kubebuilder:validation:XValidation:rule="!has(self.replyInterfaces) || !self.replyInterfaces.exists(i, i in self.interfaces)",message="has interfaces of spec.interfaces, where replies are taken anyway",fieldPath=".replyInterfaces"
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || !has(self.segments) && !has(self.vtep)",message="pods are in no tenant's network: a group with a namespace has no segments and no vtep",fieldPath=".segments"
// +kubebuilder:validation:XValidation:rule="has(self.vtep) || !has(self.segments) || self.segments.all(s, s.id.startsWith('vlan:'))",message="segments in VXLAN and Geneve need vtep: there their tunnels end",fieldPath=".vtep"
// +kubebuilder:validation:XValidation:rule="has(self.vtep) || !has(self.ovn)",message="ovn needs vtep, where OVN's hosts send to",fieldPath=".vtep"
// +kubebuilder:validation:XValidation:rule="has(self.ovn) || !has(self.segments) || self.segments.all(s, !has(s.network))",message="segments with a network need ovn, which says where their hosts are",fieldPath=".ovn"
type DirectorGroupSpec struct {
	// namespace is the namespace of pods that are deployed with an application as the group's
	// directors; none: nodes are its directors.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`

	// nodeSelector has the labels that a node needs to be a director. The chart's DaemonSet of
	// the group runs there.
	// +optional
	// +kubebuilder:validation:MaxProperties=20
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// directors is how many of these nodes forward. The others stand by: they run, and take the
	// place of a node that is cordoned, not ready, or gone. Pods all forward: then it is how many
	// are expected.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Directors int32 `json:"directors,omitempty"`

	// interfaces are the nodes' interfaces on which clients' packets come in, and in mode nat
	// backends' replies.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:Pattern=`^[^/ ]+$`
	Interfaces []string `json:"interfaces"`

	// replyInterfaces are other interfaces, of an overlay through which pods' nodes send replies
	// back (flannel.1, vxlan.calico, tunl0): in mode nat, directors send from the addresses of
	// these interfaces, and take replies there. None: they send from their nodes' addresses, and
	// replies come in on interfaces.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:Pattern=`^[^/ ]+$`
	ReplyInterfaces []string `json:"replyInterfaces,omitempty"`

	// bgp lets directors tell the routers that BGPPeers name which VIPs they forward.
	// +optional
	BGP *DirectorBGP `json:"bgp,omitempty"`

	// neighbor lets directors answer for VIPs by ARP and NDP, where there is no router to tell.
	// One director answers for each VIP.
	// +optional
	Neighbor *DirectorNeighbor `json:"neighbor,omitempty"`

	// nodePorts lets each director take connections to the node ports of its Services at its own
	// node's addresses, to pods of any node, which see the client: for Services in the modes gue
	// and ipip to pods with externalTrafficPolicy Cluster. None: kube-proxy serves all node
	// ports, as it does on all other nodes.
	// +optional
	NodePorts *DirectorNodePorts `json:"nodePorts,omitempty"`

	// namespaceSelector selects, by their labels, the namespaces whose Services are forwarded
	// by the group; none: all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// serviceSelector selects, by their labels, the Services that are forwarded by the group;
	// none: all.
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`

	// priority says which group forwards a Service that several select: only the one with the
	// highest priority, and among equals the oldest.
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// mode is how packets reach backends, unless a Service or its ServicePolicy says otherwise;
	// none: as the controller's file says. gue reaches pods, through weir agent on their nodes;
	// so does ipip with backends pods, in networks that route pods' addresses.
	// +optional
	// +kubebuilder:validation:Enum=nat;l2dsr;ipip;gue
	Mode string `json:"mode,omitempty"`

	// backends are what directors send to: nodes, where kube-proxy goes on to a pod, or pods;
	// none: as the controller's file says. In mode gue backends are pods.
	// +optional
	// +kubebuilder:validation:Enum=nodes;pods
	Backends string `json:"backends,omitempty"`

	// mtu is the MTU of the paths from directors to nodes, if it is less than that of the
	// directors' links; none: as the controller's file says, else that of the links. A packet
	// that is too long for it, with what a mode adds, is answered so that the sender sends
	// smaller ones.
	// +optional
	// +kubebuilder:validation:Minimum=1332
	// +kubebuilder:validation:Maximum=9216
	MTU int32 `json:"mtu,omitempty"`

	// snat is full NAT in mode nat: false if replies come back through a director by themselves;
	// none: as the controller's file says.
	// +optional
	SNAT *bool `json:"snat,omitempty"`

	// snatPorts are the source ports of full NAT at a director's own address, which nothing else
	// on the node may use.
	// +optional
	// +kubebuilder:default="1024-29999"
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:Pattern=`^[0-9]+-[0-9]+$`
	SNATPorts string `json:"snatPorts,omitempty"`

	// notice is how long the directors know each new generation before it places connections:
	// longer than the news takes to reach all of them. During this time a pod that is ready waits
	// for its first connection, and one that ends still gets some.
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('1m')",message="is not from 1ms to 1m"
	Notice Duration `json:"notice,omitempty"`

	// drain is how long a node that is no director any more goes on to forward after it has
	// withdrawn its routes.
	// +optional
	// +kubebuilder:default="1m"
	Drain *Duration `json:"drain,omitempty"`

	// segments are the tenants' networks that the directors forward in, and which namespaces may use
	// each. All groups mean the same network by a segment.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=256
	Segments []DirectorSegment `json:"segments,omitempty"`

	// segmentLimits bound what each of the tenants' networks without limits of its own may take of a
	// director.
	// +optional
	SegmentLimits *DirectorSegmentLimits `json:"segmentLimits,omitempty"`

	// members are the servers outside of segments that LoadBalancers may have as members, and which
	// namespaces may have each. None: LoadBalancers have no members outside of segments.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Members []DirectorMembers `json:"members,omitempty"`

	// vtep makes each director a VTEP at its node's addresses, which segments in VXLAN and Geneve
	// need; it counts from the next start of weir run on. None: they are none.
	// +optional
	VTEP *DirectorVTEP `json:"vtep,omitempty"`

	// ovn is an OVN that says where hosts of those segments are that have a network; each director is
	// one of its chassis. None: there is none.
	// +optional
	OVN *DirectorOVN `json:"ovn,omitempty"`

	// limits are the sizes of the directors' tables; a change waits for the next start of weir
	// run on each node.
	// +optional
	Limits *DirectorLimits `json:"limits,omitempty"`
}

// DirectorSegment is a tenant's network that directors forward in.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.namespaces) && has(self.namespaceSelector))",message="has either namespaces or namespaceSelector",fieldPath=".namespaceSelector"
// +kubebuilder:validation:XValidation:rule="self.id != 'none'",message="none is no tenant's network, and needs no right",fieldPath=".id"
// +kubebuilder:validation:XValidation:rule="self.id.startsWith('vlan:') || !has(self.interface)",message="is for a VLAN: routes lead to the VTEPs of the others",fieldPath=".interface"
// +kubebuilder:validation:XValidation:rule="!self.id.startsWith('vlan:') || !has(self.vni) && !has(self.mtu) && !has(self.peers) && !has(self.gateway) && !has(self.hosts) && !has(self.network)",message="vni, mtu, peers, gateway, hosts and network are for VXLAN and Geneve",fieldPath=".id"
// +kubebuilder:validation:XValidation:rule="!self.id.startsWith('vlan:') || !has(self.directors) || self.directors.all(d, !has(d.mac))",message="mac is for VXLAN and Geneve",fieldPath=".directors"
type DirectorSegment struct {
	// id is vlan:ID, vlan:OUTER.INNER, vxlan:VNI or geneve:VNI.
	// +required
	ID Segment `json:"id"`

	// namespaces are the namespaces whose LoadBalancers may have addresses and members in it. Without
	// these and a namespaceSelector: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// namespaceSelector selects these namespaces by their labels.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// addresses are prefixes that VIPs in it are to be in; none: they may be any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Addresses []SourceRange `json:"addresses,omitempty"`

	// interface is the directors' interface on whose link a VLAN is: the trunk, or the VLAN's own;
	// none: the first of the group's interfaces that has it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/ ]+$`
	Interface string `json:"interface,omitempty"`

	// vni is that of its packets, if it is another one than the ID's.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777215
	VNI int32 `json:"vni,omitempty"`

	// mtu is the largest IP packet in it; none: what the way to VTEPs has room for.
	// +optional
	// +kubebuilder:validation:Minimum=1280
	// +kubebuilder:validation:Maximum=9216
	MTU int32 `json:"mtu,omitempty"`

	// peers are the only VTEPs from which its packets are taken; none: all that are known.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Peers []SourceRange `json:"peers,omitempty"`

	// gateway is the router in it, one address per family at most, that knows the way to clients
	// elsewhere, for replies of mode nat.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Gateway []Address `json:"gateway,omitempty"`

	// hosts are where its hosts are: members and clients whose place nothing else says.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	Hosts []DirectorSegmentHost `json:"hosts,omitempty"`

	// network is the logical switch of the group's ovn that it is, by its name, the ID of Neutron's
	// network, or a UUID: then OVN says where its hosts are, and in geneve its VNI, and the ID is yours
	// to choose.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\s]+$`
	Network string `json:"network,omitempty"`

	// limits bound what it may take of a director, in place of all of the group's segmentLimits.
	// +optional
	Limits *DirectorSegmentLimits `json:"limits,omitempty"`

	// directors are the directors' own addresses in it, from which they probe members.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=64
	Directors []DirectorInSegment `json:"directors,omitempty"`
}

// DirectorSegmentLimits bound what a tenant's network may take of a director; none: no bound.
type DirectorSegmentLimits struct {
	// flows is how many flows of its services a director remembers; one of IPv6 counts as two. At
	// most as many as all flows that it remembers.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=268435456
	Flows int32 `json:"flows,omitempty"`

	// packetsPerSecond is how many packets to its services a director takes in a second.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=1073741824
	PacketsPerSecond int32 `json:"packetsPerSecond,omitempty"`
}

// DirectorMembers are servers outside of segments.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.namespaces) && has(self.namespaceSelector))",message="has either namespaces or namespaceSelector",fieldPath=".namespaceSelector"
type DirectorMembers struct {
	// addresses are prefixes that the members' addresses are in, and those of their hosts.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Addresses []SourceRange `json:"addresses"`

	// namespaces are the namespaces whose LoadBalancers may have them. Without these and a
	// namespaceSelector: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`

	// namespaceSelector selects these namespaces by their labels.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// DirectorSegmentHost is where a host of a tenant's network in VXLAN or Geneve is.
type DirectorSegmentHost struct {
	// address is its own in the network.
	// +required
	Address Address `json:"address"`
	// mac is its own in the network.
	// +required
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$`
	MAC string `json:"mac"`
	// vtep is where its host's tunnel ends.
	// +required
	VTEP Address `json:"vtep"`
}

// DirectorInSegment is what a director has of its own in a tenant's network.
type DirectorInSegment struct {
	// node is the director's node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// addresses are its own, one per family at most.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Addresses []Address `json:"addresses,omitempty"`
	// mac is its own in VXLAN and Geneve; none: one that is made of its node's addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$`
	MAC string `json:"mac,omitempty"`
}

// DirectorVTEP says how tunnels of tenants' networks end at directors.
type DirectorVTEP struct {
	// vlan is the tag of the frames that come to the VTEP; none: they have none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`
	// vxlanPort is the UDP port of VXLAN.
	// +optional
	// +kubebuilder:default=4789
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	VXLANPort int32 `json:"vxlanPort,omitempty"`
	// genevePort is the UDP port of Geneve.
	// +optional
	// +kubebuilder:default=6081
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	GenevePort int32 `json:"genevePort,omitempty"`
	// peers are VTEPs from which packets are taken, besides those of the hosts that are known.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	Peers []SourceRange `json:"peers,omitempty"`
}

// DirectorOVN is where the Southbound database of an OVN is, and what directors are there.
//
// +kubebuilder:validation:XValidation:rule="has(self.certificateSecret) || has(self.directors) && self.directors.exists(d, has(d.certificateSecret)) || !self.endpoints.exists(e, e.startsWith('ssl:'))",message="is required for ssl:, here or for each of the directors",fieldPath=".certificateSecret"
// +kubebuilder:validation:XValidation:rule="self.endpoints.exists(e, e.startsWith('ssl:')) || !has(self.certificateSecret) && (!has(self.directors) || !self.directors.exists(d, has(d.certificateSecret)))",message="certificates are for ssl:, and no endpoint is",fieldPath=".endpoints"
type DirectorOVN struct {
	// endpoints are tcp:HOST:PORT or ssl:HOST:PORT of the database: with a cluster those of all its
	// members. After one that fails the next one is used.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=300
	// +kubebuilder:validation:items:Pattern=`^(tcp|ssl):([^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
	Endpoints []string `json:"endpoints"`

	// certificateSecret is the name of a Secret in weir's namespace for ssl: its keys ca.crt, tls.crt
	// and tls.key have the certificates of those who sign the servers' certificates, the certificate of
	// directors that have none of their own, and its key. Nodes may read those that the chart's
	// ovnSecrets name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertificateSecret string `json:"certificateSecret,omitempty"`

	// leaderOnly uses of a cluster's members the leader alone.
	// +optional
	LeaderOnly bool `json:"leaderOnly,omitempty"`

	// directors are what some directors have of their own: with OVN's RBAC, all of them.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=64
	Directors []DirectorInOVN `json:"directors,omitempty"`
}

// DirectorInOVN is what a director has of its own in OVN.
type DirectorInOVN struct {
	// node is the director's node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// chassis is the name that it has among OVN's hosts, as no other of them; none: weir- and the
	// node's name. With OVN's RBAC it is the common name of its certificate.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\s]+$`
	Chassis string `json:"chassis,omitempty"`
	// certificateSecret is the Secret with its own certificate; none: that of all.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertificateSecret string `json:"certificateSecret,omitempty"`
}

// DirectorBGP says what routers see of a group's directors.
type DirectorBGP struct {
	// asn is the directors' AS.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN int64 `json:"asn"`
}

// DirectorNeighbor says where directors answer for VIPs.
type DirectorNeighbor struct {
	// interfaces are the group's interfaces that VIPs are on; none: all of them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	Interfaces []string `json:"interfaces,omitempty"`
}

// DirectorNodePorts says which connections to node ports directors leave to kube-proxy.
type DirectorNodePorts struct {
	// podCIDRs are prefixes of pods' addresses that no Node's spec.podCIDRs has, because the
	// network assigns them by itself. Connections from pods and nodes are left to kube-proxy.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked() && cidr(self).prefixLength() > 0",message="is not a prefix (10.244.0.0/16)"
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// DirectorLimits are the sizes of a director's tables; none: weir's defaults.
type DirectorLimits struct {
	// services is the greatest number of services: one for each port and address of a Service.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	Services int32 `json:"services,omitempty"`

	// backends is the greatest number of backends of all services together.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	Backends int32 `json:"backends,omitempty"`

	// ringMemory is the bytes for all rings.
	// +optional
	// +kubebuilder:validation:Minimum=65536
	RingMemory int64 `json:"ringMemory,omitempty"`

	// flows is how many flows a director remembers.
	// +optional
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=268435456
	Flows int32 `json:"flows,omitempty"`

	// sourceRanges is the greatest number of source ranges of all services together.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	SourceRanges int32 `json:"sourceRanges,omitempty"`
}

// DirectorGroupStatus is the state of a group.
type DirectorGroupStatus struct {
	// directors are the nodes, or pods, that forward, in the order in which they began to.
	// +optional
	// +listType=map
	// +listMapKey=node
	Directors []Director `json:"directors,omitempty"`
	// active is how many directors forward.
	// +optional
	Active int32 `json:"active"`
	// standby is how many nodes could take the place of a director.
	// +optional
	Standby int32 `json:"standby"`
	// services is how many Services the directors forward.
	// +optional
	Services int64 `json:"services"`
	// sets is how many DirectorSets the group has.
	// +optional
	Sets int32 `json:"sets"`
	// ways says how the directors reach the address of one pod of each node and family, for
	// Services that are forwarded to pods in mode ipip.
	// +optional
	// +listType=atomic
	Ways []Way `json:"ways,omitempty"`
	// kernelSources are the source prefixes of packets of nodes and pods, if there are nodePorts:
	// there directors leave these packets to kube-proxy.
	// +optional
	// +listType=atomic
	KernelSources []string `json:"kernelSources,omitempty"`
	// conditions has Ready: whether the group forwards, and if not, why; and with nodePorts also
	// NodePorts: whether all directors have Services' node ports at their addresses; with ovn also OVN:
	// whether all directors follow its database, and its hosts know them; and Problems: what directors
	// report because of which they do not run as the group says.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Way says how directors reach the pods of a node.
type Way struct {
	// node is the pods' node.
	// +required
	Node string `json:"node"`
	// pod is the address and port of one of the node's pods, which stands for all.
	// +required
	Pod string `json:"pod"`
	// problem is what is in the way; none: packets get there as they are.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// Director is a node that forwards, or a pod.
type Director struct {
	// node is the node's name, or the pod's.
	// +required
	Node string `json:"node"`
	// addresses are the director's own, one per family.
	// +optional
	// +listType=set
	Addresses []string `json:"addresses,omitempty"`
}

// DirectorGroupList is a list of groups.
//
// +kubebuilder:object:root=true
type DirectorGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DirectorGroup `json:"items"`
}
