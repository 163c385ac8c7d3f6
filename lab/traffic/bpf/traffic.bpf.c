/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The two ends of a benchmark: a source that writes packets into frames which the
 * kernel gives it again and again (BPF_F_TEST_XDP_LIVE_FRAMES), and a sink that
 * counts them by backend and looks whether they are right.
 *
 * A frame comes back with whatever was done to it on the way, so the source
 * writes every header byte of every packet. Payloads are zeros.
 *
 *   source  traffic.h, here   flow number -> headers
 *   sink    arrival.h         headers -> backend, flow number
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "pace.h"
#include "traffic.h"
#include "arrival.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Flows that are at random as often as they are here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
} flow_order SEC(".maps");

/* The next of a source's flows: at random, or one after the other. */
static __always_inline __u32 next_of_flows(void)
{
	__u32 index;
	const __u32 *flow;

	if (flows_in_turn) {
		source_state = source_state + 1 < flows ? source_state + 1 : 0;
		return source_state;
	}
	/* xorshift64 (Marsaglia 2003): a helper call would cost more than the packet. */
	source_state ^= source_state << 13;
	source_state ^= source_state >> 7;
	source_state ^= source_state << 17;
	if (!order_length)
		return (source_state >> 32) * flows >> 32;
	index = (source_state >> 32) * order_length >> 32;
	flow = bpf_map_lookup_elem(&flow_order, &index);
	return flow ? *flow : 0;
}

static __always_inline __u32 next_flow(void)
{
	return first_flow + next_of_flows();
}

static __always_inline __u32 next_frame_size(void)
{
	__u32 turn = source_frame & (FRAME_SIZES_ROOM - 1);

	source_frame = turn + 1 < frame_sizes ? turn + 1 : 0;
	return frame_size[turn];
}

/* Live frames: sends one packet per run. */
SEC("xdp")
int source(struct xdp_md *ctx)
{
	struct traffic_packet packet = {};

	if (pace_gap)
		pace();
	packet.length = ctx->data_end - ctx->data;
	packet.flow = next_flow();
	if (tenants > 1) {
		packet.tenant = packet.flow % tenants;
		packet.flow /= tenants;
	}
	if (frame_sizes) {
		__u32 length = next_frame_size();

		if (bpf_xdp_adjust_tail(ctx, (int)length - (int)packet.length))
			return XDP_ABORTED;
		packet.length = length;
	}
	packet.tcp_flags = syn_every && ++source_sent % syn_every == 0 ? TCP_SYN : TCP_ACK;
	if (!write_packet((void *)(long)ctx->data, (void *)(long)ctx->data_end, &packet))
		return XDP_ABORTED;
	return bpf_redirect(out_ifindex, 0);
}

/* Forwards everything as it is: the least that anything between the ends can do. */
SEC("xdp.frags")
int redirect(struct xdp_md *ctx __attribute__((unused)))
{
	return bpf_redirect_map(&ports, 0, 0);
}

/* The same where packets leave by the port that they came in by. */
SEC("xdp.frags")
int reflect(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_TX;
}

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	if (only_counts) {
		arrived++;
		return XDP_DROP;
	}
	return arrive(ctx);
}
