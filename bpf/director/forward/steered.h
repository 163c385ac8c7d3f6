/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shortest way: a plain packet of a steered flow to a backend in l2dsr. It is not parsed into a
 * struct packet, because only a few of its words count. All others go through decide().
 */
#pragma once

#include "director/count.h"
#include "director/forward/link.h"
#include "director/pick/steered.h"

/* What send_steered() returns besides what becomes of a frame: the packet takes the usual way. */
#define SEND_OTHERWISE -1
#define SEND_SAMPLE -2 /* as a sample */

/* A word of struct backend: its state, mode, flags and epoch. The most usual: active, and l2dsr suffices. */
typedef __u32 backend_word __attribute__((may_alias));
#define BACKEND_WORD(backend) (*(const volatile backend_word *)&(backend)->state)
#define BACKEND_WORD_MASK (0xff00ffffU | (__u32)(__u8)BACKEND_ODD << 16)
#define BACKEND_WORD_OF(word)                                                                      \
	((__u32)(word) & 0xff000000U | (__u32)MODE_L2DSR << 8 | BACKEND_ACTIVE)
_Static_assert(STEERED_EPOCH_SHIFT == 24, "the epoch is in the same place in both words");
_Static_assert(offsetof(struct backend, mode) == offsetof(struct backend, state) + 1 &&
		       offsetof(struct backend, flags) == offsetof(struct backend, state) + 2 &&
		       offsetof(struct backend, epoch) == offsetof(struct backend, state) + 3,
	       "state, mode, flags and epoch are one word");

/* The interface of the backend takes no XDP frames: counts the packet as in forward(). */
static __noinline int not_redirected(const struct backend *backend, __u32 length)
{
	__u32 service, reason = DROP_REDIRECT_FAILED;
	struct packet counted = { .length = length };

	if (!backend)
		return XDP_ABORTED;
	service = backend->service;
	count(bpf_map_lookup_elem(&service_drops, &service), &counted);
	count(bpf_map_lookup_elem(&reasons, &reason), &counted);
	return XDP_DROP;
}

/* Whether a packet is plain, and of the queue's service. `ipv6` is a constant. */
static __always_inline int is_of_queue(const struct steered_queue *queue, const void *l3,
				       const struct udphdr *l4, const void *end, int ipv6)
{
	const struct ipv6hdr *ip6 = l3;
	const struct iphdr *ip4 = l3;
	const struct tcphdr *tcp = (const void *)l4;
	__u8 protocol = ipv6 ? ip6->nexthdr : ip4->protocol;

	if (queue->key != ((__u64)l4->dest << 32 | (__u64)protocol << 48 | (__u64)ipv6 << 56))
		return 0;
	if (protocol == IPPROTO_TCP && ((const void *)(tcp + 1) > end ||
					((const __u8 *)tcp)[13] & (TCP_SYN | TCP_FIN | TCP_RST)))
		return 0;
	if (ipv6)
		return ip6->version == 6 && queue->address[0] == *(const __u64 *)&ip6->daddr &&
		       queue->address[1] == *((const __u64 *)&ip6->daddr + 1);
	return queue->address[0] == ip4->daddr &&
	       (*(const __u64 *)ip4 & IPV4_PLAIN_MASK) == IPV4_PLAIN;
}

/* The word of a packet's flow; 0: there is none. */
static __always_inline __u64 word_of(const struct steered_queue *queue, const void *l3, __be16 port,
				     int ipv6)
{
	const struct ipv6hdr *ip6 = l3;
	const struct iphdr *ip4 = l3;

	return find_word(steered_hash(ipv6 ? *(const __u64 *)&ip6->saddr : ip4->saddr,
				      ipv6 ? *((const __u64 *)&ip6->saddr + 1) : 0, port,
				      queue->service));
}

/* The backend of a word, if it may have the packet; NULL: the packet takes the usual way. */
static __always_inline const struct backend *backend_of(const struct steered_queue *queue,
							__u64 word)
{
	const struct backend *backend = backend_at(word & STEERED_BACKEND);

	return word & STEERED_BACKEND && backend && backend->service == queue->service &&
			       (BACKEND_WORD(backend) & BACKEND_WORD_MASK) ==
				       BACKEND_WORD_OF(word) ?
		       backend :
		       NULL;
}

/* Whether a frame may go to a backend as forward_l2dsr() sends most. */
static __always_inline int may_send(struct xdp_md *ctx, const struct ethhdr *ethernet,
				    const struct backend *backend)
{
	__u64 next_hop = link_word(backend->mac);

	if (unlikely(vlan_of(next_hop) || is_from(ethernet, next_hop)))
		return 0;
	return likely(is_for(ethernet, backend->source_mac)) || !is_for_another_host(ctx, backend);
}

/* Sends it. Returns what becomes of the frame. */
static __always_inline int send_to(struct xdp_md *ctx, struct ethhdr *ethernet,
				   struct steered_queue *queue, const struct backend *backend,
				   __u32 index, __u32 length)
{
	struct packet counted;
	int action = XDP_TX;

	write_macs(ethernet, link_word(backend->mac), link_word(backend->source_mac));
	if (unlikely(backend->ifindex != ctx->ingress_ifindex)) {
		action = bpf_redirect_map(&egress, backend->ifindex, 0);
		if (unlikely(action != XDP_REDIRECT)) {
			count_usual(queue, length);
			return not_redirected(backend, length);
		}
	}
	counted.length = length;
	count(bpf_map_lookup_elem(&backend_counters, &index), &counted);
	return action;
}

/*
 * Sends a packet of a family. Returns what becomes of the frame, or SEND_OTHERWISE or SEND_SAMPLE. Inlined,
 * because a return takes as long as all the rest on some processors.
 */
static __always_inline int send_by_family(struct xdp_md *ctx, struct steered_queue *queue, int ipv6)
{
	const __u32 header = ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const __be16 protocol = ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	struct ethhdr *ethernet = frame(ctx);
	void *l3 = ethernet + 1, *end = frame_end(ctx);
	const struct udphdr *l4 = l3 + header;
	const struct backend *backend;
	__u32 length, index;
	enum look look;
	__u64 word;

	if ((void *)(l4 + 1) > end || *ethertype_of(ethernet) != protocol ||
	    !is_of_queue(queue, l3, l4, end, ipv6))
		return SEND_OTHERWISE;
	length = ipv6 ? bpf_ntohs(((struct ipv6hdr *)l3)->payload_len) + header :
			bpf_ntohs(((struct iphdr *)l3)->tot_len);
	if (length < queue->shortest || !frame_holds(ctx, sizeof(*ethernet), length))
		return SEND_OTHERWISE;
	look = count_queue(queue, length);
	if (likely(look == LOOK_NOT)) {
		word = word_of(queue, l3, l4->source, ipv6);
		backend = backend_of(queue, word);
		index = word & STEERED_BACKEND;
		if (likely(backend && length <= backend->mtu && may_send(ctx, ethernet, backend)))
			return send_to(ctx, ethernet, queue, backend, index, length);
	}
	count_usual(queue, length);
	return look == LOOK_SAMPLE ? SEND_SAMPLE : SEND_OTHERWISE;
}

/* Sends a packet of a queue whose backends are all in l2dsr. */
static __always_inline int send_steered(struct xdp_md *ctx, struct steered_queue *queue)
{
	return queue->key >> 56 ? send_by_family(ctx, queue, 1) : send_by_family(ctx, queue, 0);
}
