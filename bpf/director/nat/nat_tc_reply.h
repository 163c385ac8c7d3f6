/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Full NAT's replies that come in by other interfaces than the director's, such as a pod's or
 * an overlay's: in tc, because the kernel has made super-packets of them by then, and the sender
 * may be on this host and have left their checksums to a device.
 */
#pragma once

#include "director/nat/nat_tc_packet.h"

/* The backend that a reply is of, and what the reply becomes. NO_BACKEND: it is no reply. */
static __always_inline __u32 reply_of(struct packet *packet, struct flow *to)
{
	struct fragment *first;
	__u32 index;

	if (packet->flags & PACKET_FRAGMENT_LATER) {
		first = find_fragment(packet);
		if (!first || first->path != FRAGMENT_TO_CLIENT || !first->snat)
			return NO_BACKEND;
		packet->hash = first->hash;
		return snat_client(packet, first->snat, to);
	}
	index = find_snat_reply(packet, to);
	if (index != NO_BACKEND && packet->flags & PACKET_FRAGMENT_FIRST)
		remember_fragment(packet, index, FRAGMENT_TO_CLIENT);
	return index;
}

/* Bytes of the largest packet that leaves: of a super-packet, those of one piece. */
static __always_inline __u32 largest_piece(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 header = sizeof(struct udphdr);
	__u8 offset;

	if (!skb->gso_size)
		return packet->length > 0xffff ? 0xffff : packet->length;
	if (packet->flow.protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, packet->l4 + 12, &offset, sizeof(offset)))
			return 0xffff;
		header = (offset >> 4) * 4;
	}
	return packet->l4 - packet->l3 + header + skb->gso_size;
}

/* The interface by which the kernel would send the reply; 0: the kernel has to route it itself. */
static __noinline __u32 way_back(struct __sk_buff *skb, const struct packet *packet,
				 const struct flow *to)
{
	struct bpf_fib_lookup route = {};
	int status;

	if (packet->ttl <= 1)
		return 0;
	ask_route(to, skb->ifindex, &route);
	route.tot_len = largest_piece(skb, packet);
	status = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return status == BPF_FIB_LKUP_RET_SUCCESS || status == BPF_FIB_LKUP_RET_NO_NEIGH ?
		       route.ifindex :
		       0;
}

/*
 * Sends a reply to its client, by the kernel's neighbors; or has the kernel route what the client
 * will see, if that may have to be fragmented or cannot be answered from here. A packet that is
 * not full NAT's goes on to the next program.
 */
static __always_inline int return_skb(struct __sk_buff *skb, __u32 l3)
{
	const struct settings *settings = get_settings();
	__u32 index, ifindex, reason;
	struct packet packet = {};
	struct translation t = {};

	if (!settings || !(settings->flags & SETTINGS_REPLIES) || !parse_skb(skb, &packet, l3))
		return TC_ACT_UNSPEC;
	t.to = packet.flow;
	index = reply_of(&packet, &t.to);
	if (index == NO_BACKEND)
		return TC_ACT_UNSPEC;
	ifindex = way_back(skb, &packet, &t.to);
	t.hops = ifindex != 0;
	if (!translate_skb(skb, &packet, &t))
		return TC_ACT_UNSPEC;
	reason = ifindex ? sent_back(&packet) : PASS_REPLY_UNROUTED;
	/* The helper that sends removes an Ethernet header. */
	if (ifindex && !l3 && bpf_skb_change_head(skb, sizeof(struct ethhdr), 0))
		reason = DROP_NO_HEADROOM;
	count(bpf_map_lookup_elem(&reasons, &reason), &packet);
	if (reason == DROP_NO_HEADROOM)
		return TC_ACT_SHOT;
	if (!ifindex)
		return TC_ACT_UNSPEC;
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}
