/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A connection that is not remembered is taken for the oldest owner's. If it goes on, that
 * was right: a backend that does not have it would have reset it. So the older owners have
 * connections of which no director had seen a packet, and may have more: the service's log
 * should go on naming these owners (internal/history).
 */
#pragma once

#include "director/flow_clock.h"
#include "director/pick/previous_ring.h"

/* The packet's backend if the slot named only its owner and the owner's backup. */
static __always_inline __u32 candidate_without_history(const struct packet *packet)
{
	const struct backend *owner = backend_at(packet->slot.owner);

	return owner && keeps(owner) ? packet->slot.owner :
				       next_candidate(packet->ring, packet->slot.next);
}

/* Notes that a TCP connection goes on whose first packet was guessed to be the backend's. */
static __noinline int note_guess(const struct packet *packet, __u32 service, __u32 backend)
{
	const struct ring_header *header = ring_line_at(packet->ring);
	__u64 *last = bpf_map_lookup_elem(&guesses, &service), now = flow_clock();

	if (!header || !last)
		return 0;
	/* Without a list and without an earlier ring, the log has no other owner to name. */
	if (!(packet->slot.next & SLOT_LIST) && !header->before)
		return 0;
	/* Most guesses come in bursts, and all CPUs share the cache line. */
	if (*(volatile __u64 *)last == now || backend == candidate_without_history(packet))
		return 0;
	*(volatile __u64 *)last = now;
	return 1;
}
