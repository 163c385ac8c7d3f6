/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Replacing one end of a packet, in tc. It may be a super-packet, and the device may yet have
 * to finish its checksums: the helpers know about both.
 */
#pragma once

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>

#include "abi/types.h"

/* One end of a packet, IPv4 as ::ffff:a.b.c.d. */
struct ending {
	struct address address;
	__be16 port;
	__u16 pad;
};

/* The last word of an address: of IPv4 the only one that is in the packet. */
static __always_inline __be32 last_word(const struct address *address)
{
	return ((const __be32 *)address->bytes)[3];
}

static __always_inline int same_bytes(const struct address *a, const struct address *b)
{
	const __u32 *x = (const __u32 *)a->bytes, *y = (const __u32 *)b->bytes;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

#define NO_CHECKSUM 0 /* none covers the addresses: ICMP's, or a later fragment's */

/*
 * Replaces the source or the destination address in the IP header, and in the checksum at an
 * offset, which these flags are for. The helper takes what it changes of a pseudo header
 * off the sum that a device made of the whole packet; over IPv6 the addresses themselves have
 * to be added to that sum, over IPv4 the header's own checksum makes up for them.
 */
static __always_inline int replace_address(struct __sk_buff *skb, int ipv6, int source,
					   __u32 checksum, __u64 flags, const struct address *from,
					   const struct address *to)
{
	__u32 at = ETH_HLEN;
	__be32 was, is;
	__s64 change;

	if (ipv6) {
		at += source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr);
		change = bpf_csum_diff((__be32 *)from->bytes, sizeof(*from), (__be32 *)to->bytes,
				       sizeof(*to), 0);
		return change >= 0 &&
		       !bpf_skb_store_bytes(skb, at, to, sizeof(*to), BPF_F_RECOMPUTE_CSUM) &&
		       (checksum == NO_CHECKSUM ||
			!bpf_l4_csum_replace(skb, checksum, 0, change, flags | BPF_F_PSEUDO_HDR));
	}
	at += source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr);
	was = last_word(from);
	is = last_word(to);
	return !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0) &&
	       !bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), was, is,
				    sizeof(is)) &&
	       (checksum == NO_CHECKSUM ||
		!bpf_l4_csum_replace(skb, checksum, was, is,
				     flags | BPF_F_PSEUDO_HDR | sizeof(is)));
}

/* The same of a port, which is at an offset. */
static __always_inline int replace_port(struct __sk_buff *skb, __u32 at, __u32 checksum,
					__u64 flags, __be16 from, __be16 to)
{
	if (from == to)
		return 1;
	return !bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0) &&
	       !bpf_l4_csum_replace(skb, checksum, from, to, flags | sizeof(to));
}

/* Replaces address and port of a packet of TCP whose header is at an offset. */
static __always_inline int replace_tcp_end(struct __sk_buff *skb, __u32 l4, int ipv6, int source,
					   const struct ending *from, const struct ending *to)
{
	__u32 checksum = l4 + offsetof(struct tcphdr, check);
	__u32 port = l4 +
		     (source ? offsetof(struct tcphdr, source) : offsetof(struct tcphdr, dest));

	return replace_address(skb, ipv6, source, checksum, 0, &from->address, &to->address) &&
	       replace_port(skb, port, checksum, 0, from->port, to->port);
}

/* The same for UDP: a checksum of zero is none (RFC 768), and stays. */
static __always_inline int replace_udp_end(struct __sk_buff *skb, __u32 l4, int ipv6, int source,
					   const struct ending *from, const struct ending *to)
{
	__u32 checksum = l4 + offsetof(struct udphdr, check);
	__u32 port = l4 +
		     (source ? offsetof(struct udphdr, source) : offsetof(struct udphdr, dest));

	return replace_address(skb, ipv6, source, checksum, BPF_F_MARK_MANGLED_0, &from->address,
			       &to->address) &&
	       replace_port(skb, port, checksum, BPF_F_MARK_MANGLED_0, from->port, to->port);
}
