/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the director's cost is measured against, and the director itself in a
 * form that can be run on one packet again and again: a repeated test run does
 * not reset the packet, so each program here leaves it as it found it.
 */
#include "director/director.bpf.c"
#include "restore.h"

/* How much a mode grows the packet, and how the packet begins before it. */
const volatile __u32 bench_growth;
const volatile __u64 bench_front[FRONT_WORDS];

/* The least that a program does which answers on the wire. */
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

/* What every tunnel must do at least: this, and the same backwards. */
SEC("xdp.frags")
int bench_move(struct xdp_md *ctx)
{
	int action = shift(ctx, -(int)sizeof(struct iphdr), bench_front);

	return action == XDP_TX ? shift(ctx, sizeof(struct iphdr), bench_front) : action;
}

/* A tunnel, then its growth taken back. */
SEC("xdp.frags")
int bench_tunnel(struct xdp_md *ctx)
{
	int action = director(ctx);

	return action == XDP_TX ? shift(ctx, bench_growth, bench_front) : action;
}

/* What bench_restored does besides forwarding. */
SEC("xdp.frags")
int bench_rewrite(struct xdp_md *ctx)
{
	return restore(ctx, bench_front);
}

/*
 * NAT, then its headers put back; and l2dsr, which leaves frames that have their
 * backend's MAC address already.
 */
SEC("xdp.frags")
int bench_restored(struct xdp_md *ctx)
{
	int action = director(ctx);

	return action == XDP_TX ? restore(ctx, bench_front) : action;
}
