/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ethernet: here every forwarded packet gets a new header and leaves. */
#pragma once

#include "count.h"
#include "maps.h"
#include "outer.h"
#include "packet.h"
#include "pick.h"

/* Whether a frame is for the MAC address that a word of struct backend begins with. */
static __always_inline int is_for(const struct ethhdr *ethernet, const void *word)
{
	return !((*(const __u64 *)ethernet ^ link_word(word)) & MAC_MASK);
}

/* Whether a frame comes from the MAC address that a word begins with: see link_word. */
static __always_inline int is_from(const struct ethhdr *ethernet, __u64 word)
{
	/* Through a pointer to void: from h_source itself the compiler loads single bytes. */
	const void *source = ethernet->h_source;

	return !((*(const __u64 *)source ^ word) & MAC_MASK);
}

static __always_inline int is_for_backend(const struct ethhdr *ethernet, __u32 index)
{
	const struct backend *backend = backend_at(index);

	return backend && backend->mode == MODE_L2DSR && is_for(ethernet, backend->mac);
}

/* The tag that is in the same word as the next hop's MAC address. */
static __always_inline __be16 vlan_of(__u64 next_hop)
{
	return next_hop >> 48;
}

static __always_inline void write_ethernet(void *data, __u64 next_hop,
					   const struct backend *backend, __be16 protocol)
{
	struct ethhdr *ethernet = data;

	write_macs(ethernet, next_hop, link_word(backend->source_mac));
	if (unlikely(vlan_of(next_hop))) {
		struct vlan_tag *tag = data + sizeof(*ethernet);

		*ethertype_of(ethernet) = bpf_htons(ETH_P_8021Q);
		tag->tci = vlan_of(next_hop);
		tag->protocol = protocol;
	} else {
		*ethertype_of(ethernet) = protocol;
	}
}

/*
 * Replaces everything before the IP header by Ethernet and `outer` bytes that
 * the caller fills in. One head move at most. Returns where the outer header
 * begins, with room for it and for the inner IP header checked, or NULL. `more`
 * bytes after them are left to bpf_xdp_store_bytes, which checks for itself.
 */
static __always_inline void *reframe(struct xdp_md *ctx, const struct packet *packet,
				     const struct backend *backend, __be16 protocol, __u32 outer,
				     __u32 more)
{
	__u64 next_hop = link_word(backend->mac);
	__u32 ethernet = sizeof(struct ethhdr) + (vlan_of(next_hop) ? VLAN_TAG_LENGTH : 0);
	int grow = (int)(ethernet + outer + more) - (int)packet->l3;
	void *data;

	if (grow && bpf_xdp_adjust_head(ctx, -grow))
		return NULL;
	data = frame(ctx);
	if (data + sizeof(struct ethhdr) + VLAN_TAG_LENGTH + outer + sizeof(struct iphdr) >
	    frame_end(ctx))
		return NULL;
	write_ethernet(data, next_hop, backend, protocol);
	return data + ethernet;
}

/* Sends the packet back by the same interface, by another one, or (0) up the stack. */
static __always_inline enum reason leave(struct xdp_md *ctx, struct packet *packet, __u32 ifindex,
					 enum reason reason)
{
	if (likely(ifindex == ctx->ingress_ifindex)) {
		packet->action = XDP_TX;
		return reason;
	}
	if (unlikely(!ifindex)) {
		packet->action = XDP_PASS;
		return reason;
	}
	packet->action = bpf_redirect_map(&egress, ifindex, 0);
	return packet->action == XDP_REDIRECT ? reason : DROP_REDIRECT_FAILED;
}

static __always_inline __be16 ethertype(const struct packet *packet)
{
	return packet->flow.ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
}

/* A search for a frame's destination among the backends that a policy may have chosen. */
struct turn_hunt {
	__u64 destination;
	__u32 turns;
	__u32 found;
};

static long is_for_turn(__u32 number, struct turn_hunt *hunt)
{
	const struct backend *backend = backend_at(turn_at(hunt->turns, number));

	if (!backend || backend->mode != MODE_L2DSR ||
	    (hunt->destination ^ link_word(backend->mac)) & MAC_MASK)
		return 0;
	hunt->found = 1;
	return 1;
}

/*
 * Whether a frame for this address is for any backend that the ring's policy may have chosen.
 * Not static, so that the compiler lays out the common path as it would without it.
 */
__noinline __u32 is_for_turns(__u64 destination, __u32 ring)
{
	const struct ring_header *header = ring_line_at(ring);
	struct turn_hunt hunt = { .destination = destination };

	if (!header || !header->turn_count)
		return 0;
	hunt.turns = ring + header->turns;
	bpf_loop(header->turn_count, is_for_turn, &hunt, 0);
	return hunt.found;
}

/*
 * Whether another director has sent the frame: a switch that does not know where a backend is
 * floods the frames for it to all. If every director sent them on, that would not end, because
 * l2dsr leaves the TTL alone; and another backend would reset the connection.
 */
static __noinline int sent_already(struct xdp_md *ctx, const struct packet *packet,
				   const struct backend *backend)
{
	const struct ethhdr *ethernet = frame(ctx);
	__u32 ring, owner, next;
	struct candidates *list;

	if (!packet || !backend || (void *)(ethernet + 1) > frame_end(ctx))
		return 0;
	if (is_for(ethernet, backend->mac))
		return 1;
	if (backend->ifindex != ctx->ingress_ifindex)
		return 0;
	ring = packet->ring;
	owner = packet->slot.owner;
	next = packet->slot.next;
	if (is_for_turns(*(const __u64 *)ethernet, ring))
		return 1;
	if (is_for_backend(ethernet, owner))
		return 1;
	if (!(next & SLOT_LIST))
		return is_for_backend(ethernet, next & ~SLOT_SETTLING);
	list = ring_line_at(ring + (next & ~SLOT_LIST));
	if (!list)
		return 0;
	for (__u32 i = 0; i < RING_CANDIDATES_MAX - 1 && i < list->count; i++) {
		if (is_for_backend(ethernet, list->index[i]))
			return 1;
	}
	return 0;
}

/* Writes the TTL, and corrects the checksum of an IPv4 header. */
static __always_inline int set_ttl(struct xdp_md *ctx, struct packet *packet, __u8 ttl)
{
	struct iphdr *ip4 = l3_header(ctx, packet);
	struct ipv6hdr *ip6 = l3_header(ctx, packet);

	if (packet->flow.ipv6) {
		if ((void *)(ip6 + 1) > frame_end(ctx))
			return 0;
		ip6->hop_limit = ttl;
	} else {
		if ((void *)(ip4 + 1) > frame_end(ctx))
			return 0;
		ip4->check = checksum_update(ip4->check, bpf_htons(ip4->ttl << 8),
					     bpf_htons(ttl << 8));
		ip4->ttl = ttl;
	}
	packet->ttl = ttl;
	return 1;
}

/* How often two directors may send each other a packet that l2dsr sends back. */
#define BACK_HOPS 4

/*
 * The backend is the host that the frame comes from: it also routes for the client, or it is a
 * director that has chosen this host. l2dsr leaves the TTL alone, so two that disagree would send
 * the packet back and forth for ever: it gets few hops. Returns 0 if it has none.
 */
static __noinline int limit_hops(struct xdp_md *ctx, struct packet *packet)
{
	__u8 hops;

	if (!packet)
		return 0;
	hops = packet->ttl < BACK_HOPS ? packet->ttl : BACK_HOPS;
	return hops > 1 && set_ttl(ctx, packet, hops - 1);
}

/* L2DSR: a new destination MAC, and the VLAN tag of the backend's network. */
static __always_inline enum reason forward_l2dsr(struct xdp_md *ctx, struct packet *packet,
						 const struct backend *backend)
{
	struct ethhdr *ethernet = frame(ctx);
	__u64 next_hop = link_word(backend->mac);

	if ((void *)(ethernet + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	/* Mostly a frame is for the interface by which it leaves. */
	if (unlikely(!is_for(ethernet, backend->source_mac)) && sent_already(ctx, packet, backend))
		return PASS_SENT_ALREADY;
	if (unlikely(is_from(ethernet, next_hop))) {
		if (!limit_hops(ctx, packet))
			return PASS_SENT_ALREADY;
		ethernet = frame(ctx);
		if ((void *)(ethernet + 1) > frame_end(ctx))
			return PASS_MALFORMED;
	}
	if (likely((!packet->tags && !vlan_of(next_hop)) || backend->flags & BACKEND_KEEP_TAGS)) {
		write_macs(ethernet, next_hop, link_word(backend->source_mac));
	} else if (!reframe(ctx, packet, backend, ethertype(packet), 0, 0)) {
		return DROP_NO_HEADROOM;
	}
	return leave(ctx, packet, backend->ifindex, FORWARD_L2DSR);
}
