/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fan-out: where a NIC has fewer receive queues than the host has CPUs, the CPU of a queue only looks which
 * service a packet is of, and gives those of expensive services to other CPUs (CPUMAP), which run the director
 * there. A flow's packets go to one CPU, so they stay in order. Fragments, packets with tags or options, and
 * those of other services stay where they are.
 */
#pragma once

#include "director/nat/snat.h"
#include "director/pick/ring.h"
#include "director/refuse.h"
#include "director/service.h"
#include "lib/packet.h"

/* The CPUs that get packets, in any order; the first fan_out_count of them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
} fan_out_list SEC(".maps");

__u32 fan_out_count SEC(".data.fan_out");
/* Random, or clients could choose ports by which all of their packets come to one CPU. */
__u64 fan_out_salt SEC(".data.fan_out");

/* By CPU: what it runs for each packet, and how many wait there. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} fan_out_cpus SEC(".maps");

/* What is counted of packets that are given to other CPUs: what is not taken was dropped. */
enum fan_out_event {
	FAN_OUT_GIVEN,
	FAN_OUT_TAKEN,
	FAN_OUT_EVENTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FAN_OUT_EVENTS);
	__type(key, __u32);
	__type(value, __u64);
} fan_out_events SEC(".maps");

static __always_inline void note_fan_out(__u32 event)
{
	__u64 *count = bpf_map_lookup_elem(&fan_out_events, &event);

	if (count)
		(*count)++;
}

/* Whether a packet is of an expensive service, or a reply of full NAT. */
static __always_inline int is_expensive(const struct packet *packet, int ipv6)
{
	__u64 front = find_front(&packet->flow, ipv6);
	const struct ring_header *ring;
	const struct snat_header *snat;

	if (front) {
		ring = ring_line_at(front >> 32);
		return ring && ring->fan_out;
	}
	snat = snat_header(snat_table());
	return snat && snat_reply_number(snat, packet);
}

/* Gives a plain packet to another CPU. Whether it is on its way: else it is handled here. */
static __always_inline int give(const struct packet *packet, int ipv6)
{
	__u32 index, *cpu;

	/* Sources that may have to be refused are looked at before anything is done for them. */
	if (may_be_refused(&packet->flow, ipv6) || !is_expensive(packet, ipv6))
		return 0;
	index = (hash_by(&packet->flow, *(volatile __u64 *)&fan_out_salt, 1) >> 32) *
			*(volatile __u32 *)&fan_out_count >>
		32;
	cpu = bpf_map_lookup_elem(&fan_out_list, &index);
	if (!cpu || bpf_redirect_map(&fan_out_cpus, *cpu, 0) != XDP_REDIRECT)
		return 0;
	note_fan_out(FAN_OUT_GIVEN);
	return 1;
}

/* Gives a frame to another CPU, if it is to be handled there. */
static __always_inline int fan_out(struct xdp_md *ctx, struct packet *packet)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	__be16 protocol = 0;

	if (data + sizeof(struct ethhdr) + sizeof(struct iphdr) <= end)
		protocol = *ethertype_of(data);
	if (protocol == bpf_htons(ETH_P_IP) &&
	    parse_plain_ipv4(ctx, packet, data, end, sizeof(struct ethhdr)))
		return give(packet, 0);
	if (protocol == bpf_htons(ETH_P_IPV6) &&
	    parse_plain_ipv6(ctx, packet, data, end, sizeof(struct ethhdr)))
		return give(packet, 1);
	return 0;
}
