/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The question for a socket of this host. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/packet.h"

/* The addresses and ports of this host's socket for a packet of a flow; returns their length. */
static __always_inline __u32 socket_tuple(const struct flow *flow, struct bpf_sock_tuple *tuple)
{
	if (flow->ipv6) {
		__builtin_memcpy(tuple->ipv6.saddr, &flow->source, sizeof(tuple->ipv6.saddr));
		__builtin_memcpy(tuple->ipv6.daddr, &flow->destination, sizeof(tuple->ipv6.daddr));
		tuple->ipv6.sport = flow->source_port;
		tuple->ipv6.dport = flow->destination_port;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = ADDRESS_WORD(&flow->source, 0);
	tuple->ipv4.daddr = ADDRESS_WORD(&flow->destination, 0);
	tuple->ipv4.sport = flow->source_port;
	tuple->ipv4.dport = flow->destination_port;
	return sizeof(tuple->ipv4);
}
