package model

import (
	"iter"
	"strings"
)

// otherWords are the words of other balancers for what has another name in weir, by the kind of the
// name, or by the type whose keys they are, each with weir's word. They are in lower case, with "-" for
// "_" and spaces. They come from ipvsadm(8), keepalived.conf(5), HAProxy's configuration manual, the
// documents of nginx, Katran and MetalLB, Octavia's API, Kubernetes' Service, and ip-link(8).
var otherWords = map[string]map[string]string{
	"mode": {
		"dr": "l2dsr", "dsr": "l2dsr", "direct": "l2dsr", "direct-routing": "l2dsr", "gatewaying": "l2dsr", "l2": "l2dsr",
		"tun": "ipip", "tunnel": "ipip", "tunneling": "ipip", "ipip6": "ipip", "ip-in-ip": "ipip", "l3dsr": "ipip", "fou": "gue",
		"masq": "nat", "masquerade": "nat", "masquerading": "nat", "dnat": "nat", "snat": "nat", "fullnat": "nat", "full-nat": "nat",
	},
	"policy": {
		"mh": "maglev", "hash": "maglev", "sh": "maglev", "dh": "maglev", "source": "maglev", "source-ip": "maglev", "source-ip-port": "maglev", "consistent": "maglev",
		"ip-hash": "maglev", "lblc": "maglev", "lblcr": "maglev",
		"rr": "round-robin", "wrr": "round-robin", "roundrobin": "round-robin", "static-rr": "round-robin",
		"lc": "least-conn", "wlc": "least-conn", "leastconn": "least-conn", "least-connections": "least-conn", "sed": "least-conn", "nq": "least-conn",
		"rand": "random", "two-choices": "p2c", "power-of-two": "p2c", "twos": "p2c", "least-time": "least-conn",
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
		"ssl": "tls", "tls-hello": "tls", "ssl-hello": "tls", "smtp-check": "smtp", "mysql-check": "tcp", "pgsql-check": "tcp", "redis-check": "tcp", "udp-check": "udp", "udp-connect": "udp", "dns-check": "dns", "ping": "icmp", "ping-check": "icmp",
		"misc-check": "exec", "external-check": "exec", "script": "exec", "command": "exec",
	},
	"xdp mode": {"skb": "generic", "xdpgeneric": "generic", "drv": "native", "driver": "native", "xdpdrv": "native"},
	"role":     {"ro": "read", "viewer": "read", "rw": "write", "editor": "write"},

	"Config":   {"virtual-server": "services", "virtual-servers": "services", "virtualservers": "services", "vips": "services", "frontend": "services", "frontends": "services", "listen": "services", "server": "services", "servers": "services", "listeners": "services", "stream": "services", "peers": "bgp", "routers": "bgp"},
	"Director": {"devices": "interfaces", "iface": "interfaces", "ifaces": "interfaces", "nics": "interfaces", "xdp-mode": "xdp", "peers": "group"},
	"Service": {
		"address": "vip", "ip": "vip", "vip-address": "vip", "virtual-ip": "vip", "virtual-ipaddress": "vip", "virtual-server": "vip", "loadbalancerip": "vip",
		"proto": "protocol", "ports": "port", "protocol-port": "port",
		"method": "mode", "lb-kind": "mode", "lvs-method": "mode", "forward-method": "mode", "forwarding": "mode",
		"algorithm": "policy", "scheduler": "policy", "sched": "policy", "balance": "policy", "lb-algo": "policy", "lb-algorithm": "policy", "lvs-sched": "policy",
		"persistence": "affinity", "persistent": "affinity", "sticky": "affinity", "persistence-timeout": "affinity", "session-persistence": "affinity", "session-affinity": "affinity", "sessionaffinity": "affinity",
		"loadbalancersourceranges": "source-ranges", "allowed-cidrs": "source-ranges",
		"quorum": "min-healthy", "default-backend": "backends", "use-backend": "backends", "upstream": "backends", "proxy-pass": "backends",
		"hash": "policy", "stick": "affinity", "stick-table": "affinity",
		"check": "health", "health-check": "health", "healthcheck": "health", "health-monitor": "health", "healthmonitor": "health",
		"endpoints": "backends", "members": "backends", "pool": "backends", "real-server": "backends", "real-servers": "backends", "reals": "backends", "server": "backends", "servers": "backends",
	},
	"Backend": {
		"monitor-address": "check", "monitor-port": "check", "connect-ip": "check", "connect-port": "check",
		"ip": "address", "addr": "address", "rip": "address", "server": "address", "real-server": "address",
		"protocol-port": "port", "status": "state", "admin-state-up": "state", "node": "host", "forwarding": "mode", "hwaddr": "mac",
	},
	"HealthCheck": {
		"type": "kind", "delay": "interval", "delay-loop": "interval", "inter": "interval", "period": "interval", "connect-timeout": "timeout",
		"max-retries": "rise", "healthy-threshold": "rise", "up": "rise", "down": "fall", "retries": "fall", "nb-get-retry": "fall", "nb-sock-retry": "fall", "max-retries-down": "fall", "retry": "fall", "unhealthy-threshold": "fall",
		"slowstart": "slow-start", "warmup": "start-delay", "connect-port": "port", "http-get": "http", "smtp-check": "smtp", "misc-path": "exec", "misc-check": "exec", "command": "exec", "script": "exec",
	},
	"HealthHTTP": {
		"url": "path", "uri": "path", "url-path": "path", "http-method": "method", "domain-name": "host", "virtualhost": "host",
		"status-code": "status", "expected-codes": "status", "regex": "body-regexp", "rstring": "body-regexp", "http-protocol": "version", "http-version": "version",
	},
	"BackendCheck": {"connect-ip": "address", "monitor-address": "address", "addr": "address", "connect-port": "port", "monitor-port": "port"},
	"Hook":         {"command": "exec", "script": "exec", "program": "exec", "uri": "url"},
	"BGP":          {"as": "asn", "my-asn": "asn", "myasn": "asn", "local-as": "asn", "local-asn": "asn", "routerid": "router-id", "peer": "neighbors", "peers": "neighbors"},
	"BGPNeighbor": {
		"peer-address": "address", "peeraddress": "address", "peer-asn": "asn", "peerasn": "asn", "remote-as": "asn", "peer-port": "port", "peerport": "port",
		"source-address": "source", "sourceaddress": "source", "password": "password-file", "holdtime": "hold-time", "timers": "hold-time", "keepalivetime": "keepalive",
		"ebgp-multihop": "ttl", "ebgpmultihop": "ttl", "bfdprofile": "bfd",
	},
}

// absentWords are the words of other balancers for what weir has not, by the same kinds: why it has
// not, and what to use.
var absentWords = map[string]map[string]string{
	"mode": {
		"tcp":  "mode is how packets reach backends; use protocol: tcp",
		"http": noHTTP, "gre": "weir makes no GRE; use ipip or gue", "vxlan": "weir makes no VXLAN; use ipip or gue", "geneve": "weir makes no Geneve; use ipip or gue",
	},
	"policy": {
		"fo": "weir has no servers that stand by; use weights", "ovf": "weir does not count a server's connections for this; use least-conn", "first": "weir does not count a server's connections for this; use least-conn",
		"uri": noHTTP, "url-param": noHTTP, "hdr": noHTTP, "rdp-cookie": noHTTP,
	},
	"affinity": {"cookie": noHTTP, "http-cookie": noHTTP, "app-cookie": noHTTP},
	"protocol": {
		"tcp/udp": bothProtocols, "udp/tcp": bothProtocols, "tcp-udp": bothProtocols, "tcpudp": bothProtocols, "tcp,udp": bothProtocols, "tcp+udp": bothProtocols, "both": bothProtocols, "any": bothProtocols, "all": bothProtocols,
		"dccp": noOtherProtocol, "gre": noOtherProtocol, "esp": noOtherProtocol, "ip": noOtherProtocol,
	},
	"kind": {"file-check": "weir reads no files as checks; use kind: exec with a program that reads it", "bfd-check": "weir has no BFD with backends; use icmp"},

	"Config": {
		"vrrp": noVRRP, "vrrp-instance": noVRRP, "vrrp-instances": noVRRP, "vrrp-sync-group": noVRRP, "vrrp-script": noVRRP, "vrrp-track-process": noVRRP,
		"global": noGlobal, "global-defs": noGlobal, "defaults": noGlobal,
		"virtual-server-group": "weir has no groups of virtual servers; use a service for each VIP and port",
		"real-server":          ofServices, "backend": ofServices, "backends": ofServices, "upstream": ofServices, "upstreams": ofServices,
		"static-ipaddress": "weir configures no addresses of hosts; use what else configures them",
		"static-routes":    "weir configures no routes of hosts; use what else configures them",
	},
	"Director": {"vrrp-instance": noVRRP, "virtual-router-id": noVRRP, "priority": noVRRP, "advert-int": noVRRP},
	"Service": {
		"sorry-server": "a sorry server is a backend of the next tier; use tier: 1 in backends", "sorry-server-inhibit": "what it does is what tiers do; leave it out",
		"quorum-up": "weir runs no scripts for a quorum; use hooks", "quorum-down": "weir runs no scripts for a quorum; use hooks",
		"hysteresis": "weir has no hysteresis of a quorum; use health.rise and health.fall",
		"delay-loop": "checks have keys of their own; use health.interval", "retry": "checks have keys of their own; use health.fall", "delay-before-retry": "checks have keys of their own; use health.interval",
		"connect-timeout": "checks have keys of their own; use health.timeout", "virtualhost": "checks have keys of their own; use health.http.host",
		"alpha": "a new backend waits for its first check anyway; leave it out", "omega": "leave it out: weir runs no scripts when it ends",
		"ha-suspend": "all directors check backends; leave it out", "persistence-granularity": "affinity is that of one address; use affinity: source-ip", "netmask": "affinity is that of one address; use affinity: source-ip",
		"ops": "weir sends a client's datagrams to one backend; leave it out", "one-packet": "weir sends a client's datagrams to one backend; leave it out",
		"fwmark": "packets have no mark yet where weir sees them; use vip, protocol and port", "fwmark-service": "packets have no mark yet where weir sees them; use vip, protocol and port",
		"tcp-service": "use vip, protocol: tcp and port", "udp-service": "use vip, protocol: udp and port",
		"bind": "use vip and port", "listen": "use vip and port",
		"option": "weir has no options by that name; use health for checks", "timeout": "weir ends no connections; use health.timeout for checks, retention for what changes of backends leave behind",
		"maxconn":     noConnectionLimit,
		"http-get":    "checks have keys of their own; use health: {kind: http}",
		"ssl-get":     "checks have keys of their own; use health: {kind: https}",
		"tcp-check":   "checks have keys of their own; use health: {kind: tcp}",
		"misc-check":  "checks have keys of their own; use health: {kind: exec}",
		"send-proxy":  noProxyProtocol,
		"certificate": noTLS, "certificates": noTLS, "ssl": noTLS, "tls": noTLS,
		"acl": noHTTP, "http-request": noHTTP, "cookie": noHTTP, "rules": noHTTP,
	},
	"Backend": {
		"http-get": checksOfService, "ssl-get": checksOfService, "tcp-check": checksOfService, "misc-check": checksOfService, "smtp-check": checksOfService, "dns-check": checksOfService, "udp-check": checksOfService, "ping-check": checksOfService, "file-check": checksOfService,
		"health": checksOfService, "inter": checksOfService, "rise": checksOfService, "fall": checksOfService, "max-fails": checksOfService, "fail-timeout": checksOfService, "slowstart": checksOfService, "slow-start": checksOfService,
		"delay-loop": checksOfService, "retry": checksOfService, "connect-timeout": checksOfService, "virtualhost": checksOfService,
		"inhibit-on-failure": "connections of a backend whose checks fail go on for a while in any case; use suspect, a key of the file",
		"notify-up":          "weir runs no scripts for backends; use weir events --follow", "notify-down": "weir runs no scripts for backends; use weir events --follow",
		"uthreshold": noConnectionLimit, "lthreshold": noConnectionLimit, "u-threshold": noConnectionLimit, "l-threshold": noConnectionLimit, "maxconn": noConnectionLimit, "max-conns": noConnectionLimit,
		"backup": "use tier: 1: it gets new connections while too few backends of tier 0 are healthy", "send-proxy": noProxyProtocol, "ssl": noTLS,
		"tun-type": "use mode: ipip or gue", "tun-port": "gue has one port for all; leave it out", "gatewaying": "use mode: l2dsr", "ipip": "use mode: ipip", "masquerading": "use mode: nat",
	},
	"HealthCheck": {
		"delay-before-retry": "weir tries again after the interval; use interval",
		"ssl-get":            "use kind: https", "tcp-check": "use kind: tcp", "digest": "it is of a request; use http.digest",
	},
}

// Reasons that several words share.
const (
	noVRRP            = "weir has no VRRP, because all directors forward at the same time; use bgp, or director.neighbor where there is no router"
	noGlobal          = "weir has no section for all the others; use the keys of this level"
	ofServices        = "backends are of a service; use the key backends in services"
	noHTTP            = "weir forwards packets and does not read HTTP; use a proxy as backend for this"
	noTLS             = "weir forwards packets and does not end TLS; use the backends' certificates"
	noProxyProtocol   = "backends see clients' addresses in all modes but full NAT; leave it out"
	noConnectionLimit = "weir refuses no connections for their number; use policy least-conn, and limits of the servers"
	checksOfService   = "checks are the same for all backends of a service but for where they go; use health in the service, and check: {address, port} here"
	bothProtocols     = "a service has one protocol; use two services, of tcp and of udp, with the same vip, port and backends"
	noOtherProtocol   = "weir forwards TCP, UDP and SCTP; use a router for other protocols"
)

// Instead returns why weir has nothing that has the meaning of a text in another balancer, and what to
// use; empty: it has, or the word is not known. The kind is that of Meant.
func Instead(kind, text string) string { return absentWords[ofType(kind)][asOtherWord(text)] }

// ofType returns the type whose words a type has.
func ofType(kind string) string {
	switch kind {
	case "HealthRequest":
		return "HealthHTTP"
	case "NamedCheck":
		return "HealthCheck"
	}
	return kind
}

func asOtherWord(text string) string {
	return strings.NewReplacer("_", "-", " ", "-").Replace(strings.ToLower(text))
}

// Meant returns the known word that another text must mean, or nothing: the one that has the meaning of
// the text in another balancer, or the one that is misspelt. The kind is that of a name, or the name of
// the type that the text is a key of.
func Meant(kind, text string, known iter.Seq[string]) string {
	kind, text = ofType(kind), asOtherWord(text)
	if ours, is := otherWords[kind][text]; is {
		return ours
	}
	if absentWords[kind][text] != "" {
		return ""
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
