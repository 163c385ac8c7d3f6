/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which flows have many packets: a sample, by CPU. See struct heavy_line. */
#pragma once

#include "director/maps.h"
#include "director/pick/ring.h"
#include "lib/packet.h"

/* Packets that a NIC does not lead by the rule of their flow. Their number makes no flow worth a rule. */
#define PACKETS_BESIDE_RULES                                                                       \
	(PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP_ERROR | PACKET_OPTIONS)

static __always_inline int is_flow_of(const struct heavy_flow *at, const struct flow *flow)
{
	return at->source_port == flow->source_port &&
	       at->destination_port == flow->destination_port && at->segment == flow->segment &&
	       at->protocol == flow->protocol && at->ipv6 == flow->ipv6 &&
	       same_address(&at->source, &flow->source) &&
	       same_address(&at->destination, &flow->destination);
}

/* Counts a packet of the sample: 1 for `by_rule` if it came by a queue of its service. */
static __noinline int count_heavy(const struct packet *packet, int by_rule)
{
	__u32 weight = by_rule ? 1 << (STEERED_SAMPLE_BITS - HEAVY_SAMPLE_BITS) : 1;
	const struct flow *flow = &packet->flow;
	__u64 hash = hash_by(flow, 0, 1);
	__u32 index = hash & *(volatile __u32 *)&heavy_mask;
	struct heavy_line *line = bpf_map_lookup_elem(&heavy_flows, &index);
	struct heavy_flow *at, *least;

	if (!line)
		return 0;
	least = &line->at[0];
	for (int i = 0; i < HEAVY_FLOWS_PER_LINE; i++) {
		at = &line->at[i];
		if (is_flow_of(at, flow))
			goto found;
		if (at->packets < least->packets)
			least = at;
	}
	at = least;
	at->segment = flow->segment;
	at->source_port = flow->source_port;
	at->destination_port = flow->destination_port;
	at->source = flow->source;
	at->destination = flow->destination;
	at->protocol = flow->protocol;
	at->ipv6 = flow->ipv6;
	at->taken = at->packets;
	at->by_rule = 0;
	at->bytes = 0;
found:
	if (at->packets > 0xffffffff - weight)
		return 0; /* nobody reads the sample */
	at->backend = packet->backend;
	at->bytes += packet->length * weight;
	at->packets += weight;
	at->by_rule += by_rule ? weight : 0;
	return 1;
}
