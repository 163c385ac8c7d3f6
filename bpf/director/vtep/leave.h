/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The outer headers of a packet that leaves in a tunnel: to a backend or, with an answer, to a host of
 * the same network. What came in a tunnel and is the kernel's gets its own headers back.
 */
#pragma once

#include <stddef.h>

#include "director/forward/link.h"
#include "director/vtep/enter.h"
#include "director/vtep/maps.h"
#include "lib/checksum.h"
#include "lib/outer.h"
#include "lib/overlay.h"
#include "lib/packet.h"

struct chunk_sum {
	struct xdp_md *ctx;
	struct vtep_entry *entry;
	__u32 at, end;
	__u64 sum;
};

static long sum_chunk(__u32 i, struct chunk_sum *chunks)
{
	__u32 length = chunks->end - chunks->at;

	(void)i;
	if (!length || length > chunks->end)
		return 1;
	if (length > VTEP_CHUNK)
		length = VTEP_CHUNK;
	asm volatile("" : "+r"(length));
	length = ((length - 1) & (VTEP_CHUNK - 1)) + 1;
	/* What fills the last word up counts as zeros. */
	*(__u32 *)(chunks->entry->chunk + (length & ~3U)) = 0;
	if (bpf_xdp_load_bytes(chunks->ctx, chunks->at, chunks->entry->chunk, length))
		return 1;
	chunks->sum = bpf_csum_diff(0, 0, (__be32 *)chunks->entry->chunk,
				    ((length + 3) & ~3U) & (VTEP_CHUNK | (VTEP_CHUNK - 4)),
				    chunks->sum);
	chunks->at += length;
	return 0;
}

/* The sum of the bytes from `at` to the end of the frame, which begin with an even number of bytes. */
static __always_inline __u64 sum_frame(struct xdp_md *ctx, __u32 at, __u32 end)
{
	struct chunk_sum chunks = { .ctx = ctx, .entry = this_entry(), .at = at, .end = end };

	if (chunks.entry)
		bpf_loop(VTEP_CHUNKS, sum_chunk, &chunks, 0);
	return chunks.sum;
}

/*
 * The sum of what follows the Ethernet header inside, without reading the payload: as inner_sum, but by
 * what is in the frame, which is no longer as it was parsed. Returns 0 in *known where that does not hold.
 */
static __always_inline __u64 sum_inside(void *ip, void *end, __be16 protocol, __u32 length,
					int *known)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const struct udphdr *udp = ip + sizeof(*ip4);
	const __be32 *words = ip;
	__u8 carried;
	__u64 pseudo;

	*known = 0;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(udp + 1) > end ||
		    (*(const __u64 *)ip & IPV4_PLAIN_MASK) != IPV4_PLAIN ||
		    bpf_ntohs(ip4->tot_len) != length)
			return 0;
		carried = ip4->protocol;
		pseudo = (__u64)ip4->saddr + ip4->daddr + bpf_htons(length - sizeof(*ip4)) +
			 bpf_htons(carried);
		if (carried != IPPROTO_TCP && (carried != IPPROTO_UDP || !udp->check))
			return 0;
		*known = 1;
		return (__u16)~checksum_fold(pseudo);
	}
	udp = (const struct udphdr *)(ip6 + 1);
	if (protocol != bpf_htons(ETH_P_IPV6) || (void *)(udp + 1) > end || ip6->version != 6 ||
	    bpf_ntohs(ip6->payload_len) + sizeof(*ip6) != length ||
	    (ip6->nexthdr != IPPROTO_TCP && (ip6->nexthdr != IPPROTO_UDP || !udp->check)))
		return 0;
	*known = 1;
	pseudo = (__u64)ip6->payload_len + bpf_htons(ip6->nexthdr);
	/* The addresses are in the header and in the pseudo-header: they cancel. */
	return (__u64)words[0] + words[1] + (__u16)~checksum_fold(pseudo);
}

/*
 * The UDP checksum of a tunnel over IPv6: Linux drops packets without one. `outer` is the sum of what is
 * before the frame inside, from the pseudo-header on. Not inlined, for its room on the stack.
 */
__noinline __u32 checksum_outer6(struct xdp_md *ctx, __u32 inside, __u64 outer)
{
	__u32 end = bpf_xdp_get_buff_len(ctx);
	struct ethhdr *ethernet = frame(ctx) + (inside & 0xff);
	void *ip = ethernet + 1;
	__u64 sum = outer;
	int known;

	if (ip > frame_end(ctx))
		return 0;
	sum += sum_ethernet(ethernet);
	sum += sum_inside(ip, frame_end(ctx), ethernet->h_proto,
			  end - inside - sizeof(struct ethhdr), &known);
	if (!known)
		sum = (__u64)checksum_fold(outer) + sum_frame(ctx, inside, end);
	return checksum_not_zero(~checksum_fold(sum));
}

/*
 * Puts a place's outer headers before a frame, which has `in_place` bytes of others in front. `inside` is
 * the frame's own length. Returns 0 if there is no room.
 */
static __always_inline int wrap(struct xdp_md *ctx, const struct packet *packet,
				const struct vtep_place *place, __u32 in_place, __u32 inside)
{
	__u32 length = outer_length(place), link = sizeof(struct ethhdr);
	__u64 next_hop = link_word(place->mac);
	__u32 udp = sizeof(struct udphdr) + sizeof(struct overlay_header) + place->options + inside;
	int six = place->flags & VTEP_PLACE_IPV6;
	__be16 protocol = six ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	struct ethhdr *ethernet;
	struct vlan_tag *tag;
	void *ip, *end;
	__u64 sum;

	if (length != in_place && bpf_xdp_adjust_head(ctx, (int)in_place - (int)length))
		return 0;
	ethernet = frame(ctx);
	end = frame_end(ctx);
	tag = (void *)(ethernet + 1);
	if ((void *)(tag + 1) > end)
		return 0;
	write_macs(ethernet, next_hop, link_word(place->source_mac));
	if (unlikely(vlan_of(next_hop))) {
		*ethertype_of(ethernet) = bpf_htons(ETH_P_8021Q);
		tag->tci = vlan_of(next_hop);
		tag->protocol = protocol;
		link += VLAN_TAG_LENGTH;
	} else {
		*ethertype_of(ethernet) = protocol;
	}
	ip = (void *)ethernet + link;
	if (likely(!six)) {
		/* The frame inside is longer than the room for options. */
		if (ip + sizeof(struct iphdr) + 16 + VTEP_OPTIONS_MAX > end)
			return 0;
		write_outer4(ip, &this_vtep, place, packet->tos, sizeof(struct iphdr) + udp);
		write_overlay(ip + sizeof(struct iphdr), &this_vtep, place, packet->hash, udp);
		return 1;
	}
	if (ip + sizeof(struct ipv6hdr) + 16 + VTEP_OPTIONS_MAX > end)
		return 0;
	sum = write_outer6(ip, &this_vtep, place, packet->tos, packet->hash, udp);
	sum += write_overlay(ip + sizeof(struct ipv6hdr), &this_vtep, place, packet->hash, udp);
	/* The checksum's own place is zero until now. */
	udp = checksum_outer6(ctx, length, sum);
	ip = frame(ctx) + link;
	if (ip + sizeof(struct ipv6hdr) + sizeof(struct udphdr) > frame_end(ctx))
		return 0;
	((struct udphdr *)(ip + sizeof(struct ipv6hdr)))->check = udp;
	return 1;
}

/* Sends a frame whose own headers are complete to a place. */
__noinline enum reason send_to_place(struct xdp_md *ctx, struct packet *packet, __u32 number,
				     enum reason reason)
{
	const struct vtep_place *place = bpf_map_lookup_elem(&vtep_places, &number);

	if (!packet || !place || !place->ifindex)
		return DROP_NO_BACKEND;
	if (!wrap(ctx, packet, place, 0, bpf_xdp_get_buff_len(ctx)))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, place->ifindex, reason);
}

/* OVN's ports change sides: see OVN_OPTION. The sender's is in the upper half. */
static __always_inline __be32 turn_ports(__be32 ports)
{
	return ports << 16 | ports >> 16;
}

/* The source of a tunnel of ipip or gue becomes the address that this director has in the backend's segment. */
static __always_inline int set_source4(struct iphdr *ip, void *end, const struct address *source)
{
	if ((void *)(ip + 1) > end)
		return 0;
	ip->check = checksum_update(ip->check, ip->saddr, ADDRESS_WORD(source, 0));
	ip->saddr = ADDRESS_WORD(source, 0);
	return 1;
}

static __always_inline int set_source6(struct ipv6hdr *ip, void *end, const struct address *source)
{
	struct gue_outer *gue = (struct gue_outer *)(ip + 1);
	__be32 *words = (__be32 *)&ip->saddr;
	__u64 removed = 0, added = 0;

	/* The packet in it is longer than headers of UDP and GUE. */
	if ((void *)(gue + 1) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		removed += words[i];
		added += ADDRESS_WORD(source, i);
		words[i] = ADDRESS_WORD(source, i);
	}
	if (ip->nexthdr == IPPROTO_UDP && gue->udp.check)
		gue->udp.check = checksum_not_zero(checksum_update(gue->udp.check, removed, added));
	return 1;
}

static __noinline int set_source(struct xdp_md *ctx, const struct vtep_backend *backend)
{
	struct ethhdr *ethernet = frame(ctx);
	const struct vlan_tag *tag = (void *)(ethernet + 1);
	__be16 protocol;
	void *ip = (void *)tag;

	if (!backend || (void *)(tag + 1) > frame_end(ctx))
		return 0;
	protocol = *ethertype_of(ethernet);
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		protocol = tag->protocol;
		ip = (void *)(tag + 1);
	}
	return protocol == bpf_htons(ETH_P_IP) ? set_source4(ip, frame_end(ctx), &backend->source) :
						 set_source6(ip, frame_end(ctx), &backend->source);
}

/* Where a frame has come from, as a place. Returns 0 if its headers cannot be answered. */
static __always_inline int fill_back(struct vtep_entry *entry, __u32 ifindex)
{
	struct ethhdr *ethernet = (struct ethhdr *)entry->outer;
	struct vtep_place *back = &entry->back;
	struct overlay_header *header;
	__u32 link = sizeof(*ethernet), l4;
	__be16 protocol = *ethertype_of(ethernet);
	struct udphdr *udp;

	__builtin_memset(back, 0, sizeof(*back));
	__builtin_memcpy(back->mac, ethernet->h_source, MAC_LENGTH);
	__builtin_memcpy(back->source_mac, ethernet->h_dest, MAC_LENGTH);
	back->ifindex = ifindex;
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		const struct vlan_tag *tag = (void *)(ethernet + 1);

		back->vlan = tag->tci;
		protocol = tag->protocol;
		link += VLAN_TAG_LENGTH;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		ADDRESS_WORD(&back->vtep, 0) = ((struct iphdr *)(entry->outer + link))->saddr;
		l4 = link + sizeof(struct iphdr);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		__builtin_memcpy(&back->vtep, &((struct ipv6hdr *)(entry->outer + link))->saddr,
				 sizeof(back->vtep));
		back->flags |= VTEP_PLACE_IPV6;
		l4 = link + sizeof(struct ipv6hdr);
	} else {
		return 0; /* two tags */
	}
	udp = (struct udphdr *)(entry->outer + l4);
	header = (struct overlay_header *)(udp + 1);
	back->vni = header->vni & bpf_htonl(0xffffff00);
	if (udp->dest == this_vtep.vxlan_port)
		return 1;
	back->flags |= VTEP_PLACE_GENEVE;
	if ((header->first & GENEVE_OPTIONS) * 4 != OVN_OPTION_LENGTH ||
	    ((__be32 *)(header + 1))[0] != OVN_OPTION)
		return 1; /* options that this VTEP need not know are not sent back */
	back->options = OVN_OPTION_LENGTH;
	back->flags |= VTEP_PLACE_CRITICAL;
	back->option[0] = OVN_OPTION;
	back->option[1] = turn_ports(((__be32 *)(header + 1))[1]);
	return 1;
}

/* The DSCP and ECN of a frame that was made here: outer headers copy them. */
static __always_inline __u8 tos_inside(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = frame(ctx);
	__u8 *ip = (__u8 *)(ethernet + 1);

	if ((void *)(ip + sizeof(struct iphdr)) > frame_end(ctx))
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return ip[1];
	return ethernet->h_proto == bpf_htons(ETH_P_IPV6) ? ip[0] << 4 | ip[1] >> 4 : 0;
}

/* Sends an answer, whose frame is complete, back into the tunnel that its question came by. */
static __always_inline enum reason send_back_inside(struct xdp_md *ctx, struct packet *packet,
						    struct vtep_entry *entry, enum reason reason)
{
	if (!fill_back(entry, ctx->ingress_ifindex))
		return DROP_OVERLAY_MALFORMED;
	packet->tos = tos_inside(ctx);
	if (!wrap(ctx, packet, &entry->back, 0, bpf_xdp_get_buff_len(ctx)))
		return DROP_NO_HEADROOM;
	packet->action = XDP_TX;
	return reason;
}

/* Gives a frame its outer headers back. */
static __always_inline enum reason restore(struct xdp_md *ctx, struct vtep_entry *entry,
					   enum reason reason)
{
	__u32 length = entry->length;

	if (!outer_fits(&length) || bpf_xdp_adjust_head(ctx, -(int)length) ||
	    bpf_xdp_store_bytes(ctx, 0, entry->outer, length))
		return DROP_NO_HEADROOM;
	return reason;
}

/* A packet that the kernel gets without its tunnel: the frame was for this director's MAC address there. */
static __always_inline enum reason to_kernel(struct xdp_md *ctx, const struct vtep_entry *entry,
					     enum reason reason)
{
	struct ethhdr *ethernet = frame(ctx);

	if ((void *)(ethernet + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	__builtin_memcpy(ethernet->h_dest, entry->outer, MAC_LENGTH);
	return reason;
}

/* Whether a packet was left to the kernel, or answered, by a reason that is behind those of drops. */
static __always_inline int is_overlay_kept(enum reason reason)
{
	return reason >= PASS_OVERLAY_VNI && reason <= ANSWER_NEIGHBOR;
}

static __always_inline int is_answer(enum reason reason)
{
	return (reason >= ANSWER_ECHO && reason <= ANSWER_PROBE) || reason == ANSWER_NEIGHBOR;
}

/*
 * How a packet that is no plain packet to a backend leaves. Not inlined: few do. The outer headers of one
 * that has come in a tunnel are off.
 */
__noinline enum reason leave_rarely(struct xdp_md *ctx, struct packet *packet, enum reason reason)
{
	struct vtep_entry *entry = this_entry();
	const struct vtep_backend *backend;
	__u32 segment, direction;

	if (!packet || !entry)
		return DROP_NO_BACKEND;
	segment = entry->segment;
	direction = entry->direction;
	entry->segment = 0;
	entry->direction = VTEP_NO_REPLY;
	if (is_dropped(reason) && !is_overlay_kept(reason))
		return reason;
	if (reason == PASS_REPLY_UNROUTED)
		return segment ? to_kernel(ctx, entry, reason) : reason;
	if (packet->action == XDP_PASS && direction == VTEP_TO_SOCKET)
		return segment ? to_kernel(ctx, entry, reason) : reason;
	if (packet->action == XDP_PASS)
		return segment ? restore(ctx, entry, reason) : reason;
	if (is_answer(reason))
		return segment ? send_back_inside(ctx, packet, entry, reason) : reason;
	if (direction == VTEP_TO_HOST)
		return send_to_place(ctx, packet, entry->place, reason);
	if (direction == VTEP_OUT)
		return reason;
	backend = vtep_backend_at(packet->backend);
	if (!backend)
		return reason;
	if (backend->uses == VTEP_SOURCE_TUNNEL && !set_source(ctx, backend))
		return DROP_NO_HEADROOM;
	return backend->place ? send_to_place(ctx, packet, backend->place, reason) : reason;
}
