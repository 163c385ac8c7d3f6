/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ABI of redirection on hosts of clients and backends, to the same rules as types.h;
 * addresses as in host_types.h: IPv4 is written as ::ffff:a.b.c.d.
 */
#pragma once

#include "abi/export.h"
#include "abi/host_types.h"

/*
 * Limits, all of them per host. A connection is in two maps, once by the addresses
 * of the host's socket and once by those on the wire.
 */
#define REDIRECT_SERVICES_MAX 4096
#define REDIRECT_PREFIXES_MAX 131072
#define REDIRECT_CONNECTIONS_MAX 65536
#define REDIRECT_SLOTS 32768 /* a power of two */
#define REDIRECT_DIRECT_MAX 16384
#define REDIRECT_PORTS_MAX 64

enum redirect_number {
	REDIRECT_REMEMBERED = 0, /* connections, ever; the agent begins with 1 */
	REDIRECT_FOUND_EMPTY,    /* how many they were when the maps were empty */
	REDIRECT_SEED, /* which flows have the same place in an array: a secret of the host's */
	REDIRECT_MEMORY_COUNT,
};
EXPORT_ENUM(redirect_number);

enum redirect_service_flag {
	REDIRECT_NOT_ASKED = 1 << 0, /* another VIP cannot be told from it by an option */
	REDIRECT_SHARED = 1 << 1,    /* another VIP has one of its backends, too */
};
EXPORT_ENUM(redirect_service_flag);

struct redirect_service {
	struct address vip;
	__be16 port;
	__u16 flags; /* enum redirect_service_flag */
};

/* How an option names a VIP. */
struct redirect_name {
	__be32 tail; /* last 4 bytes */
	__be16 port;
	__u16 ipv6;
};

/*
 * A backend of this host under the VIP that an option names. Without a name: under any VIP,
 * so that packets to other ports are told apart at once.
 */
struct redirect_place {
	struct host_endpoint here;
	struct redirect_name name;
};

/* As an LPM key: where backends of a service may be; service 0: of any. */
struct redirect_prefix {
	__u32 prefix_len;
	__u32 service;
	struct address address;
};

enum redirect_syn_state {
	REDIRECT_SYN_NONE = 0,
	REDIRECT_SYN_PLAIN, /* no answer to it redirects */
	REDIRECT_SYN_ASKED, /* it left with the option, and no other SYN has left */
	REDIRECT_SYN_OTHER, /* only in exchange_syn: the connection has begun with another number */
};
EXPORT_ENUM(redirect_syn_state);

/* A connection that has begun, by client and VIP. */
struct redirect_syn {
	struct bpf_spin_lock lock;
	__u32 state; /* enum redirect_syn_state */
	__u32 sequence;
	__u32 when; /* s of CLOCK_MONOTONIC */
	struct host_flow flow;
};

/* The address and port by which a client on this host has called a backend itself. */
struct redirect_direct {
	struct address client;
	__be16 port;
	__u16 pad;
};

/* The VIP, of those that share backends, which a client's port has called last. */
struct redirect_holder {
	struct address vip;
	__be16 port;
	__u16 pad;
};

/* What a SYN-ACK has to repeat. */
struct redirect_echo {
	__u32 service;
	__be32 tail;
	__be16 port;
	__u16 when; /* coarse: redirect/slots.h */
};

/* The same by client and backend. */
struct redirect_echo_slot {
	struct bpf_spin_lock lock;
	__u32 sequence; /* of the SYN */
	struct redirect_echo echo;
	struct host_flow flow;
};

/*
 * An RST is noted only for the direction that leaves: either side has reset the
 * connection, and no packet has left since.
 */
enum redirect_end {
	REDIRECT_FIN = 1 << 0, /* has been seen in this direction */
	REDIRECT_RST = 1 << 1,
};
EXPORT_ENUM(redirect_end);

/*
 * One direction of a redirected connection: what its packets become. The peer of the host's
 * packets is the backend, the peer of packets that come is the VIP.
 */
struct redirect_way {
	struct address peer;
	__be16 peer_port;
	__u16 ends;     /* enum redirect_end */
	__u32 sequence; /* of the SYN that began it */
	__u32 ifindex;  /* by which the host's packets leave */
	__u32 service;
	__u64 seen; /* last packet, ns of CLOCK_MONOTONIC, to a second */
	__u64 neighbor; /* of what leaves only: where the kernel has sent to, and when: redirect/neighbor.h */
	__u32 acknowledged; /* only of what leaves: the number that the host expects next */
	__u32 pad;
};

struct redirect_counter {
	__u64 sent_packets; /* of this host's clients; several that the kernel coalesced count once */
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/* What happens to SYNs and SYN-ACKs of each service; everything else is a packet of redirect_counter. */
enum redirect_event {
	/* On a client's host: a SYN that leaves. */
	REDIRECT_ASKED = 0,    /* with the option */
	REDIRECT_AGAIN,        /* without, because one with it was not answered */
	REDIRECT_NO_ROOM,      /* its options, or the answer's, have no place for one more */
	REDIRECT_HAS_DATA,     /* it has data */
	REDIRECT_FORBIDDEN,    /* it has an option that excludes this one */
	REDIRECT_MALFORMED,    /* its options contradict themselves */
	REDIRECT_ASKS_ALREADY, /* another program has added the option before */
	REDIRECT_AMBIGUOUS,    /* another VIP ends like this one */
	REDIRECT_MAY_CLASH,    /* its port has been used to call a backend itself */
	REDIRECT_ADD_FAILED,   /* the kernel did not add the option */
	REDIRECT_NO_PLACE,     /* another SYN that may still be answered has its place */
	/* On a client's host: a SYN-ACK that comes. */
	REDIRECT_TAKEN, /* the connection is the backend's */
	REDIRECT_NOT_TAKEN, /* the VIP answered by itself, although it was asked: no director has handed the connection over */
	REDIRECT_NOT_ASKED_FOR, /* no such SYN has left, or another one with the same ports since */
	REDIRECT_FOREIGN,       /* its source is in no prefix of the service's backends */
	REDIRECT_FULL,          /* no place for one more connection */
	/* On a client's host: an ICMP error about a packet of a redirected connection. */
	REDIRECT_ERROR,
	/* On a client's host: SYNs that would meet a redirected connection. */
	REDIRECT_CLASH, /* to the backend itself, by the same port: dropped */
	REDIRECT_EARLY, /* sent again after it was answered: to the backend */
	/* On a backend's host. */
	REDIRECT_RECEIVED,    /* SYN with the option filled in */
	REDIRECT_MISNAMED,    /* the option names a VIP that is not the backend's: ignored */
	REDIRECT_ECHOED,      /* SYN-ACK, or RST that answers a SYN, with the option */
	REDIRECT_UNECHOED,    /* the same, without room for it */
	REDIRECT_ECHO_FAILED, /* the kernel did not add it */
	REDIRECT_OUTSIDE, /* to the backend itself, from outside of the source ranges: dropped */
	/* On a client's host: a SYN that leaves. */
	REDIRECT_QUOTA, /* without the option: the service has as many connections as it may */
	REDIRECT_EVENT_COUNT,
};
EXPORT_ENUM(redirect_event);
