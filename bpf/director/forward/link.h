/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ethernet: here every forwarded packet gets a new header and leaves. */
#pragma once

#include "director/count.h"
#include "director/maps.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "lib/outer.h"
#include "lib/packet.h"

/* Whether a frame is for the MAC address that a word of struct backend begins with. */
static __always_inline int is_for(const struct ethhdr *ethernet, const void *word)
{
	return same_mac(*(const __u64 *)ethernet, link_word(word));
}

/* A MAC address as the key of a map: the first six bytes of the word. */
static __always_inline __u64 mac_word(const void *mac)
{
	const __u16 *halves = mac;

	return halves[0] | (__u64)halves[1] << 16 | (__u64)halves[2] << 32;
}

/* Whether a frame comes from the MAC address that a word begins with: see link_word. */
static __always_inline int is_from(const struct ethhdr *ethernet, __u64 word)
{
	/* Through a pointer to void: from h_source itself the compiler loads single bytes. */
	const void *source = ethernet->h_source;

	return same_mac(*(const __u64 *)source, word);
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

static __always_inline void swap_ethernet(struct ethhdr *ethernet)
{
	__u8 mac[MAC_LENGTH];

	__builtin_memcpy(mac, ethernet->h_dest, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_source, mac, MAC_LENGTH);
}

static __always_inline __be16 ethertype(const struct packet *packet)
{
	return packet->flow.ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
}

/*
 * Whether the frame is for another host: a switch that does not know where a host is floods the
 * frames for it to all. If every director sent them on, that would not end, because l2dsr leaves
 * the TTL alone; and a director with another table would give the connection to another backend.
 */
static __noinline int is_for_another_host(struct xdp_md *ctx, const struct backend *backend)
{
	const struct ethhdr *ethernet = frame(ctx);
	const struct settings *settings;
	__u64 mac;

	if (!backend || (void *)(ethernet + 1) > frame_end(ctx))
		return 0;
	if (is_for(ethernet, backend->mac))
		return 1;
	/* Backends are behind another interface: no director sends them frames by this one. */
	if (backend->ifindex != ctx->ingress_ifindex)
		return 0;
	settings = get_settings();
	if (!settings || !(settings->flags & SETTINGS_OWN_MACS))
		return 0;
	if (ethernet->h_dest[0] & 1) /* for a group of hosts */
		return 0;
	mac = mac_word(ethernet->h_dest);
	return !bpf_map_lookup_elem(&own_macs, &mac);
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
 * director that has chosen this host. l2dsr leaves the TTL alone, so two directors that disagree
 * would send the packet back and forth for ever: it gets few hops. Returns 0 if no hop is left.
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
						 struct ethhdr *ethernet,
						 const struct backend *backend)
{
	__u64 next_hop = link_word(backend->mac);

	/* Mostly a frame is for the interface by which it leaves. */
	if (unlikely(!is_for(ethernet, backend->source_mac)) && is_for_another_host(ctx, backend))
		return PASS_SENT_ALREADY;
	if (unlikely(is_from(ethernet, next_hop))) {
		if (!limit_hops(ctx, packet))
			return PASS_SENT_ALREADY;
		ethernet = frame(ctx);
		if ((void *)(ethernet + 1) > frame_end(ctx))
			return PASS_MALFORMED;
	}
	if (likely(!packet->tags && !vlan_of(next_hop)))
		write_macs(ethernet, next_hop, link_word(backend->source_mac));
	else if (backend->flags & BACKEND_KEEP_TAGS)
		write_macs(ethernet, next_hop, link_word(backend->source_mac));
	else if (!reframe(ctx, packet, backend, ethertype(packet), 0, 0))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, FORWARD_L2DSR);
}
