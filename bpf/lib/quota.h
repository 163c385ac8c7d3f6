/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How much of a table of flows that stay a service may take, on an agent's host. One service
 * leaves room for others: the one with most has at most QUOTA times as many flows as there is
 * room for.
 *
 * The agent counts the flows every few seconds, and programs count those that came and went since,
 * once that is certain, which is when a flow has its place. So a few more flows may get a place at
 * the same time.
 */
#pragma once

#include <bpf/bpf_helpers.h>

#include "abi/host_types.h"

#define QUOTA 4

static __always_inline struct host_quota *quota_of(void *quotas, __u32 service)
{
	return bpf_map_lookup_elem(quotas, &service);
}

/* Flows that go while the agent counts may make it less than zero, until the agent counts again. */
static __always_inline __u32 quota_used(const struct host_quota *quota)
{
	__s32 used = quota->counted + quota->added;

	return used < 0 ? 0 : used;
}

/* Whether one more flow of a service may stay in a table with so much room. */
static __always_inline int has_quota(void *quotas, __u32 service, __u32 room)
{
	struct host_quota *all = quota_of(quotas, 0), *own = quota_of(quotas, service);
	__u32 used;

	if (!all || !own)
		return 0;
	used = quota_used(all);
	return used < room && quota_used(own) < QUOTA * (room - used);
}

/* A flow of a service has got its place (1), or has left it (-1). */
static __always_inline void count_quota(void *quotas, __u32 service, __s32 change)
{
	struct host_quota *all = quota_of(quotas, 0), *own = quota_of(quotas, service);

	if (!all || !own)
		return;
	__sync_fetch_and_add(&all->added, change);
	if (own != all)
		__sync_fetch_and_add(&own->added, change);
}
