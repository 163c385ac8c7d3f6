package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/lab/netlab"
)

// applyResources installs the custom resources in the API server, and waits until it serves them.
func (c *cluster) applyResources() {
	c.t.Helper()
	if err := c.control.MakeResources(c.t.Context(), "../chart/crds"); err != nil {
		c.t.Fatal(err)
	}
}

const (
	poolHead   = "{apiVersion: weir.io/v1alpha1, kind: AddressPool, metadata: {name: NAME}, spec: "
	policyHead = "{apiVersion: weir.io/v1alpha1, kind: ServicePolicy, metadata: {name: NAME, namespace: default}, spec: "
)

const (
	groupHead = "{apiVersion: weir.io/v1alpha1, kind: DirectorGroup, metadata: {name: NAME}, spec: "
	peerHead  = "{apiVersion: weir.io/v1alpha1, kind: BGPPeer, metadata: {name: NAME}, spec: "
	lbHead    = "{apiVersion: weir.io/v1alpha1, kind: LoadBalancer, metadata: {name: NAME, namespace: default}, spec: "
	setHead   = "{apiVersion: weir.io/v1alpha1, kind: DirectorSet, metadata: {name: NAME}, spec: "
)

func replaceName(head, name string) string { return strings.Replace(head, "NAME", name, 1) }

// Objects that the schemas refuse, with the API server's message: the field, and what is wrong.
var refusedResources = []struct {
	name, head, spec string
	field, problem   string // both are in the message; empty: the object is accepted
}{
	{"pool", poolHead, `{addresses: [203.0.113.0/28, 203.0.113.40-203.0.113.50, "2001:db8::/64", 203.0.113.99], priority: 5, onRequest: true, avoidBuggyIPs: true, namespaces: [a, b], serviceSelector: {matchLabels: {x: y}}}`, "", ""},
	{"none", poolHead, `{}`, "spec.addresses", "Required value"},
	{"empty", poolHead, `{addresses: []}`, "spec.addresses", "should have at least 1 items"},
	{"word", poolHead, `{addresses: [203.0.113.1, here]}`, "spec.addresses[1]", `is not an address (203.0.113.7), a prefix (203.0.113.0/28) or a range`},
	{"three", poolHead, `{addresses: [203.0.113.1-203.0.113.2-203.0.113.3]}`, "spec.addresses[0]", "is not an address"},
	{"zone", poolHead, `{addresses: ["fe80::1%eth0"]}`, "spec.addresses[0]", "is not an address"},
	{"mapped", poolHead, `{addresses: ["::ffff:203.0.113.1"]}`, "spec.addresses[0]", "is not an address"},
	{"leading-zero", poolHead, `{addresses: ["203.0.113.01"]}`, "spec.addresses[0]", "is not an address"},
	{"half", poolHead, `{addresses: [203.0.113.1-x]}`, "spec.addresses[0]", "is not an address"},
	{"families", poolHead, `{addresses: ["203.0.113.1-2001:db8::1"]}`, "spec.addresses[0]", "begins in one family and ends in the other"},
	{"bits", poolHead, `{addresses: [203.0.113.1/28]}`, "spec.addresses[0]", "has bits behind its prefix"},
	{"long", poolHead, `{addresses: [203.0.113.0/33]}`, "spec.addresses[0]", "is not an address"},
	{"twice", poolHead, `{addresses: [203.0.113.1, 203.0.113.1]}`, "spec.addresses[1]", "Duplicate value"},
	{"two-selectors", poolHead, `{addresses: [203.0.113.1], namespaces: [a], namespaceSelector: {}}`, "spec.namespaceSelector", "has either namespaces or namespaceSelector"},
	{"unknown", poolHead, `{addresses: [203.0.113.1], prioritty: 1}`, "spec.prioritty", "unknown field"},
	{"text", poolHead, `{addresses: [203.0.113.1], priority: high}`, "spec.priority", "must be of type integer"},

	{"policy", policyHead, `{selector: {matchLabels: {app: web}}, mode: ipip, policy: round-robin, affinity: flow, drain: 1m30s, maxDrain: 12h, health: {kind: http, port: 8080, interval: 500ms, timeout: 200ms, rise: 2, fall: 3, http: {path: "/healthz?x=1", host: "web.example.org:8080", status: ["200", 301-302]}}}`, "", ""},
	{"all", policyHead, `{selector: {}}`, "", ""},
	{"grpc", policyHead, `{selector: {}, policy: p2c, minHealthy: 0, health: {kind: grpc, to: address, panic: 0, grpc: {service: shop}, tls: {name: shop.example.org, ca: "PEM"}}}`, "", ""},
	{"dns", policyHead, `{selector: {}, health: {kind: dns, dns: {name: example.org, type: SRV, rcodes: [noerror, nxdomain]}}}`, "", ""},
	{"udp", policyHead, `{selector: {}, health: {kind: udp, udp: {send: "hex:00", expect: pong}}}`, "", ""},
	{"https", policyHead, `{selector: {}, health: {kind: https, http: {method: HEAD}, tls: {skipVerify: true}}}`, "", ""},
	{"fewest", policyHead, `{selector: {}, minHealthy: -1}`, "spec.minHealthy", "should be greater than or equal to 0"},
	{"panic", policyHead, `{selector: {}, health: {kind: tcp, panic: 101}}`, "spec.health.panic", "should be less than or equal to 100"},
	{"to", policyHead, `{selector: {}, health: {kind: tcp, to: pod}}`, "spec.health.to", "Unsupported value"},
	{"tls", policyHead, `{selector: {}, health: {kind: tls}}`, "spec.health.kind", "needs tls.name"},
	{"tls-of-http", policyHead, `{selector: {}, health: {kind: http, tls: {name: x}}}`, "spec.health.tls", "is for the kinds https, tls, grpc and smtp"},
	{"unlooked", policyHead, `{selector: {}, health: {kind: tls, tls: {skipVerify: true, ca: "PEM"}}}`, "spec.health.tls.ca", "is not looked at with skipVerify"},
	{"grpc-of-tcp", policyHead, `{selector: {}, health: {kind: tcp, grpc: {}}}`, "spec.health.grpc", "is for the kind grpc"},
	{"udp-of-dns", policyHead, `{selector: {}, health: {kind: dns, dns: {name: x}, udp: {}}}`, "spec.health.udp", "is for the kind udp"},
	{"dns-of-tcp", policyHead, `{selector: {}, health: {kind: tcp, dns: {name: x}}}`, "spec.health.dns", "is for the kind dns"},
	{"dnsless", policyHead, `{selector: {}, health: {kind: dns}}`, "spec.health.dns", "which needs it"},
	{"head", policyHead, `{selector: {}, health: {kind: http, http: {method: HEAD, body: x}}}`, "spec.health.http.body", "an answer to HEAD has no body"},
	{"method", policyHead, `{selector: {}, health: {kind: http, http: {method: BREW}}}`, "spec.health.http.method", "Unsupported value"},
	{"record", policyHead, `{selector: {}, health: {kind: dns, dns: {name: x, type: ANY}}}`, "spec.health.dns.type", "Unsupported value"},
	{"unselected", policyHead, `{mode: nat}`, "spec.selector", "Required value"},
	{"mode", policyHead, `{selector: {}, mode: redirect}`, "spec.mode", `Unsupported value: "redirect": supported values: "nat", "l2dsr", "ipip", "gue"`},
	{"placed", policyHead, `{selector: {}, policy: fastest}`, "spec.policy", "Unsupported value"},
	{"prefix-of-flow", policyHead, `{selector: {}, affinityPrefix: 24/64}`, "spec.affinityPrefix", "is for affinity source-ip"},
	{"prefix-too-long", policyHead, `{selector: {}, affinity: source-ip, affinityPrefix: 33/64}`, "spec.affinityPrefix", "should match"},
	{"told-apart", policyHead, `{selector: {}, policy: random, affinity: source-ip}`, "spec.affinity", "wants those of a client or a port on one"},
	{"duration", policyHead, `{selector: {}, drain: soon}`, "spec.drain", "should match"},
	{"drain", policyHead, `{selector: {}, drain: 25h}`, "spec.drain", "is not from 1ms to 24h"},
	{"max-drain", policyHead, `{selector: {}, maxDrain: 721h}`, "spec.maxDrain", "is not from 1ms to 720h"},
	{"shorter", policyHead, `{selector: {}, drain: 2m, maxDrain: 1m}`, "spec.maxDrain", "is shorter than drain"},
	{"kind", policyHead, `{selector: {}, health: {kind: ping}}`, "spec.health.kind", "Unsupported value"},
	{"kindless", policyHead, `{selector: {}, health: {port: 80}}`, "spec.health.kind", "Required value"},
	{"port", policyHead, `{selector: {}, health: {kind: tcp, port: 65536}}`, "spec.health.port", "should be less than or equal to 65535"},
	{"http", policyHead, `{selector: {}, health: {kind: tcp, http: {path: /}}}`, "spec.health.http", "is for the kinds http and https"},
	{"https", policyHead, `{selector: {}, health: {kind: https}}`, "spec.health.kind", "https needs http.host"},
	{"path", policyHead, `{selector: {}, health: {kind: http, http: {path: healthz}}}`, "spec.health.http.path", "should match"},
	{"host", policyHead, `{selector: {}, health: {kind: http, http: {host: "http://x"}}}`, "spec.health.http.host", "should match"},
	{"status", policyHead, `{selector: {}, health: {kind: http, http: {status: ["600"]}}}`, "spec.health.http.status[0]", "should match"},
	{"interval", policyHead, `{selector: {}, health: {kind: tcp, interval: 2h}}`, "spec.health.interval", "is not from 10ms to 1h"},
	{"timeout", policyHead, `{selector: {}, health: {kind: tcp, timeout: 61s}}`, "spec.health.timeout", "is not from 1ms to 1m"},
	{"group", groupHead, `{nodeSelector: {a: b}, directors: 5, interfaces: [eth0, bond0.7], replyInterfaces: [flannel.1], bgp: {asn: 4200000000}, neighbor: {interfaces: [eth0]}, namespaceSelector: {}, serviceSelector: {matchLabels: {x: y}}, priority: 5, mode: nat, backends: pods, snat: false, snatPorts: 2000-3000, notice: 100ms, drain: 0s, limits: {services: 10, backends: 100, ringMemory: 1000000, flows: 2048}}`, "", ""},
	{"nowhere", groupHead, `{}`, "spec.interfaces", "Required value"},
	{"no-interface", groupHead, `{interfaces: []}`, "spec.interfaces", "should have at least 1 items"},
	{"twice-interface", groupHead, `{interfaces: [eth0, eth0]}`, "spec.interfaces[1]", "Duplicate value"},
	{"slash", groupHead, `{interfaces: [a/b]}`, "spec.interfaces[0]", "should match"},
	{"a-name-of-more-than-forty-characters-is-too-long", groupHead, `{interfaces: [eth0]}`, "", "at most 40 of a-z"},
	{"dotted.name", groupHead, `{interfaces: [eth0]}`, "", "at most 40 of a-z"},
	{"nobody", groupHead, `{interfaces: [eth0], directors: 0}`, "spec.directors", "should be greater than or equal to 1"},
	{"foreign-interface", groupHead, `{interfaces: [eth0], neighbor: {interfaces: [eth1]}}`, "spec.neighbor.interfaces", "has interfaces that the group does not have"},
	{"as", groupHead, `{interfaces: [eth0], bgp: {asn: 0}}`, "spec.bgp.asn", "should be greater than or equal to 1"},
	{"group-mode", groupHead, `{interfaces: [eth0], backends: pods, mode: l2dsr}`, "spec.mode", "pods are reached in the modes nat, gue and ipip alone"},
	{"group-gue", groupHead, `{interfaces: [eth0], backends: pods, mode: gue, mtu: 1500}`, "", ""},
	{"group-gue-nodes", groupHead, `{interfaces: [eth0], backends: nodes, mode: gue}`, "spec.backends", "mode gue reaches pods alone"},
	{"group-gue-pods", groupHead, `{namespace: shop, interfaces: [eth0], mode: gue}`, "spec.mode", "directors that are pods forward in mode nat alone"},
	{"group-mtu", groupHead, `{interfaces: [eth0], mtu: 1331}`, "spec.mtu", "should be greater than or equal to 1332"},
	{"group-drain", groupHead, `{interfaces: [eth0], drain: 2h}`, "spec.drain", "is not from 0s to 1h"},
	{"group-notice", groupHead, `{interfaces: [eth0], notice: 2m}`, "spec.notice", "is not from 1ms to 1m"},
	{"group-replies", groupHead, `{interfaces: [eth0, eth1], replyInterfaces: [eth1]}`, "spec.replyInterfaces", "where replies are taken anyway"},
	{"group-pod-replies", groupHead, `{namespace: web, interfaces: [eth0], replyInterfaces: [eth1]}`, "spec.replyInterfaces", "pods have one interface"},
	{"group-ports", groupHead, `{interfaces: [eth0], snatPorts: all}`, "spec.snatPorts", "should match"},
	{"group-node-ports", groupHead, `{interfaces: [eth0], mode: gue, nodePorts: {podCIDRs: [10.244.0.0/16, "fd00:244::/48"]}}`, "", ""},
	{"group-node-ports-of-pods", groupHead, `{namespace: shop, interfaces: [eth0], nodePorts: {}}`, "spec.nodePorts", "pods have no node ports"},
	{"group-pods-behind", groupHead, `{interfaces: [eth0], nodePorts: {podCIDRs: [10.244.0.1/16]}}`, "spec.nodePorts.podCIDRs[0]", "is not a prefix"},
	{"group-all-pods", groupHead, `{interfaces: [eth0], nodePorts: {podCIDRs: ["::/0"]}}`, "spec.nodePorts.podCIDRs[0]", "is not a prefix"},
	{"group-limits", groupHead, `{interfaces: [eth0], limits: {flows: 1}}`, "spec.limits.flows", "should be greater than or equal to 1024"},

	{"peer", peerHead, `{address: "2001:db8::1", asn: 65000, port: 1790, groups: [edge], nodeSelector: {matchLabels: {rack: r1}}, passwordSecret: tor, bfd: {interval: 50ms, multiplier: 5, multihop: true}, holdTime: 30s, ttl: 5, gracefulRestart: false, restartTime: 60s, families: [ipv4, ipv6], communities: ["65000:100", "1:2:3", no-export], localPref: 0}`, "", ""},
	{"no-address", peerHead, `{asn: 65000}`, "spec.address", "Required value"},
	{"peer-name", peerHead, `{address: router, asn: 65000}`, "spec.address", "is not an address, or a link's own"},
	{"link-local", peerHead, `{address: "fe80::1", asn: 65000}`, "spec.address", "is not an address, or a link's own"},
	{"peer-as", peerHead, `{address: 10.0.0.1, asn: 4294967295}`, "spec.asn", "should be less than or equal to 4294967294"},
	{"hold", peerHead, `{address: 10.0.0.1, asn: 1, holdTime: 2s}`, "spec.holdTime", "is not from 3s to 18h"},
	{"restart", peerHead, `{address: 10.0.0.1, asn: 1, restartTime: 2h}`, "spec.restartTime", "is not from 1s to 4095s"},
	{"both-ttls", peerHead, `{address: 10.0.0.1, asn: 1, ttl: 2, ttlSecurity: 2}`, "spec.ttlSecurity", "has either ttl or ttlSecurity"},
	{"peer-bfd", peerHead, `{address: 10.0.0.1, asn: 1, bfd: {interval: 1ms}}`, "spec.bfd.interval", "is not from 10ms to 1m"},
	{"family", peerHead, `{address: 10.0.0.1, asn: 1, families: [ipx]}`, "spec.families[0]", "Unsupported value"},
	{"community", peerHead, `{address: 10.0.0.1, asn: 1, communities: [blackhole]}`, "spec.communities[0]", "should match"},

	{"peer-segment", peerHead, `{address: 10.0.0.1, asn: 1, segment: "vlan:7", vrf: tenant7}`, "", ""},
	{"peer-evpn", peerHead, `{address: 10.0.0.1, asn: 1, families: [ipv4, ipv6, evpn]}`, "", ""},
	{"peer-no-segment", peerHead, `{address: 10.0.0.1, asn: 1, segment: "vlan:5000"}`, "spec.segment", "should match"},

	{"segments", groupHead, `{interfaces: [eth0], vtep: {peers: [10.0.0.0/8]}, segments: [{id: "vlan:7", namespaces: [red], addresses: [10.0.0.0/24], interface: eth0, directors: [{node: a, addresses: [10.0.0.3]}]}, {id: "vlan:7.8", namespaceSelector: {}}, {id: "vxlan:5001", vni: 7, mtu: 1400, peers: ["10.0.0.1/32"], gateway: [10.0.0.1], hosts: [{address: 10.0.0.9, mac: "02:00:00:00:00:01", vtep: 10.1.0.1}], directors: [{node: a, mac: "02:00:00:00:00:02"}]}]}`, "", ""},
	{"members", groupHead, `{interfaces: [eth0], members: [{addresses: [10.0.0.0/24, "2001:db8::/64"], namespaces: [red]}, {addresses: [0.0.0.0/0], namespaceSelector: {}}]}`, "", ""},
	{"segment-limits", groupHead, `{interfaces: [eth0], segmentLimits: {flows: 1024}, segments: [{id: "vlan:7", limits: {flows: 2048, packetsPerSecond: 100000}}]}`, "", ""},
	{"segment-limits-few", groupHead, `{interfaces: [eth0], segmentLimits: {packetsPerSecond: 99}}`, "spec.segmentLimits.packetsPerSecond", "should be greater than or equal to 100"},
	{"members-selectors", groupHead, `{interfaces: [eth0], members: [{addresses: [10.0.0.0/24], namespaces: [a], namespaceSelector: {}}]}`, "spec.members[0].namespaceSelector", "has either"},
	{"members-nowhere", groupHead, `{interfaces: [eth0], members: [{namespaces: [a]}]}`, "spec.members[0].addresses", "Required value"},
	{"members-words", groupHead, `{interfaces: [eth0], members: [{addresses: [10.0.0.1]}]}`, "spec.members[0].addresses[0]", "is not a prefix"},
	{"ovn", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["ssl:10.0.0.1:6642", "ssl:[2001:db8::1]:6642", "tcp:ovn.example:6642"], certificateSecret: ovn, leaderOnly: true, directors: [{node: a, chassis: lb1}, {node: b, certificateSecret: ovn-b}]}, segments: [{id: "geneve:5001", network: tenant-a}]}`, "", ""},
	{"ovn-of-each", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["ssl:10.0.0.1:6642"], directors: [{node: a, certificateSecret: ovn-a}]}}`, "", ""},
	{"ovn-nowhere", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: []}}`, "spec.ovn.endpoints", "should have at least 1 items"},
	{"ovn-unix", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["unix:/run/ovn/ovnsb_db.sock"]}}`, "spec.ovn.endpoints[0]", "should match"},
	{"ovn-no-port", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["tcp:10.0.0.1"]}}`, "spec.ovn.endpoints[0]", "should match"},
	{"ovn-no-certificate", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["ssl:10.0.0.1:6642"], directors: [{node: a}]}}`, "spec.ovn.certificateSecret", "is required for ssl:, here or for each of the directors"},
	{"ovn-certificate", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["tcp:10.0.0.1:6642"], directors: [{node: a, certificateSecret: b}]}}`, "spec.ovn.endpoints", "certificates are for ssl:, and no endpoint is"},
	{"ovn-chassis", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["tcp:10.0.0.1:6642"], directors: [{node: a, chassis: "a b"}]}}`, "spec.ovn.directors[0].chassis", "should match"},
	{"ovn-twice", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["tcp:10.0.0.1:6642"], directors: [{node: a}, {node: a}]}}`, "spec.ovn.directors[1]", "Duplicate value"},
	{"ovn-vtep", groupHead, `{interfaces: [eth0], ovn: {endpoints: ["tcp:10.0.0.1:6642"]}}`, "spec.vtep", "ovn needs vtep, where OVN's hosts send to"},
	{"network-ovn", groupHead, `{interfaces: [eth0], vtep: {}, segments: [{id: "geneve:7", network: a}]}`, "spec.ovn", "segments with a network need ovn"},
	{"network-vlan", groupHead, `{interfaces: [eth0], vtep: {}, ovn: {endpoints: ["tcp:10.0.0.1:6642"]}, segments: [{id: "vlan:7", network: a}]}`, "spec.segments[0].id", "network are for VXLAN and Geneve"},
	{"segment-of-none", groupHead, `{interfaces: [eth0], segments: [{id: none}]}`, "spec.segments[0].id", "none is no tenant's network"},
	{"segment-twice", groupHead, `{interfaces: [eth0], segments: [{id: "vlan:7"}, {id: "vlan:7"}]}`, "spec.segments[1]", "Duplicate value"},
	{"segment-selectors", groupHead, `{interfaces: [eth0], segments: [{id: "vlan:7", namespaces: [a], namespaceSelector: {}}]}`, "spec.segments[0].namespaceSelector", "has either"},
	{"segment-vtep", groupHead, `{interfaces: [eth0], segments: [{id: "vxlan:7"}]}`, "spec.vtep", "segments in VXLAN and Geneve need vtep"},
	{"segment-interface", groupHead, `{interfaces: [eth0], vtep: {}, segments: [{id: "vxlan:7", interface: eth0}]}`, "spec.segments[0].interface", "is for a VLAN"},
	{"segment-vni", groupHead, `{interfaces: [eth0], segments: [{id: "vlan:7", vni: 7}]}`, "spec.segments[0].id", "are for VXLAN and Geneve"},
	{"segment-mac", groupHead, `{interfaces: [eth0], segments: [{id: "vlan:7", directors: [{node: a, mac: "02:00:00:00:00:02"}]}]}`, "spec.segments[0].directors", "mac is for VXLAN and Geneve"},
	{"segment-pods", groupHead, `{interfaces: [eth0], namespace: shop, segments: [{id: "vlan:7"}]}`, "spec.segments", "pods are in no tenant's network"},

	{"lb", lbHead, `{group: edge, segment: "vlan:7", addresses: [10.0.0.100, 10.0.0.101, "2001:db8::1"], listeners: [{name: http, protocol: tcp, ports: "80", mode: l2dsr, policy: least-conn, drain: 1m, minHealthy: 0, sourceRanges: [10.0.0.0/8], health: {kind: tcp}, members: [{name: a, address: 10.0.0.11, port: 80, mac: "02:00:00:00:00:0b", weight: 0, state: draining}]}]}`, "", ""},
	{"lb-shared", lbHead, `{addressPool: public, families: [ipv4, ipv6], adminState: down, members: [{name: a, address: 10.0.0.11, vlan: 7}], listeners: [{name: dns, protocol: udp, ports: "53", adminState: down}, {name: all, protocol: tcp, ports: all}, {name: some, protocol: tcp, ports: "8000-8010", mode: nat, snat: false}]}`, "", ""},
	{"lb-adopt", lbHead, `{adopt: Ops, listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.adopt", "should match"},
	{"lb-overlay", lbHead, `{segment: "vxlan:5001", addresses: [10.0.0.100], listeners: [{name: a, protocol: tcp, ports: "80", members: [{name: a, address: 10.0.0.11, segment: "geneve:16777215", vtep: 10.1.0.1, mac: "02:00:00:00:00:0b", vni: 7, geneveOptions: "0102:80:00010002"}]}]}`, "", ""},
	{"lb-empty", lbHead, `{}`, "spec.listeners", "Required value"},
	{"lb-none", lbHead, `{listeners: []}`, "spec.listeners", "should have at least 1 items"},
	{"lb-closed", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", sourceRanges: []}]}`, "spec.listeners[0].sourceRanges", "should have at least 1 items"},
	{"lb-unknown", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", port: 80}]}`, "spec.listeners[0].port", "unknown field"},
	{"lb-segment", lbHead, `{segment: "vlan:4095", addresses: [10.0.0.1], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.segment", "should match"},
	{"lb-vni", lbHead, `{segment: "vxlan:16777216", addresses: [10.0.0.1], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.segment", "has a VNI that is larger"},
	{"lb-tenant", lbHead, `{segment: red, addresses: [10.0.0.1], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.segment", "should match"},
	{"lb-pooled", lbHead, `{segment: "vlan:7", listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.addresses", "pools have no addresses in a segment"},
	{"lb-two", lbHead, `{addresses: [10.0.0.1, 10.0.0.2], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.addresses", "one address per family at most"},
	{"lb-both", lbHead, `{addresses: [10.0.0.1], addressPool: public, listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.addressPool", "has either addresses or addressPool"},
	{"lb-families", lbHead, `{addresses: [10.0.0.1], families: [ipv4], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.families", "has either addresses or families"},
	{"lb-loopback", lbHead, `{addresses: [127.0.0.1], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.addresses[0]", "is not an address of a host"},
	{"lb-ports", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "81-80"}]}`, "spec.listeners[0].ports", "is not a port (80)"},
	{"lb-port", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "65536"}]}`, "spec.listeners[0].ports", "is not a port (80)"},
	{"lb-protocol", lbHead, `{listeners: [{name: a, protocol: http, ports: "80"}]}`, "spec.listeners[0].protocol", "Unsupported value"},
	{"lb-policy", lbHead, `{listeners: [{name: a, protocol: udp, ports: "80", policy: least-conn}]}`, "spec.listeners[0].policy", "policies other than maglev are for tcp"},
	{"lb-affinity", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", policy: least-conn, affinity: source-ip}]}`, "spec.listeners[0].affinity", "wants those of a client or a port on one"},
	{"lb-snat", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", mode: l2dsr, snat: true}]}`, "spec.listeners[0].snat", "is for the mode nat"},
	{"lb-range", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", sourceRanges: [10.0.0.1/8]}]}`, "spec.listeners[0].sourceRanges[0]", "is not a prefix"},
	{"lb-member-port", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", mode: l2dsr, members: [{name: a, address: 10.0.0.1, port: 81}]}]}`, "spec.listeners[0].members", "members get another port in mode nat alone"},
	{"lb-member", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", members: [{address: 10.0.0.1}]}]}`, "spec.listeners[0].members[0].name", "Required value"},
	{"lb-member-twice", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80", members: [{name: a, address: 10.0.0.1}, {name: a, address: 10.0.0.2}]}]}`, "spec.listeners[0].members[1]", "Duplicate value"},
	{"lb-member-mac", lbHead, `{members: [{name: a, address: 10.0.0.1, mac: "01:00:00:00:00:01"}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].mac", "should match"},
	{"lb-member-vlan", lbHead, `{members: [{name: a, address: 10.0.0.1, vlan: 7, segment: "vlan:7"}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].vlan", "says the same as segment"},
	{"lb-member-vtep", lbHead, `{members: [{name: a, address: 10.0.0.1, segment: "vxlan:7", vtep: 10.0.0.2}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].mac", "is required with vtep"},
	{"lb-member-vni", lbHead, `{members: [{name: a, address: 10.0.0.1, segment: "vxlan:7", vni: 7}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].vtep", "is required with vni"},
	{"lb-member-state", lbHead, `{members: [{name: a, address: 10.0.0.1, state: gone}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].state", "Unsupported value"},
	{"lb-member-weight", lbHead, `{members: [{name: a, address: 10.0.0.1, weight: 65536}], listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "spec.members[0].weight", "should be less than or equal to 65535"},
	{"lb-a-name-of-more-than-sixty-three-characters-is-too-long-for-a-service", lbHead, `{listeners: [{name: a, protocol: tcp, ports: "80"}]}`, "", "at most 63 characters"},

	{"edge-0", setHead, `{group: edge, set: 0, services: [{name: default/web, set: 0, revision: 1, backends: 1, documents: AA==}]}`, "", ""},
	{"no-group", setHead, `{set: 0}`, "spec.group", "Required value"},
	{"two-of-a-name", setHead, `{group: edge, set: 0, services: [{name: a, set: 0, revision: 1, documents: AA==}, {name: a, set: 0, revision: 2, documents: AA==}]}`, "spec.services[1]", "Duplicate value"},
	{"no-documents", setHead, `{group: edge, set: 0, services: [{name: a, set: 0, revision: 1}]}`, "spec.services[0].documents", "Required value"},

	{"pods", groupHead, `{namespace: shop, interfaces: [eth0], bgp: {asn: 65000}}`, "", ""},
	{"no-namespace", groupHead, `{namespace: Shop, interfaces: [eth0]}`, "spec.namespace", "should match"},
	{"pods-of-nodes", groupHead, `{namespace: shop, nodeSelector: {a: b}, interfaces: [eth0]}`, "spec.nodeSelector", "pods are directors wherever they run"},
	{"pods-on-link", groupHead, `{namespace: shop, neighbor: {}, interfaces: [eth0]}`, "spec.neighbor", "pods have no link with clients"},
	{"rise", policyHead, `{selector: {}, health: {kind: tcp, rise: 0}}`, "spec.health.rise", "should be greater than or equal to 1"},
}

// The API server itself refuses invalid custom resources, with a message that names the field.
func TestResources(t *testing.T) {
	needsAPIServer(t)
	c := newCluster(t, netlab.ForTest(t).Host("control"))
	c.applyResources()
	for _, r := range refusedResources {
		_, _, err := c.make(replaceName(r.head, r.name) + r.spec + "}")
		switch {
		case r.field == "" && r.problem == "" && err != nil:
			t.Errorf("%s is refused: %v", r.spec, err)
		case r.problem != "" && (err == nil || !strings.Contains(err.Error(), r.field) || !strings.Contains(err.Error(), r.problem)):
			t.Errorf("%s is answered by %v, want %s: %s", r.spec, err, r.field, r.problem)
		}
	}
	for plural, want := range map[string]string{
		"addresspools":    "Name Addresses Assigned Priority Ready Reason Age",
		"servicepolicies": "Name Mode Policy Health Services Ready Age",
		"directorgroups":  "Name Directors Wanted Standby Services Nodes Ready Reason Age",
		"bgppeers":        "Name Address ASN BFD Groups Ready Established Reason Age",
		"directorsets":    "Name Group Set Services Changes Age",
		"loadbalancers":   "Name Segment Addresses Group Directors Accepted Programmed Degraded Reason Age",
	} {
		text, err := c.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1", plural).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		var table metav1.Table
		if err := json.Unmarshal(text, &table); err != nil {
			t.Fatal(err)
		}
		var columns []string
		for _, column := range table.ColumnDefinitions {
			columns = append(columns, column.Name)
		}
		if got := strings.Join(columns, " "); got != want {
			t.Errorf("kubectl get %s shows %s, want %s", plural, got, want)
		}
	}
}

// Every field has a description, so that kubectl explain is complete.
func TestResourcesAreDocumented(t *testing.T) {
	files, err := filepath.Glob("../chart/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("kube/chart/crds has %d files, error %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		fromYAML(t, text, &crd)
		properties := 0
		for _, v := range crd.Spec.Versions {
			v.Schema.OpenAPIV3Schema.walk("", func(path string, s schema) {
				properties++
				if s.Description == "" && path != ".metadata" {
					t.Errorf("%s: %s has no description", file, path)
				}
			})
		}
		if properties < 10 {
			t.Errorf("%s has %d fields", file, properties)
		}
	}
}

// schema is the part of a schema that the tests read.
type schema struct {
	Description string
	Properties  map[string]schema
	Items       *schema
}

func (s schema) walk(path string, see func(path string, s schema)) {
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		see(path+"."+name, s.Properties[name])
		s.Properties[name].walk(path+"."+name, see)
	}
	if s.Items != nil {
		s.Items.walk(path+"[]", see)
	}
}
