/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Chooses the backend of a new connection, by policies that are no hash. Only SYNs come here. The
 * connection's other packets, which are hashed, must find that backend again:
 *
 *   p2c in gue     the backend is in the slot's row (p2c.h): the ring has no turns
 *   all others     any backend may be chosen: flow memory has it, as every slot asks for it
 *                  (flows.h); full NAT has its own; a redirected connection needs no memory,
 *                  because the director sees nothing more of it
 */
#pragma once

#include "director/forward/redirect.h"
#include "director/pick/p2c.h"

/* Turns that one connection may take: more in a row are hardly ever of backends that are down. */
#define TURNS_TRIED 16

/* Draws until p2c has two that are up: of two equals, less than one in two billion needs more. */
#define DRAWS_TRIED 32

/* How many backends least-conn compares, beginning anywhere: all, where there are no more. */
#define LEAST_COMPARED 64

/* More load than there is; times a weight, it still fits. */
#define LEAST_NONE (1ULL << 46)

static __always_inline int may_get_new(const struct backend *backend)
{
	return backend && backend->state == BACKEND_ACTIVE;
}

/* The owner of a slot that is drawn, or the next live candidate. */
static __always_inline __u32 pick_random(__u32 ring, const struct ring_header *header)
{
	__u32 number = slot_of((__u64)bpf_get_prandom_u32() << 32, header->size);
	const struct slot *slot = slot_at(ring, number);

	return slot ? first_candidate(ring, slot) : NO_BACKEND;
}

/*
 * The backend whose turn it is. All CPUs count in one place, so the order is exact, however they
 * meet. Backends that are down are passed over. Directors begin at different places of the same
 * order, or they would all begin with the same backend.
 */
static __always_inline __u32 pick_in_turn(__u32 ring, const struct ring_header *header)
{
	const struct settings *settings = get_settings();
	__u32 service = header->service, count = header->turn_count;
	struct turn *turn = bpf_map_lookup_elem(&next_turns, &service);

	if (!turn || !settings || !count)
		return NO_BACKEND;
	for (__u32 i = 0; i < TURNS_TRIED; i++) {
		__u64 number = __sync_fetch_and_add(&turn->next, 1) + settings->flow_salt;
		__u32 index = turn_at(ring + header->turns, number % count);

		if (may_get_new(backend_at(index)))
			return index;
	}
	return NO_BACKEND;
}

/* The least of the loads that were compared so far. */
struct least {
	__u32 turns;
	__u32 count;
	__u32 first;
	__u32 period;
	__u64 load;
	__u64 weight;
	__u32 index;
	__u32 pad;
};

static long compare_load(__u32 i, struct least *least)
{
	__u32 index, weight;
	struct load *load;
	__u64 its;

	if (!least->count)
		return 1;
	index = turn_at(least->turns, (least->first + i) % least->count);
	load = load_at(index);
	if (!load || !may_get_new(backend_at(index)))
		return 0;
	weight = load->weight;
	if (!weight)
		return 0;
	its = load_now(load, least->period) + LOAD_CONNECTION;
	if (its * least->weight >= least->load * weight)
		return 0;
	least->load = its;
	least->weight = weight;
	least->index = index;
	return 0;
}

/*
 * The backend with the least load for its weight, also with one connection more. The search
 * begins at any place, so that equal backends get equally much.
 */
static __noinline __u32 pick_least(__u32 ring, const struct ring_header *header)
{
	struct least least = {
		.turns = ring + header->turns,
		.count = header->turn_count,
		.period = bpf_ktime_get_coarse_ns() >> LOAD_PERIOD,
		/*
		 * A value that the verifier does not know: Linux 6.1 walks the loop's body
		 * once, and takes branches out that this first turn would not take.
		 */
		.load = LEAST_NONE | bpf_get_prandom_u32(),
		.weight = 1,
	};

	if (!least.count)
		return NO_BACKEND;
	least.first = slot_of((__u64)bpf_get_prandom_u32() << 32, least.count);
	bpf_loop(least.count < LEAST_COMPARED ? least.count : LEAST_COMPARED, compare_load, &least,
		 0);
	return least.index;
}

/* Whether the second would have less load for its weight than the first, with one connection more. */
static __always_inline int is_lighter(__u32 second, __u32 first, __u32 period)
{
	struct load *its = load_at(second), *others = load_at(first);

	if (!its || !others || !its->weight || !others->weight)
		return 0;
	return (__u64)(load_now(its, period) + LOAD_CONNECTION) * others->weight <
	       (__u64)(load_now(others, period) + LOAD_CONNECTION) * its->weight;
}

/*
 * The better of two backends that are drawn, each as likely as its turns are many. No packet goes
 * by one of them to the other, so neither is preferred (has_less_load).
 */
static __noinline __u32 pick_of_two(__u32 ring, const struct ring_header *header)
{
	__u32 period = bpf_ktime_get_coarse_ns() >> LOAD_PERIOD;
	__u32 count = header->turn_count, turns = ring + header->turns;
	__u32 chosen = NO_BACKEND;

	for (__u32 i = 0; i < DRAWS_TRIED; i++) {
		__u32 number = slot_of((__u64)bpf_get_prandom_u32() << 32, count);
		__u32 index = turn_at(turns, number);

		if (index == chosen || !may_get_new(backend_at(index)))
			continue;
		if (chosen == NO_BACKEND) {
			chosen = index;
			continue;
		}
		if (is_lighter(index, chosen, period))
			chosen = index;
		break;
	}
	return chosen;
}

/* The backend that the policy chooses for a new connection, or NO_BACKEND. */
__noinline __u32 choose_by_policy(struct packet *packet)
{
	const struct ring_header *header;
	__u32 ring;

	if (!packet)
		return NO_BACKEND;
	ring = packet->ring;
	header = ring_line_at(ring);
	if (!header)
		return NO_BACKEND;
	if (header->policy == POLICY_P2C)
		return header->turn_count ? pick_of_two(ring, header) : pick_less_loaded(packet);
	if (header->policy == POLICY_ROUND_ROBIN)
		return pick_in_turn(ring, header);
	if (header->policy == POLICY_LEAST_CONN)
		return pick_least(ring, header);
	return header->policy == POLICY_RANDOM ? pick_random(ring, header) : NO_BACKEND;
}

/*
 * The same only for redirected connections, in a ring with RING_REDIRECTED; NO_BACKEND: the ring
 * says where the connection goes. Its slot is not read: the chosen backend needs nothing of it.
 */
__noinline __u32 choose_redirected(struct xdp_md *ctx, struct packet *packet)
{
	const struct ring_header *header;
	const struct backend *backend;
	__u32 chosen;

	if (!packet || !asks_redirect(ctx, packet))
		return NO_BACKEND;
	header = ring_line_at(packet->ring);
	if (!header)
		return NO_BACKEND;
	chosen = header->policy == POLICY_ROUND_ROBIN ? pick_in_turn(packet->ring, header) :
							choose_by_policy(packet);
	backend = backend_at(chosen);
	/* A connection to any other backend is not handed over: it would have to be remembered. */
	if (!backend || !takes_over(backend))
		return NO_BACKEND;
	load_open(header, chosen);
	return chosen;
}

/*
 * The backend of a new connection in a ring without flow memory, or NO_BACKEND. Connections that
 * the policy places in a ring with RING_REDIRECTED do not come here.
 */
__noinline __u32 pick_by_policy(struct packet *packet)
{
	const struct ring_header *header;
	__u32 chosen = NO_BACKEND;

	if (!packet)
		return NO_BACKEND;
	header = ring_line_at(packet->ring);
	if (!header)
		return NO_BACKEND;
	if (!(header->flags & RING_REDIRECTED))
		chosen = choose_by_policy(packet);
	/* What is not redirected goes by gue: its packets name both backends of the slot. */
	else if (header->policy == POLICY_P2C)
		chosen = pick_less_loaded(packet);
	if (chosen == NO_BACKEND)
		chosen = first_candidate(packet->ring, &packet->slot);
	if (chosen != NO_BACKEND)
		load_open(header, chosen);
	return chosen;
}
