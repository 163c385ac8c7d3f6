/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A frame that has come in a tunnel of VXLAN (RFC 7348) or Geneve (RFC 8926) to this VTEP: its network
 * by the VNI and whether its sender may send there. Most packets are forwarded with their outer headers
 * in place; from others, these are taken off, and kept (struct vtep_entry).
 */
#pragma once

#include <stddef.h>

#include "director/vtep/maps.h"
#include "lib/checksum.h"
#include "lib/ecn.h"
#include "lib/overlay.h"
#include "lib/packet.h"

/* The MAC address of a network's entry, as a word. */
static __always_inline __u64 network_mac(const struct vtep_network *network)
{
	const __u16 *halves = (const __u16 *)network->mac;

	return halves[0] | (__u64)halves[1] << 16 | (__u64)halves[2] << 32;
}

static __always_inline __u32 front_of(const struct vtep_entry *entry)
{
	return (entry->source[0] ^ entry->source[1] * HASH_K3 ^ entry->network) * HASH_K2 >>
	       (64 - VTEP_FRONT_BITS);
}

/* Whether a packet may come from its sender, the first time on this CPU. Notes the answer. */
__noinline enum reason find_network(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();
	const struct vtep_network *network;
	struct vtep_front *front;
	struct vtep_peer peer = {};
	__u32 key, index, generation;

	if (!ctx || !entry)
		return CONTINUE;
	/* Before anything is looked up: what changes meanwhile is found out again. */
	generation = *(volatile __u32 *)&this_vtep.generation;
	if (entry->ipv6 ? !ADDRESS_WORD(&this_vtep.address6, 0) : !this_vtep.address4)
		return CONTINUE; /* there is no VTEP of this family */
	key = entry->network;
	network = bpf_map_lookup_elem(&vtep_networks, &key);
	if (!network)
		return PASS_OVERLAY_VNI;
	__builtin_memcpy(&peer.address, entry->source, sizeof(peer.address));
	peer.prefix_len = (sizeof(peer) - sizeof(peer.prefix_len)) * 8;
	peer.ipv6 = entry->ipv6;
	if (network->flags & VTEP_NETWORK_PEERS)
		peer.network = key;
	if (!bpf_map_lookup_elem(&vtep_peers, &peer))
		return DROP_OVERLAY_PEER;
	entry->found = network->segment;
	entry->mac = network_mac(network);
	index = front_of(entry);
	front = bpf_map_lookup_elem(&vtep_fronts, &index);
	if (front) {
		front->source[0] = entry->source[0];
		front->source[1] = entry->source[1];
		front->network = key;
		front->segment = network->segment;
		front->mac = entry->mac;
		front->generation = generation;
	}
	return CONTINUE;
}

/* The same, where a packet of the network from there has come before. */
static __always_inline enum reason find_entered(struct xdp_md *ctx, struct vtep_entry *entry)
{
	__u32 index = front_of(entry);
	const struct vtep_front *front = bpf_map_lookup_elem(&vtep_fronts, &index);

	if (unlikely(!front || front->generation != this_vtep.generation ||
		     front->source[0] != entry->source[0] || front->source[1] != entry->source[1] ||
		     front->network != entry->network))
		return find_network(ctx);
	entry->found = front->segment;
	entry->mac = front->mac;
	return CONTINUE;
}

struct geneve_option {
	__be16 class;
	__u8 type;
	__u8 length; /* words after this one, in the lowest five bits */
};

struct option_walk {
	struct xdp_md *ctx;
	__u32 at, end;
	enum reason reason;
};

static long next_option(__u32 i, struct option_walk *walk)
{
	struct geneve_option option;

	(void)i;
	if (walk->at >= walk->end)
		return 1;
	if (bpf_xdp_load_bytes(walk->ctx, walk->at, &option, sizeof(option))) {
		walk->reason = DROP_OVERLAY_MALFORMED;
		return 1;
	}
	walk->at += sizeof(option) + (option.length & 0x1f) * 4;
	if (walk->at > walk->end)
		walk->reason = DROP_OVERLAY_MALFORMED;
	else if (option.type & GENEVE_OPTION_CRITICAL && *(__be32 *)&option != OVN_OPTION)
		walk->reason = DROP_OVERLAY_OPTION;
	return walk->reason != CONTINUE;
}

/* Options end where the header says, and those that a receiver has to know are OVN's. */
__noinline enum reason walk_geneve(struct xdp_md *ctx, __u32 at, __u32 length)
{
	struct option_walk walk = { .ctx = ctx, .at = at, .end = at + length, .reason = CONTINUE };

	bpf_loop(GENEVE_OPTIONS, next_option, &walk, 0);
	return walk.reason;
}

/* Geneve's own header. CONTINUE: an Ethernet frame follows. */
static __always_inline enum reason
parse_geneve(struct xdp_md *ctx, const struct overlay_header *header, __u32 at, __u32 options)
{
	const __be32 *option = (const __be32 *)(header + 1);

	if (header->first & GENEVE_VERSION || header->second & GENEVE_CONTROL ||
	    header->protocol != bpf_htons(ETHERTYPE_BRIDGING))
		return DROP_OVERLAY_MALFORMED;
	if (likely(!options))
		return CONTINUE;
	if (likely(options == OVN_OPTION_LENGTH && (void *)(option + 1) <= frame_end(ctx) &&
		   *option == OVN_OPTION))
		return CONTINUE;
	return walk_geneve(ctx, at, options);
}

/* What is in the entry is read again from there: in registers it would take room on the stack. */
static __always_inline void kept(void)
{
	asm volatile("" ::: "memory");
}

/* From the UDP header on. CONTINUE: the frame is in a tunnel (entry->found), or in none to this VTEP. */
static __always_inline enum reason enter_udp(struct xdp_md *ctx, struct vtep_entry *entry, __u32 l4)
{
	struct udphdr *udp = frame(ctx) + (l4 & 0x7f);
	struct overlay_header *header = (struct overlay_header *)(udp + 1);
	__u32 length = l4 + sizeof(*udp) + sizeof(*header), end = entry->end, options = 0;
	enum segment_kind kind = SEGMENT_VXLAN;
	enum reason reason;

	if ((void *)(udp + 1) > frame_end(ctx))
		return CONTINUE;
	if (udp->dest != this_vtep.vxlan_port) {
		if (udp->dest != this_vtep.geneve_port)
			return CONTINUE;
		kind = SEGMENT_GENEVE;
	}
	if (unlikely(l4 + bpf_ntohs(udp->len) != end || (void *)(header + 1) > frame_end(ctx) ||
		     !frame_holds(ctx, 0, end)))
		return DROP_OVERLAY_MALFORMED;
	entry->network = (__u32)kind << SEGMENT_KIND_SHIFT | bpf_ntohl(header->vni) >> 8;
	if (kind == SEGMENT_GENEVE) {
		options = (header->first & GENEVE_OPTIONS) * 4;
		if (unlikely(length + options + sizeof(struct ethhdr) > end))
			return DROP_OVERLAY_MALFORMED;
		reason = parse_geneve(ctx, header, length, options);
		if (unlikely(reason != CONTINUE))
			return reason;
	} else if (unlikely(length + sizeof(struct ethhdr) > end ||
			    !(header->first & VXLAN_HAS_VNI))) {
		return DROP_OVERLAY_MALFORMED;
	}
	entry->length = length + options;
	return find_entered(ctx, entry);
}

/* The same from the IP header on, which begins at l3. */
static __always_inline enum reason enter_at(struct xdp_md *ctx, struct vtep_entry *entry,
					    __be16 protocol, __u32 l3, __u32 segment)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	struct ipv6hdr *ip6 = data + l3;
	struct iphdr *ip4 = data + l3;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end || ip4->daddr != this_vtep.address4 ||
		    segment != this_vtep.segment || ip4->protocol != IPPROTO_UDP ||
		    (*(const __u64 *)ip4 & IPV4_PLAIN_MASK) != IPV4_PLAIN)
			return CONTINUE;
		entry->source[0] = ip4->saddr;
		entry->source[1] = 0;
		entry->end = l3 + bpf_ntohs(ip4->tot_len);
		entry->ipv6 = 0;
		entry->ecn = ip4->tos & ECN_MASK;
		kept();
		return enter_udp(ctx, entry, l3 + sizeof(*ip4));
	}
	if (protocol != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end ||
	    !same_address((const struct address *)&ip6->daddr, &this_vtep.address6) ||
	    segment != this_vtep.segment || ip6->version != 6 || ip6->nexthdr != IPPROTO_UDP)
		return CONTINUE;
	__builtin_memcpy(entry->source, &ip6->saddr, sizeof(entry->source));
	entry->end = l3 + sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	entry->ipv6 = 1;
	entry->ecn = ip6->flow_lbl[0] >> 4 & ECN_MASK;
	kept();
	return enter_udp(ctx, entry, l3 + sizeof(*ip6));
}

/* The same of a frame with tags. */
static __noinline enum reason enter_tagged(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();
	void *data = frame(ctx), *end = frame_end(ctx);
	struct tags tags;

	if (!entry || data + sizeof(struct ethhdr) > end)
		return CONTINUE;
	tags = parse_tags(data, end);
	return enter_at(ctx, entry, tags.protocol, tags.l3, tags.segment);
}

/* Looks for a tunnel to this VTEP. CONTINUE: the frame is in one (entry->found), or is not. */
static __always_inline enum reason enter(struct xdp_md *ctx, struct vtep_entry *entry)
{
	void *data = frame(ctx);
	const struct vlan_tag *tag = data + sizeof(struct ethhdr);
	__be16 protocol;

	if ((void *)(tag + 1) > frame_end(ctx))
		return CONTINUE;
	protocol = *ethertype_of(data);
	/* Where there are no tags, the compiler knows where everything is. */
	if (likely(protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6)))
		return enter_at(ctx, entry, protocol, sizeof(struct ethhdr), 0);
	if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
		return CONTINUE;
	/* A tag is for this VTEP if it has one, or if the tag is none (IEEE 802.1Q 6.9.1). */
	if (!this_vtep.segment && tag->tci & bpf_htons(VLAN_ID_MASK))
		return CONTINUE;
	return enter_tagged(ctx);
}

/* Gives the inner header the outer one's mark of congestion. Returns 0 if the packet has to go (RFC 6040). */
static __always_inline int take_congestion(struct xdp_md *ctx, __u8 outer)
{
	struct ethhdr *ethernet = frame(ctx);
	void *ip = ethernet + 1, *end = frame_end(ctx);

	if (ip > end)
		return 1;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP) && ip + sizeof(struct iphdr) <= end)
		return propagate_ecn4(ip, outer) >= 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6) && ip + sizeof(struct ipv6hdr) <= end)
		return propagate_ecn6(ip, outer) >= 0;
	return 1;
}

/* Whether there is room for that many bytes; a number that is one at least, as Linux 6.1 has to see. */
static __always_inline int outer_fits(__u32 *length)
{
	__u32 more = *length - 1;

	asm volatile("" : "+r"(more));
	if (more >= VTEP_OUTER_MAX)
		return 0;
	*length = more + 1;
	return 1;
}

/* Takes the outer headers off, and keeps them. CONTINUE: what was inside is the frame now. */
static __always_inline enum reason strip(struct xdp_md *ctx, struct vtep_entry *entry)
{
	__u32 length = entry->length;
	int behind;

	/* What follows the frame inside is no part of it. */
	behind = (int)entry->end - (int)bpf_xdp_get_buff_len(ctx);
	if (!outer_fits(&length) || (behind < 0 && bpf_xdp_adjust_tail(ctx, behind)) ||
	    bpf_xdp_load_bytes(ctx, 0, entry->outer, length) || bpf_xdp_adjust_head(ctx, length))
		return DROP_OVERLAY_MALFORMED;
	entry->segment = entry->found;
	entry->direction = VTEP_NO_REPLY;
	return CONTINUE;
}
