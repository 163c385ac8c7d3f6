/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirection: the SYN of a client whose host asks for it becomes the backend's, with
 * the VIP in its option, and nothing of the connection comes by here any more. A SYN
 * that does not ask goes in the mode that the service falls back to.
 */
#pragma once

#include "forward.h"
#include "packet.h"
#include "redirect_option.h"
#include "translate.h"

/*
 * Where in the frame the option of a SYN is that asks to be redirected; 0: it does not,
 * or must not be. Not static, and without the packet: the verifier looks at it once, and
 * whoever calls it knows afterwards what it knew before.
 */
__noinline __u32 find_redirect(struct xdp_md *ctx, __u32 l4, __u32 left)
{
	struct tcphdr *tcp = l4_at(ctx, l4);
	const struct redirect_option *option;
	struct tcp_options options = {};
	__u32 length, at;

	if ((void *)(tcp + 1) > frame_end(ctx))
		return 0;
	length = tcp->doff * 4;
	/* With data: whoever gets it would have to keep it until the client answers. */
	if (length < sizeof(*tcp) + sizeof(*option) || length != left)
		return 0;
	/* Bounds by arithmetic: verifiers do not follow comparisons that were made one. */
	length -= sizeof(*tcp) + 4;
	barrier_var(length);
	length = (length & OPTIONS_MASK) + 4;
	if (bpf_xdp_load_bytes(ctx, (l4 & 0x3fff) + sizeof(*tcp), options.bytes, length))
		return 0;
	options.length = length;
	walk_options(&options);
	at = redirect_place(&options);
	if (!at)
		return 0;
	at += l4 + sizeof(*tcp) - 1;
	option = l4_at(ctx, at);
	if ((void *)option + REDIRECT_LENGTH > frame_end(ctx) || option->vip || option->port)
		return 0;
	return at;
}

/* Writes the VIP and its port into the option that find_redirect has found. */
static __always_inline int fill_option(struct xdp_md *ctx, const struct packet *packet, __u32 at)
{
	struct redirect_option *option = l4_at(ctx, at);
	struct tcphdr *tcp = l4_header(ctx, packet);
	__be32 vip = ADDRESS_WORD(&packet->flow.destination, packet->flow.ipv6 ? 3 : 0);
	__be16 port = packet->flow.destination_port;

	if ((void *)option + REDIRECT_LENGTH > frame_end(ctx) || (void *)(tcp + 1) > frame_end(ctx))
		return 0;
	option->vip = vip;
	option->port = port;
	tcp->check = checksum_update(tcp->check, 0, (__u64)vip + port);
	return 1;
}

/* The last thing that happens to the packet. */
__noinline enum reason forward_redirect(struct xdp_md *ctx, struct packet *packet,
					const struct backend *backend, __u32 option)
{
	struct translation t = { .hops = 1 };

	if (!packet || !backend)
		return PASS_MALFORMED;
	if (packet->ttl <= 1)
		return PASS_TTL_EXPIRED;
	t.to = packet->flow;
	t.to.destination = backend->address;
	if (backend->port)
		t.to.destination_port = backend->port;
	if (!fill_option(ctx, packet, option) || !translate_packet(ctx, packet, &t))
		return PASS_MALFORMED;
	if (!reframe(ctx, packet, backend, ethertype(packet), 0, 0))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, FORWARD_REDIRECT);
}
