/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ECN field at the end of a tunnel (RFC 6040, section 4.2). */
#pragma once

#include <linux/ip.h>
#include <linux/ipv6.h>

#include "lib/checksum.h"

#define ECN_MASK 3
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3

/* The inner ECN field after decapsulation, -1 to drop. */
static __always_inline int decapsulated_ecn(__u8 outer, __u8 inner)
{
	if (!inner)
		return outer == ECN_CE ? -1 : 0;
	if (outer == ECN_CE || (outer == ECN_ECT1 && inner == ECN_ECT0))
		return outer;
	return inner;
}

/* Writes it into an inner header. Returns -1 if the packet has to be dropped. */
static __always_inline int propagate_ecn4(struct iphdr *ip, __u8 outer)
{
	int ecn = decapsulated_ecn(outer, ip->tos & ECN_MASK);
	__u16 *first = (__u16 *)ip;
	__u16 before;

	if (ecn < 0 || ecn == (ip->tos & ECN_MASK))
		return ecn;
	before = *first;
	ip->tos = (ip->tos & ~ECN_MASK) | ecn;
	ip->check = checksum_update(ip->check, before, *first);
	return ecn;
}

static __always_inline int propagate_ecn6(struct ipv6hdr *ip, __u8 outer)
{
	__u8 inner = ip->flow_lbl[0] >> 4 & ECN_MASK;
	int ecn = decapsulated_ecn(outer, inner);

	if (ecn >= 0 && ecn != inner)
		ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(ECN_MASK << 4)) | ecn << 4;
	return ecn;
}
