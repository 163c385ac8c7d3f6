/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A connection that nobody remembers is taken for the oldest owner's. When it goes on, that
 * was right: who does not have it would have reset it. So there are connections of older
 * owners of which no director has seen a packet yet, and perhaps more of them: the
 * service's log should go on naming these owners (internal/history).
 */
#pragma once

#include "before.h"

/* Whose the packet would be if the slot named nobody but its owner, and who stands in for it. */
static __always_inline __u32 candidate_without_history(const struct packet *packet)
{
	const struct backend *owner = backend_at(packet->slot.owner);

	return owner && keeps(owner) ? packet->slot.owner :
				       next_candidate(packet->ring, packet->slot.next);
}

/* The second packet of a connection of TCP whose first one was guessed to be the backend's. */
static __noinline int note_guess(const struct packet *packet, __u32 service, __u32 backend)
{
	const struct ring_header *header = ring_line_at(packet->ring);
	__u64 *last = bpf_map_lookup_elem(&guesses, &service), now = snat_clock();

	if (!header || !last)
		return 0;
	/* Without a list and a ring before the log has nobody else to name. */
	if (!(packet->slot.next & SLOT_LIST) && !header->before)
		return 0;
	/* Most of them come in bursts, and the line is every CPU's. */
	if (*(volatile __u64 *)last == now || backend == candidate_without_history(packet))
		return 0;
	*(volatile __u64 *)last = now;
	return 1;
}
