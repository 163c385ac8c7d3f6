/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Second chance for UDP and SCTP. Sockets tell nothing about datagrams, because one socket serves all
 * clients, and programs cannot look up those of SCTP: so each host remembers the flows whose packets
 * it kept. What is said here of datagrams holds for packets of SCTP, too. The row of a
 * datagram (ROW_KIND_UDP in row_types.h) is walked like this:
 *
 *   visit     up to the last host that is up for the director. A host that has kept the flow
 *             just now keeps the datagram. A host that has kept the flow longer ago says so in
 *             the row, and the youngest wins.
 *   end       the host that said so gets the datagram; else it goes back to the first host,
 *             which has the flow from now on.
 *   question  before it takes the flow, the first host asks the hosts that are down for the
 *             director, one after the other: another director may see them up.
 */
#pragma once

#include "abi/flow_types.h"
#include "host/second_chance.h"
#include "lib/clock.h"
#include "lib/proof.h"
#include "lib/quota.h"

/* As long as an idle flow lives in a director's memory. */
#define FLOW_TIMEOUT (FLOW_TIMEOUT_UDP * SECOND)
/* A lost host is not back within this time: so no other host has got the flow meanwhile. */
#define FLOW_FRESH SECOND

/* An age in a row: units of 2^30 ns, 1 is the youngest; 0: no host has the flow. */
#define CLAIM_OLDEST 254

/* What a host knows about a datagram besides its contents. */
struct datagram {
	__u64 now;
	__u64 age; /* of the last one of its flow that was kept here */
};

/* Whether datagrams have a second chance here. */
const volatile __u8 remembers_flows = 1;
/* How many flows udp_flows has room for. */
const volatile __u32 udp_room = 1;

static __always_inline int name_datagram(const struct view *view, const struct chance *chance,
					 struct host_flow *flow)
{
	struct ipv6hdr *ip6 = at(view, chance->ip);
	struct iphdr *ip4 = at(view, chance->ip);
	struct udphdr *udp = at(view, chance->l4);

	if ((void *)(udp + 1) > view->end)
		return 0;
	if (chance->ipv6) {
		if ((void *)(ip6 + 1) > view->end)
			return 0;
		__builtin_memcpy(&flow->client, &ip6->saddr, sizeof(flow->client));
		__builtin_memcpy(&flow->vip, &ip6->daddr, sizeof(flow->vip));
	} else {
		if ((void *)(ip4 + 1) > view->end)
			return 0;
		map_address(&flow->client, ip4->saddr);
		map_address(&flow->vip, ip4->daddr);
	}
	flow->client_port = udp->source;
	flow->vip_port = udp->dest;
	return 1;
}

/* Tells a flow of SCTP from one of UDP: see struct host_flow. */
static __always_inline int mark_sctp(struct host_flow *flow)
{
	flow->client.bytes[0] ^= HOST_FLOW_SCTP;
	return 1;
}

/* Not inlined, like the next ones: the stack has no room for all of them at once. */
static __noinline int name_quoted(const struct view *view, const struct chance *chance,
				  struct host_flow *flow)
{
	struct icmp_header *icmp = at(view, chance->l4);
	struct question question = {};
	__u8 protocol = IPPROTO_UDP;

	if ((void *)(icmp + 1) > view->end || !is_error(icmp->type, chance->ipv6) ||
	    !ask_quoted(&question, icmp, chance->ipv6, &protocol, view->end))
		return 0;
	if (chance->ipv6) {
		__builtin_memcpy(&flow->client, question.tuple.ipv6.saddr, sizeof(flow->client));
		__builtin_memcpy(&flow->vip, question.tuple.ipv6.daddr, sizeof(flow->vip));
		flow->client_port = question.tuple.ipv6.sport;
		flow->vip_port = question.tuple.ipv6.dport;
	} else {
		map_address(&flow->client, question.tuple.ipv4.saddr);
		map_address(&flow->vip, question.tuple.ipv4.daddr);
		flow->client_port = question.tuple.ipv4.sport;
		flow->vip_port = question.tuple.ipv4.dport;
	}
	return protocol == IPPROTO_SCTP ? mark_sctp(flow) : 1;
}

/* The flow of a datagram, or of the one that an error is about; 0: there is none. */
static __always_inline int name_flow(const struct view *view, const struct chance *chance,
				     struct host_flow *flow)
{
	if (!chance->l4 || chance->l4 > OFFSET_MASK)
		return 0;
	if (chance->protocol == IPPROTO_UDP)
		return name_datagram(view, chance, flow);
	if (chance->protocol == IPPROTO_SCTP)
		return name_datagram(view, chance, flow) && mark_sctp(flow);
	if (chance->protocol == (chance->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return name_quoted(view, chance, flow);
	return 0;
}

static __always_inline int has_datagram_socket(void *ctx, struct question *question,
					       __s64 namespace)
{
	struct bpf_sock *sk;

	if (question->size == sizeof(question->tuple.ipv4))
		sk = bpf_sk_lookup_udp(ctx, &question->tuple, sizeof(question->tuple.ipv4),
				       namespace, 0);
	else
		sk = bpf_sk_lookup_udp(ctx, &question->tuple, sizeof(question->tuple.ipv6),
				       namespace, 0);
	if (sk)
		bpf_sk_release(sk);
	return sk != NULL;
}

/*
 * Whether a socket here still answers the flow's datagrams. If sockets cannot be seen here, a host
 * gives up what it has when a director sees it down. It keeps associations of SCTP: their sockets
 * are not seen, and no other host could go on with them. No bpf_loop: Linux 6.1 counts 32 bytes of
 * stack for its body, and there are none left.
 */
static __noinline int serves(const struct view *view, const struct chance *chance,
			     const struct host_flow *flow)
{
	const __be32 *client = (const __be32 *)flow->client.bytes;
	const __be32 *vip = (const __be32 *)flow->vip.bytes;
	__s64 namespace = BPF_F_CURRENT_NETNS;
	struct question question = {};

	if (chance->protocol == IPPROTO_SCTP)
		return 1;
	if (keeps_all(chance->service))
		return 0;
	if (chance->ipv6)
		ask6(&question, (const struct in6_addr *)client, (const struct in6_addr *)vip,
		     flow->client_port, flow->vip_port);
	else
		ask4(&question, client[3], vip[3], flow->client_port, flow->vip_port);
	for (__u32 i = 0; i <= HOST_NAMESPACES_MAX; i++) {
		if (has_datagram_socket(view->ctx, &question, namespace))
			return 1;
		namespace = namespace_at(i);
		if (namespace < 0)
			return 0;
	}
	return 0;
}

static __always_inline __u32 hops_of(const struct row_header *row)
{
	return row->count & ROW_COUNT_MASK;
}

/* Hosts that are down for the director are the last ones of the row. */
static __always_inline __u32 hops_up(const struct row_header *row)
{
	return hops_of(row) - (row->count >> ROW_DOWN_SHIFT);
}

static __always_inline int is_walkable(const struct chance *chance, const struct row_header *row)
{
	__u32 size = chance->outer6 ? sizeof(struct in6_addr) : sizeof(__be32);
	__u32 hops = hops_of(row);

	return hops && hops <= ROW_HOPS_MAX && row->count >> ROW_DOWN_SHIFT <= hops &&
	       (row->next & ~ROW_RETURNED) <= hops + 1 &&
	       chance->private == sizeof(*row) + hops * size;
}

/* Sends to the host in chance->hop, with the row's other fields. */
static __always_inline enum host_reason send_on(struct chance *chance, __u32 next, __u8 claim,
						int as_first)
{
	chance->next = next;
	chance->claim = claim;
	chance->as_first = as_first;
	return HOST_PASSED_ON;
}

/* The host that sent the packet here. Outer headers have one length. */
static __always_inline int read_sender(const struct view *view, const struct chance *chance,
				       struct address *sender)
{
	__u32 udp = chance->row - sizeof(struct gue_header) - sizeof(struct udphdr);
	struct ipv6hdr *ip6 = at(view, udp - sizeof(*ip6));
	struct iphdr *ip4 = at(view, udp - sizeof(*ip4));

	if (chance->outer6) {
		if ((void *)(ip6 + 1) > view->end)
			return 0;
		__builtin_memcpy(sender, &ip6->saddr, sizeof(*sender));
	} else {
		if ((void *)(ip4 + 1) > view->end)
			return 0;
		map_address(sender, ip4->saddr);
	}
	return 1;
}

/* The answer of a host that is down for the director: it goes to the first host. */
static __always_inline enum host_reason answer(const struct view *view, struct chance *chance,
					       const struct row_header *row,
					       const struct host_flow *flow,
					       const struct datagram *datagram)
{
	int has = datagram->age < FLOW_TIMEOUT && serves(view, chance, flow);

	if (!read_hop(view, chance, 0))
		return HOST_DROP_ROW_MALFORMED;
	return send_on(chance, row->next | ROW_RETURNED, has, 0);
}

/* All hosts that are up were asked. PARSED: none has the flow, and this is the first host. */
static __always_inline enum host_reason end_visit(const struct view *view, struct chance *chance,
						  const struct row_header *row)
{
	__u32 up = hops_up(row), hops = hops_of(row);
	struct address first;

	if (!row->next)
		return PARSED;
	if (!read_hop(view, chance, 0))
		return HOST_DROP_ROW_MALFORMED;
	first = chance->hop;
	if (bpf_map_lookup_elem(&tunnel_ends, &first))
		return row->claim ? HOST_DECAP_GUE : PARSED;
	if (row->claim || up == hops)
		return send_on(chance, hops + 1, row->claim, 0);
	return send_on(chance, up | ROW_RETURNED, 0, 0);
}

static __always_inline enum host_reason visit(const struct view *view, struct chance *chance,
					      const struct row_header *row,
					      const struct datagram *datagram)
{
	__u64 units = datagram->age >> 30;
	__u32 claim = 1 + (units < CLAIM_OLDEST ? units : CLAIM_OLDEST - 1);
	int mine = datagram->age < FLOW_TIMEOUT && (!row->claim || claim < row->claim);

	if (find_hop(view, chance, row->next, hops_up(row), 0))
		return send_on(chance, chance->next, mine ? claim : row->claim, mine || !row->next);
	return mine ? HOST_DECAP_GUE : end_visit(view, chance, row);
}

/* Walks the row one step: HOST_DECAP_*: it ends here; HOST_PASSED_ON: on to chance->hop. */
static __always_inline enum host_reason walk(const struct view *view, struct chance *chance,
					     const struct row_header *row,
					     const struct host_flow *flow,
					     const struct datagram *datagram)
{
	__u32 next = row->next & ~ROW_RETURNED, up = hops_up(row);
	int returned = row->next & ROW_RETURNED;
	enum host_reason reason;
	struct address sender = {};

	if (next && read_sender(view, chance, &sender))
		heard_from(&sender);
	if (next > hops_of(row))
		return datagram->age < FLOW_TIMEOUT ? HOST_DECAP_GUE : HOST_DECAP_NEW_FLOW;
	if (!returned && next > up)
		return answer(view, chance, row, flow, datagram);
	if (datagram->age < FLOW_FRESH)
		return HOST_DECAP_GUE;
	if (!returned) {
		reason = visit(view, chance, row, datagram);
		if (reason != PARSED)
			return reason;
		next = up;
	} else if (row->claim) {
		chance->hop = sender;
		return send_on(chance, hops_of(row) + 1, row->claim, 0);
	}
	/* This is the first host again. */
	if (find_hop(view, chance, next, hops_of(row), datagram->now))
		return send_on(chance, chance->next, 0, 1);
	return HOST_DECAP_NEW_FLOW;
}

/* The header of the packet's row, if it is there and a datagram's; else NULL. */
static __always_inline const struct row_header *datagram_row(const struct view *view,
							     const struct chance *chance)
{
	const struct row_header *row = at(view, chance->row);

	if (chance->private < sizeof(*row) || (void *)(row + 1) > view->end ||
	    row->kind != ROW_KIND_UDP)
		return NULL;
	return row;
}

/* On to the host that keeps it, whichever host has the flow. HOST_DECAP_GUE: this is that host. */
static __always_inline enum host_reason relay(const struct view *view, struct chance *chance,
					      const struct row_header *row)
{
	struct address keeper;

	if (!is_walkable(chance, row) || !read_hop(view, chance, 0))
		return HOST_DROP_ROW_MALFORMED;
	keeper = chance->hop;
	if (bpf_map_lookup_elem(&tunnel_ends, &keeper))
		return HOST_DECAP_GUE;
	return send_on(chance, hops_of(row) + 1, row->claim, 0);
}

/* How long ago a datagram of a flow that has just begun was kept here. */
static __noinline __u64 age_of_fresh(const struct host_flow *flow, __u64 now)
{
	struct host_fresh *fresh = bpf_map_lookup_elem(&udp_fresh, flow);

	return age_of(fresh ? &fresh->seen : NULL, now);
}

/* Moves a sustained flow to udp_flows, if the service has a place; else it goes on as it is. */
static __noinline void sustain(const struct host_flow *flow, __u64 now, __u32 service)
{
	if (!has_quota(&udp_quotas, service, udp_room)) {
		count(bpf_map_lookup_elem(&service_no_place, &service), 0);
		return;
	}
	if (bpf_map_update_elem(&udp_flows, flow, &now, BPF_ANY))
		return;
	count_quota(&udp_quotas, service, 1);
	bpf_map_delete_elem(&udp_fresh, flow);
}

/* Notes a datagram of a flow that is not sustained yet, and may be with this datagram. */
static __noinline void note_fresh(const struct host_flow *flow, __u64 now, __u32 service)
{
	struct host_fresh *fresh = bpf_map_lookup_elem(&udp_fresh, flow);
	struct host_fresh first = { .seen = now, .since = now, .datagrams = 1 };

	if (!fresh || age_of(&fresh->seen, now) >= FLOW_TIMEOUT) {
		bpf_map_update_elem(&udp_fresh, flow, &first, BPF_ANY);
		return;
	}
	fresh->seen = now;
	if (fresh->datagrams < HOST_FRESH_DATAGRAMS)
		fresh->datagrams++;
	if (fresh->datagrams < HOST_FRESH_DATAGRAMS ||
	    age_of(&fresh->since, now) < PROOF_LASTS * SECOND)
		return;
	sustain(flow, now, service);
}

/*
 * Decides how a datagram in GUE, or an error about one, goes on, and remembers the flow
 * of a datagram that is kept.
 */
static __always_inline enum host_reason judge_datagram(const struct view *view,
						       struct chance *chance)
{
	const struct row_header *row = datagram_row(view, chance);
	enum host_reason reason = HOST_DECAP_GUE;
	struct host_flow flow = {};
	struct datagram datagram;
	__u64 *seen;

	if (row && row->claim == ROW_RELAY && !row->next) {
		reason = relay(view, chance, row);
		if (reason != HOST_DECAP_GUE)
			return reason;
		row = NULL;
	}
	if (!remembers_flows)
		return HOST_DECAP_GUE;
	if (row && !is_walkable(chance, row))
		return HOST_DROP_ROW_MALFORMED;
	if (!name_flow(view, chance, &flow))
		return HOST_DECAP_GUE;
	datagram.now = bpf_ktime_get_coarse_ns();
	seen = bpf_map_lookup_elem(&udp_flows, &flow);
	datagram.age = seen ? age_of(seen, datagram.now) : age_of_fresh(&flow, datagram.now);
	if (row)
		reason = walk(view, chance, row, &flow, &datagram);
	if (!is_remembered(chance->protocol))
		return reason == HOST_DECAP_NEW_FLOW ? HOST_DECAP_LAST_RESORT : reason;
	if (reason != HOST_DECAP_GUE && reason != HOST_DECAP_NEW_FLOW)
		return reason;
	if (seen)
		*seen = datagram.now;
	else
		note_fresh(&flow, datagram.now, chance->service);
	return reason;
}

__noinline int judge_datagram_xdp(struct xdp_md *ctx, struct chance *chance)
{
	struct view view = { ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	return chance ? judge_datagram(&view, chance) : HOST_DECAP_GUE;
}

__noinline int judge_datagram_skb(struct __sk_buff *ctx, struct chance *chance)
{
	struct view view = { ctx, (void *)(long)ctx->data, (void *)(long)ctx->data_end };

	return chance ? judge_datagram(&view, chance) : HOST_DECAP_GUE;
}
