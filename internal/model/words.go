package model

import (
	"iter"
	"strings"
)

// otherWords are the words of other balancers for what has another name in weir, by the kind of the
// name, or by the type whose keys they are, each with weir's word. They are in lower case, with "-" for
// "_" and spaces. They come from ipvsadm(8), keepalived.conf(5), HAProxy's configuration manual, the
// documents of Katran and MetalLB, Octavia's API, Kubernetes' Service, and ip-link(8).
var otherWords = map[string]map[string]string{
	"mode": {
		"dr": "l2dsr", "dsr": "l2dsr", "direct": "l2dsr", "direct-routing": "l2dsr", "gatewaying": "l2dsr", "l2": "l2dsr",
		"tun": "ipip", "tunnel": "ipip", "tunneling": "ipip", "ipip6": "ipip", "ip-in-ip": "ipip", "l3dsr": "ipip", "fou": "gue",
		"masq": "nat", "masquerade": "nat", "masquerading": "nat", "dnat": "nat", "snat": "nat", "fullnat": "nat", "full-nat": "nat",
	},
	"policy": {
		"mh": "maglev", "hash": "maglev", "sh": "maglev", "dh": "maglev", "source": "maglev", "source-ip": "maglev", "source-ip-port": "maglev", "consistent": "maglev",
		"rr": "round-robin", "wrr": "round-robin", "roundrobin": "round-robin", "static-rr": "round-robin",
		"lc": "least-conn", "wlc": "least-conn", "leastconn": "least-conn", "least-connections": "least-conn", "sed": "least-conn", "nq": "least-conn",
		"rand": "random", "two-choices": "p2c", "power-of-two": "p2c",
	},
	"affinity": {
		"none": "flow", "source": "source-ip", "sticky": "source-ip", "persistent": "source-ip", "clientip": "source-ip", "client-ip": "source-ip", "sh": "source-ip",
	},
	"state": {
		"up": "active", "enabled": "active", "ready": "active", "online": "active",
		"drain": "draining", "drained": "draining", "quiesced": "draining",
		"disabled": "down", "maint": "down", "maintenance": "down", "offline": "down", "error": "down",
	},
	"protocol": {"http": "tcp", "https": "tcp", "tls": "tcp", "terminated-https": "tcp", "quic": "udp", "http3": "udp"},
	"kind": {
		"tcp-check": "tcp", "connect": "tcp", "l4": "tcp", "http-get": "http", "httpchk": "http", "ssl-get": "https",
		"ssl": "tls", "tls-hello": "tls", "ssl-hello": "tls", "udp-check": "udp", "udp-connect": "udp", "dns-check": "dns", "ping": "icmp", "ping-check": "icmp",
	},
	"xdp mode": {"skb": "generic", "xdpgeneric": "generic", "drv": "native", "driver": "native", "xdpdrv": "native"},
	"role":     {"ro": "read", "viewer": "read", "rw": "write", "editor": "write"},

	"Config":   {"virtual-server": "services", "virtual-servers": "services", "virtualservers": "services", "vips": "services", "frontends": "services", "listeners": "services", "peers": "bgp", "routers": "bgp"},
	"Director": {"devices": "interfaces", "iface": "interfaces", "ifaces": "interfaces", "nics": "interfaces", "xdp-mode": "xdp", "peers": "group"},
	"Service": {
		"address": "vip", "ip": "vip", "vip-address": "vip", "virtual-ip": "vip", "virtual-ipaddress": "vip", "virtual-server": "vip", "loadbalancerip": "vip",
		"proto": "protocol", "ports": "port", "protocol-port": "port",
		"method": "mode", "lb-kind": "mode", "lvs-method": "mode", "forward-method": "mode", "forwarding": "mode",
		"algorithm": "policy", "scheduler": "policy", "sched": "policy", "balance": "policy", "lb-algo": "policy", "lb-algorithm": "policy", "lvs-sched": "policy",
		"persistence": "affinity", "persistent": "affinity", "sticky": "affinity", "persistence-timeout": "affinity", "session-persistence": "affinity", "session-affinity": "affinity", "sessionaffinity": "affinity",
		"loadbalancersourceranges": "source-ranges", "allowed-cidrs": "source-ranges",
		"check": "health", "health-check": "health", "healthcheck": "health", "health-monitor": "health", "healthmonitor": "health",
		"endpoints": "backends", "members": "backends", "pool": "backends", "real-server": "backends", "real-servers": "backends", "reals": "backends", "server": "backends", "servers": "backends",
	},
	"Backend": {
		"ip": "address", "addr": "address", "rip": "address", "server": "address", "real-server": "address",
		"protocol-port": "port", "status": "state", "admin-state-up": "state", "node": "host", "forwarding": "mode", "hwaddr": "mac",
	},
	"HealthCheck": {
		"type": "kind", "delay": "interval", "delay-loop": "interval", "inter": "interval", "period": "interval", "connect-timeout": "timeout",
		"max-retries": "rise", "healthy-threshold": "rise", "up": "rise", "down": "fall", "retries": "fall", "nb-get-retry": "fall", "nb-sock-retry": "fall", "max-retries-down": "fall", "retry": "fall", "unhealthy-threshold": "fall",
		"slowstart": "slow-start", "connect-port": "port", "http-get": "http",
	},
	"HealthHTTP": {
		"url": "path", "uri": "path", "url-path": "path", "http-method": "method", "domain-name": "host", "virtualhost": "host",
		"status-code": "status", "expected-codes": "status",
	},
	"BGP": {"as": "asn", "my-asn": "asn", "myasn": "asn", "local-as": "asn", "local-asn": "asn", "routerid": "router-id", "peer": "neighbors", "peers": "neighbors"},
	"BGPNeighbor": {
		"peer-address": "address", "peeraddress": "address", "peer-asn": "asn", "peerasn": "asn", "remote-as": "asn", "peer-port": "port", "peerport": "port",
		"source-address": "source", "sourceaddress": "source", "password": "password-file", "holdtime": "hold-time", "timers": "hold-time", "keepalivetime": "keepalive",
		"ebgp-multihop": "ttl", "ebgpmultihop": "ttl", "bfdprofile": "bfd",
	},
}

// Meant returns the known word that another text must mean, or nothing: the one that has the meaning of
// the text in another balancer, or the one that is misspelt. The kind is that of a name, or the name of
// the type that the text is a key of.
func Meant(kind, text string, known iter.Seq[string]) string {
	text = strings.NewReplacer("_", "-", " ", "-").Replace(strings.ToLower(text))
	if ours, is := otherWords[kind][text]; is {
		return ours
	}
	return nearest(text, known)
}

// nearest returns the known word that a misspelt one must mean; empty: none is that near.
func nearest(key string, known iter.Seq[string]) string {
	best, least := "", 3
	for candidate := range known {
		limit := 1
		if len(candidate) >= 8 {
			limit = 2
		}
		n := typos(key, strings.ToLower(candidate))
		if n <= limit && (n < least || n == least && candidate < best) {
			best, least = candidate, n
		}
	}
	return best
}

// typos counts the fewest changes that turn a into b: letters added, left out, replaced, or swapped
// with the next one (optimal string alignment).
func typos(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return 3 // too far, however long
	}
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(replaced, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
