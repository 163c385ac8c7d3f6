/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services that are for some clients only: whether a packet is from one of them. */
#pragma once

#include "director/maps.h"
#include "lib/packet.h"

/* For an ICMP error this is about the client of its flow, not about the error's sender. */
static __noinline int is_in_source_ranges(const struct packet *packet, __u32 set)
{
	struct source_range key = {
		.prefix_len = (sizeof(key) - sizeof(key.prefix_len)) * 8,
		.set = set,
		.address = packet->flow.source,
	};

	return bpf_map_lookup_elem(&source_ranges, &key) != NULL;
}
