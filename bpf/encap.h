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

/*
 * By words, whose sum is known before they are written: a load of a word that was
 * written in parts has to wait until all of them have left the processor's store buffer.
 */
static __always_inline void write_ipv4(struct iphdr *ip, const struct packet *packet,
				       const struct backend *backend,
				       const struct settings *settings, __u8 protocol, __u32 length)
{
	__be32 entropy = bpf_htonl(packet->hash);
	__be32 source = settings->tunnel_source4 | (entropy & ~settings->tunnel_mask4);
	__be32 destination = ADDRESS_WORD(&backend->address, 0);
	__be32 first = bpf_htonl(0x45000000 | (__u32)packet->tos << 16 | length);
	/* DF, and as the packet is atomic, ID may be 0 (RFC 6864). */
	__be32 second = bpf_htonl(0x4000);
	__be32 third = bpf_htonl(OUTER_TTL << 24 | (__u32)protocol << 16);
	__be32 *words = (__be32 *)ip;

	words[0] = first;
	words[1] = second;
	words[2] = third;
	words[3] = source;
	words[4] = destination;
	ip->check = ~checksum_fold((__u64)first + second + third + source + destination);
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

/* By words, as write_ipv4. Returns their sum. */
static __always_inline __u64 write_gue(struct gue_outer *outer, const struct packet *packet,
				       __u32 udp_length, __u32 private)
{
	__be32 *words = (__be32 *)outer;
	/* From 49152 to 65535: the dynamic ports (RFC 6335). */
	__be32 ports = bpf_htonl((0xc000 | (packet->hash & 0x3fff)) << 16 | GUE_PORT);
	__be32 length = bpf_htonl(udp_length << 16);
	__be32 gue = bpf_htonl((private / 4) << 24 | (__u32)inner_protocol(packet) << 16);

	words[0] = ports;
	words[1] = length;
	words[2] = gue;
	return (__u64)ports + length + gue;
}

/*
 * The UDP checksum of an outer IPv6 packet. Where the inner packet's sum is not
 * known for free it stays zero, which RFC 6935 and RFC 6936 allow for tunnels.
 * `outer` is the sum of UDP's and GUE's headers and of the private data.
 */
static __always_inline __be16 checksum_gue6(const struct packet *packet, const struct ipv6hdr *ip,
					    __u32 udp_length, __u64 outer)
{
	const __be32 *addresses = (const __be32 *)&ip->saddr;
	int known;
	__u64 sum = inner_sum(packet, &known) + outer;
	__u16 checksum;

	if (!known)
		return 0;
	/* Read again what was written: the stack has no room for it. */
	asm volatile("" ::: "memory");
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += addresses[i];
	sum += (__u64)bpf_htons(udp_length) + bpf_htons(IPPROTO_UDP);
	checksum = ~checksum_fold(sum);
	return checksum ? checksum : 0xffff;
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
		__u64 sum = write_gue(inner, packet, payload, private);

		sum += private ? row_sum6(row) : 0;
		inner->udp.check = checksum_gue6(packet, ip, payload, sum);
	}
	if (private && !put_row(ctx, row, (void *)ip + outer, 1))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, gue ? FORWARD_GUE : FORWARD_IPIP);
}

/*
 * Not inlined and not static: the verifier looks at it once, and it has a stack of its
 * own. What is met most of the time does not come here, because a call is not free
 * where processors have return thunks.
 */
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

/* Most packets of open connections: over IPv4, and of a slot without a list. */
static __always_inline int names_backup(const struct packet *packet, const struct backend *backend)
{
	return packet->flow.protocol == IPPROTO_TCP &&
	       !(packet->slot.next & (SLOT_LIST | SLOT_SETTLING)) &&
	       !(backend->flags & BACKEND_IPV6);
}

static __always_inline enum reason forward_gue(struct xdp_md *ctx, struct packet *packet,
					       const struct backend *backend, __u32 index,
					       const struct settings *settings)
{
	struct row row = {};

	if (carries_row(packet, index)) {
		if (!names_backup(packet, backend))
			return forward_with_row(ctx, packet, backend, index);
		row = row_of_two(packet, index, 0);
	}
	return backend->flags & BACKEND_IPV6 ?
		       forward_encap6(ctx, packet, backend, settings, 1, NULL) :
		       forward_encap4(ctx, packet, backend, settings, 1, &row);
}

static __always_inline enum reason forward_encap(struct xdp_md *ctx, struct packet *packet,
						 const struct backend *backend, __u32 index)
{
	const struct settings *settings = get_settings();

	if (!settings)
		return DROP_NO_BACKEND;
	if (backend->mode == MODE_GUE)
		return forward_gue(ctx, packet, backend, index, settings);
	return backend->flags & BACKEND_IPV6 ?
		       forward_encap6(ctx, packet, backend, settings, 0, NULL) :
		       forward_encap4(ctx, packet, backend, settings, 0, NULL);
}
