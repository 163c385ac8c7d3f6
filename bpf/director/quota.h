/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets that a segment may have in a second: of services with RING_QUOTA, and those that this
 * director answers itself. All CPUs count in one place, so that a segment whose packets all come to one CPU has no less; each CPU takes a batch of
 * packets there, so that few packets touch what other CPUs write. What CPUs have taken and do not
 * spend in a window is lost, some hundredths at most.
 */
#pragma once

#include "abi/quota_types.h"
#include "director/maps.h"
#include "director/quota_number.h"
#include "lib/packet.h"

#define QUOTA_TRIES 4

/* How many packets this CPU gets, at most a batch. spent: number of the window << 32 | packets. */
static __always_inline __u32 take_batch(__u64 *spent, const struct quota *quota, __u32 window)
{
	for (int i = 0; i < QUOTA_TRIES; i++) {
		__u64 before = *(volatile __u64 *)spent;
		__u32 used = before >> 32 == window ? before : 0, taken;

		if (used >= quota->packets)
			return 0;
		taken = quota->packets - used;
		if (taken > quota->batch)
			taken = quota->batch;
		if (__sync_val_compare_and_swap(spent, before,
						(__u64)window << 32 | (used + taken)) == before)
			return taken;
	}
	return 1; /* others take, too: that is one packet, at most, for each CPU and packet of theirs */
}

/*
 * Spends a packet of a quota. Returns whether it had one. Not inlined, for its room on the stack.
 */
static __noinline int spend_quota(const struct packet *packet, __u32 number)
{
	__u32 window = bpf_ktime_get_coarse_ns() >> QUOTA_WINDOW;
	struct quota *quota = bpf_map_lookup_elem(&quotas, &number);
	struct quota_share *share = bpf_map_lookup_elem(&quota_shares, &number);
	__u64 *spent = bpf_map_lookup_elem(&quota_spent, &number);

	if (!quota || !share || !spent || !quota->packets)
		return 1;
	if (share->window != window) {
		share->window = window;
		share->left = 0;
	}
	if (!share->left && share->over != (__u64)window + 1)
		share->left = take_batch(spent, quota, window);
	if (share->left) {
		share->left--;
		return 1;
	}
	share->over = (__u64)window + 1;
	share->packets++;
	share->bytes += packet->length;
	return 0;
}

/*
 * Spends a packet of the segment's, of no service: this director itself has an answer to it. So many
 * questions, too, are no more than what the segment may send.
 */
static __always_inline int may_answer(const struct packet *packet)
{
	const struct settings *settings = get_settings();
	__u32 segment = packet->flow.segment, *number;

	if (likely(!settings || !(settings->flags & SETTINGS_QUOTAS)))
		return 1;
	number = bpf_map_lookup_elem(&segment_quotas, &segment);
	return !number || spend_quota(packet, *number);
}
