/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirection: the SYN of a client whose host asks for it gets the backend's address, with
 * the VIP in its option, and no other packet of the connection comes by here. A SYN
 * that does not ask goes in the mode that the service falls back to.
 */
#pragma once

#include "director/forward/link.h"
#include "lib/checksum.h"
#include "lib/packet.h"
#include "lib/redirect_option.h"

/* A result of find_redirect: the option was looked for, and is nowhere. No option is at 1. */
#define REDIRECT_NOWHERE 1

/* 8-byte words of options in the usual SYN of Linux, with the option that asks behind them. */
#define USUAL_OPTIONS 4

/*
 * Whether a header, whose bytes are there, has MSS, SACK, timestamps, a NOP and a window
 * scale, and then the redirect option, empty, and its NOPs. That is what agents on Linux
 * send; everything else is walked through, which takes many times as long.
 */
static __always_inline int asks_as_usual(const struct tcphdr *tcp)
{
	const __be64 *words = (const __be64 *)(tcp + 1);
	__u64 differ;

	differ = (words[0] ^ bpf_cpu_to_be64(0x020400000402080a)) &
		 bpf_cpu_to_be64(0xffff0000ffffffff); /* any MSS */
	differ |= (words[2] ^ bpf_cpu_to_be64(0x01030300fe0a5752)) &
		  bpf_cpu_to_be64(0xffffff00ffffffff); /* any scale */
	differ |= words[3] ^ bpf_cpu_to_be64(0x0101);
	return !differ;
}

/*
 * Finds the option among any other ones. Not static: the verifier looks at it once, and its
 * callers know afterwards what they knew before.
 */
__noinline __u32 walk_to_redirect(struct xdp_md *ctx, __u32 l4, __u32 length)
{
	const struct redirect_option *option;
	struct tcp_options options = {};
	__u32 at;

	/* Bounds by arithmetic: verifiers do not follow comparisons that were merged. */
	length -= sizeof(struct tcphdr) + 4;
	barrier_var(length);
	length = (length & OPTIONS_MASK) + 4;
	if (bpf_xdp_load_bytes(ctx, (l4 & 0x3fff) + sizeof(struct tcphdr), options.bytes, length))
		return REDIRECT_NOWHERE;
	options.length = length;
	walk_options(&options);
	at = redirect_place(&options);
	if (!at)
		return REDIRECT_NOWHERE;
	at += l4 + sizeof(struct tcphdr) - 1;
	option = l4_at(ctx, at);
	if ((void *)option + REDIRECT_LENGTH > frame_end(ctx) || option->vip || option->port)
		return REDIRECT_NOWHERE;
	return at;
}

/*
 * Where in the frame of a SYN the option is that asks for redirection, or REDIRECT_NOWHERE:
 * the SYN does not ask, or must not be redirected. Inlined, because a call takes as long as
 * all of the usual way.
 */
static __always_inline __u32 find_redirect(struct xdp_md *ctx, const struct packet *packet)
{
	const __u32 usual = sizeof(struct tcphdr) + USUAL_OPTIONS * sizeof(__be64);
	__u32 l4 = packet->l4, left = packet->l3 + packet->length - l4, length;
	struct tcphdr *tcp = l4_at(ctx, l4);

	if ((void *)(tcp + 1) > frame_end(ctx))
		return REDIRECT_NOWHERE;
	length = tcp->doff * 4;
	/* Not with data: the backend would have to keep it until the client answers. */
	if (length < sizeof(*tcp) + sizeof(struct redirect_option) || length != left)
		return REDIRECT_NOWHERE;
	if (likely(length == usual && (void *)tcp + usual <= frame_end(ctx) && asks_as_usual(tcp)))
		return l4 + usual - sizeof(struct redirect_option);
	return walk_to_redirect(ctx, l4, length);
}

/* Whether a packet asks for redirection: a whole SYN with the option, which is looked for once. */
static __always_inline int asks_redirect(struct xdp_md *ctx, struct packet *packet)
{
	if (!packet->redirect_at) {
		if (!is_syn(packet) || packet->flags & PACKET_FRAGMENT_FIRST)
			return 0;
		packet->redirect_at = find_redirect(ctx, packet);
	}
	return packet->redirect_at != REDIRECT_NOWHERE;
}

/* Whether a backend takes connections over. This host does not: it has the VIP itself. */
static __always_inline int takes_over(const struct backend *backend)
{
	return (backend->flags & (BACKEND_REDIRECT | BACKEND_LOCAL)) == BACKEND_REDIRECT;
}

/* Whether the packet's connection is handed over to the backend. */
static __always_inline int hands_over(struct xdp_md *ctx, struct packet *packet,
				      const struct backend *backend)
{
	return takes_over(backend) && asks_redirect(ctx, packet);
}

/* Decrements the TTL and changes the destination; the header's sum changes by the difference. */
static __always_inline void readdress4(struct iphdr *ip, __be32 was, __be32 is)
{
	__u64 sum = (__u64)(__u16)~ip->check + (__u32)~was + is + (__u16)~bpf_htons(1 << 8);

	ip->check = ~checksum_fold_few(sum);
	ip->daddr = is;
	ip->ttl--;
}

/*
 * The destination becomes the backend's, and the VIP and its port go into the option.
 * What moves between the two does not change TCP's sum: the VIP's last word, and the
 * port. Returns 0, and has changed nothing, if the frame is cut short.
 */
static __always_inline int hand_over(struct xdp_md *ctx, const struct packet *packet,
				     const struct backend *backend)
{
	const struct address *vip = &packet->flow.destination, *to = &backend->address;
	struct redirect_option *option = l4_at(ctx, packet->redirect_at);
	struct tcphdr *tcp = l4_header(ctx, packet);
	__be16 port = packet->flow.destination_port;
	void *ip = l3_header(ctx, packet), *end = frame_end(ctx);
	__u64 sum;

	if ((void *)option + REDIRECT_LENGTH > end || (void *)(tcp + 1) > end)
		return 0;
	sum = (__u16)~tcp->check;
	if (packet->flow.ipv6) {
		struct ipv6hdr *six = ip;

		if ((void *)(six + 1) > end)
			return 0;
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum += (__u64)ADDRESS_WORD(to, i) +
			       (i < 3 ? (__u32)~ADDRESS_WORD(vip, i) : 0);
		__builtin_memcpy(&six->daddr, to, sizeof(six->daddr));
		six->hop_limit--;
		option->vip = ADDRESS_WORD(vip, 3);
	} else {
		if (ip + sizeof(struct iphdr) > end)
			return 0;
		sum += ADDRESS_WORD(to, 0);
		readdress4(ip, ADDRESS_WORD(vip, 0), ADDRESS_WORD(to, 0));
		option->vip = ADDRESS_WORD(vip, 0);
	}
	option->port = port;
	if (backend->port)
		port = backend->port;
	tcp->dest = port;
	tcp->check = ~checksum_fold_few(sum + port);
	return 1;
}

/* Sends a packet to a backend that takes its connection over. CONTINUE: it does not ask for that. */
__noinline enum reason forward_redirect(struct xdp_md *ctx, struct packet *packet,
					const struct backend *backend)
{
	__u64 next_hop;

	if (!packet || !backend)
		return PASS_MALFORMED;
	if (!asks_redirect(ctx, packet))
		return CONTINUE;
	if (packet->ttl <= 1)
		return PASS_TTL_EXPIRED;
	if (!hand_over(ctx, packet, backend))
		return PASS_MALFORMED;
	next_hop = link_word(backend->mac);
	if (likely(!packet->tags && !vlan_of(next_hop))) {
		struct ethhdr *ethernet = frame(ctx);

		if ((void *)(ethernet + 1) > frame_end(ctx))
			return PASS_MALFORMED;
		write_macs(ethernet, next_hop, link_word(backend->source_mac));
	} else if (!reframe(ctx, packet, backend, ethertype(packet), 0, 0)) {
		return DROP_NO_HEADROOM;
	}
	return leave(ctx, packet, backend->ifindex, FORWARD_REDIRECT);
}
