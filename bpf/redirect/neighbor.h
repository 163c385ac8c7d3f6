/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The neighbor that packets for a backend leave to. The kernel finds it for one packet in each
 * period: it asks the routes to the backend, waits for the neighbor if it has to, and sends the
 * packet by the same device once more (bpf_redirect_neigh). The destination in its Ethernet
 * header is then written into the packets that follow, also of connections that begin, so that
 * they go on as they came.
 *
 * A period is less than any time after which TCP sends again (200 ms at least, TCP_RTO_MIN in
 * the kernel's include/net/tcp.h): what is sent again goes by the current route.
 */
#pragma once

#include "lib/clock.h"
#include "redirect/packet.h"

#define NEIGHBOR_TIME_SHIFT 27 /* 134 ms */
#define NEIGHBOR_BITS (8 * ETH_ALEN)
#define NEIGHBORS_MAX 4096

/* The fields that choose a route, except the DSCP, which a connection has only while it lives. */
struct neighbor_place {
	struct address client;
	struct address backend;
	__u32 ifindex; /* by which packets leave */
	__u32 mark;
};

struct neighbor_found {
	__u64 neighbor; /* and the period, as in redirect_way */
	__u64 when;     /* ns of CLOCK_MONOTONIC */
};

/* Not pinned: a program finds what it needs soon. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NEIGHBORS_MAX);
	__type(key, struct neighbor_place);
	__type(value, struct neighbor_found);
} neighbors SEC(".maps");

/* The current period, one of 65,536 numbers: none is kept for longer than a second. */
static __always_inline __u64 neighbor_time(__u64 now)
{
	return now >> NEIGHBOR_TIME_SHIFT << NEIGHBOR_BITS;
}

static __always_inline int is_known(__u64 neighbor, __u64 now)
{
	return neighbor && !((neighbor ^ neighbor_time(now)) >> NEIGHBOR_BITS);
}

/*
 * Asks what other connections have found. Not inlined: few packets need it, and the others do
 * not need its room on the stack.
 */
static __noinline void ask_others(struct __sk_buff *skb, const struct segment *s,
				  struct redirect_way *way, __u64 now)
{
	struct neighbor_place place = {
		.client = s->source,
		.backend = way->peer,
		.ifindex = way->ifindex,
		.mark = skb->mark,
	};
	struct neighbor_found *found = bpf_map_lookup_elem(&neighbors, &place);

	if (found && since(found->when, now) <= SECOND)
		way->neighbor = found->neighbor;
}

/* Writes the neighbor, if it is known, into a packet that leaves by the device it is at. */
static __always_inline int to_neighbor(struct __sk_buff *skb, const struct segment *s,
				       struct redirect_way *way, __u64 now)
{
	__u64 neighbor;

	if (way->ifindex != skb->ifindex || skb->vlan_present)
		return 0;
	if (!is_known(way->neighbor, now))
		ask_others(skb, s, way, now);
	neighbor = way->neighbor;
	if (!is_known(neighbor, now))
		return 0;
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), &neighbor, ETH_ALEN, 0);
}
