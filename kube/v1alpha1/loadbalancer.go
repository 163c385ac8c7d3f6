package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LoadBalancer is VIPs with listeners whose members need not be pods or nodes: virtual machines in a
// tenant's network, say. Directors of one group forward it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=wlb,categories=weir
// +kubebuilder:printcolumn:name="Segment",type=string,JSONPath=`.spec.segment`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.status.group`
// +kubebuilder:printcolumn:name="Directors",type=integer,JSONPath=`.status.directors`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a LoadBalancer is a part of its services' names: at most 63 characters"
type LoadBalancer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what its owner wants.
	// +required
	Spec LoadBalancerSpec `json:"spec"`
	// status is the result, as the directors report it.
	// +optional
	Status LoadBalancerStatus `json:"status,omitempty"`
}

// LoadBalancerSpec says where it is reached, and what it forwards to whom.
//
// +kubebuilder:validation:XValidation:rule="!has(self.addressPool) || !has(self.addresses)",message="has either addresses or addressPool",fieldPath=".addressPool"
// +kubebuilder:validation:XValidation:rule="!has(self.families) || !has(self.addresses)",message="has either addresses or families: addresses are of the families that they are of",fieldPath=".families"
// +kubebuilder:validation:XValidation:rule="!has(self.segment) || self.segment == 'none' || has(self.addresses)",message="pools have no addresses in a segment: give the VIPs in addresses",fieldPath=".addresses"
// +kubebuilder:validation:XValidation:rule="has(self.segment) && self.segment != 'none' || !has(self.addresses) || self.addresses.filter(a, isIP(a) && ip(a).family() == 4).size() <= 1 && self.addresses.filter(a, isIP(a) && ip(a).family() == 6).size() <= 1",message="outside of segments there is one address per family at most",fieldPath=".addresses"
type LoadBalancerSpec struct {
	// group is the DirectorGroup that forwards it; none: one is chosen by load, and named in the
	// status.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Group string `json:"group,omitempty"`

	// segment is the tenant's network that the addresses are in; none: no tenant's. A DirectorGroup
	// says which namespaces may use which segments.
	// +optional
	Segment Segment `json:"segment,omitempty"`

	// addresses are the VIPs. Outside of segments they are of an AddressPool, one per family at
	// most; none: they are taken from pools.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Addresses []Address `json:"addresses,omitempty"`

	// addressPool is the AddressPool that the addresses are taken from; none: any that may be.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	AddressPool string `json:"addressPool,omitempty"`

	// families are the families of addresses that are taken from pools; none: ipv4.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=ipv4;ipv6
	Families []string `json:"families,omitempty"`

	// adopt is an owner of sets in the directors. Services of this owner at the same addresses,
	// protocols and ports become the LoadBalancer's, with their history: no connection moves because
	// of that. None: where another owner has one, the LoadBalancer is not forwarded.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9._-]*$`
	Adopt string `json:"adopt,omitempty"`

	// adminState down has nothing forwarded. The addresses stay.
	// +optional
	// +kubebuilder:default=up
	// +kubebuilder:validation:Enum=up;down
	AdminState string `json:"adminState,omitempty"`

	// members get the connections of listeners that have no members of their own.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Members []LoadBalancerMember `json:"members,omitempty"`

	// listeners are the ports that it is reached at.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Listeners []LoadBalancerListener `json:"listeners"`
}

// LoadBalancerListener is a protocol with ports at all of the addresses.
//
// +kubebuilder:validation:XValidation:rule="!has(self.snat) || !has(self.mode) || self.mode == 'nat'",message="is for the mode nat",fieldPath=".snat"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'nat' || !has(self.members) || self.members.all(m, !has(m.port) || has(m.host) || string(m.port) == self.ports)",message="members get another port in mode nat alone, or with a host",fieldPath=".members"
// +kubebuilder:validation:XValidation:rule="self.ports == 'all' || self.ports.split('-').all(p, int(p) >= 1 && int(p) <= 65535) && int(self.ports.split('-')[0]) <= int(self.ports.split('-')[self.ports.split('-').size() - 1])",message="is not a port (80), a range of ports (8000-8010) or all",fieldPath=".ports"
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy == 'maglev' || self.protocol == 'tcp'",message="policies other than maglev are for tcp",fieldPath=".policy"
type LoadBalancerListener struct {
	// name is unique in the LoadBalancer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// protocol is the protocol of its packets.
	// +required
	// +kubebuilder:validation:Enum=tcp;udp;sctp
	Protocol string `json:"protocol"`

	// ports is a port (80), a range of ports (8000-8010), or all.
	// +required
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:Pattern=`^(all|[0-9]{1,5}(-[0-9]{1,5})?)$`
	Ports string `json:"ports"`

	// mode is how packets reach members; none: as the group says.
	// +optional
	// +kubebuilder:validation:Enum=nat;l2dsr;ipip;gue
	Mode string `json:"mode,omitempty"`

	// snat is full NAT in mode nat; none: as the group says.
	// +optional
	SNAT *bool `json:"snat,omitempty"`

	// sourceRanges are where its clients are; none: everywhere.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	SourceRanges []SourceRange `json:"sourceRanges,omitempty"`

	Placement `json:",inline"`

	// adminState down has nothing forwarded for it.
	// +optional
	// +kubebuilder:default=up
	// +kubebuilder:validation:Enum=up;down
	AdminState string `json:"adminState,omitempty"`

	// members get its connections; none: the LoadBalancer's do.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Members []LoadBalancerMember `json:"members,omitempty"`
}

// LoadBalancerMember is a server.
//
// +kubebuilder:validation:XValidation:rule="!has(self.vlan) || !has(self.segment)",message="says the same as segment: give one of them",fieldPath=".vlan"
// +kubebuilder:validation:XValidation:rule="!has(self.vtep) || has(self.mac)",message="is required with vtep: the member's own in its network",fieldPath=".mac"
// +kubebuilder:validation:XValidation:rule="has(self.vtep) || !has(self.vni) && !has(self.geneveOptions)",message="is required with vni and geneveOptions",fieldPath=".vtep"
// +kubebuilder:validation:XValidation:rule="!has(self.host) || !has(self.vtep)",message="is not for a member in VXLAN or Geneve: routes lead to its vtep",fieldPath=".host"
type LoadBalancerMember struct {
	// name is unique among the members of a listener.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$`
	Name string `json:"name"`

	// address is its own, in its segment; outside of segments one that the DirectorGroup has in
	// members.
	// +required
	Address Address `json:"address"`

	// port is the port that it gets packets at; none: the listener's. Another one than that is for
	// mode nat, and for members with a host.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// check is where it is probed, in place of where health says.
	// +optional
	Check *MemberCheck `json:"check,omitempty"`

	// weight is its share of new connections; 0: it gets none.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Weight *int32 `json:"weight,omitempty"`

	// tier is when it gets new connections: those of 1 while fewer than minHealthy members of tier 0 are
	// healthy, those of 2 while fewer of both are.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	Tier int32 `json:"tier,omitempty"`

	// state draining keeps its connections and gives it no new ones; down gives it nothing.
	// +optional
	// +kubebuilder:default=active
	// +kubebuilder:validation:Enum=active;draining;down
	State string `json:"state,omitempty"`

	// segment is the tenant's network that it is in; not given: that of the addresses.
	// +optional
	Segment Segment `json:"segment,omitempty"`

	// mac is its MAC address, or that of the next hop to it; none: directors ask for it.
	// +optional
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$`
	MAC string `json:"mac,omitempty"`

	// vlan is the 802.1Q tag that packets to it leave with. It needs the same rights as the segment
	// vlan:ID.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN int32 `json:"vlan,omitempty"`

	// vtep is where its host's tunnel ends, in VXLAN and Geneve, inside the peers that the
	// DirectorGroup gives its vtep or the segment; none: as what the directors know of the segment
	// says.
	// +optional
	VTEP *Address `json:"vtep,omitempty"`

	// vni is that of packets to it; none: the segment's. It is the number in the segment's name, or
	// the one that the DirectorGroup gives the segment.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777215
	VNI int32 `json:"vni,omitempty"`

	// geneveOptions are options of Geneve's header, as CLASS:TYPE:DATA in hexadecimal, with commas.
	// +optional
	// +kubebuilder:validation:MaxLength=160
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{8})*(,[0-9a-f]{4}:[0-9a-f]{2}:([0-9a-f]{8})*)*$`
	GeneveOptions string `json:"geneveOptions,omitempty"`

	// host is the host whose weir agent delivers packets to the address, in the modes gue and ipip;
	// outside of segments one that the DirectorGroup has in members.
	// +optional
	Host *Address `json:"host,omitempty"`
}

// MemberCheck is where a member is probed.
type MemberCheck struct {
	// address is one that the DirectorGroup has in members; only for members outside of segments. None:
	// by health.
	// +optional
	Address *Address `json:"address,omitempty"`

	// port is the probed port; none: by health.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// Segment is a tenant's network: none, vlan:ID, vlan:OUTER.INNER, vxlan:VNI or geneve:VNI.
//
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:Pattern=`^(none|vlan:([1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-4])([.]([1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-4]))?|(vxlan|geneve):[0-9]{1,8})$`
// +kubebuilder:validation:XValidation:rule="self.size() < 14 || self.startsWith('vlan') || int(self.split(':')[1]) <= 16777215",message="has a VNI that is larger than 16777215"
type Segment string

// Address is an IPv4 or IPv6 address.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self) && !ip(self).isUnspecified() && !ip(self).isLoopback() && !ip(self).isLinkLocalUnicast() && !ip(self).isLinkLocalMulticast()",message="is not an address of a host (10.0.0.1, 2001:db8::1)"
type Address string

// SourceRange is a prefix of addresses.
//
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="is not a prefix (10.0.0.0/8)"
type SourceRange string

// LoadBalancerStatus is the state of a LoadBalancer.
type LoadBalancerStatus struct {
	// group is the DirectorGroup that forwards it, or is to.
	// +optional
	Group string `json:"group,omitempty"`
	// segment is the segment of the addresses.
	// +optional
	Segment string `json:"segment,omitempty"`
	// addresses are the addresses that it has.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// directors is how many directors forward it as its spec says.
	// +optional
	Directors int32 `json:"directors"`
	// listeners are the states of its listeners, as directors report them.
	// +optional
	// +listType=map
	// +listMapKey=name
	Listeners []LoadBalancerListenerStatus `json:"listeners,omitempty"`
	// conditions has Accepted: whether it can be forwarded, and if not, what is in the way;
	// Programmed: whether directors forward it as its spec says; and Degraded: whether members or
	// directors are missing.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LoadBalancerListenerStatus is the state of a listener.
type LoadBalancerListenerStatus struct {
	// name is the listener's.
	// +required
	Name string `json:"name"`
	// state is up, if all of its members get connections or may get them; degraded, if some do not
	// answer; error, if none does; down, by its or the LoadBalancer's adminState; unknown, while no
	// director has reported it; and empty, without members.
	// +optional
	State string `json:"state,omitempty"`
	// members are the states of its members.
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []LoadBalancerMemberStatus `json:"members,omitempty"`
	// statistics are the sums of what directors have counted since they began to forward it. They
	// may be half a minute old.
	// +optional
	Statistics *LoadBalancerStatistics `json:"statistics,omitempty"`
}

// LoadBalancerMemberStatus is the state of a member.
type LoadBalancerMemberStatus struct {
	// name is the member's.
	// +required
	Name string `json:"name"`
	// state is up or down as directors have found the member, or draining or disabled as its
	// spec says. It is unchecked if the listener has no health check and directors have a way to
	// the member, and unknown while no director has reported the member.
	// +required
	State string `json:"state"`
	// directors is how many directors have found it so.
	// +optional
	Directors int32 `json:"directors"`
	// reason is why it is down.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// LoadBalancerStatistics are what directors have counted.
type LoadBalancerStatistics struct {
	// packets are packets of clients that were forwarded.
	// +optional
	Packets int64 `json:"packets"`
	// bytes are the bytes of these packets.
	// +optional
	Bytes int64 `json:"bytes"`
	// connections are TCP connections that were opened, by their SYNs.
	// +optional
	Connections int64 `json:"connections"`
	// dropped are packets that were dropped.
	// +optional
	Dropped int64 `json:"dropped"`
}

// LoadBalancerList is a list of LoadBalancers.
//
// +kubebuilder:object:root=true
type LoadBalancerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LoadBalancer `json:"items"`
}
