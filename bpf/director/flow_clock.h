/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The clock of what a director remembers of flows: its unit is 2^30 ns, 1.07 s. Packets do not ask the
 * kernel for it. A CPU that is protected against attacks on its return predictor does not execute
 * ahead where a helper returns, so it would not read a flow's line ahead either. Instead the first
 * packet of a jiffy, 1 to 10 ms, asks, and the others read what it has noted: the kernel inlines
 * bpf_jiffies64. The time that a packet reads is at most a jiffy old, or as late as the kernel's tick is.
 * Within the jiffy in which the unit changes it may go back by one unit, if two CPUs ask and the one
 * that has asked first writes last: see flow_age.
 */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The time in the upper half (0: nothing has asked), and the jiffy of the question in the lower one. */
__u64 flow_time SEC(".data.clock");

/* Not inlined: one packet of a jiffy comes here. Not static: verified once. */
__noinline __u32 ask_flow_clock(__u32 jiffy)
{
	__u32 now = bpf_ktime_get_ns() >> 30;

	*(volatile __u64 *)&flow_time = (__u64)now << 32 | jiffy;
	return now;
}

static __always_inline __u32 flow_clock(void)
{
	__u64 noted = *(volatile __u64 *)&flow_time;
	__u32 jiffy = bpf_jiffies64(), now = noted >> 32;

	return (__u32)noted == jiffy && now ? now : ask_flow_clock(jiffy);
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
