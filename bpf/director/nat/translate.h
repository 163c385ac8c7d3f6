/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Address translation of one packet, in place: addresses, ports, TTL, and every
 * checksum by what changed (RFC 1624). An ICMP error carries the packet that it
 * is about, which is translated the other way round (RFC 5508, 4.2).
 */
#pragma once

#include "director/forward/icmp.h"
#include "lib/checksum.h"
#include "lib/crc32c.h"
#include "lib/packet.h"

/* What a packet becomes. */
struct translation {
	struct flow to;
	__u16 hops;        /* taken off the TTL: 1 where weir routes, 0 where the kernel does */
	__u16 hide_source; /* ICMP error: it comes from to.source, whatever its sender */
};

static __always_inline __u64 sum_address(const struct address *address, __u8 ipv6)
{
	__u64 sum = ADDRESS_WORD(address, 0);

	if (ipv6)
		sum += (__u64)ADDRESS_WORD(address, 1) + ADDRESS_WORD(address, 2) +
		       ADDRESS_WORD(address, 3);
	return sum;
}

static __always_inline __u64 sum_addresses(const struct flow *flow)
{
	return sum_address(&flow->source, flow->ipv6) + sum_address(&flow->destination, flow->ipv6);
}

static __always_inline __u64 sum_ports(const struct flow *flow)
{
	return (__u64)flow->source_port + flow->destination_port;
}

/* What the flow contributes to a TCP or UDP checksum: pseudo-header and ports. */
static __always_inline __u64 sum_flow(const struct flow *flow)
{
	return sum_addresses(flow) + sum_ports(flow);
}

/* A UDP checksum of zero would say that there is none (RFC 768); a real zero is written 0xffff. */
static __always_inline __u16 l4_checksum(__u8 protocol, __u16 checksum)
{
	return protocol == IPPROTO_UDP ? checksum_not_zero(checksum) : checksum;
}

static __always_inline int rewrite_ip(void *header, void *end, const struct address *source,
				      const struct address *destination, __u8 ipv6, __u8 hops)
{
	struct ipv6hdr *ip6 = header;
	struct iphdr *ip4 = header;
	__u64 removed, added;

	if (ipv6) {
		if ((void *)(ip6 + 1) > end)
			return 0;
		__builtin_memcpy(&ip6->saddr, source, sizeof(ip6->saddr));
		__builtin_memcpy(&ip6->daddr, destination, sizeof(ip6->daddr));
		ip6->hop_limit -= hops;
		return 1;
	}
	if ((void *)(ip4 + 1) > end)
		return 0;
	removed = (__u64)ip4->saddr + ip4->daddr + bpf_htons(ip4->ttl << 8);
	ip4->saddr = ADDRESS_WORD(source, 0);
	ip4->daddr = ADDRESS_WORD(destination, 0);
	ip4->ttl -= hops;
	added = (__u64)ip4->saddr + ip4->daddr + bpf_htons(ip4->ttl << 8);
	ip4->check = checksum_update(ip4->check, removed, added);
	return 1;
}

/*
 * SCTP's checksum has no pseudo-header: it only changes with the ports, by an amount that depends on
 * the packet's length, which a first fragment does not say. 0 in its place says that a device, or the
 * kernel, has yet to compute it.
 */
static __always_inline int rewrite_sctp(struct sctp_header *sctp, void *end,
					const struct packet *packet, const struct flow *to)
{
	both_ports difference = ports_of(&packet->flow) ^ ports_of(to);

	if ((void *)(sctp + 1) > end)
		return 0;
	if (!difference)
		return 1;
	if (packet->flags & PACKET_FRAGMENT_FIRST)
		return 0;
	sctp->source = to->source_port;
	sctp->destination = to->destination_port;
	if (sctp->checksum)
		sctp->checksum ^= crc32c_change(difference,
						packet->l3 + packet->length - packet->l4);
	return 1;
}

static __always_inline int rewrite_l4(void *l4, void *end, const struct packet *packet,
				      const struct flow *to)
{
	struct udphdr *udp = l4;
	struct tcphdr *tcp = l4;

	if (packet->flow.protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return 0;
		tcp->check = checksum_update(tcp->check, sum_flow(&packet->flow), sum_flow(to));
	} else if (unlikely(packet->flow.protocol == IPPROTO_SCTP)) {
		return rewrite_sctp(l4, end, packet, to);
	} else {
		if ((void *)(udp + 1) > end)
			return 0;
		if (udp->check)
			udp->check = l4_checksum(IPPROTO_UDP,
						 checksum_update(udp->check,
								 sum_flow(&packet->flow),
								 sum_flow(to)));
	}
	udp->source = to->source_port;
	udp->dest = to->destination_port;
	return 1;
}

/* Makes a packet of packet->flow one of t->to. Returns 0, and changes nothing, if it is cut. */
static __always_inline int translate(void *data, void *end, const struct packet *packet,
				     const struct translation *t)
{
	if (!(packet->flags & PACKET_FRAGMENT_LATER) &&
	    !rewrite_l4(data + (packet->l4 & 0x3fff), end, packet, &t->to))
		return 0;
	return rewrite_ip(data + (packet->l3 & 0x1f), end, &t->to.source, &t->to.destination,
			  packet->flow.ipv6, t->hops);
}

/*
 * The checksum inside the packet that an error carries, where the error is long
 * enough to have it. Returns by how much that changes the error's own checksum.
 */
static __always_inline __u64 rewrite_quoted_checksum(void *data, void *end,
						     const struct packet *packet,
						     const struct flow *to)
{
	__u8 protocol = packet->flow.protocol;
	__u32 offset = packet->quoted_l4 + (protocol == IPPROTO_TCP ?
						    offsetof(struct tcphdr, check) :
						    offsetof(struct udphdr, check));
	__u16 *checksum = data + (offset & 0x3fff);
	__u16 before;

	/* What a quote has of a packet is rarely all of it, so nothing can compare SCTP's (RFC 9260, 10). */
	if (protocol == IPPROTO_SCTP)
		return 0;
	if ((void *)(checksum + 1) > end || !packet_holds(packet, offset + sizeof(*checksum)))
		return 0;
	before = *checksum;
	if (protocol == IPPROTO_UDP && !before)
		return 0;
	*checksum = l4_checksum(protocol,
				checksum_update(before, sum_flow(&packet->flow), sum_flow(to)));
	return (__u64)(__u16)~before + *checksum;
}

/* Returns by how much the outer addresses change a sum over them. */
static __always_inline __u64 rewrite_outer(void *data, void *end, const struct packet *packet,
					   const struct translation *t)
{
	void *header = data + (packet->l3 & 0x1f);
	__u8 ipv6 = packet->flow.ipv6;
	struct address source = {};
	__u64 before;

	if (ipv6) {
		if (header + sizeof(struct ipv6hdr) > end)
			return 0;
		source = *(struct address *)(header + offsetof(struct ipv6hdr, saddr));
	} else {
		if (header + sizeof(struct iphdr) > end)
			return 0;
		ADDRESS_WORD(&source, 0) = *(__be32 *)(header + offsetof(struct iphdr, saddr));
	}
	before = sum_address(&source, ipv6) + sum_address(&packet->flow.destination, ipv6);
	if (t->hide_source || same_address(&source, &packet->flow.source))
		source = t->to.source;
	rewrite_ip(header, end, &source, &t->to.destination, ipv6, t->hops);
	return (__u64)(__u16)~checksum_fold(before) + sum_address(&source, ipv6) +
	       sum_address(&t->to.destination, ipv6);
}

/*
 * An error about a packet of the flow in the other direction. Over IPv4 the
 * addresses inside do not change its checksum, as the checksum of the IP header
 * inside changes by as much.
 */
static __always_inline int translate_error(void *data, void *end, const struct packet *packet,
					   const struct translation *t)
{
	struct icmp_header *icmp = data + (packet->l4 & 0x3fff);
	void *quoted = data + ((packet->l4 + sizeof(*icmp)) & 0x3fff);
	struct udphdr *ports = data + (packet->quoted_l4 & 0x3fff);
	__u8 ipv6 = packet->flow.ipv6;
	__u64 removed = sum_ports(&packet->flow), added = sum_ports(&t->to);

	if ((void *)(icmp + 1) > end || (void *)(ports + 1) > end)
		return 0;
	if (!rewrite_ip(quoted, end, &t->to.destination, &t->to.source, ipv6, 0))
		return 0;
	ports->source = t->to.destination_port;
	ports->dest = t->to.source_port;
	added += rewrite_quoted_checksum(data, end, packet, &t->to);
	if (ipv6) {
		removed += sum_addresses(&packet->flow);
		added += sum_addresses(&t->to) + rewrite_outer(data, end, packet, t);
	} else {
		rewrite_outer(data, end, packet, t);
	}
	icmp->checksum = checksum_update(icmp->checksum, removed, added);
	return 1;
}

/*
 * Functions of NAT that are not static are verified once each, with any argument
 * (hence their NULL checks), and not again in everything that may call them:
 * else the program would be too large for the verifier.
 */
__noinline int translate_quoting(struct xdp_md *ctx, const struct packet *packet,
				 const struct translation *t)
{
	return packet && t ? translate_error(frame(ctx), frame_end(ctx), packet, t) : 0;
}

/* The same of any packet. Errors have a function of their own: the stack is deep here. */
__noinline int translate_packet(struct xdp_md *ctx, const struct packet *packet,
				const struct translation *t)
{
	if (!packet || !t)
		return 0;
	if (packet->flags & PACKET_ICMP_ERROR)
		return translate_quoting(ctx, packet, t);
	return translate(frame(ctx), frame_end(ctx), packet, t);
}

/* Why a packet was not translated. */
static __always_inline enum reason untranslated(const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_SCTP && packet->flags & PACKET_FRAGMENT_FIRST ?
		       DROP_FRAGMENT_PORTS :
		       PASS_MALFORMED;
}
