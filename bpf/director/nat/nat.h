/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * NAT: the destination becomes the backend; with snat.h, the source becomes this
 * director. A reply is recognized by its source, without anything that was
 * remembered, so that any director can translate it; with snat.h, by its
 * destination. Replies take the kernel's route to the client. In services that ask
 * for it, flows go on with the host that answers for the backend: ask.h, asked_reply.h.
 */
#pragma once

#include <stddef.h>

#include "director/forward/icmp.h"
#include "director/forward/link.h"
#include "director/group/fragment.h"
#include "director/maps.h"
#include "director/nat/ask.h"
#include "director/nat/asked_reply.h"
#include "director/nat/snat.h"
#include "director/nat/translate.h"
#include "director/pick/flows.h"
#include "director/segment.h"
#include "director/service.h"
#include "director/socket.h"
#include "lib/packet.h"

/* Address families of bpf_fib_lookup (sys/socket.h needs a C library). */
enum {
	FAMILY_IPV4 = 2,
	FAMILY_IPV6 = 10,
};

/* Makes what is before the IP header that of a packet to the backend. `tags`, a constant: tags stay as they are. */
static __always_inline int address_nat(struct xdp_md *ctx, const struct packet *packet,
				       const struct backend *backend, int tags)
{
	struct ethhdr *ethernet = frame(ctx);

	if (!tags)
		return !!reframe(ctx, packet, backend, ethertype(packet), 0, 0);
	if ((void *)(ethernet + 1) > frame_end(ctx))
		return 0;
	write_macs(ethernet, link_word(backend->mac), link_word(backend->source_mac));
	return 1;
}

/* Sends to a backend, on this host or another, at a port (read late); 0: the packet's own. */
static __always_inline enum reason send_nat(struct xdp_md *ctx, struct packet *packet,
					    const struct backend *backend, const __be16 *port,
					    int local, int tags)
{
	struct translation t = {};

	t.to = packet->flow;
	t.hops = !local;
	t.hide_source = packet->snat && !local;
	if (!local && packet->ttl <= 1)
		return PASS_TTL_EXPIRED;
	t.to.destination = backend->address;
	if (*port)
		t.to.destination_port = *port;
	if (packet->snat && !local) {
		if (!snat_source(packet->snat, &t.to))
			return DROP_SNAT_UNKNOWN;
		if (likely(!(packet->snat &
			     SNAT_SHARED))) /* else the backend knows it from the other director */
			set_inside_source(packet->backend, &t.to);
	}
	if (!translate_packet(ctx, packet, &t))
		return untranslated(packet);
	if (local) {
		packet->action = XDP_PASS;
		return PASS_LOCAL;
	}
	if (!address_nat(ctx, packet, backend, tags))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, FORWARD_NAT);
}

__noinline enum reason forward_nat(struct xdp_md *ctx, struct packet *packet,
				   const struct backend *backend)
{
	if (!packet || !backend)
		return PASS_MALFORMED;
	return send_nat(ctx, packet, backend, &backend->port, backend->flags & BACKEND_LOCAL, 0);
}

/* Sends to a backend in a segment of two tags. CONTINUE: the packet does not fit. */
__noinline enum reason forward_nat_tagged(struct xdp_md *ctx, struct packet *packet,
					  const struct backend *backend)
{
	if (!packet || !backend)
		return PASS_MALFORMED;
	return packet->length > backend->mtu ? CONTINUE :
					       send_nat(ctx, packet, backend, &backend->port, 0, 1);
}

/*
 * Sends to a backend that is asked to hand connections over, and is not this host. CONTINUE:
 * the packet does not fit.
 */
__noinline enum reason forward_asking(struct xdp_md *ctx, struct packet *packet,
				      const struct backend *backend)
{
	__be16 port;

	if (!packet || !backend)
		return PASS_MALFORMED;
	if (packet->length > backend->mtu)
		return CONTINUE;
	port = backend->port;
	if (packet->ttl > 1) /* else it is the kernel's */
		port = asked_port(ctx, packet, port);
	return send_nat(ctx, packet, backend, &port, 0, 0);
}

/* The NAT backend that sends from this address and port. */
static __noinline __u32 *find_reply(const struct flow *flow)
{
	struct flow sender = {
		.segment = flow->segment,
		.destination = flow->source,
		.destination_port = flow->source_port,
		.protocol = flow->protocol,
		.ipv6 = flow->ipv6,
	};
	const struct settings *settings = get_settings();
	__u32 *backend;

	if (flow->ipv6) {
		struct endpoint6 key = endpoint6(flow->segment, &flow->source, flow->protocol,
						 flow->source_port);

		backend = bpf_map_lookup_elem(&replies6, &key);
	} else {
		struct endpoint4 key = endpoint4(flow->segment, &flow->source, flow->protocol,
						 flow->source_port);

		backend = bpf_map_lookup_elem(&replies4, &key);
	}
	if (backend || !settings || !(settings->flags & SETTINGS_RANGES))
		return backend;
	return find_range(&sender, 1);
}

/* Whether routers on the way may cut the packet into fragments. */
static __always_inline int may_fragment(struct xdp_md *ctx, const struct packet *packet)
{
	struct iphdr *ip = l3_header(ctx, packet);

	return !packet->flow.ipv6 && (void *)(ip + 1) <= frame_end(ctx) &&
	       !(ip->frag_off & bpf_htons(0x4000));
}

/* Fills in the question for the kernel's route of a packet of a flow. */
static __always_inline void ask_route(const struct flow *to, __u32 ingress,
				      struct bpf_fib_lookup *route)
{
	route->l4_protocol = to->protocol;
	route->sport = to->source_port;
	route->dport = to->destination_port;
	route->ifindex = ingress;
	if (to->ipv6) {
		route->family = FAMILY_IPV6;
		__builtin_memcpy(route->ipv6_src, &to->source, sizeof(route->ipv6_src));
		__builtin_memcpy(route->ipv6_dst, &to->destination, sizeof(route->ipv6_dst));
	} else {
		route->family = FAMILY_IPV4;
		route->ipv4_src = ADDRESS_WORD(&to->source, 0);
		route->ipv4_dst = ADDRESS_WORD(&to->destination, 0);
	}
}

/* The kernel's route for what the packet becomes; BPF_FIB_LKUP_RET_... */
static __always_inline int find_route(struct xdp_md *ctx, const struct packet *packet,
				      const struct flow *to, struct bpf_fib_lookup *route)
{
	/* A packet with a tag is of another interface, which XDP does not know. */
	if (packet->tags)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	ask_route(to, ctx->ingress_ifindex, route);
	route->tot_len = packet->length > 0xffff ? 0xffff : packet->length;
	if (to->ipv6)
		route->flowinfo = packet->first_word & bpf_htonl(0x0fffffff);
	else
		route->tos = packet->tos;
	return bpf_fib_lookup(ctx, route, sizeof(*route), 0);
}

/*
 * Whether a program on this host called the backend itself, and not the VIP: a health check.
 * A listening socket, and an unconnected UDP socket, has no port of a peer. Probes of
 * redirection have a listening socket, with a priority of its own: they are not sent by a
 * TCP socket. Those of SCTP cannot be looked up, but health checks of
 * SCTP hold a UDP socket at their port.
 */
static __noinline int is_own_flow(struct xdp_md *ctx, const struct packet *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 length;
	int own;

	if (!packet || packet->flags & (PACKET_ICMP_ERROR | PACKET_FRAGMENT_LATER))
		return 0;
	length = socket_tuple(&packet->flow, &tuple);
	socket = packet->flow.protocol == IPPROTO_TCP ?
			 bpf_sk_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0) :
			 bpf_sk_lookup_udp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	own = socket->dst_port == packet->flow.source_port ||
	      socket->priority == REDIRECT_PROBE_PRIORITY;
	bpf_sk_release(socket);
	return own;
}

/* How a reply leaves; XDP_PASS: by the kernel, because the interface is not weir's. */
static __always_inline int exit_by(struct xdp_md *ctx, __u32 ifindex)
{
	if (ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect_map(&egress, ifindex, XDP_PASS);
}

/* What a reply that is sent is counted as. */
static __always_inline enum reason sent_back(const struct packet *packet)
{
	if (packet->flags & PACKET_ICMP_ERROR)
		return FORWARD_ICMP_ERROR;
	return packet->flags & PACKET_FRAGMENT_LATER ? FORWARD_FRAGMENT : FORWARD_REPLY;
}

/*
 * The kernel routes replies for which the lookup has no answer (no neighbor yet,
 * forwarding is off, a tagged interface), and those that may be fragmented: it gets
 * the packet as the client will see it. A packet that may not be fragmented and does
 * not fit is answered from here: the error must go to the backend and quote the
 * packet that it sent. The kernel knows only the translated packet, so its error would
 * go to the VIP. With TTL 1 the kernel gets the packet as it is, unless that is a packet
 * to this host's own address.
 */
__noinline enum reason send_reply(struct xdp_md *ctx, struct packet *packet, struct translation *t)
{
	struct bpf_fib_lookup route = {};
	int status = BPF_FIB_LKUP_RET_NOT_FWDED, action = XDP_PASS;
	struct ethhdr *ethernet;
	enum reason inside;

	if (!packet || !t)
		return PASS_MALFORMED;
	inside = reply_to_host(ctx, packet, t, sent_back(packet));
	if (inside != CONTINUE)
		return inside;
	if (packet->ttl > 1)
		status = find_route(ctx, packet, &t->to, &route);
	else if (!packet->snat)
		return PASS_TTL_EXPIRED;
	if (status == BPF_FIB_LKUP_RET_FRAG_NEEDED && !may_fragment(ctx, packet))
		return answer_too_big(ctx, packet, route.mtu_result);
	/* A packet for this host itself is not forwarded. */
	if (status == BPF_FIB_LKUP_RET_NOT_FWDED && is_own_flow(ctx, packet)) {
		if (packet->flags & PACKET_FRAGMENT_FIRST)
			remember_fragment(packet, NO_BACKEND, FRAGMENT_TO_KERNEL);
		return PASS_NO_SERVICE;
	}
	if (status == BPF_FIB_LKUP_RET_SUCCESS)
		action = exit_by(ctx, route.ifindex);
	t->hops = action != XDP_PASS;
	if (!translate_packet(ctx, packet, t))
		return untranslated(packet);
	ethernet = frame(ctx);
	if (action == XDP_PASS || (void *)(ethernet + 1) > frame_end(ctx))
		return PASS_REPLY_UNROUTED;
	__builtin_memcpy(ethernet->h_dest, route.dmac, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_source, route.smac, MAC_LENGTH);
	packet->action = action;
	return sent_back(packet);
}

static __always_inline enum reason count_reply(struct packet *packet, __u32 index,
					       enum reason reason)
{
	const struct backend *backend = backend_at(index);

	if (is_dropped(reason) && backend)
		count_drop(backend->service, packet);
	return reason;
}

/* Whether a packet of no known flow may be the answer of another host for a backend. */
static __always_inline int may_be_echo(const struct packet *packet)
{
	const struct settings *settings;

	if (likely(!(packet->flags & PACKET_TCP_SYN)))
		return 0;
	settings = get_settings();
	return settings && settings->flags & SETTINGS_ASKS;
}

/* A SYN-ACK of the backend's, whose flow may be remembered. */
static __noinline int answer_remembered(const struct packet *packet, const struct flow *to,
					__u32 service, __u32 index)
{
	const struct settings *settings = get_settings();
	struct flow flow = *to;

	flow.source = to->destination;
	flow.source_port = to->destination_port;
	flow.destination = to->source;
	flow.destination_port = to->source_port;
	return settings ? note_syn_ack(settings, packet, &flow, service, index) : 0;
}

/* Handles a reply that begins a connection, or is in fragments. */
static __always_inline void reply_rare(struct xdp_md *ctx, const struct packet *packet,
				       const struct flow *to, __u32 index)
{
	const struct backend *backend = backend_at(index);

	if (packet->flags & PACKET_FRAGMENT_FIRST)
		remember_fragment(packet, index, FRAGMENT_TO_CLIENT);
	else if (backend && asks(backend) && packet->snat)
		answer_asked(ctx, packet);
	else if (backend && !packet->snat && is_syn_ack(packet))
		answer_remembered(packet, to, backend->service, index);
}

/* A packet of no service, perhaps from a NAT backend. CONTINUE: it is not. */
__noinline enum reason reply(struct xdp_md *ctx, struct packet *packet)
{
	const struct backend *backend;
	struct translation t = {};
	__u32 index, *found;

	if (!packet)
		return CONTINUE;
	found = find_reply(&packet->flow);
	if (!found && !may_be_echo(packet))
		return CONTINUE;
	t.to = packet->flow;
	note_numbers(ctx, packet);
	index = find_snat_reply(packet, &t.to);
	if (index == NO_BACKEND && may_be_echo(packet))
		index = take_echo(ctx, packet, &t.to);
	if (index == NO_BACKEND) {
		if (!found)
			return CONTINUE;
		index = *found;
		backend = backend_at(index);
		if (!backend || backend->state == BACKEND_FREE ||
		    backend->flags & (BACKEND_SNAT | BACKEND_LOCAL))
			return CONTINUE;
		t.to.source = backend->vip;
		if (backend->vip_port)
			t.to.source_port = backend->vip_port;
	}
	if (unlikely(packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_TCP_SYN)))
		reply_rare(ctx, packet, &t.to, index);
	packet->backend = index;
	return count_reply(packet, index, send_reply(ctx, packet, &t));
}

/* A later fragment of a reply, with what its first one has left in the packet. */
__noinline enum reason follow_reply(struct xdp_md *ctx, struct packet *packet, __u32 index)
{
	const struct backend *backend = backend_at(index);
	struct translation t = {};

	if (!packet)
		return DROP_FRAGMENT_UNKNOWN;
	t.to = packet->flow;
	if (packet->snat) {
		if (snat_client(packet, packet->snat, &t.to) == NO_BACKEND)
			return DROP_FRAGMENT_UNKNOWN;
	} else if (backend && backend->state != BACKEND_FREE) {
		t.to.source = backend->vip;
	} else {
		return DROP_FRAGMENT_UNKNOWN;
	}
	packet->backend = index;
	return count_reply(packet, index, send_reply(ctx, packet, &t));
}
