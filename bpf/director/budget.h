/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Limits what each CPU may do in a second. All sources share one budget, which the sources that
 * send most use up; then each source has a small one of its own, by a keyed hash of its
 * network. So one source, or one network of spoofed ones, leaves the others theirs. A tenant may send
 * with any source in its segment: a segment has a few of the small ones, whatever its sources are.
 */
#pragma once

#include <bpf/bpf_helpers.h>

#include "abi/types.h"
#include "director/maps.h"
#include "lib/packet.h"

static __always_inline int spend(struct budget *budget, __u64 second, __u32 rate)
{
	if (!budget)
		return 0;
	if (budget->second != second) {
		budget->second = second;
		budget->used = 0;
	}
	return budget->used++ < rate;
}

/* How many of the small budgets the sources of one segment have between them. */
#define BUDGET_SEGMENT_BITS 2

/* The place of a source's own budget, behind the common one of its kind: of its /24, IPv6 its /48. */
static __always_inline __u32 budget_of(const struct flow *flow, __u64 salt)
{
	__u32 place, first;
	__u64 network = bpf_ntohl(ADDRESS_WORD(&flow->source, 0));

	if (flow->ipv6)
		network = network << 16 | bpf_ntohl(ADDRESS_WORD(&flow->source, 1)) >> 16;
	else
		network >>= 8;
	place = (network ^ salt) * HASH_K1 >> (64 - BUDGET_SOURCES_BITS);
	if (flow->segment) {
		first = (flow->segment ^ salt) * HASH_K2 >> (64 - BUDGET_SOURCES_BITS);
		place = (first & -(1U << BUDGET_SEGMENT_BITS)) |
			(place & ((1U << BUDGET_SEGMENT_BITS) - 1));
	}
	return 1 + place;
}

/* Whether the packet's source may have one more of what budgets of this kind limit. */
static __always_inline int may_spend(enum budget_kind kind, const struct flow *flow, __u32 rate,
				     const struct settings *settings)
{
	__u64 second = bpf_ktime_get_coarse_ns() / 1000000000;
	__u32 common = kind * BUDGETS_EACH, own;

	if (spend(bpf_map_lookup_elem(&budgets, &common), second, rate))
		return 1;
	own = common + budget_of(flow, settings->flow_salt);
	return spend(bpf_map_lookup_elem(&budgets, &own), second, rate >> BUDGET_SOURCES_BITS);
}
