/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Second chance: a packet whose connection is not here goes to the next host that
 * its row names, from this host's own address, with the inner packet as it came.
 */
#pragma once

#include "host/maps.h"
#include "host/peer_query.h"
#include "host/socket.h"
#include "host/tunnel.h"
#include "lib/checksum.h"

/* Whether the row that a director put in has the one form that is followed. */
static __always_inline int is_well_formed(const struct chance *chance, const struct row_header *row)
{
	__u32 size = chance->outer6 ? sizeof(struct in6_addr) : sizeof(__be32);

	return row->count && row->count <= ROW_HOPS_MAX && row->next <= row->count && !row->claim &&
	       chance->private == sizeof(*row) + row->count * size;
}

/* The mask is for the verifier: a row has no more. */
static __always_inline int read_hop(const struct view *view, struct chance *chance, __u32 number)
{
	__u32 size = chance->outer6 ? sizeof(struct in6_addr) : sizeof(__be32);
	void *hop = at(view,
		       chance->row + sizeof(struct row_header) + (number & ROW_HOPS_MAX) * size);

	if (chance->outer6) {
		if (hop + sizeof(struct in6_addr) > view->end)
			return 0;
		__builtin_memcpy(&chance->hop, hop, sizeof(chance->hop));
	} else {
		if (hop + sizeof(__be32) > view->end)
			return 0;
		map_address(&chance->hop, *(__be32 *)hop);
	}
	return 1;
}

/* A search for a host between two places of the row. */
struct hop_search {
	const struct view *view;
	struct chance *chance;
	__u64 now; /* 0: also a host that does not answer (peer_query.h) */
	__u8 from;
	__u8 to;
	__u8 found;
	__u8 pad[5];
};

/* One host may have several backends of a service. */
static long try_hop(__u32 i, struct hop_search *search)
{
	struct address hop;

	if (i < search->from)
		return 0;
	if (i >= search->to || !read_hop(search->view, search->chance, i))
		return 1;
	hop = search->chance->hop; /* 6.1 takes keys from the stack only */
	if (bpf_map_lookup_elem(&tunnel_ends, &hop))
		return 0;
	/* A host that is no peer is found: then the packet is dropped, and nothing remembered. */
	if (search->now && find_peer(search->chance->service, &hop) && !may_ask(&hop, search->now))
		return 0;
	search->chance->next = i + 1;
	search->found = 1;
	return 1;
}

/* Is another host left to try? By bpf_loop (Linux 5.17), whose body the verifier walks once. */
static __always_inline int find_hop(const struct view *view, struct chance *chance, __u32 from,
				    __u32 to, __u64 now)
{
	struct hop_search search = {
		.view = view,
		.chance = chance,
		.now = now,
		.from = from,
		.to = to,
	};

	bpf_loop(ROW_HOPS_MAX, try_hop, &search, 0);
	return search.found;
}

static __always_inline int keeps_all(__u32 index)
{
	const struct host_service *service = bpf_map_lookup_elem(&services, &index);

	return !service || service->flags & HOST_SERVICE_KEEPS_ALL;
}

/*
 * Decides how a packet in GUE that has come to its service goes on: HOST_DECAP_*: up the
 * stack; PARSED: datagram.h decides.
 */
static __always_inline enum host_reason judge(const struct view *view, struct chance *chance)
{
	struct row_header *row = at(view, chance->row);

	if (chance->private < sizeof(*row) || (void *)(row + 1) > view->end)
		return PARSED;
	if (row->kind == ROW_KIND_UDP)
		return PARSED;
	if (row->kind == ROW_KIND_PODS)
		return HOST_DECAP_POD;
	if (row->kind != ROW_KIND)
		return is_remembered(chance->protocol) ? PARSED : HOST_DECAP_GUE;
	if (!is_well_formed(chance, row))
		return HOST_DROP_ROW_MALFORMED;
	if (!reads_sockets || keeps_all(chance->service) || is_here(view, chance))
		return HOST_DECAP_GUE;
	return find_hop(view, chance, row->next, row->count, 0) ? HOST_PASSED_ON :
								  HOST_DECAP_LAST_RESORT;
}

/*
 * Not inlined and not static: the verifier looks at them once, not again for every
 * way in which a tunnel can be parsed.
 */
__noinline int judge_xdp(struct xdp_md *ctx, struct chance *chance)
{
	struct view view = { ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	return chance ? judge(&view, chance) : HOST_DECAP_GUE;
}

__noinline int judge_skb(struct __sk_buff *ctx, struct chance *chance)
{
	struct view view = { ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	return chance ? judge(&view, chance) : HOST_DECAP_GUE;
}

static __always_inline struct chance chance_of(const struct tunnel *t, const struct inner *inner)
{
	__u32 ip = t->link + t->outer;
	struct chance chance = {
		.row = ip - t->private,
		.ip = ip,
		.l4 = inner->l4 ? ip + inner->l4 : 0,
		.tcp_end = ip + inner->length,
		.ports = inner->ports ? ip + inner->ports : 0,
		.service = inner->service,
		.private = t->private,
		.outer6 = t->ipv6,
		.ipv6 = inner->ipv6,
		.protocol = inner->destination.protocol,
		.gue = t->gue,
	};

	return chance;
}

/* From here to the private data, outer headers have one length: they have no options. */
struct passed4 {
	struct iphdr ip;
	struct udphdr udp;
	struct gue_header gue;
	struct row_header row;
	__be32 first; /* of the row's hosts */
};

struct passed6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct gue_header gue;
	struct row_header row;
	struct in6_addr first;
};

/* The sum of what readdress changes, before or after: addresses of so many words. */
static __always_inline __u64 sum_readdressed(const __u32 *outer, const struct row_header *row,
					     int words)
{
	const __u32 *first = (const __u32 *)(row + 1);
	__u64 sum = *(const __u32 *)row;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += (__u64)outer[i] + outer[words + i] + first[i];
	return sum;
}

static __always_inline void rewrite_row(struct row_header *row, const struct chance *chance)
{
	row->next = chance->next;
	row->claim = chance->claim;
}

/* Zero is no checksum (RFC 768) and stays. */
static __always_inline void update_udp(struct udphdr *udp, __u64 removed, __u64 added)
{
	if (!udp->check)
		return;
	udp->check = checksum_not_zero(checksum_update(udp->check, removed, added));
}

static __always_inline int readdress4(struct passed4 *p, void *end, const struct tunnel *t,
				      const struct chance *chance)
{
	const __be32 *to = (const __be32 *)chance->hop.bytes;
	const __be32 *from = (const __be32 *)t->destination.bytes;
	const __u32 *addresses;
	__u64 removed;

	if ((void *)(p + 1) > end)
		return -1;
	addresses = (const __u32 *)&p->ip.saddr;
	removed = sum_readdressed(addresses, &p->row, 1);
	p->ip.saddr = from[3];
	p->ip.daddr = to[3];
	p->ip.check = 0;
	p->ip.check = ipv4_header_checksum(&p->ip);
	rewrite_row(&p->row, chance);
	if (chance->as_first)
		p->first = from[3];
	update_udp(&p->udp, removed, sum_readdressed(addresses, &p->row, 1));
	return 0;
}

static __always_inline int readdress6(struct passed6 *p, void *end, const struct tunnel *t,
				      const struct chance *chance)
{
	const __u32 *addresses;
	__u64 removed;

	if ((void *)(p + 1) > end)
		return -1;
	addresses = (const __u32 *)&p->ip.saddr;
	removed = sum_readdressed(addresses, &p->row, 4);
	__builtin_memcpy(&p->ip.saddr, &t->destination, sizeof(p->ip.saddr));
	__builtin_memcpy(&p->ip.daddr, &chance->hop, sizeof(p->ip.daddr));
	rewrite_row(&p->row, chance);
	if (chance->as_first)
		__builtin_memcpy(&p->first, &t->destination, sizeof(p->first));
	update_udp(&p->udp, removed, sum_readdressed(addresses, &p->row, 4));
	return 0;
}

/*
 * Sends a packet by the interface that has this host's address, which need not be the one
 * that the program is attached to: the address may be a VLAN's, a bond's or a bridge's.
 * The kernel knows route and neighbor, also if the host forwards nothing (which is why
 * this is not bpf_fib_lookup). Returns a verdict of tc, or -1.
 */
static __noinline int pass_on(struct __sk_buff *skb, const struct tunnel *t,
			      const struct chance *chance)
{
	__u32 *holder = bpf_map_lookup_elem(&tunnel_ends, &t->destination);
	__u32 ifindex = skb->ifindex;
	void *data, *end;

	if (holder && *holder)
		ifindex = *holder;
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return -1;
	data = (void *)(long)skb->data + sizeof(struct ethhdr);
	end = (void *)(long)skb->data_end;
	if (t->ipv6 ? readdress6(data, end, t, chance) : readdress4(data, end, t, chance))
		return -1;
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}
