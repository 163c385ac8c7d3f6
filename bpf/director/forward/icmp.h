/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP and ICMPv6: echo to a VIP is answered, errors about a VIP's flow follow
 * that flow, and packets that would not fit are answered with an error. Errors
 * are RFC 792 and RFC 4443; path MTU discovery RFC 1191 and RFC 8201.
 */
#pragma once

#include "director/budget.h"
#include "director/forward/link.h"
#include "director/group/fragment.h"
#include "director/quota.h"
#include "director/service.h"
#include "lib/checksum.h"

/* How much of a packet that did not fit an IPv4 error quotes, in one checksum call ... */
#define QUOTE4 508
/* ... and an IPv6 error: as much as fits in the least MTU (RFC 4443, 3.2). */
#define QUOTE6 (1280 - sizeof(struct ipv6hdr) - sizeof(struct icmp_header))
/* The most that bpf_csum_diff takes. */
#define CHECKSUM_CHUNK 512

static __always_inline int answer_ipv4(struct xdp_md *ctx, const struct packet *packet)
{
	struct iphdr *ip = l3_header(ctx, packet);
	__be32 vip;

	if ((void *)(ip + 1) > frame_end(ctx))
		return 0;
	vip = ip->daddr;
	ip->daddr = ip->saddr;
	ip->saddr = vip;
	ip->check = checksum_update(ip->check, bpf_htons(ip->ttl << 8), bpf_htons(64 << 8));
	ip->ttl = 64;
	return 1;
}

static __always_inline int answer_ipv6(struct xdp_md *ctx, const struct packet *packet)
{
	struct ipv6hdr *ip = l3_header(ctx, packet);
	struct in6_addr vip;

	if ((void *)(ip + 1) > frame_end(ctx))
		return 0;
	vip = ip->daddr;
	ip->daddr = ip->saddr;
	ip->saddr = vip;
	ip->hop_limit = 64;
	return 1;
}

/* Sends the frame back to where it comes from, as an answer of the VIP's. */
__noinline enum reason send_echo(struct xdp_md *ctx, struct packet *packet)
{
	if (!packet)
		return PASS_MALFORMED;
	if (packet->flow.ipv6 ? !answer_ipv6(ctx, packet) : !answer_ipv4(ctx, packet))
		return PASS_MALFORMED;
	if (frame(ctx) + sizeof(struct ethhdr) > frame_end(ctx))
		return PASS_MALFORMED;
	swap_ethernet(frame(ctx));
	packet->action = XDP_TX;
	return ANSWER_ECHO;
}

/*
 * The frame goes back as an echo reply: types change, the payload stays. The first fragment of a
 * ping has the checksum, which changes by as much; the others follow it as they are, and the
 * client puts them together.
 */
static __always_inline enum reason answer_echo(struct xdp_md *ctx, struct packet *packet)
{
	struct icmp_header *icmp;
	__u8 reply = packet->flow.ipv6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;

	if (!may_answer(packet))
		return DROP_SEGMENT_LIMIT;
	icmp = l4_header(ctx, packet);
	if (packet->flags & PACKET_FRAGMENT_FIRST) {
		remember_fragment(packet, NO_BACKEND, FRAGMENT_ECHO);
		icmp = l4_header(ctx, packet);
	}
	if ((void *)(icmp + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	icmp->checksum = checksum_not_zero(checksum_update(icmp->checksum,
							   bpf_htons(icmp->type << 8),
							   bpf_htons(reply << 8)));
	icmp->type = reply;
	return send_echo(ctx, packet);
}

/* A short packet may be padded by Ethernet: what is in the frame is not always in the packet. */
static __always_inline int packet_holds(const struct packet *packet, __u32 end)
{
	return end <= packet->l3 + packet->length;
}

/*
 * Reads the packet inside an error and makes its flow, as the client's packets
 * have it (source and destination swapped), the packet's flow. Eight bytes of
 * the inner L4 header are all that RFC 792 promises, and enough for the ports.
 */
static __always_inline enum reason parse_quoted(struct xdp_md *ctx, struct packet *packet)
{
	__u32 offset = packet->l4 + sizeof(struct icmp_header);
	void *quoted = l4_at(ctx, offset);
	struct flow flow = { .segment = packet->flow.segment, .ipv6 = packet->flow.ipv6 };
	struct udphdr *ports;

	if (flow.ipv6) {
		struct ipv6hdr *ip = quoted;
		union chain chain;

		if ((void *)(ip + 1) > frame_end(ctx))
			return PASS_MALFORMED;
		__builtin_memcpy(&flow.source, &ip->daddr, sizeof(struct address));
		__builtin_memcpy(&flow.destination, &ip->saddr, sizeof(struct address));
		chain.word = parse_extensions(ctx, offset + sizeof(*ip), ip->nexthdr);
		if (chain.flags & (CHAIN_CUT | CHAIN_UNSUPPORTED | PACKET_FRAGMENT_LATER))
			return PASS_NO_SERVICE;
		flow.protocol = chain.protocol;
		offset = chain.l4;
	} else {
		struct iphdr *ip = quoted;

		if ((void *)(ip + 1) > frame_end(ctx))
			return PASS_MALFORMED;
		if (ip->ihl < 5 || ip->frag_off & bpf_htons(0x1fff))
			return PASS_NO_SERVICE;
		ADDRESS_WORD(&flow.source, 0) = ip->daddr;
		ADDRESS_WORD(&flow.destination, 0) = ip->saddr;
		flow.protocol = ip->protocol;
		offset += ip->ihl * 4;
	}
	if (!has_ports(flow.protocol))
		return PASS_NO_SERVICE;
	/* Errors go to the source: one that quotes another source is about no flow of this VIP. */
	if (!same_address(&flow.destination, &packet->flow.destination))
		return PASS_NO_SERVICE;
	ports = l4_at(ctx, offset);
	if ((void *)(ports + 1) > frame_end(ctx) || !packet_holds(packet, offset + sizeof(*ports)))
		return PASS_MALFORMED;
	flow.source_port = ports->dest;
	flow.destination_port = ports->source;
	packet->flow = flow;
	packet->quoted_l4 = offset;
	packet->flags |= PACKET_ICMP_ERROR;
	return CONTINUE;
}

/* Goes on (CONTINUE) with errors only: as a packet of the flow they are about. */
static __always_inline enum reason parse_icmp(struct xdp_md *ctx, struct packet *packet)
{
	struct icmp_header *icmp = l4_header(ctx, packet);

	if ((void *)(icmp + 1) > frame_end(ctx) ||
	    !packet_holds(packet, packet->l4 + sizeof(*icmp)))
		return PASS_MALFORMED;
	/* Errors are not sent in fragments: what they quote is cut to fit. */
	if (is_error(icmp->type, packet->flow.ipv6))
		return packet->flags & PACKET_FRAGMENT_FIRST ? PASS_NO_SERVICE :
							       parse_quoted(ctx, packet);
	/* Only a director of an earlier version sends a ping here: the answer would go to it. */
	if (icmp->type == (packet->flow.ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST) &&
	    !icmp->code && !packet->request &&
	    is_vip(packet->flow.segment, &packet->flow.destination, packet->flow.ipv6))
		return answer_echo(ctx, packet);
	return PASS_NO_SERVICE;
}

/* Errors are rate limited per CPU and second (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f). */
static __always_inline int icmp_allowed(const struct packet *packet)
{
	const struct settings *settings = get_settings();

	return settings && may_spend(BUDGET_ICMP, &packet->flow, settings->icmp_rate, settings);
}

/* The checksum of `length` bytes (a constant) at `data`, which the caller has checked. */
static __always_inline __u64 sum_bytes(void *data, __u32 length, __u64 sum)
{
	for (__u32 done = 0; done < length; done += CHECKSUM_CHUNK) {
		__u32 chunk = length - done < CHECKSUM_CHUNK ? length - done : CHECKSUM_CHUNK;

		sum = bpf_csum_diff(0, 0, data + done, chunk, sum);
	}
	return sum;
}

struct too_big4 {
	struct iphdr ip;
	struct icmp_header icmp;
	__u8 quote[QUOTE4];
};

static __always_inline int write_too_big4(struct too_big4 *error, void *end,
					  const struct packet *packet, __u16 mtu)
{
	if ((void *)(error + 1) > end)
		return 0;
	error->ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(*error)),
		.ttl = 64,
		.protocol = IPPROTO_ICMP,
		.saddr = ADDRESS_WORD(&packet->flow.destination, 0),
		.daddr = ADDRESS_WORD(&packet->flow.source, 0),
	};
	error->ip.check = ipv4_header_checksum(&error->ip);
	error->icmp = (struct icmp_header){ .type = ICMP_UNREACHABLE,
					    .code = ICMP_FRAGMENTATION_NEEDED };
	error->icmp.mtu4 = bpf_htons(mtu);
	error->icmp.checksum =
		~checksum_fold(sum_bytes(&error->icmp, sizeof(error->icmp) + QUOTE4 - 8, 0) +
			       sum_bytes(error->quote + QUOTE4 - 8, 8, 0));
	return 1;
}

struct too_big6 {
	struct ipv6hdr ip;
	struct icmp_header icmp;
	__u8 quote[QUOTE6];
};

static __always_inline int write_too_big6(struct too_big6 *error, void *end,
					  const struct packet *packet, __u16 mtu)
{
	__u32 length = sizeof(*error) - sizeof(error->ip);
	__u64 sum;

	if ((void *)(error + 1) > end)
		return 0;
	error->ip = (struct ipv6hdr){
		.version = 6,
		.payload_len = bpf_htons(length),
		.nexthdr = IPPROTO_ICMPV6,
		.hop_limit = 64,
	};
	__builtin_memcpy(&error->ip.saddr, &packet->flow.destination, sizeof(struct address));
	__builtin_memcpy(&error->ip.daddr, &packet->flow.source, sizeof(struct address));
	error->icmp = (struct icmp_header){ .type = ICMPV6_TOO_BIG };
	error->icmp.mtu6 = bpf_htonl(mtu);
	sum = (__u64)bpf_htons(length) + bpf_htons(IPPROTO_ICMPV6);
	/* The addresses of the pseudo-header, then everything after the IP header. */
	sum = sum_bytes(&error->ip.saddr, 2 * sizeof(struct address), sum);
	error->icmp.checksum = ~checksum_fold(sum_bytes(&error->icmp, length, sum));
	return 1;
}

/*
 * The frame becomes an error that quotes its own beginning and goes back where
 * it came from: tail cut, room made before the IP header, Ethernet and tags moved
 * to the front. Also without DF, because senders then cut by themselves. Not static:
 * verified once.
 */
__noinline enum reason answer_too_big(struct xdp_md *ctx, struct packet *packet, __u16 mtu)
{
	__u32 quote = QUOTE4;
	int grow = sizeof(struct too_big4) - QUOTE4;
	struct {
		struct ethhdr ethernet;
		struct vlan_tag tags[VLAN_TAGS_MAX];
	} link = {};
	void *error;
	int written;

	if (!packet || packet->length > get_link_mtu())
		return DROP_SUPER_FRAME;
	if (packet->flow.ipv6) {
		quote = QUOTE6;
		grow = sizeof(struct too_big6) - QUOTE6;
	}
	if (packet->flags & PACKET_ICMP_ERROR || packet->length < quote || !icmp_allowed(packet))
		return DROP_TOO_BIG_LIMITED;
	/* Always room for two tags: 6.1 loses the bounds of a length that was spilled. */
	if (bpf_xdp_load_bytes(ctx, 0, &link, sizeof(link)))
		return PASS_MALFORMED;
	swap_ethernet(&link.ethernet);
	if (bpf_xdp_adjust_tail(ctx, (int)(packet->l3 + quote) - (int)bpf_xdp_get_buff_len(ctx)) ||
	    bpf_xdp_adjust_head(ctx, -grow) || bpf_xdp_store_bytes(ctx, 0, &link, sizeof(link)))
		return DROP_NO_HEADROOM;
	/* This overwrites what was stored for a tag that is not there. */
	error = l3_header(ctx, packet);
	written = packet->flow.ipv6 ? write_too_big6(error, frame_end(ctx), packet, mtu) :
				      write_too_big4(error, frame_end(ctx), packet, mtu);
	if (!written)
		return DROP_NO_HEADROOM;
	packet->action = XDP_TX;
	return ANSWER_TOO_BIG;
}
