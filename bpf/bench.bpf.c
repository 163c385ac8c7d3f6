/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the director's cost is measured against, and the director itself in a
 * form that can be run on one packet again and again: a repeated test run does
 * not reset the packet, so each program here leaves it as it found it.
 */
#include "director.bpf.c"

/* How much a mode grows the packet, and how the packet begins before it. */
const volatile __u32 bench_growth;
const volatile __u64 bench_front[10];

/* As a program that answers on the wire does at least. */
SEC("xdp.frags")
int bench_tx(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_TX;
}

SEC("xdp.frags")
int bench_swap(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = frame(ctx);

	if ((void *)(ethernet + 1) > frame_end(ctx))
		return XDP_DROP;
	swap_ethernet(ethernet);
	return XDP_TX;
}

/* Moves the head and writes Ethernet. */
static __always_inline int bench_shift(struct xdp_md *ctx, int by)
{
	__u16 *front;

	if (bpf_xdp_adjust_head(ctx, by))
		return XDP_DROP;
	front = frame(ctx);
	if ((void *)front + sizeof(struct ethhdr) > frame_end(ctx))
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < (int)sizeof(struct ethhdr) / 2; i++)
		front[i] = ((const volatile __u16 *)bench_front)[i];
	return XDP_TX;
}

/* What every tunnel must do at least: this, and the same backwards. */
SEC("xdp.frags")
int bench_move(struct xdp_md *ctx)
{
	int action = bench_shift(ctx, -(int)sizeof(struct iphdr));

	return action == XDP_TX ? bench_shift(ctx, sizeof(struct iphdr)) : action;
}

/* A tunnel, then its growth taken back. */
SEC("xdp.frags")
int bench_tunnel(struct xdp_md *ctx)
{
	int action = director(ctx);

	return action == XDP_TX ? bench_shift(ctx, bench_growth) : action;
}

/* Puts Ethernet, IP and TCP back as they were. */
static __always_inline int bench_restore(struct xdp_md *ctx)
{
	__u64 *front = frame(ctx);

	if ((void *)front + sizeof(bench_front) > frame_end(ctx))
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < (int)(sizeof(bench_front) / 8); i++)
		front[i] = bench_front[i];
	return XDP_TX;
}

/* What bench_restored does besides forwarding. */
SEC("xdp.frags")
int bench_rewrite(struct xdp_md *ctx)
{
	return bench_restore(ctx);
}

/*
 * NAT, then its headers put back; and l2dsr, which leaves frames that have their
 * backend's MAC address already.
 */
SEC("xdp.frags")
int bench_restored(struct xdp_md *ctx)
{
	int action = director(ctx);

	return action == XDP_TX ? bench_restore(ctx) : action;
}
