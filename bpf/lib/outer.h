/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The headers that a packet gets on its way to a backend: Ethernet, IPIP (RFC 2003,
 * RFC 2473, RFC 4213) and GUE variant 0 (draft-ietf-intarea-gue-09), any family in any.
 * Nothing here depends on maps, or on the kind of program that writes the headers.
 */
#pragma once

#include "lib/checksum.h"
#include "lib/packet.h"

#define MAC_MASK 0xffffffffffffULL

/* Whether two words begin with the same MAC address. */
static __always_inline int same_mac(__u64 a, __u64 b)
{
	__u64 differ = a ^ b;

	/* In assembly, or the compiler masks: with a constant of eight bytes, which is loaded first. */
	asm("%0 <<= 16" : "+r"(differ));
	return !differ;
}

/* A word of struct backend that begins with a MAC address: read at once, because it may change. */
static __always_inline __u64 link_word(const void *word)
{
	return *(const volatile __u64 *)word;
}

/*
 * Writes both MAC addresses, each of them a word's first six bytes: by words, because
 * Ethernet headers are packed, and the compiler would copy single bytes.
 */
static __always_inline void write_macs(void *ethernet, __u64 to, __u64 from)
{
	*(__u64 *)ethernet = (to & MAC_MASK) | from << 48;
	((__u32 *)ethernet)[2] = from >> 16;
}

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
	__u8 flags = packet->flags & ~PACKET_TCP_SYN;

	*known = !(flags & ~PACKET_OPTIONS) &&
		 (packet->flow.protocol == IPPROTO_TCP || packet->flow.protocol == IPPROTO_UDP);
	if (packet->flow.ipv6) {
		/* The addresses are in the header and in the pseudo-header: they cancel. */
		__u64 header = (__u64)packet->first_word +
			       bpf_htons(packet->length - sizeof(struct ipv6hdr)) +
			       bpf_htons(packet->flow.protocol << 8 | packet->ttl);

		if (flags)
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
	ip->check = ~checksum_fold_few((__u64)first + second + third + source + destination);
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, const struct packet *packet,
				       const struct backend *backend,
				       const struct settings *settings, __u8 protocol,
				       __u32 payload)
{
	__be32 entropy = bpf_htonl(packet->hash);
	__u64 both = (__u64)entropy << 32 | entropy;
	half_address *addresses = (half_address *)&ip->saddr;

	/* The flow label (RFC 6438) spreads tunnels where routers do not look inside. */
	*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)packet->tos << 20 | (packet->hash & 0xfffff));
	ip->payload_len = bpf_htons(payload);
	ip->nexthdr = protocol;
	ip->hop_limit = OUTER_TTL;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		addresses[i] = ADDRESS_HALF(&settings->tunnel_source6, i) |
			       (both & ~ADDRESS_HALF(&settings->tunnel_mask6, i));
		addresses[2 + i] = ADDRESS_HALF(&backend->address, i);
	}
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

	if (!known)
		return 0;
	/* Read again what was written: the stack has no room for it. */
	asm volatile("" ::: "memory");
#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += addresses[i];
	sum += (__u64)bpf_htons(udp_length) + bpf_htons(IPPROTO_UDP);
	return checksum_not_zero(~checksum_fold(sum));
}
