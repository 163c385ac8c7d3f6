/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tunnels: IPIP (RFC 2003, RFC 2473, RFC 4213) and GUE variant 0
 * (draft-ietf-intarea-gue-09), any family in any. The inner packet is not
 * changed: its TTL is decremented where it is routed, not where it is tunnelled.
 */
#pragma once

#include "checksum.h"
#include "forward.h"
#include "maps.h"
#include "packet.h"
#include "row.h"
#include "service.h"

#define OUTER_TTL 64

struct guehdr {
	__u8 version_length; /* variant (2 bits), control (1), length of extensions / 4 (5) */
	__u8 protocol;       /* of the packet inside */
	__be16 flags;
};

struct gue_outer {
	struct udphdr udp;
	struct guehdr gue;
};

static __always_inline __u8 inner_protocol(const struct packet *packet)
{
	return packet->flow.ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
}

/*
 * The ones' complement sum of the inner packet, without reading its payload: a
 * correct TCP or UDP checksum makes header and payload sum up to the complement
 * of the pseudo-header, and a correct IPv4 header sums up to zero. Returns 0 in
 * *known where this does not hold.
 */
static __always_inline __u64 inner_sum(const struct packet *packet, int *known)
{
	const struct address *source = &packet->flow.source;
	const struct address *destination = &packet->flow.destination;
	__u32 l4_length = packet->length - (packet->l4 - packet->l3);
	__u64 pseudo = (__u64)bpf_htons(l4_length) + bpf_htons(packet->flow.protocol);

	*known = !(packet->flags & ~PACKET_OPTIONS) &&
		 (packet->flow.protocol == IPPROTO_TCP || packet->flow.protocol == IPPROTO_UDP);
	if (packet->flow.ipv6) {
		/* The addresses are in the header and in the pseudo-header: they cancel. */
		__u64 header = (__u64)packet->first_word +
			       bpf_htons(packet->length - sizeof(struct ipv6hdr)) +
			       bpf_htons(packet->flow.protocol << 8 | packet->ttl);

		if (packet->flags)
			*known = 0;
		return header + (__u16)~checksum_fold(pseudo);
	}
	pseudo += (__u64)ADDRESS_WORD(source, 0) + ADDRESS_WORD(destination, 0);
	return (__u16)~checksum_fold(pseudo);
}

static __always_inline void write_ipv4(struct iphdr *ip, const struct packet *packet,
				       const struct backend *backend,
				       const struct settings *settings, __u8 protocol, __u32 length)
{
	__be32 entropy = bpf_htonl(packet->hash);

	*(__u16 *)ip = bpf_htons(0x4500 | packet->tos);
	ip->tot_len = bpf_htons(length);
	ip->id = 0; /* may be, as the packet is atomic (RFC 6864) */
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = OUTER_TTL;
	ip->protocol = protocol;
	ip->check = 0;
	ip->saddr = settings->tunnel_source4 | (entropy & ~settings->tunnel_mask4);
	ip->daddr = ADDRESS_WORD(&backend->address, 0);
	ip->check = ipv4_header_checksum(ip);
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, const struct packet *packet,
				       const struct backend *backend,
				       const struct settings *settings, __u8 protocol,
				       __u32 payload)
{
	__be32 entropy = bpf_htonl(packet->hash);
	__be32 *source = (__be32 *)&ip->saddr;

	/* The flow label (RFC 6438) spreads tunnels where routers do not look inside. */
	*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)packet->tos << 20 | (packet->hash & 0xfffff));
	ip->payload_len = bpf_htons(payload);
	ip->nexthdr = protocol;
	ip->hop_limit = OUTER_TTL;
#pragma unroll
	for (int i = 0; i < 4; i++)
		source[i] = ADDRESS_WORD(&settings->tunnel_source6, i) |
			    (entropy & ~ADDRESS_WORD(&settings->tunnel_mask6, i));
	__builtin_memcpy(&ip->daddr, &backend->address, sizeof(ip->daddr));
}

static __always_inline void write_gue(struct gue_outer *outer, const struct packet *packet,
				      __u32 udp_length, __u32 private)
{
	/* 49152 to 65535: the dynamic ports (RFC 6335). */
	outer->udp.source = bpf_htons(0xc000 | (packet->hash & 0x3fff));
	outer->udp.dest = bpf_htons(GUE_PORT);
	outer->udp.len = bpf_htons(udp_length);
	outer->udp.check = 0;
	outer->gue.version_length = private / 4;
	outer->gue.protocol = inner_protocol(packet);
	outer->gue.flags = 0;
}

/*
 * The UDP checksum of an outer IPv6 packet. Where the inner packet's sum is not
 * known for free it stays zero, which RFC 6935 and RFC 6936 allow for tunnels.
 * `private` is the sum of GUE's private data.
 */
static __always_inline void checksum_gue6(const struct packet *packet, const struct ipv6hdr *ip,
					  struct gue_outer *outer, __u64 private)
{
	const __be32 *addresses = (const __be32 *)&ip->saddr;
	const __u32 *words = (const __u32 *)outer;
	int known;
	__u64 sum = inner_sum(packet, &known);
	__u16 checksum;

	if (!known)
		return;
	sum += private;
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += addresses[i];
#pragma unroll
	for (int i = 0; i < (int)(sizeof(*outer) / 4); i++)
		sum += words[i];
	sum += (__u64)outer->udp.len + bpf_htons(IPPROTO_UDP);
	checksum = ~checksum_fold(sum);
	outer->udp.check = checksum ? checksum : 0xffff;
}

/* Between the GUE header and the packet there may be a row: NULL is none. */
static __always_inline enum reason forward_encap4(struct xdp_md *ctx, struct packet *packet,
						  const struct backend *backend,
						  const struct settings *settings, int gue,
						  const struct row *row)
{
	__u32 outer = sizeof(struct iphdr) + (gue ? sizeof(struct gue_outer) : 0);
	__u32 private = row ? row->length : 0;
	struct iphdr *ip = reframe(ctx, packet, backend, bpf_htons(ETH_P_IP), outer, private);

	if (!ip)
		return DROP_NO_HEADROOM;
	write_ipv4(ip, packet, backend, settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   outer + private + packet->length);
	if (gue)
		write_gue((struct gue_outer *)(ip + 1), packet,
			  sizeof(struct gue_outer) + private + packet->length, private);
	if (private && !put_row(ctx, row, (void *)ip + outer, 0))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, gue ? FORWARD_GUE : FORWARD_IPIP);
}

static __always_inline enum reason forward_encap6(struct xdp_md *ctx, struct packet *packet,
						  const struct backend *backend,
						  const struct settings *settings, int gue,
						  const struct row *row)
{
	__u32 outer = sizeof(struct ipv6hdr) + (gue ? sizeof(struct gue_outer) : 0);
	__u32 private = row ? row->length : 0;
	__u32 payload = outer - sizeof(struct ipv6hdr) + private + packet->length;
	struct ipv6hdr *ip = reframe(ctx, packet, backend, bpf_htons(ETH_P_IPV6), outer, private);

	if (!ip)
		return DROP_NO_HEADROOM;
	write_ipv6(ip, packet, backend, settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   payload);
	if (gue) {
		struct gue_outer *inner = (struct gue_outer *)(ip + 1);

		write_gue(inner, packet, payload, private);
		checksum_gue6(packet, ip, inner, private ? row_sum6(row) : 0);
	}
	if (private && !put_row(ctx, row, (void *)ip + outer, 1))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, gue ? FORWARD_GUE : FORWARD_IPIP);
}

/* Not inlined and not static: what carries no row has nothing to do with it. */
__noinline enum reason forward_with_row(struct xdp_md *ctx, struct packet *packet,
					const struct backend *backend, __u32 index)
{
	const struct settings *settings = get_settings();
	struct row row;

	if (!packet || !backend || !settings)
		return DROP_NO_BACKEND;
	row = find_row(packet, index, backend->flags);
	return backend->flags & BACKEND_IPV6 ?
		       forward_encap6(ctx, packet, backend, settings, 1, &row) :
		       forward_encap4(ctx, packet, backend, settings, 1, &row);
}

static __always_inline enum reason forward_encap(struct xdp_md *ctx, struct packet *packet,
						 const struct backend *backend, __u32 index)
{
	const struct settings *settings = get_settings();
	int gue = backend->mode == MODE_GUE;

	if (gue && carries_row(packet))
		return forward_with_row(ctx, packet, backend, index);
	if (!settings)
		return DROP_NO_BACKEND;
	if (backend->flags & BACKEND_IPV6)
		return gue ? forward_encap6(ctx, packet, backend, settings, 1, NULL) :
			     forward_encap6(ctx, packet, backend, settings, 0, NULL);
	return gue ? forward_encap4(ctx, packet, backend, settings, 1, NULL) :
		     forward_encap4(ctx, packet, backend, settings, 0, NULL);
}
