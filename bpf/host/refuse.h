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

/* Unspecified, loopback, multicast, broadcast and mapped addresses, as in refuse.h. */
static __always_inline int is_nobodys(const struct inner *inner)
{
	const __be32 *words = (const __be32 *)inner->source.bytes;
	__u8 first = inner->source.bytes[inner->ipv6 ? 0 : 12];

	if (!inner->ipv6)
		return !first || first == 127 || (first >= 224 && first < 240) ||
		       words[3] == 0xffffffff;
	if (first == 0xff)
		return 1;
	if (words[0] | words[1])
		return 0;
	return words[2] == bpf_htonl(0xffff) || (!words[2] && bpf_ntohl(words[3]) <= 1);
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
