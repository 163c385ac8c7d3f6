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
