/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds inner packets that no client has sent, as refuse.h does on directors. */
#pragma once

#include "host/maps.h"
#include "host/tunnel.h"

static __always_inline int is_vip(const struct inner *inner, const struct address *address)
{
	struct host_endpoint vip = {
		.address = *address,
		.protocol = inner->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP,
	};

	return bpf_map_lookup_elem(&endpoints, &vip) != NULL;
}

static __always_inline int is_nobodys(const struct inner *inner)
{
	const __be32 *words = (const __be32 *)inner->source.bytes;

	return inner->ipv6 ? is_nobodys6(&inner->source) : is_nobodys4(words[3]);
}

/*
 * Whether no client can be at the source. Directors drop such packets, so another host speaks in a
 * director's name. The answer of a UDP server here to a VIP of this host stays on the host, and is
 * a question again: over IPv6 the kernel takes packets from its own addresses.
 */
static __always_inline int comes_from_nobody(const struct inner *inner)
{
	if (is_nobodys(inner))
		return 1;
	return inner->destination.protocol == IPPROTO_UDP && is_vip(inner, &inner->source);
}
