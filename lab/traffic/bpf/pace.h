/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A rate for the benchmarks' source, which otherwise sends as fast as it can.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/*
 * What a source that fell behind makes up for, in packets: more would be a burst
 * that no rate has. A veth holds 256.
 */
#define PACE_BEHIND 128
/* Reading the clock takes longer than writing a packet: so many packets wait together. */
#define PACE_TOGETHER 8
/* Looks at the clock while waiting for a packet's turn: some ms. */
#define PACE_LOOKS (1 << 18)

/* Set by the loader: when it began, and the time between two packets in ns / 1024. */
__u64 pace_began;
__u64 pace_gap; /* 0: none */
/* When the last packets were due, in ns / 1024 from the beginning. */
__u64 pace_due;
__u64 pace_packets;
/* How long it waited so far, in ns / 1024. */
__u64 pace_waited;

static __always_inline __u64 pace_now(void)
{
	return (bpf_ktime_get_ns() - pace_began) << 10;
}

static long pace_look(__u64 turn __attribute__((unused)), void *due)
{
	return pace_now() >= *(__u64 *)due;
}

/* Waits until the next packets are due. */
static __always_inline void pace(void)
{
	__u64 due, now;

	if (pace_packets++ % PACE_TOGETHER)
		return;
	due = pace_due + PACE_TOGETHER * pace_gap;
	now = pace_now();
	if (now > due + PACE_BEHIND * pace_gap)
		due = now;
	else if (now < due) {
		bpf_loop(PACE_LOOKS, pace_look, &due, 0);
		pace_waited += pace_now() - now;
	}
	pace_due = due;
}
