/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of a director that is a VTEP. As in director/maps.h, a size of one stands for none yet. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi/vtep_types.h"
#include "director/nat/translate.h"
#include "lib/packet.h"

/* Read without a lookup. */
struct vtep_self this_vtep SEC(".data.vtep");

/* By kind and VNI on the wire. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct vtep_network);
} vtep_networks SEC(".maps");

/* Only the keys matter. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vtep_peer);
	__type(value, __u8);
} vtep_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << VTEP_FRONT_BITS);
	__type(key, __u32);
	__type(value, struct vtep_front);
} vtep_fronts SEC(".maps");

/* Place 0 is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct vtep_place);
} vtep_places SEC(".maps");

/* By the index of the backend. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct vtep_backend);
} vtep_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vtep_address);
	__type(value, struct vtep_host);
} vtep_hosts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vtep_address);
	__type(value, struct vtep_own);
} vtep_own_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vtep_address);
	__type(value, struct vtep_stand_in);
} vtep_stand_ins SEC(".maps");

/* The most that is before the frame inside: Ethernet, two tags, IPv6, UDP, Geneve and its options. */
#define VTEP_OUTER_MAX 384

/* Where a reply goes. */
enum vtep_direction {
	VTEP_NO_REPLY = 0,
	VTEP_OUT,       /* out of tenants' networks, by the host's routes */
	VTEP_TO_HOST,   /* to a client in a tenant's network */
	VTEP_TO_SOCKET, /* no reply but an answer to a health check: to a socket of this host */
};

/* Bytes that are summed at once: the most that bpf_csum_diff takes. */
#define VTEP_CHUNK 512
#define VTEP_CHUNKS 130 /* more than the longest packet has: 64 KiB, and its headers */

/* The packet that this CPU has, with the tunnel that it has come in. */
struct vtep_entry {
	struct packet packet; /* the stack has no room for it */
	/* What its outer headers say. */
	__u64 source[2]; /* the sender's address, as in memory */
	__u64 mac;       /* of this director in the network */
	__u32 network;   /* as the key of struct vtep_network */
	__u32 length;    /* of the outer headers */
	__u32 end;       /* of the frame inside, from the outer frame's beginning */
	__u32 found;     /* its segment; 0: the packet has come in no tunnel of this VTEP */
	__u8 ipv6;       /* the tunnel is over IPv6 */
	__u8 ecn;
	__u8 pad[6];
	/* Once they are off. */
	__u32 segment;   /* not 0: they are, and this is its segment */
	__u32 direction; /* enum vtep_direction: of a reply */
	__u32 place;     /* VTEP_TO_HOST: where the client is */
	__u32 rest;      /* enum rest: what is not decided yet */
	__u8 outer[VTEP_OUTER_MAX];
	struct vtep_place back;     /* where an answer goes */
	struct translation answer;  /* what an answer to a health check becomes */
	__u8 chunk[VTEP_CHUNK + 4]; /* of the frame, to be summed */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vtep_entry);
} vtep_entries SEC(".maps");

static __always_inline struct vtep_entry *this_entry(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&vtep_entries, &zero);
}

static __always_inline const struct vtep_backend *vtep_backend_at(__u32 backend)
{
	return bpf_map_lookup_elem(&vtep_backends, &backend);
}

/* The segment that the packet has come in by a tunnel of this VTEP, whose headers are off; 0: by none. */
static __always_inline __u32 entered_segment(void)
{
	const struct vtep_entry *entry = this_entry();

	return entry ? entry->segment : 0;
}

/* The network in VXLAN or Geneve that a backend is in; 0: none. */
static __always_inline __u32 overlay_segment_of(__u32 backend)
{
	const struct vtep_backend *in = vtep_backend_at(backend);

	return in ? in->segment : 0;
}
