/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director where tenants' networks in VXLAN and Geneve end: what comes in a tunnel is decided like any
 * packet, in its network's segment, and what leaves for a host of such a network gets outer headers.
 */
#pragma once

/* What director.h asks for: see none.h. */
#include "director/vtep/maps.h"
#include "director/vtep/answer.h"
#include "director/vtep/reply.h"

#include "director/director.h"
#include "director/vtep/enter.h"
#include "director/vtep/leave.h"

/* A packet that stays on this host, or is dropped; it was for an address in a tenant's network. */
static __always_inline enum reason stay_inside(const struct packet *packet, enum reason reason)
{
	const struct flow *flow = &packet->flow;

	if (reason == PASS_NO_SERVICE && in_source_filter(&flow->destination, flow->ipv6) &&
	    is_vip(flow->segment, &flow->destination, flow->ipv6))
		return DROP_NO_SERVICE;
	return reason;
}

/* What has to be found out of a packet that is not forwarded at once. */
enum rest {
	REST_NONE = 0,
	REST_SERVICE, /* it is parsed, and has come in no tunnel */
	REST_ALL,
	REST_WAY, /* its backend has been chosen */
};

/* A packet of which nothing is known: the memory has what was known of the one before. */
static __always_inline void forget_packet(struct packet *packet)
{
	packet_word *words = (packet_word *)packet;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*packet) / 8; i++)
		words[i] = 0;
	packet->action = XDP_PASS;
}

/* Whether a frame that has come in a tunnel is for another host: no VTEP knew where that is. */
static __always_inline int is_astray(struct xdp_md *ctx, const struct vtep_entry *entry)
{
	const struct ethhdr *ethernet = frame(ctx);

	return (void *)(ethernet + 1) <= frame_end(ctx) && !(ethernet->h_dest[0] & 1) &&
	       !is_for(ethernet, &entry->mac);
}

/*
 * A packet that is not plain, or whose outer headers have to come off. Not inlined: few packets come here,
 * and the director has little room on the stack.
 */
__noinline enum reason decide_rarely(struct xdp_md *ctx, __u32 rest)
{
	struct vtep_entry *entry = this_entry();
	enum reason reason = CONTINUE;
	struct packet *packet;
	void *data;

	if (!entry)
		return DROP_OVERLAY_MALFORMED;
	packet = &entry->packet;
	if (entry->found) {
		reason = strip(ctx, entry);
		if (reason != CONTINUE) {
			forget_packet(packet);
			return leave_rarely(ctx, packet, reason);
		}
		packet->l3 -= entry->length;
		packet->l4 -= entry->length;
		if (is_astray(ctx, entry))
			reason = PASS_OVERLAY_ASTRAY;
		else if (!take_congestion(ctx, entry->ecn))
			reason = DROP_OVERLAY_CONGESTED;
		if (reason != CONTINUE) {
			forget_packet(packet);
			return leave_rarely(ctx, packet, reason);
		}
	}
	if (rest != REST_WAY)
		reason = admit(ctx, packet, rest == REST_SERVICE);
	data = frame(ctx);
	if (data + sizeof(struct ethhdr) > frame_end(ctx))
		reason = PASS_MALFORMED;
	else if (reason == CONTINUE)
		reason = forward(ctx, packet, data, NULL);
	else
		reason = entry->found ? stay_inside(packet, reason) : stay(ctx, packet, reason);
	return leave_rarely(ctx, packet, reason);
}

/* Parses a plain packet, with the outer headers in place if there are some, and finds its service. */
static __always_inline enum rest find_plain(struct xdp_md *ctx, struct packet *packet,
					    const struct vtep_entry *entry)
{
	__u32 before = entry->found ? entry->length : 0, l3 = before + sizeof(struct ethhdr);
	void *data = frame(ctx), *end = frame_end(ctx);
	struct ethhdr *ethernet = data + (before & 0xff);
	__be16 protocol;
	int rare;

	if (unlikely(l3 > 0xff || (void *)(ethernet + 1) > end))
		return REST_ALL;
	/* ECT(1) and CE may have to go inside: then the packet changes before it is parsed. */
	if (before && unlikely(entry->ecn & ECN_ECT1 || !is_for(ethernet, &entry->mac)))
		return REST_ALL;
	l3 &= 0xff;
	protocol = *ethertype_of(ethernet);
	if (likely(protocol == bpf_htons(ETH_P_IP))) {
		if (unlikely(!parse_plain_ipv4(ctx, packet, data, end, l3)))
			return REST_ALL;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (unlikely(!parse_plain_ipv6(ctx, packet, data, end, l3)))
			return REST_ALL;
	} else {
		rare = before ? NOT_PLAIN : find_tagged(ctx, packet);
		return rare == NOT_PLAIN ? REST_ALL : rare ? REST_SERVICE : REST_NONE;
	}
	if (before) {
		packet->flow.segment = entry->found;
		if (unlikely(l3 + packet->length > entry->end))
			return REST_ALL;
	}
	rare = packet->flow.ipv6 ? find_service(packet, 1) : find_service(packet, 0);
	if (likely(!rare))
		return REST_NONE;
	return before ? REST_ALL : REST_SERVICE;
}

/* Whether the packet can leave with its outer headers overwritten. */
static __always_inline int stays_wrapped(struct xdp_md *ctx, const struct packet *packet,
					 const struct vtep_entry *entry,
					 const struct backend *backend,
					 const struct vtep_place *place)
{
	if (backend->mode != MODE_L2DSR || backend->flags & BACKEND_ODD ||
	    packet->length > backend->mtu || !keeps(backend))
		return 0;
	/* The checksum is of all that is in the frame. */
	return !(place->flags & VTEP_PLACE_IPV6) || bpf_xdp_get_buff_len(ctx) == entry->end;
}

/* A packet that leaves as it came: in a tunnel. CONTINUE: the outer headers have to come off first. */
static __always_inline enum reason forward_wrapped(struct xdp_md *ctx, struct packet *packet,
						   const struct vtep_entry *entry,
						   const struct backend *backend, __u32 number)
{
	const struct vtep_place *place = bpf_map_lookup_elem(&vtep_places, &number);
	struct ethhdr *ethernet = frame(ctx) + (entry->length & 0xff);
	__u64 mac = link_word(backend->mac);

	if (unlikely(!place || !place->ifindex || (void *)(ethernet + 1) > frame_end(ctx) ||
		     is_from(ethernet, mac) || /* see limit_hops */
		     !stays_wrapped(ctx, packet, entry, backend, place)))
		return CONTINUE;
	write_macs(ethernet, mac, link_word(backend->source_mac));
	if (!wrap(ctx, packet, place, entry->length, entry->end - entry->length))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, place->ifindex, FORWARD_L2DSR);
}

/* A packet that has come in no tunnel, to a backend in none. CONTINUE: it is left to decide_rarely. */
static __always_inline enum reason forward_bare(struct xdp_md *ctx, struct packet *packet,
						const struct backend *backend)
{
	void *data = frame(ctx);

	if (data + sizeof(struct ethhdr) > frame_end(ctx) || backend->mode != MODE_L2DSR ||
	    backend->flags & BACKEND_ODD || packet->length > backend->mtu || !keeps(backend))
		return CONTINUE;
	return forward_l2dsr(ctx, packet, data, backend);
}

/* A packet whose backend has been chosen. CONTINUE: it is left to decide_rarely. */
static __always_inline enum reason forward_vtep(struct xdp_md *ctx, struct vtep_entry *entry,
						struct backend *backend)
{
	struct packet *packet = &entry->packet;
	const struct vtep_backend *in = vtep_backend_at(packet->backend);
	enum reason reason = CONTINUE;

	if (!backend)
		backend = backend_at(packet->backend);
	if (backend && in && in->place && entry->found)
		reason = forward_wrapped(ctx, packet, entry, backend, in->place);
	else if (backend && in && !in->place && !entry->found)
		reason = forward_bare(ctx, packet, backend);
	if (likely(reason != CONTINUE))
		return end_forward(ctx, packet, backend, reason);
	entry->rest = REST_WAY;
	return CONTINUE;
}

/*
 * Most packets. CONTINUE: entry->rest says what is left to decide_rarely. Inlined: to call a function takes longer
 * than all that is written into a packet (8 ns where the CPU has a mitigation for returns, as AMD's Safe RET).
 */
static __always_inline enum reason decide_plainly(struct xdp_md *ctx, struct vtep_entry *entry)
{
	struct backend *backend = NULL;
	struct packet *packet;
	enum reason reason;

	if (!entry)
		return DROP_OVERLAY_MALFORMED;
	packet = &entry->packet;
	entry->found = 0;
	entry->segment = 0;
	entry->direction = VTEP_NO_REPLY;
	reason = enter(ctx, entry);
	if (unlikely(reason != CONTINUE)) {
		forget_packet(packet);
		return reason;
	}
	entry->rest = find_plain(ctx, packet, entry);
	if (unlikely(entry->rest != REST_NONE))
		return CONTINUE;
	reason = choose_backend(ctx, packet, &backend);
	if (unlikely(reason != CONTINUE))
		return entry->found ? reason : stay(ctx, packet, reason);
	return forward_vtep(ctx, entry, backend);
}

/* Counts the packet, as verdict does: some of the reasons that only VTEPs have are told apart here. */
static __always_inline int vtep_verdict(const struct packet *packet, enum reason reason)
{
	int action = verdict(packet, reason);

	return unlikely(is_overlay_kept(reason)) ? packet->action : action;
}

static __always_inline enum reason decide_vtep(struct xdp_md *ctx, struct vtep_entry *entry)
{
	enum reason reason = decide_plainly(ctx, entry);

	return likely(reason != CONTINUE) ? reason : decide_rarely(ctx, entry->rest);
}

/* The same for programs that go on with the packet: inlined it would be verified with all that they do. */
__noinline enum reason decide_plainly_apart(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();

	return entry ? decide_plainly(ctx, entry) : DROP_OVERLAY_MALFORMED;
}

static __always_inline enum reason decide_apart(struct xdp_md *ctx, const struct vtep_entry *entry)
{
	enum reason reason = decide_plainly_apart(ctx);

	return likely(reason != CONTINUE) ? reason : decide_rarely(ctx, entry->rest);
}
