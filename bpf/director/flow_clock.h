/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The clock of what a director remembers of flows: its unit is 2^30 ns, 1.07 s. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

static __always_inline __u32 flow_clock(void)
{
	return bpf_ktime_get_ns() >> 30;
}

/* At least so many seconds, in units of that clock. */
#define FLOW_SECONDS(s) ((__u32)(((s) * 1000000000ULL >> 30) + 1))

/* The age of a quiet flow, in units of that clock: at least one whole unit has passed. */
#define FLOW_QUIET 2

/*
 * Whether `least` units have passed since `began`, a time of which the lowest bits are kept.
 * Another CPU may have written it one unit ahead of this CPU's clock.
 */
static __always_inline int flow_lasts(__u8 began, __u32 now, __u8 least)
{
	__u8 age = now - began;

	return age >= least && age != (__u8)-1;
}
