/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A repeated test run does not reset the packet: these functions of the benchmarks do. `front`
 * is how the packet began.
 */
#pragma once

#include "lib/packet.h"

#define FRONT_WORDS 10 /* of 8 bytes: Ethernet, IP and TCP */

/* Moves the head and writes Ethernet. */
static __always_inline int shift(struct xdp_md *ctx, int by, const volatile __u64 *front)
{
	const volatile __u16 *was = (const volatile __u16 *)front;
	__u16 *ethernet;

	if (bpf_xdp_adjust_head(ctx, by))
		return XDP_DROP;
	ethernet = frame(ctx);
	if ((void *)ethernet + sizeof(struct ethhdr) > frame_end(ctx))
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < (int)sizeof(struct ethhdr) / 2; i++)
		ethernet[i] = was[i];
	return XDP_TX;
}

/* Writes Ethernet, IP and TCP. */
static __always_inline int restore(struct xdp_md *ctx, const volatile __u64 *front)
{
	__u64 *words = frame(ctx);

	if ((void *)(words + FRONT_WORDS) > frame_end(ctx))
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < FRONT_WORDS; i++)
		words[i] = front[i];
	return XDP_TX;
}

/*
 * Writes the MAC addresses alone. More would be in the way of the next run: a read that is not at the
 * place of a write waits for it, as no packet that a NIC has written does.
 */
static __always_inline int restore_macs(struct xdp_md *ctx, const volatile __u64 *front)
{
	__u64 *first = frame(ctx);
	__u32 *rest = (__u32 *)(first + 1);

	if ((void *)(rest + 1) > frame_end(ctx))
		return XDP_DROP;
	*first = front[0];
	*rest = front[1];
	return XDP_TX;
}

/*
 * As restore, and empties a redirect option from its address on: address, port and two NOPs in
 * one write, as they are read.
 */
static __always_inline int restore_option(struct xdp_md *ctx, __u32 at, const volatile __u64 *front)
{
	__be64 *said = frame(ctx) + (at & 0xff);

	if ((void *)(said + 1) > frame_end(ctx))
		return XDP_DROP;
	*said = bpf_cpu_to_be64(0x0101);
	return restore(ctx, front);
}
