/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ABI between the BPF programs and their loaders: map keys, map values and
 * enums. Each is written here and nowhere else; bpf2go makes the Go side.
 *
 * Byte order is in the type: __be16 and __be32 are network order, everything
 * else is host order. Structures have explicit padding (always zero) instead of
 * being packed, because hash keys are compared byte by byte.
 */
#pragma once

#include <linux/types.h>

#include "abi/export.h"

/*
 * Raise these when the content of a map changes its meaning but not its look: versions that
 * differ in them do not share what they have pinned. The first is for all maps, the second
 * for those whose content cannot be made again (what is remembered of flows and of
 * fragments, and the counters). Where only the places of entries in a map change, see placements in
 * internal/datapath/abi.go.
 */
enum revision {
	REVISION_MAPS = 2,
	REVISION_STATE = 1,
};
EXPORT_ENUM(revision);

/* An IP address. IPv4 uses the first four bytes; the others are zero. */
struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/*
 * A segment is a tenant's network: kind << 24 | id. One VLAN tag gives its ID,
 * two (IEEE 802.1ad) give outer << 12 | inner, VXLAN and Geneve their VNI.
 */
enum segment_kind {
	SEGMENT_NONE = 0,
	SEGMENT_VLAN = 1,
	SEGMENT_VXLAN = 2,
	SEGMENT_GENEVE = 3,
};
#define SEGMENT_KIND_SHIFT 24

/*
 * An address and port in a segment. Key of services{4,6} (a VIP and its port),
 * of replies{4,6} (a NAT backend and its port). With protocol ICMP or ICMPv6 and
 * port 0 it says that the address is a VIP of any service.
 */
struct endpoint4 {
	__u32 segment;
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct endpoint6 {
	__u32 segment;
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/*
 * The same as an LPM key: a port range is a few prefixes, "all ports" is one.
 * With reply 1 it has a NAT backend's own ports, and the value is the backend.
 */
struct range4 {
	__u32 prefix_len;
	__u32 segment;
	__be32 address;
	__u8 protocol;
	__u8 reply;
	__be16 port;
};

struct range6 {
	__u32 prefix_len;
	__u32 segment;
	struct address address;
	__u8 protocol;
	__u8 reply;
	__be16 port;
};

/* Value of services{4,6} where the key only says that the address is a VIP. */
#define SERVICE_VIP_ONLY 0xffffffffU
#define NO_SERVICE SERVICE_VIP_ONLY

/*
 * A cache in front of services{4,6}, which saves packets the calls of a lookup in a hash map.
 * Each key has one place here, by its hash, and the first service to come has it. A place's
 * last word is written last and cleared first, and the place rests before another key has it.
 * That word also has what the map rings says of the service: one lookup less for packets.
 */
#define FRONT_BITS 15

struct front {
	__u64 address[2]; /* as in memory; IPv4 is in the first four bytes */
	__u64 key;        /* segment | port as in memory << 32 | protocol << 48 | is IPv6 << 56 */
	__u64 service; /* index + 1 | line that its ring begins with << 32; 0: the place is free */
};

/*
 * A ring is a run of 64-byte lines: the header, then the slots eight to a line,
 * then the lists. Everything a ring means is in its header, so that one switch of
 * the ring switches all of it. Line 0 of all lines is the ring of no service.
 */
#define RING_SLOTS_PER_LINE 8
#define RING_CANDIDATES_MAX 8
#define RING_HEADER_LINES 1

enum affinity {
	AFFINITY_FLOW = 0,             /* hash of segment, addresses, ports and protocol */
	AFFINITY_SOURCE_IP = 1,        /* hash of the source address only */
	AFFINITY_SOURCE_PREFIX = 2,    /* of its first bits: prefix4, prefix6 */
	AFFINITY_DESTINATION_PORT = 3, /* of the destination port only */
};
EXPORT_ENUM(affinity);

enum policy {
	POLICY_MAGLEV = 0,
	POLICY_RANDOM = 1,
	POLICY_ROUND_ROBIN = 2,
	POLICY_LEAST_CONN = 3,
	POLICY_P2C = 4,
};
EXPORT_ENUM(policy);

struct ring_line {
	__u64 words[8];
};
EXPORT_STRUCT(ring_line);

enum ring_flag {
	RING_SNAT = 1 << 0,   /* some backend is full NAT: flows have a place of their own */
	RING_MEMORY = 1 << 1, /* slots may ask for flow memory: see struct flow_entry */
	RING_QUIC = 1 << 2,   /* connection IDs may name the backend */
	/* The policy places only redirected connections: others would need flow memory. */
	RING_REDIRECTED = 1 << 3,
	RING_SOURCES = 1 << 4,        /* only some clients may come: see struct source_range */
	RING_KERNEL_SOURCES = 1 << 5, /* packets from some addresses are left to the kernel */
	RING_OWNERS = 1 << 6,         /* see struct owners; always with RING_MEMORY */
	RING_QUOTA = 1 << 7,          /* the service's segment has a quota: see struct quota */
};
EXPORT_ENUM(ring_flag);

struct ring_header {
	__u32 size;    /* slots; 0: the service has no backends */
	__u32 service; /* index of the service, for its drop counters */
	__u64 salt;    /* keys the flow hash against chosen collisions */
	__u32 lines;   /* of the whole ring */
	__u8 policy;   /* enum policy */
	__u8 affinity; /* enum affinity */
	__u8 flags;    /* enum ring_flag */
	__u8 pad;
	__u32 quic;         /* RING_QUIC: line, in the ring, of the first struct quic_config */
	__u32 quic_buckets; /* lines of struct quic_servers after them, a power of two */
	__u32 older;        /* slots of the ring that candidates.beyond is about; 0: none */
	__u32 before;       /* line, in the ring, of the ring before (previous_ring.h); 0: none */
	__u32 turns;        /* line, in the ring, of the first struct turns; see policy.h */
	__u32 turn_count;   /* 0: the policy needs none */
	__u32 sources;      /* RING_SOURCES: the set that its clients' addresses are in */
	__u32 owners;       /* RING_OWNERS: line, in the ring, of the first struct owners */
	__u32 steering;     /* not 0: NICs may steer flows of the service */
	__u8 fan_out;       /* not 0: packets are given to other CPUs, see director/fan_out.h */
	__u8 prefix4;       /* AFFINITY_SOURCE_PREFIX: how many bits of an IPv4 address count */
	__u8 prefix6;       /* and of an IPv6 address */
	__u8 pad2;
};
EXPORT_STRUCT(ring_header);

/*
 * A prefix in which clients of a service have to be. A set is all prefixes of a service: a set
 * that a ring names stays as it is, and another ring names another set.
 */
struct source_range {
	__u32 prefix_len;
	__u32 set;
	struct address address;
};

/*
 * The set of IPv4 addresses whose packets services with RING_KERNEL_SOURCES leave to the
 * kernel; the set of IPv6 addresses is the one before it. No ring names them.
 */
#define KERNEL_SOURCES_SET 0xffffffff

/*
 * An address and port where a backend of a service serves: no client calls the service from
 * there. Port 0: the packet's own.
 */
struct backend_source {
	__u32 service;
	struct address address;
	__be16 port;
	__u16 pad;
};

/*
 * One bit for each hash of an address that is a VIP or a backend's: 4 KiB, which stay in the
 * L1 cache. The factor is odd, without pattern.
 */
#define SOURCE_FILTER_BITS 15
#define SOURCE_FILTER_FACTOR 0x9e3779b1U

/* Backends in the order in which a policy asks them, this many to a line. */
#define RING_TURNS_PER_LINE 16

struct turns {
	__u32 index[RING_TURNS_PER_LINE];
};
EXPORT_STRUCT(turns);

/* Backend index 0 is no backend, so a zeroed slot forwards nothing. */
#define NO_BACKEND 0
/*
 * next: the backup's index, or SLOT_LIST | line, in the ring, of the other candidates.
 * SLOT_SETTLING is with an index only: the slot had a list or another owner, and some
 * remembered flow may still be of another backend; or there is a ring before to look in.
 */
#define SLOT_LIST 0x80000000U
#define SLOT_SETTLING 0x40000000U

struct slot {
	__u32 owner;
	__u32 next;
};
EXPORT_STRUCT(slot);

/*
 * The owners of slots once more, in a quarter of the memory: where packets need no more of a slot, a
 * large ring stays in a CPU's caches. NO_BACKEND: the slot has to be read, because it has a list or
 * is settling, or because its owner's index is too large.
 */
#define RING_OWNERS_PER_LINE 32

struct owners {
	__u16 index[RING_OWNERS_PER_LINE];
};
EXPORT_STRUCT(owners);

/*
 * A row's candidates after the owner, in the order in which they are tried; and count + 1
 * positions in the row (0 is the owner), in the order in which the candidates are likely to
 * have an unknown connection: the oldest owner first.
 */
struct candidates {
	__u32 count;
	__u32 index[RING_CANDIDATES_MAX - 1];
	__u8 oldest[RING_CANDIDATES_MAX];
	__u8 beyond[RING_CANDIDATES_MAX]; /* the same beyond a border: see flows.h */
	__u32 fixed; /* 1: the first after the owner is no backup that may be chosen: see p2c.h */
	__u32 pad[3];
};
EXPORT_STRUCT(candidates);

enum mode {
	MODE_L2DSR = 0,
	MODE_IPIP = 1,
	MODE_GUE = 2,
	MODE_NAT = 3,
	MODE_REDIRECT = 4, /* no backend has it, but BACKEND_REDIRECT and a mode to fall back to */
};
EXPORT_ENUM(mode);

enum backend_state {
	BACKEND_FREE = 0, /* the index is not in use */
	BACKEND_ACTIVE = 1,
	BACKEND_DRAINING = 2, /* keeps its connections, owns no slot */
	BACKEND_DOWN = 3,     /* unhealthy, or its next hop is unknown */
	BACKEND_SUSPECT = 4,  /* the same since moments ago: keeps its connections */
};
EXPORT_ENUM(backend_state);

enum backend_flag {
	BACKEND_IPV6 = 1 << 0,      /* address is IPv6 */
	BACKEND_LOCAL = 1 << 1,     /* this host: packets go up the stack */
	BACKEND_SNAT = 1 << 2,      /* full NAT */
	BACKEND_KEEP_TAGS = 1 << 3, /* leave the VLAN tags as they came */
	BACKEND_REDIRECT = 1 << 4,  /* connections that ask for it are handed over */
	BACKEND_POD = 1 << 5,       /* behind the agent of its host: see pod_row.h */
	BACKEND_ASKS = 1 << 6,      /* full NAT: it is asked to hand connections over */
	BACKEND_TWO_TAGS = 1 << 7,  /* NAT: the two VLAN tags stay as they came */
};
EXPORT_ENUM(backend_flag);

/*
 * One backend of one service: exactly one cache line. The first three words can
 * change while packets flow (a neighbor moved, a backend went down); each is
 * stored as a whole, so a reader never sees half of a MAC address.
 */
struct backend {
	__u8 mac[6];        /* next hop */
	__be16 vlan;        /* 802.1Q tag to leave with, 0: untagged */
	__u8 source_mac[6]; /* of the interface it leaves by */
	__u16 mtu;          /* largest IP packet that fits, before encapsulation */
	__u32 ifindex;      /* interface it leaves by; 0: up this host's own stack */
	__u8 state;         /* enum backend_state */
	__u8 mode;          /* enum mode */
	__u8 flags;         /* enum backend_flag */
	__u8 epoch;         /* of the index: differs from the one before it */
	struct address address;
	/* Of its service, for NAT replies. BACKEND_POD: begins with the pod's name. */
	struct address vip;
	__be16 port;     /* NAT, redirect: destination port, 0: the packet's own */
	__be16 vip_port; /* of its service, 0: the packet's own */
	__u32 service;   /* index of its service */
};

/*
 * Priority of the socket whose port gets the answers to probes of redirection: packets to that
 * port are no client's. No other socket has it, and no qdisc has a class of this name.
 */
enum probe_priority {
	REDIRECT_PROBE_PRIORITY = 0x57520000,
};
EXPORT_ENUM(probe_priority);

/* GUE, variant 0 (draft-ietf-intarea-gue-09), on the port IANA assigned. */
#define GUE_PORT 6080

/*
 * A fragmented packet under way: what its later fragments need to follow the
 * first one, which alone has ports.
 */
struct fragment_key {
	__u32 segment;
	__u32 id;
	struct address source;
	struct address destination;
	__u8 protocol;
	__u8 ipv6;
	__u16 pad;
};

enum fragment_path {
	FRAGMENT_TO_KERNEL = 0, /* first fragment to a VIP, but to no service */
	FRAGMENT_TO_BACKEND = 1,
	FRAGMENT_TO_CLIENT = 2, /* NAT reply */
	FRAGMENT_TO_PEER = 3,   /* another director of the group has the first one */
	FRAGMENT_ECHO = 4,      /* a ping, which is answered piece by piece */
};
EXPORT_ENUM(fragment_path);

struct fragment {
	__u64 expires; /* nanoseconds, CLOCK_MONOTONIC */
	__u32 backend;
	__u32 hash; /* of its flow: the same outer source for all fragments */
	__u16 path; /* enum fragment_path */
	__u8 epoch; /* of the backend: its index may be another's by now */
	__u8 pad;
	/* Full NAT: number of its flow, see struct snat_flow; FRAGMENT_TO_PEER: of the director. */
	__u32 snat;
};

/*
 * What this CPU has used of its budgets in this second: of each kind the first budget is for all
 * sources, each other one for some of them: see budget.h.
 */
#define BUDGET_SOURCES_BITS 6

enum budget_kind {
	BUDGET_ICMP = 0, /* errors that the director sends */
	BUDGET_WAIT,     /* fragments that wait for their first one */
	BUDGET_FRESH,    /* fresh flows that other directors are told of */
	BUDGET_KINDS,
	BUDGETS_EACH = 1 + (1 << BUDGET_SOURCES_BITS), /* of one kind */
	BUDGETS_ALL = BUDGET_KINDS * BUDGETS_EACH,
};
EXPORT_ENUM(budget_kind);

struct budget {
	__u64 second;
	__u32 used;
	__u32 pad;
};

enum settings_flag {
	SETTINGS_RANGES = 1 << 0,   /* some service has a port range or all ports */
	SETTINGS_REPLIES = 1 << 1,  /* some service is NAT: look replies up */
	SETTINGS_GROUP = 1 << 2,    /* fragments may belong to another director */
	SETTINGS_TELL = 1 << 3,     /* a program wants to know what is remembered of flows */
	SETTINGS_FORMER = 1 << 4,   /* flows that are not known may be in the former table */
	SETTINGS_ASKS = 1 << 5,     /* some service asks to be redirected */
	SETTINGS_OWN_MACS = 1 << 6, /* own_macs has all addresses of this host */
	SETTINGS_QUOTAS = 1 << 7,   /* some segment has a quota: see struct quota */
};
EXPORT_ENUM(settings_flag);

/* Addresses of a host that has more are not looked at. */
#define OWN_MACS_MAX 4096

/* What the program needs to know about this director; one element. */
struct settings {
	__be32 tunnel_source4; /* outer source: these bits, and where */
	__be32 tunnel_mask4;   /* this mask is 0, bits of the flow's hash */
	struct address tunnel_source6;
	struct address tunnel_mask6;
	__u32 flags;        /* enum settings_flag */
	__u32 icmp_rate;    /* generated ICMP errors per second and CPU */
	__u32 link_mtu;     /* largest IP packet that the attached links can carry */
	__u32 cpus;         /* that run: numbers below this */
	__u64 flow_salt;    /* keys the hash that chooses buckets of flow memory */
	__u32 flow_buckets; /* how many of them there are */
	__u32 wait_rate;    /* later fragments that wait, per second and CPU: see group.h */
	__u32 flow_share;  /* how many places of a bucket of flow memory one service may have ... */
	__u32 snat_share;  /* ... and of full NAT's */
	__u32 former_cpus; /* of former_table.h: CPUs that have buckets there ... */
	__u32 former_buckets; /* ... and how many each has; 0: there is no such table */
};

/*
 * Counters of an enum's values have room for those that later versions append, so that all
 * versions share the maps: a number never changes its meaning. No program writes the second
 * half of such a map: it has what maps of other formats had counted.
 */
#define COUNTERS_ROOM 64

struct counter {
	__u64 packets;
	__u64 bytes; /* of IP packets as they came, without Ethernet */
};

/*
 * Every packet ends in exactly one reason: the index of its counter and the
 * label of its metric. The prefix says what became of the packet.
 */
enum reason {
	/* Left to the kernel: untouched, but for PASS_LOCAL in mode nat and PASS_REPLY_UNROUTED. */
	PASS_NOT_IP = 0,
	PASS_NO_SERVICE,
	PASS_MALFORMED,      /* a header is cut short or contradicts itself */
	PASS_UNSUPPORTED,    /* an IPv6 header chain that weir does not follow */
	PASS_TTL_EXPIRED,    /* the kernel answers with "time exceeded" */
	PASS_LOCAL,          /* the backend is this host */
	PASS_REPLY_UNROUTED, /* translated NAT reply that the kernel routes */
	PASS_SENT_ALREADY,   /* l2dsr: a switch floods it, or it goes back and forth */
	PASS_KERNEL_SOURCE,  /* the service leaves packets from there to the kernel */
	/* Sent on. */
	FORWARD_L2DSR,
	FORWARD_IPIP,
	FORWARD_GUE,
	FORWARD_NAT,
	FORWARD_REDIRECT,       /* SYN whose connection goes on without the director */
	FORWARD_REPLY,          /* NAT reply on its way to the client */
	FORWARD_ICMP_ERROR,     /* to the backend of the inner flow or, NAT, to its client */
	FORWARD_FRAGMENT,       /* followed its first fragment, in either direction */
	FORWARD_FRAGMENT_OWNER, /* to the director of the group where its packet's fragments meet */
	FORWARD_FRAGMENT_WAITS, /* between directors, until the first fragment has been there */
	FORWARD_FRAGMENT_MET,   /* from there to the director that the first one came to */
	/* Answered. */
	ANSWER_ECHO,
	ANSWER_TOO_BIG, /* ICMP "fragmentation needed", ICMPv6 "packet too big" */
	ANSWER_PROBE,   /* of another director of the group */
	/* Dropped. */
	DROP_NO_BACKEND,       /* no candidate of the slot is alive */
	DROP_TOO_BIG_LIMITED,  /* would not fit, and the ICMP budget is spent */
	DROP_SUPER_FRAME,      /* longer than the link's MTU: sender's TSO reached XDP */
	DROP_FRAGMENT_UNKNOWN, /* its first fragment was not seen here */
	DROP_FRAGMENT_ASTRAY,  /* from a director of the group, but not as one would send it */
	DROP_SNAT_FULL,        /* no source port is left for it: see snat_place.h */
	DROP_SNAT_CLASH,       /* a backend here has a connection of that port by another VIP */
	DROP_SNAT_UNKNOWN,     /* reply or mid-stream packet of no known flow */
	DROP_NO_HEADROOM,      /* the driver leaves no room for the outer header */
	DROP_REDIRECT_FAILED,  /* egress interface is not ready for XDP */
	DROP_SOURCE_RANGE,     /* the service is for other clients */
	DROP_SOURCE_VIP,       /* to a VIP, from a VIP: the answer would come here again */
	DROP_SOURCE_BACKEND,   /* its source is where a backend of the service serves */
	DROP_SOURCE_INVALID,   /* to a VIP, from an address that no host has */
	DROP_NO_SERVICE,  /* to a VIP, but of no service: the kernel would send it to a router */
	DROP_ANSWER_LATE, /* from a VIP to this host, which has no such connection any more */
	/* Of tenants' networks in VXLAN and Geneve. */
	PASS_OVERLAY_VNI,       /* the VNI is of no segment: it may be the kernel's */
	PASS_OVERLAY_ASTRAY,    /* the frame inside is for another host */
	ANSWER_NEIGHBOR,        /* ARP or NDP, for an address that this director has there */
	DROP_OVERLAY_PEER,      /* the outer source is no VTEP of the segment */
	DROP_OVERLAY_MALFORMED, /* outer headers are cut short or contradict themselves */
	DROP_OVERLAY_OPTION,    /* Geneve: a critical option that weir does not know */
	DROP_OVERLAY_CONGESTED, /* a router has marked a packet that cannot be marked (RFC 6040) */
	DROP_OVERLAY_HOST,      /* a reply, and nothing says where its client is */
	DROP_SEGMENT_LIMIT,     /* its segment has had all packets that it may have now */
	DROP_FRAGMENT_PORTS, /* first fragment of SCTP whose ports would change: its checksum cannot */
	REASON_COUNT,
};
EXPORT_ENUM(reason);
