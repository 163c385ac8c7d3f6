/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which segments may have only so much of the datapath: see struct quota. Their part of a table of flows
 * is a part of each bucket: so nothing has to be counted beside the table, where flows end without a
 * packet. A part of fewer than QUOTA_LEAST places is one of some neighboring buckets together, up to
 * QUOTA_GROUP: else a bucket would have none, or no two for a flow of IPv6.
 */
#pragma once

#include "director/maps.h"

/* The number of a service's quota; 0: it has none. */
static __always_inline __u32 quota_of(__u32 service)
{
	__u64 *number = bpf_map_lookup_elem(&service_quotas, &service);

	return number ? *(volatile __u64 *)number : 0;
}

/* The part of a table that a quota with this number leaves to flows; 0: it does not bound them. */
static __always_inline __u32 quota_flows(__u32 number)
{
	const struct quota *quota = bpf_map_lookup_elem(&quotas, &number);

	return quota ? quota->flows : 0;
}

/* The number of the quota of a service's segment, if that is of flows; 0: there is none. */
static __always_inline __u32 flow_quota(__u32 service)
{
	__u32 number = quota_of(service);

	return quota_flows(number) ? number : 0;
}

/* Counts a flow that finds no place. */
static __always_inline void refuse_flow(__u32 number)
{
	struct quota_share *share = bpf_map_lookup_elem(&quota_shares, &number);

	if (share)
		share->flows++;
}

#define QUOTA_LEAST 4
#define QUOTA_GROUP 16 /* see LeastFlowsPart in internal/model/tenant.go */

/* In how many neighboring buckets together the segment has its part. */
static __always_inline __u32 quota_group(__u32 flows)
{
	__u32 group = 1;

	while (group < QUOTA_GROUP && flows * group < QUOTA_LEAST << 16)
		group *= 2;
	return group;
}

/* The segment's part of so many buckets, in places: the parts of all of them are the quota. */
static __always_inline __u32 quota_share(__u32 flows, __u32 buckets, __u32 begin)
{
	return (flows * buckets + ((begin * 0x9e3779b1U) >> 16)) >> 16;
}
