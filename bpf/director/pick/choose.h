/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The backend of a packet of a service: the slot's owner, what is remembered of the flow
 * (flows.h), or the policy's choice for a new connection (policy.h).
 */
#pragma once

#include "director/pick/flows.h"
#include "director/pick/open_flow.h"
#include "director/pick/policy.h"
#include "director/pick/ring.h"

/*
 * The owner of the packet's slot, in a ring with RING_OWNERS, also in packet->backend; NULL: the slot
 * has to be read.
 */
static __always_inline struct backend *find_owner(struct packet *packet,
						  const struct ring_header *header)
{
	__u64 hash = hash_by(&packet->flow, header->salt, 1);
	struct backend *owner;
	__u32 index;

	packet->hash = hash;
	index = owner_in(packet->ring, header, place_of(hash, header->size));
	owner = backend_at(index);
	if (unlikely(!owner || !alive(owner))) /* as that of NO_BACKEND */
		return NULL;
	packet->backend = index;
	return owner;
}

/*
 * The index of the backend that the packet belongs to, or NO_BACKEND. If that was looked up, to see
 * that it may have the packet, it is in `backend`, so that it need not be looked up again. The
 * policy is the ring's; a constant, where the caller knows it.
 */
static __always_inline __u32 pick(struct xdp_md *ctx, struct packet *packet,
				  const struct ring_header *header, __u8 policy, __u64 hash,
				  struct backend **backend)
{
	__u64 place = place_of(hash, header->size);
	struct slot *at = slot_in(packet->ring, place);
	struct backend *owner;

	if (unlikely(!at))
		return NO_BACKEND;
	copy_slot(&packet->slot, at);
	if (unlikely(packet->slot.next & (SLOT_LIST | SLOT_SETTLING)) &&
	    header->flags & RING_MEMORY) {
		*backend = follow_open(ctx, packet, header->service);
		if (likely(*backend))
			return packet->backend;
		note_numbers(ctx, packet);
		return pick_remembered(packet, place >> 32);
	}
	if (unlikely(policy != POLICY_MAGLEV) && is_syn(packet))
		return pick_by_policy(packet);
	owner = backend_at(packet->slot.owner);
	if (likely(owner && alive(owner))) {
		*backend = owner;
		return packet->slot.owner;
	}
	return next_candidate(packet->ring, packet->slot.next);
}
