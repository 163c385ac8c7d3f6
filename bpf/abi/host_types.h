/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The agent's part of the ABI, to the same rules as types.h. Its maps hold both
 * families, so an IPv4 address is written in them as ::ffff:a.b.c.d (RFC 4291
 * section 2.5.5.2).
 */
#pragma once

#include "abi/export.h"
#include "abi/pod_types.h"
#include "abi/row_types.h"
#include "abi/types.h"

/*
 * A VIP and its port. With protocol ICMP or ICMPv6 and port 0 it is the VIP
 * itself: packets without ports (ICMP, later fragments) belong to it.
 */
struct host_endpoint {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/* The same as an LPM key: a port range is a few prefixes, "all ports" is one. */
struct host_range {
	__u32 prefix_len;
	struct address address;
	__u8 protocol;
	__u8 pad;
	__be16 port;
};

/* Where tunnels may come from. */
struct host_source {
	__u32 prefix_len;
	struct address address;
};

enum host_source_flag {
	HOST_SOURCE_DIRECTOR = 1 << 0, /* for every service */
	HOST_SOURCE_BACKEND = 1 << 1,  /* for the services that have it: see host_peer */
};
EXPORT_ENUM(host_source_flag);

/*
 * Backends send their services' packets on to each other, and to no other host. For a while
 * directors may name a backend that this host's configuration does not have any more.
 */
struct host_peer {
	__u32 service;
	struct address address;
};

enum host_peer_flag {
	HOST_PEER_SENDS = 1 << 0, /* packets may come from it; they may go to any peer */
};
EXPORT_ENUM(host_peer_flag);

/*
 * A flow of UDP or SCTP, or a connection of TCP, as the client's packets have it. One of SCTP has the
 * highest bit of the client's first byte inverted: no client of UDP has such an address, because
 * hosts have addresses in 2000::/3, fc00::/7, 64:ff9b::/96 and ::ffff:0:0/96 alone (IANA), and the
 * entries of UDP stay as they are for agents of other versions.
 */
struct host_flow {
	struct address client;
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
};

#define HOST_FLOW_SCTP 0x80

/* A flow of UDP that has just begun: times are ns of CLOCK_MONOTONIC. */
struct host_fresh {
	__u64 seen; /* when a datagram was last kept here */
	__u64 since;
	__u32 datagrams; /* at most HOST_FRESH_DATAGRAMS */
	__u32 pad;
};

/*
 * Flows of a service that stay (quota.h): how many the agent counted last, and how many came
 * since, without those that went.
 */
struct host_quota {
	__u32 counted;
	__u32 added;
};

/* How many datagrams, and PROOF_LASTS, make a flow sustained: as in the directors' memory. */
#define HOST_FRESH_DATAGRAMS 3

/* The segment that acknowledged a SYN cookie of this host. */
struct host_cookie {
	__u64 seen; /* ns of CLOCK_MONOTONIC */
	__u32 sequence;
	__u32 acknowledgement;
};

/* Questions to a host that a director sees down: ns of CLOCK_MONOTONIC. */
struct host_question {
	__u64 since; /* since then there were questions all the time */
	__u64 last;
	__u64 open; /* the oldest question that it has not answered; 0: none */
};

/* Services, VIPs, and prefixes of ranges; peers and sources; per host. */
#define HOST_SERVICES_MAX 8192
#define HOST_RANGES_MAX 65536
#define HOST_PEERS_MAX 131072
#define HOST_ENDPOINTS_MAX 1024

/* Hosts to which questions are remembered. */
#define HOST_QUESTIONS_MAX 1024

/*
 * SYN cookies that were acknowledged a moment ago. The kernel keeps up to 128 free places
 * for each CPU, so a small map would have none left where there are many CPUs.
 */
#define HOST_COOKIES_MAX 16384

/* Other network namespaces whose sockets are looked at. */
#define HOST_NAMESPACES_MAX 16

enum host_service_flag {
	/* No packet is sent on: the service's sockets cannot be seen here. */
	HOST_SERVICE_KEEPS_ALL = 1 << 0,
	/* This host has pods of it and nothing else: the host itself does not have the VIP. */
	HOST_SERVICE_PODS = 1 << 1,
};
EXPORT_ENUM(host_service_flag);

struct host_service {
	__u32 mss;   /* largest that a SYN of the VIP may offer; 0: as it is */
	__u32 flags; /* enum host_service_flag */
};

/* As enum reason: every packet ends in exactly one. */
enum host_reason {
	/* Ingress: left to the kernel, untouched. */
	HOST_PASS_NOT_IP = 0,
	HOST_PASS_NOT_TUNNEL,     /* neither IPIP nor GUE */
	HOST_PASS_MALFORMED,      /* an outer header is cut short or contradicts itself */
	HOST_PASS_OPTIONS,        /* outer IPv4 options or IPv6 extension headers */
	HOST_PASS_FRAGMENT,       /* outer fragment of UDP or of a tunnel */
	HOST_PASS_NOT_HERE,       /* the tunnel ends at another address */
	HOST_PASS_GUE_VERSION,    /* not variant 0 */
	HOST_PASS_GUE_CONTROL,    /* control message */
	HOST_PASS_GUE_PROTOCOL,   /* carries neither IPv4 nor IPv6 */
	HOST_PASS_UNKNOWN_SOURCE, /* tunnel from a host that weir does not know */
	HOST_PASS_NOT_VIP,        /* not weir's tunnel: no VIP of this host inside */
	/* Ingress: unwrapped and given to the kernel. */
	HOST_DECAP_IPIP,
	HOST_DECAP_GUE,
	HOST_DECAP_NEW_FLOW,    /* datagram of a flow that no host of its row has: it begins here */
	HOST_DECAP_LAST_RESORT, /* has no connection here either, and no host is left to try */
	HOST_DECAP_POD,         /* unwrapped, and its destination is a pod now */
	/* Ingress: second chance. */
	HOST_PASSED_ON, /* its connection is not here: sent to the next host of its row */
	/* Ingress: dropped. */
	HOST_DROP_INNER_MALFORMED, /* an inner header is cut short or contradicts itself */
	HOST_DROP_NO_SERVICE,      /* VIP of this host, but no service of it on this host */
	HOST_DROP_ROW_MALFORMED,   /* a list of candidates that contradicts itself */
	HOST_DROP_NOT_PEER,        /* from a backend that the service does not have */
	HOST_DROP_CONGESTED,       /* outer header marked CE, sender does not speak ECN */
	HOST_DROP_NO_POD,          /* for a pod that this host does not have, or for none */
	HOST_DROP_POD_TAKEN,       /* the pod knows the client's port from another VIP */
	HOST_DROP_DECAP_FAILED,    /* the kernel refused to remove or rewrite a header */
	/* Egress. */
	HOST_PASS_EGRESS,   /* no SYN of a VIP */
	HOST_PASS_REFUSED,  /* RST of a VIP that refuses a connection */
	HOST_POD_REPLY,     /* of a pod, or an error about a packet to one: the VIP's now */
	HOST_CLAMP_LOWERED, /* SYN whose MSS was lowered */
	HOST_CLAMP_FITS,    /* SYN whose MSS fits as it is */
	HOST_CLAMP_ABSENT,  /* SYN without a readable MSS option: peers assume 536 or 1220 */
	/* Appended, because counters outlive versions. Ingress: dropped. */
	HOST_DROP_UNKNOWN_HOP,  /* it was to go on to a host that is no backend of the service */
	HOST_DROP_INNER_SOURCE, /* its source is no client's: see is_nobodys */
	HOST_REASON_COUNT,
};
EXPORT_ENUM(host_reason);
