/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A ring: a flow's hash, its slot, and the candidates in the slot's row. The hash is computed
 * the same way by weir's control plane and agents (internal/model, Flow); a change here is a
 * change there, and moves every connection.
 */
#pragma once

#include "director/maps.h"
#include "director/segment.h"
#include "lib/packet.h"

static __always_inline __u64 hash_mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * HASH_K1;
	return hash ^ hash >> 32;
}

static __always_inline __u64 hash_finish(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * HASH_K2;
	hash ^= hash >> 29;
	hash *= HASH_K3;
	return hash ^ hash >> 32;
}

/* Half of a flow's address, in host order. */
static __always_inline __u64 address_half(const struct address *address, int half)
{
	return bpf_be64_to_cpu(ADDRESS_HALF(address, half));
}

/* The upper half chooses the slot, the lower half is entropy for outer headers. */
static __always_inline __u64 hash_by(const struct flow *flow, __u64 salt, int by_flow)
{
	const struct address *from = &flow->source, *to = &flow->destination;
	__u64 hash = salt, word = 0;

	if (flow->ipv6) {
		hash = hash_mix(hash, address_half(from, 0));
		hash = hash_mix(hash, address_half(from, 1));
		if (likely(by_flow)) {
			hash = hash_mix(hash, address_half(to, 0));
			hash = hash_mix(hash, address_half(to, 1));
		}
	} else {
		/* An IPv4 address is half of a word: both at once, in host order the source above. */
		word = ADDRESS_WORD(from, 0);
		if (likely(by_flow))
			word |= (__u64)ADDRESS_WORD(to, 0) << 32;
		hash = hash_mix(hash, bpf_be64_to_cpu(word));
		word = 0;
	}
	if (likely(by_flow)) /* in the upper half, in host order */
		word = bpf_be64_to_cpu((__u64)ports_of(flow)) |
		       (flow->segment ^ (__u32)flow->protocol << 26);
	return hash_finish(hash, word);
}

/* The bits of a word that count, of the first so many of it. */
static __always_inline __u64 first_bits(__u32 count)
{
	return count >= 64 ? ~0ULL : ~(~0ULL >> (count & 63));
}

/* The hash of what fewer services go by. Not static: verified once. */
__noinline __u64 hash_rarely(const struct flow *flow, const struct ring_header *ring)
{
	__u64 upper, lower;
	__u32 bits;

	if (!flow || !ring)
		return 0;
	if (ring->affinity == AFFINITY_DESTINATION_PORT)
		return hash_finish(ring->salt, (__u64)bpf_ntohs(flow->destination_port) << 32);
	if (!flow->ipv6) {
		upper = (__u64)bpf_ntohl(ADDRESS_WORD(&flow->source, 0)) << 32;
		return hash_finish(hash_mix(ring->salt, upper & first_bits(ring->prefix4)), 0);
	}
	bits = ring->prefix6;
	upper = address_half(&flow->source, 0) & first_bits(bits);
	lower = bits > 64 ? address_half(&flow->source, 1) & first_bits(bits - 64) : 0;
	return hash_finish(hash_mix(hash_mix(ring->salt, upper), lower), 0);
}

static __always_inline __u64 hash_flow(const struct flow *flow, const struct ring_header *ring)
{
	if (unlikely(ring->affinity > AFFINITY_SOURCE_IP))
		return hash_rarely(flow, ring);
	return hash_by(flow, ring->salt, ring->affinity == AFFINITY_FLOW);
}

/* Maps the hash to 0..size-1 without a division: a slot's number, above 32 bits of fraction. */
static __always_inline __u64 place_of(__u64 hash, __u32 size)
{
	return (hash >> 32) * size;
}

static __always_inline __u32 slot_of(__u64 hash, __u32 size)
{
	return place_of(hash, size) >> 32;
}

static __always_inline struct backend *backend_at(__u32 index)
{
	return bpf_map_lookup_elem(&backends, &index);
}

/* What some packets do not reach by their backend's mode: see forward_otherwise. */
#define BACKEND_ODD (BACKEND_LOCAL | BACKEND_REDIRECT | BACKEND_ASKS | BACKEND_TWO_TAGS)

static __always_inline int alive(const struct backend *backend)
{
	return backend->state == BACKEND_ACTIVE || backend->state == BACKEND_DRAINING;
}

/* Whether it gets packets of connections that it has: a suspect may not be down at all. */
static __always_inline int keeps(const struct backend *backend)
{
	return alive(backend) || backend->state == BACKEND_SUSPECT;
}

static __always_inline void *ring_line_at(__u32 line)
{
	return bpf_map_lookup_elem(&ring_lines, &line);
}

/* The candidate at a position in its row. */
static __always_inline __u32 candidate_at(const struct candidates *list, __u32 position,
					  __u32 owner)
{
	position %= RING_CANDIDATES_MAX;
	/* The count is the word before the indexes, as the owner is the row's first. */
	return position ? ((const __u32 *)list)[position] : owner;
}

/* A row's candidate, in the order in which candidates are likely to have an unknown connection. */
static __always_inline __u32 candidate_by_age(const struct candidates *list, __u32 i, __u32 owner)
{
	return candidate_at(list, list->oldest[i], owner);
}

/* The owner is down: the first live one of the row's other candidates. Not static: verified once. */
__noinline __u32 next_candidate(__u32 ring, __u32 next)
{
	struct candidates *list;
	struct backend *backend;

	if (!(next & SLOT_LIST)) {
		next &= ~SLOT_SETTLING;
		backend = backend_at(next);
		return backend && alive(backend) ? next : NO_BACKEND;
	}
	list = ring_line_at(ring + (next & ~SLOT_LIST));
	if (!list)
		return NO_BACKEND;
	for (__u32 i = 0; i < RING_CANDIDATES_MAX - 1 && i < list->count; i++) {
		backend = backend_at(list->index[i]);
		if (backend && alive(backend))
			return list->index[i];
	}
	return NO_BACKEND;
}

/* The backend of a turn; `turns` is the line at which the turns begin: see policy.h. */
static __always_inline __u32 turn_at(__u32 turns, __u32 number)
{
	const struct turns *line = ring_line_at(turns + number / RING_TURNS_PER_LINE);

	return line ? line->index[number % RING_TURNS_PER_LINE] : NO_BACKEND;
}

/* The first live candidate of the row. */
static __always_inline __u32 first_candidate(__u32 ring, const struct slot *slot)
{
	const struct backend *owner = backend_at(slot->owner);

	return owner && alive(owner) ? slot->owner : next_candidate(ring, slot->next);
}

static __always_inline struct slot *slot_at(__u32 ring, __u32 number)
{
	struct slot *slots = ring_line_at(ring + RING_HEADER_LINES + number / RING_SLOTS_PER_LINE);

	return slots ? &slots[number % RING_SLOTS_PER_LINE] : NULL;
}

/* The slot at a place (see place_of): a line is eight slots of eight bytes, so 3 bits say which. */
static __always_inline struct slot *slot_in(__u32 ring, __u64 place)
{
	void *line = ring_line_at(ring + RING_HEADER_LINES + (place >> 35));

	/* As slots[number % RING_SLOTS_PER_LINE], by one shift. */
	return line ? line + (place >> 29 & 7 * sizeof(struct slot)) : NULL;
}

/* The owner of the slot at a place, in a ring with RING_OWNERS; NO_BACKEND: the slot has to be read. */
static __always_inline __u32 owner_in(__u32 ring, const struct ring_header *header, __u64 place)
{
	void *line = ring_line_at(ring + header->owners + (place >> 37));

	/* As index[number % RING_OWNERS_PER_LINE], by one shift. */
	return line ? *(const volatile __u16 *)(line + (place >> 31 & 31 * sizeof(__u16))) :
		      NO_BACKEND;
}

_Static_assert(RING_OWNERS_PER_LINE == 32, "see owner_in");
_Static_assert(RING_SLOTS_PER_LINE == 8 && sizeof(struct slot) == 8, "see slot_in");

/* By one load and one store, because it may change. Both are aligned to eight bytes. */
static __always_inline void copy_slot(struct slot *to, const struct slot *from)
{
	typedef __u64 slot_word __attribute__((may_alias));

	*(slot_word *)to = *(const volatile slot_word *)from;
}
