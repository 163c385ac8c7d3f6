/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the director of a VTEP and its loader share: networks of tenants in VXLAN (RFC 7348) and
 * Geneve (RFC 8926).
 */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/* The ports that IANA has assigned. */
#define VXLAN_PORT 4789
#define GENEVE_PORT 6081

/* This director as a VTEP. */
struct vtep_self {
	__be32 address4; /* 0: none */
	__u32 segment;   /* of the tags that frames to it have, as in struct flow */
	struct address address6;
	__be16 vxlan_port;  /* 0: no VXLAN ends here */
	__be16 geneve_port; /* the same of Geneve */
	__u32 check_mark;   /* of the sockets of health checks */
	__u32 generation; /* one more when a network or a VTEP comes, goes or changes: see struct vtep_front */
};

/*
 * A network on the wire: kind << 24 | VNI, as a segment. The VNI may be another one than the
 * segment's ID: OVN numbers its networks itself.
 */
struct vtep_network {
	__u32 segment;
	__u16 flags; /* enum vtep_network_flag */
	__u16 pad;
	__u8 mac[6]; /* of this director in it */
	__u16 pad2;
};

enum vtep_network_flag {
	VTEP_NETWORK_PEERS = 1 << 0, /* only some of the VTEPs may send: see struct vtep_peer */
};
EXPORT_ENUM(vtep_network_flag);

/*
 * VTEPs from which packets are taken: those of one network on the wire, or (0) of all without the flag. An
 * LPM key.
 */
struct vtep_peer {
	__u32 prefix_len; /* of all that follows */
	__u32 network;
	__u32 ipv6;
	struct address address;
};

/*
 * What a CPU has found out about packets of one network from one VTEP. Nothing clears entries: those
 * of another generation are found out again.
 */
#define VTEP_FRONT_BITS 12

struct vtep_front {
	__u64 source[2];  /* the VTEP's address, as in memory */
	__u32 network;    /* as the key of struct vtep_network */
	__u32 generation; /* of struct vtep_self; 0: the entry has nothing */
	__u32 segment;
	__u32 pad;
	__u64 mac; /* of this director in the network, in the first six bytes */
};

/*
 * Where a host of a tenant's network is: one cache line. Only the way to the VTEP changes while
 * packets read a place, one aligned word at a time.
 */
#define VTEP_OPTIONS_MAX 24

enum vtep_place_flag {
	VTEP_PLACE_IPV6 = 1 << 0,     /* the VTEP's address is IPv6 */
	VTEP_PLACE_GENEVE = 1 << 1,   /* else VXLAN */
	VTEP_PLACE_CRITICAL = 1 << 2, /* some option is critical (RFC 8926, 3.5) */
};
EXPORT_ENUM(vtep_place_flag);

struct vtep_place {
	__u8 mac[6];        /* next hop to the VTEP */
	__be16 vlan;        /* as in struct backend */
	__u8 source_mac[6]; /* of the interface it leaves by */
	__u8 flags;         /* enum vtep_place_flag */
	__u8 options;       /* bytes of Geneve's options, a multiple of 4 */
	struct address vtep;
	__be32 vni;    /* as in the header: the lowest byte is reserved */
	__u32 ifindex; /* by which it leaves; 0: the way is not known */
	__be32 option[VTEP_OPTIONS_MAX / 4];
};
EXPORT_STRUCT(vtep_place);

/* What packets to a backend in a tenant's network have `source` for. */
enum vtep_source {
	VTEP_SOURCE_NONE = 0,
	VTEP_SOURCE_TUNNEL, /* ipip or gue: the tunnel's source */
	VTEP_SOURCE_SNAT, /* full NAT: in the place of the director's address, with the same port */
};
EXPORT_ENUM(vtep_source);

/* By backend, beside struct backend: of those that are in a tenant's network, or whose clients are. */
struct vtep_backend {
	__u32 place;           /* 0: it is in none of these networks */
	__u32 segment;         /* that it is in */
	__u32 service_segment; /* of its service: where its clients are */
	__u32 uses;            /* enum vtep_source */
	struct address source; /* that this director has in the backend's segment */
};

/* An address in a network, of this director or of another host. */
struct vtep_address {
	__u32 segment;
	__u32 ipv6;
	struct address address;
};

/* Another host: where answers to a client go. With the address of all zeros: where they go otherwise. */
struct vtep_host {
	__u32 place;
	__u8 mac[6];
	__u8 source_mac[6]; /* of this director in the network */
	__u32 mtu;          /* largest IP packet that fits */
};

/* An address that this director has in a network. */
enum vtep_own_flag {
	VTEP_OWN_ANSWERS = 1 << 0, /* it answers for it by ARP and NDP */
	VTEP_OWN_HOST = 1 << 1,    /* it is not a VIP, but this director's own */
	VTEP_OWN_SNAT = 1 << 2,    /* it is full NAT's source there */
};
EXPORT_ENUM(vtep_own_flag);

struct vtep_own {
	__u16 flags; /* enum vtep_own_flag */
	__u8 mac[6]; /* of this director there */
};

/*
 * By struct vtep_address: a backend's address that this host has, too. Sockets of health checks have another one in
 * its place, because packets to an address of the host's own do not leave it: CHECK_TARGET4 and CHECK_TARGET6, with
 * a number in the other bits.
 */
struct vtep_stand_in {
	struct address address;
};

#define CHECK_TARGET4 0xf4000000
#define CHECK_TARGET6_WORD1 0x72010000 /* after CHECK_ADDRESS6_WORD0 */

/*
 * Health checks in tenants' networks have sockets of this host's own, whose addresses say which segment they
 * are in: these bits, and struct flow's segment in the others. On the wire they become the address that this
 * director has in the segment.
 */
#define CHECK_ADDRESS4 0xf0000000
#define CHECK_ADDRESS6_WORD0 0xfd776569 /* a prefix of RFC 4193: fd77:6569:7200::/96 */
#define CHECK_ADDRESS6_WORD1 0x72000000
