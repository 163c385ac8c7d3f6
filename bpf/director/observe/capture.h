/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a capture takes of packets: as each came, what became of it, and as it left. Packets are
 * chosen when all is known about them, so that any of it can be asked for. The cost is
 * bounded here, and not where packets are read.
 */
#pragma once

#include "abi/export.h"
#include "director/count.h"
#include "director/maps.h"
#include "director/nat/snat_table.h"
#include "director/observe/observe.h"
#include "director/service.h"
#include "director/vtep/maps.h"
#include "lib/packet.h"

#define CAPTURE_RING_BYTES (8 << 20)
#define CAPTURE_TRIES 4 /* of CPUs that take from the same budget */

enum capture_size {
	CAPTURE_SNAP_MAX = 2048, /* most bytes of a frame; a power of two */
};
EXPORT_ENUM(capture_size);

/* An address with a port of a packet. Port 0: any. */
struct capture_endpoint {
	struct address address; /* under the mask */
	struct address mask;
	__be16 port;
	__u8 ipv6;
	__u8 given; /* 0: any */
};

/* What is wanted, and how much of it; 0: anything. */
struct capture_filter {
	__u64 reasons; /* bits of enum reason */
	struct capture_endpoint client;
	struct capture_endpoint vip;
	struct capture_endpoint backend;
	__u32 service;   /* index plus 1 */
	__u32 ingress;   /* interface */
	__u32 sample;    /* one of so many */
	__u32 snap;      /* bytes of a frame */
	__u32 rate;      /* packets in 2^30 ns */
	__u32 segment;   /* that the packet came in */
	__u32 network;   /* of the segment, in VXLAN or Geneve: as the key of struct vtep_network */
	__u8 in_segment; /* 0: any */
	__u8 protocol;
	__u8 pad[2];
};

/* Frozen when the program is loaded: tests that are not asked for are no part of it. */
const volatile struct capture_filter capture_want;

/* One packet, behind what was observed of it; and behind both, the frame's bytes. */
struct capture_head {
	__u64 time; /* nanoseconds, CLOCK_MONOTONIC */
	__u32 ingress;
	__u32 in; /* bytes of the frame as it came, ... */
	__u32 in_length;
	__u32 out; /* ... and then as it left; 0: it did not, or is as it was */
	__u32 out_length;
	__u32 pad;
};

struct capture_record {
	struct observation seen;
	struct capture_head head;
	__u8 bytes[2 * CAPTURE_SNAP_MAX];
};

struct capture_counts {
	__u64 matched;
	__u64 limited; /* of those, not taken: the rate */
	__u64 lost;    /* of those, not taken: the ring was full */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURE_RING_BYTES);
} captured SEC(".maps");

/* This CPU's packet: a packet is not interrupted by another. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture_record);
} capture_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture_counts);
} capture_counted SEC(".maps");

/* How many were taken: number of the period << 32 | packets in it. Of all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} capture_budget SEC(".maps");

/* Until when a program reads: CLOCK_MONOTONIC. The reader puts it off. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} capture_lease SEC(".maps");

/* 1 to CAPTURE_SNAP_MAX, in words that the verifier of 6.1 follows whatever is compiled of them. */
static __always_inline __u32 capture_bounded(__u32 length)
{
	asm volatile("" : "+r"(length));
	return ((length - 1) & (CAPTURE_SNAP_MAX - 1)) + 1;
}

/* How much of a frame is taken. */
static __always_inline __u32 capture_length(__u32 frame)
{
	__u32 snap = capture_want.snap;

	return capture_bounded(frame < snap ? frame : snap);
}

/*
 * Keeps the frame as it came; in a record of no bytes end_capture finds nothing to go on with.
 * Neither is inlined: the verifier looks at each once, and goes through the director between them
 * once.
 */
__noinline int begin_capture(struct xdp_md *ctx)
{
	struct capture_record *record;
	__u32 zero = 0, length, ingress;
	__u64 *lease;

	record = bpf_map_lookup_elem(&capture_scratch, &zero);
	if (!record)
		return 0;
	record->head.in = 0;
	lease = bpf_map_lookup_elem(&capture_lease, &zero);
	if (!lease || bpf_ktime_get_coarse_ns() > *(volatile __u64 *)lease)
		return 0;
	ingress = *(volatile __u32 *)&ctx->ingress_ifindex;
	if (capture_want.ingress && ingress != capture_want.ingress)
		return 0;
	if (capture_want.sample > 1 && bpf_get_prandom_u32() % capture_want.sample)
		return 0;
	record->head.ingress = ingress;
	record->head.in_length = bpf_xdp_get_buff_len(ctx);
	length = capture_length(record->head.in_length);
	if (bpf_xdp_load_bytes(ctx, 0, record->bytes, length))
		return 0;
	record->head.in = length;
	return 0;
}

static __always_inline int capture_same(const struct address *address,
					const volatile struct capture_endpoint *wanted)
{
	__u32 differ = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differ |= (ADDRESS_WORD(address, i) ^
			   ((const volatile __be32 *)wanted->address.bytes)[i]) &
			  ((const volatile __be32 *)wanted->mask.bytes)[i];
	return !differ;
}

static __always_inline int capture_is(const struct address *address, __be16 port, int ipv6,
				      const volatile struct capture_endpoint *wanted)
{
	return !!ipv6 == wanted->ipv6 && (!wanted->port || port == wanted->port) &&
	       capture_same(address, wanted);
}

/* In either direction: a reply goes to the source of the packet that it answers. */
static __always_inline int capture_has(const struct packet *packet,
				       const volatile struct capture_endpoint *wanted)
{
	const struct flow *flow = &packet->flow;

	return capture_is(&flow->source, flow->source_port, flow->ipv6, wanted) ||
	       capture_is(&flow->destination, flow->destination_port, flow->ipv6, wanted);
}

/* A reply to full NAT's source names no client: the flow does. */
static __always_inline int capture_is_client(const struct packet *packet)
{
	const struct snat_flow *flow;

	if (capture_has(packet, &capture_want.client))
		return 1;
	flow = packet->snat ? snat_entry(packet->snat) : NULL;
	return flow && capture_is(&flow->client, flow->client_port, packet->flow.ipv6,
				  &capture_want.client);
}

/* A reply comes from its backend, which tells the VIP that it will have. */
static __always_inline int capture_is_vip(const struct packet *packet,
					  const struct backend *backend)
{
	__be16 port;

	if (capture_has(packet, &capture_want.vip))
		return 1;
	if (!backend)
		return 0;
	port = backend->vip_port ? backend->vip_port : packet->flow.source_port;
	return capture_is(&backend->vip, port, packet->flow.ipv6, &capture_want.vip);
}

/*
 * Whether the packet came in the wanted segment. Of one that is dropped before its segment is found out, its
 * tunnel says in which network it came: only for these reasons the entry has it for sure.
 */
static __always_inline int capture_in_segment(const struct packet *packet, __u32 reason)
{
	const struct vtep_entry *entry;

	if (reason != DROP_OVERLAY_PEER && reason != DROP_OVERLAY_OPTION)
		return capture_want.segment == packet->flow.segment;
	entry = this_entry();
	return entry && capture_want.network && capture_want.network == entry->network;
}

static __always_inline int capture_wants(const struct packet *packet, __u32 reason)
{
	const struct backend *backend = NULL;
	__u32 service = packet->service;

	if (!(capture_want.reasons >> (reason & 63) & 1))
		return 0;
	if (capture_want.in_segment && !capture_in_segment(packet, reason))
		return 0;
	if (capture_want.protocol && capture_want.protocol != packet->flow.protocol)
		return 0;
	if (packet->backend)
		backend = backend_at(packet->backend);
	if (!service && backend)
		service = backend->service + 1;
	if (capture_want.service && capture_want.service != service)
		return 0;
	if (capture_want.client.given && !capture_is_client(packet))
		return 0;
	if (capture_want.vip.given && !capture_is_vip(packet, backend))
		return 0;
	if (!capture_want.backend.given)
		return 1;
	return backend && capture_is(&backend->address, backend->port,
				     backend->flags & BACKEND_IPV6, &capture_want.backend);
}

/* Whether one more may be taken in this period. */
static __always_inline int capture_may(__u64 now)
{
	__u64 *budget, before, after, period = now >> 30 << 32;
	__u32 zero = 0;

	budget = bpf_map_lookup_elem(&capture_budget, &zero);
	if (!budget)
		return 0;
	for (int i = 0; i < CAPTURE_TRIES; i++) {
		before = *(volatile __u64 *)budget;
		after = before >> 32 << 32 == period ? before + 1 : period | 1;
		if ((__u32)after > capture_want.rate)
			return 0;
		if (__sync_val_compare_and_swap(budget, before, after) == before)
			return 1;
	}
	return 0;
}

/* Whether the program may have changed a frame that goes on. */
static __always_inline int capture_changed(__u32 reason, int action)
{
	if (action == XDP_PASS)
		return reason == PASS_LOCAL || reason == PASS_REPLY_UNROUTED;
	return action == XDP_TX || action == XDP_REDIRECT;
}

/* Gives the packet to the reader, if it is wanted. A packet that does not fit is only counted. */
__noinline int end_capture(struct xdp_md *ctx, const struct packet *packet, __u32 reason,
			   int action)
{
	struct capture_counts *counts;
	struct capture_record *record;
	__u32 zero = 0, in, out = 0;

	counts = bpf_map_lookup_elem(&capture_counted, &zero);
	record = bpf_map_lookup_elem(&capture_scratch, &zero);
	if (!counts || !record || !record->head.in || !packet || !capture_wants(packet, reason))
		return 0;
	counts->matched++;
	record->head.time = bpf_ktime_get_ns();
	if (!capture_may(record->head.time)) {
		counts->limited++;
		return 0;
	}
	record->seen.packet = *packet;
	record->seen.reason = reason;
	record->seen.action = action;
	record->head.out_length = 0;
	in = capture_bounded(record->head.in);
	if (capture_changed(reason, action)) {
		record->head.out_length = bpf_xdp_get_buff_len(ctx);
		out = capture_length(record->head.out_length);
		if (bpf_xdp_load_bytes(ctx, 0, record->bytes + in, out))
			out = 0;
	}
	record->head.out = out;
	/* The reader looks from time to time: waking it up would take this packet's time. */
	if (bpf_ringbuf_output(&captured, record, offsetof(struct capture_record, bytes) + in + out,
			       BPF_RB_NO_WAKEUP))
		counts->lost++;
	return 0;
}
