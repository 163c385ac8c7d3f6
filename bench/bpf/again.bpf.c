/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Any version's director, run on one packet again and again: its loader puts that
 * version's instructions in the place of those of director(). So only the call is
 * different from what is attached, and it is the same in all versions. Beside it what
 * its cost is measured against. A repeated test run does not reset the packet, so each
 * program here leaves it as it found it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "restore.h"

#define AGAIN_MAX 16 /* the verifier goes through all of them */

/*
 * No constants, because a program is loaded once for all packets; in a section that the
 * director does not have.
 */
SEC(".data.again") __u32 again_times;  /* the kernel tells a run's time in whole nanoseconds */
SEC(".data.again") __u32 again_tunnel; /* the packet has become longer, ... */
SEC(".data.again") __u32 again_growth; /* ... by this */
SEC(".data.again")
__u32 again_option;                  /* where what redirection fills in is in the frame; 0: none */
SEC(".data.again") __u32 again_macs; /* only the MAC addresses change */
SEC(".data.again") __u64 again_front[FRONT_WORDS];

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Weak, or the compiler would know what it returns. Its time is that of the call. */
__weak int director(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_TX;
}

static __always_inline int put_back(struct xdp_md *ctx)
{
	if (again_macs)
		return restore_macs(ctx, again_front);
	if (again_tunnel)
		return shift(ctx, again_growth, again_front);
	return again_option ? restore_option(ctx, again_option, again_front) :
			      restore(ctx, again_front);
}

SEC("xdp.frags")
int again(struct xdp_md *ctx)
{
	int action = XDP_TX;

	for (__u32 i = 0; i < AGAIN_MAX && i < again_times && action == XDP_TX; i++) {
		action = director(ctx);
		if (action == XDP_TX)
			action = put_back(ctx);
	}
	return action;
}

/* The least that a program does which answers on the wire. */
SEC("xdp.frags")
int tx(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_TX;
}

SEC("xdp.frags")
int swap(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = frame(ctx);
	__u8 destination[ETH_ALEN];

	if ((void *)(ethernet + 1) > frame_end(ctx))
		return XDP_DROP;
	__builtin_memcpy(destination, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, destination, ETH_ALEN);
	return XDP_TX;
}

/* What every tunnel must do at least: this, and the same backwards. */
SEC("xdp.frags")
int move(struct xdp_md *ctx)
{
	int action = shift(ctx, -(int)sizeof(struct iphdr), again_front);

	return action == XDP_TX ? shift(ctx, sizeof(struct iphdr), again_front) : action;
}
