/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A service whose affinity has changed: connections that are older than the change are
 * found by another hash, in the ring before. It lies behind the ring that places new
 * ones, and every slot of the latter says, by its list or SLOT_SETTLING, that its
 * candidates are not all.
 */
#pragma once

#include "director/pick/ring.h"

struct before {
	__u32 ring; /* line */
	struct slot slot;
};

/* Finds the flow's slot in the ring before; 0: there is none, or the slot has no owner. */
static __noinline int find_before(const struct packet *packet, __u32 ring, struct before *before)
{
	const struct ring_header *header = ring_line_at(ring);
	const struct slot *slot;

	if (!header || !header->before)
		return 0;
	before->ring = ring + header->before;
	header = ring_line_at(before->ring);
	if (!header)
		return 0;
	slot = slot_at(before->ring, slot_of(hash_flow(&packet->flow, header), header->size));
	if (!slot)
		return 0;
	before->slot = *slot;
	return slot->owner != NO_BACKEND;
}
