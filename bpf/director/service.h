/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a flow to the index of its service. */
#pragma once

#include "director/maps.h"
#include "lib/packet.h"

static __always_inline struct endpoint4 endpoint4(__u32 segment, const struct address *address,
						  __u8 protocol, __be16 port)
{
	struct endpoint4 key = {
		.segment = segment,
		.address = ADDRESS_WORD(address, 0),
		.port = port,
		.protocol = protocol,
	};

	return key;
}

static __always_inline struct endpoint6 endpoint6(__u32 segment, const struct address *address,
						  __u8 protocol, __be16 port)
{
	struct endpoint6 key = {
		.segment = segment,
		.address = *address,
		.port = port,
		.protocol = protocol,
	};

	return key;
}

/* packet->service and, above it, packet->ring: as in struct front. */
typedef __u64 service_word __attribute__((may_alias));

/*
 * Where most packets find their service: see struct front. 0: none. `ipv6` is that of the flow, as
 * a constant.
 */
static __always_inline __u64 find_front(const struct flow *flow, int ipv6)
{
	__u64 first = ADDRESS_HALF(&flow->destination, 0);
	__u64 second = ipv6 ? ADDRESS_HALF(&flow->destination, 1) : 0;
	__u64 both = first ^ second * HASH_K3;
	__u64 key = flow->segment | (__u64)flow->destination_port << 32 |
		    (__u64)kind_of(flow) << 48;
	__u32 index = (both ^ key) * HASH_K2 >> (64 - FRONT_BITS);
	struct front *front = bpf_map_lookup_elem(&fronts, &index);

	if (unlikely(!front || front->address[0] != first ||
		     (ipv6 && front->address[1] != second) || front->key != key))
		return 0;
	return *(volatile __u64 *)&front->service; /* once: the ring may change */
}

/* The service, as packet->service, of exactly this address, protocol and port. */
static __noinline __u32 find_behind(const struct flow *flow)
{
	__u32 *service;

	if (flow->ipv6) {
		struct endpoint6 key = endpoint6(flow->segment, &flow->destination, flow->protocol,
						 flow->destination_port);

		service = bpf_map_lookup_elem(&services6, &key);
	} else {
		struct endpoint4 key = endpoint4(flow->segment, &flow->destination, flow->protocol,
						 flow->destination_port);

		service = bpf_map_lookup_elem(&services4, &key);
	}
	return service ? *service + 1 : 0; /* SERVICE_VIP_ONLY plus 1 is 0, too */
}

/* The service of exactly this address, protocol and port. */
static __always_inline __u32 find_exact(const struct flow *flow)
{
	__u32 service = flow->ipv6 ? find_front(flow, 1) : find_front(flow, 0);

	return service ? service : find_behind(flow);
}

/* The service or, if asked for, NAT backend whose ports have the destination port. */
static __noinline __u32 *find_range(const struct flow *flow, __u8 reply)
{
	if (flow->ipv6) {
		struct range6 key = {
			.prefix_len = (sizeof(key) - sizeof(key.prefix_len)) * 8,
			.segment = flow->segment,
			.address = flow->destination,
			.protocol = flow->protocol,
			.reply = reply,
			.port = flow->destination_port,
		};

		return bpf_map_lookup_elem(&ranges6, &key);
	} else {
		struct range4 key = {
			.prefix_len = (sizeof(key) - sizeof(key.prefix_len)) * 8,
			.segment = flow->segment,
			.address = ADDRESS_WORD(&flow->destination, 0),
			.protocol = flow->protocol,
			.reply = reply,
			.port = flow->destination_port,
		};

		return bpf_map_lookup_elem(&ranges4, &key);
	}
}

/* Whether the address is a VIP of any service in this segment. */
static __noinline int is_vip(__u32 segment, const struct address *address, __u8 ipv6)
{
	if (ipv6) {
		struct endpoint6 key = endpoint6(segment, address, IPPROTO_ICMPV6, 0);

		return bpf_map_lookup_elem(&services6, &key) != NULL;
	} else {
		struct endpoint4 key = endpoint4(segment, address, IPPROTO_ICMP, 0);

		return bpf_map_lookup_elem(&services4, &key) != NULL;
	}
}

static __always_inline __u32 get_link_mtu(void)
{
	const struct settings *settings = get_settings();

	return settings ? settings->link_mtu : 0;
}
