/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets for pods of this host: finds the pod that has the connection, or gets it, and makes
 * it the packet's destination. In tc only: host_xdp leaves these packets to it.
 *
 *   row -> whose flow is it -> the flow's pod, or the one that was picked, or another host
 */
#pragma once

#include "host/pod/error.h"
#include "host/pod/flow.h"
#include "host/second_chance.h"

#define POD_ENTRY4 (sizeof(__be32) + sizeof(__be32))
#define POD_ENTRY6 (sizeof(struct in6_addr) + sizeof(__be32))
#define POD_ROW_MASK 0x7f

static __always_inline __u32 pod_entry(const struct chance *chance)
{
	return chance->outer6 ? POD_ENTRY6 : POD_ENTRY4;
}

static __always_inline int is_row_of_pods(const struct chance *chance, const struct row_header *row)
{
	return row->count && row->count <= ROW_PODS_MAX && row->next && row->next <= row->count &&
	       !row->claim && chance->private == sizeof(*row) + row->count * pod_entry(chance);
}

/* Copies the row; the most that GUE can count is less than its place. */
static __always_inline int read_row(struct __sk_buff *skb, const struct chance *chance,
				    struct pod_visit *v)
{
	__u32 length = chance->private;

	if (length < sizeof(struct row_header))
		return 0;
	length -= sizeof(struct row_header);
	barrier_var(length);
	length = (length & 0x7c) + sizeof(struct row_header);
	if (length > sizeof(v->row))
		return 0;
	return !bpf_skb_load_bytes(skb, chance->row, v->row, length) &&
	       is_row_of_pods(chance, (struct row_header *)v->row);
}

/* What a host of the row calls its pod. */
static __always_inline __be32 name_in(const struct chance *chance, const struct pod_visit *v,
				      __u32 number)
{
	__u32 at = sizeof(struct row_header) + (number + 1) * pod_entry(chance) - sizeof(__be32);

	barrier_var(at);
	at &= POD_ROW_MASK;
	if (at > sizeof(v->row) - sizeof(__be32))
		return 0;
	return *(const __be32 *)(v->row + at);
}

static __always_inline int host_in(struct chance *chance, const struct pod_visit *v, __u32 number)
{
	__u32 at = sizeof(struct row_header) + number * pod_entry(chance);

	barrier_var(at);
	at &= POD_ROW_MASK;
	if (at > sizeof(v->row) - sizeof(struct address))
		return 0;
	if (chance->outer6)
		__builtin_memcpy(&chance->hop, v->row + at, sizeof(chance->hop));
	else
		map_address(&chance->hop, *(const __be32 *)(v->row + at));
	return 1;
}

/* Is another host left to try? */
static __always_inline int find_pods_host(struct chance *chance, const struct pod_visit *v)
{
	const struct row_header *row = (const struct row_header *)v->row;
	struct address hop;

	if (!chance->gue)
		return 0;
	for (__u32 i = 1; i < ROW_PODS_MAX; i++) {
		if (i < row->next || i >= row->count)
			continue;
		if (!host_in(chance, v, i))
			return 0;
		hop = chance->hop; /* 6.1 takes keys from the stack only */
		if (bpf_map_lookup_elem(&tunnel_ends, &hop))
			continue;
		chance->next = i + 1;
		return 1;
	}
	return 0;
}

/* The pod that the packet is sent to; 0: it is not here. */
static __always_inline int pick_pod(struct chance *chance, struct pod_visit *v)
{
	const struct row_header *row = (const struct row_header *)v->row;
	struct pod_name key = { .service = chance->service };
	struct pod_end end = { .service = chance->service };
	struct pod *pod;

	if (chance->gue) {
		key.name = name_in(chance, v, row->next - 1);
		pod = bpf_map_lookup_elem(&pod_names, &key);
	} else {
		end.address = chance->hop;
		pod = bpf_map_lookup_elem(&pod_ends, &end);
	}
	if (!pod)
		return 0;
	v->picked = *pod;
	return 1;
}

static __always_inline enum host_reason send_to(struct pod_visit *v, const struct pod_way *way)
{
	v->to.address = way->address;
	v->to.port = way->port;
	return HOST_DECAP_POD;
}

/* Begins a flow to the pod that was picked. If only one of its entries has room, it still helps. */
static __always_inline enum host_reason begin(struct chance *chance, struct pod_visit *v)
{
	if (!pick_pod(chance, v))
		return HOST_DROP_NO_POD;
	make_ways(v);
	if (is_taken(v))
		return HOST_DROP_POD_TAKEN;
	if (v->protocol == IPPROTO_TCP &&
	    (v->l4.flags & (POD_TCP_SYN | POD_TCP_ACK)) == POD_TCP_SYN)
		note_syn(v);
	bpf_map_update_elem(&pod_opening, &v->back, &v->reply, BPF_ANY);
	bpf_map_update_elem(&pod_opening, &v->flow, &v->way, BPF_ANY);
	return send_to(v, &v->way);
}

/*
 * A SYN on an open connection is forged, or asks for a sign of life, and changes nothing; on one
 * that is being opened it is sent again.
 */
static __always_inline enum host_reason judge_syn(struct chance *chance, struct pod_visit *v)
{
	int opening;
	struct pod_way *way = find_way(&v->flow, &opening);

	if (!way)
		return begin(chance, v);
	if (!has_ended(way) && (!opening || (number_known(way) && seconds_since(way->seen, v->now) <
									  POD_OPENING_TIMEOUT)))
		return send_to(v, way);
	turn_flow(&v->back, &v->flow, way);
	if (opening)
		bpf_map_delete_elem(&pod_opening, &v->back);
	else
		leave_flows(&v->flow, &v->back);
	return begin(chance, v);
}

/*
 * A segment that is not of a connection here goes on to the next host. If there is none, it goes
 * to the pod whose flow it may be, or else to the pod that it was sent to, which resets it.
 */
static __always_inline enum host_reason judge_segment(struct chance *chance, struct pod_visit *v)
{
	enum host_reason reason;
	struct pod_way *way;
	int opening, here;

	if ((v->l4.flags & (POD_TCP_SYN | POD_TCP_ACK)) == POD_TCP_SYN)
		return judge_syn(chance, v);
	way = find_way(&v->flow, &opening);
	here = way && is_of(v, way, opening);
	if (!here && find_pods_host(chance, v))
		return HOST_PASSED_ON;
	reason = way ? send_to(v, way) : begin(chance, v);
	if (!here)
		return reason == HOST_DECAP_POD ? HOST_DECAP_LAST_RESORT : reason;
	note_arriving(v, way, opening);
	return reason;
}

/* Whether the pod may still have the flow, as the director sees it: it names the pods that may. */
static __always_inline int is_named(const struct chance *chance, const struct pod_visit *v,
				    __be32 name)
{
	const struct row_header *row = (const struct row_header *)v->row;

	if (!chance->gue)
		return name == v->picked.name;
	for (__u32 i = 0; i < ROW_PODS_MAX; i++)
		if (i < row->count && name_in(chance, v, i) == name)
			return 1;
	return 0;
}

/* Removes a flow of UDP from every map that it may be in. */
static __noinline void forget_datagrams(struct pod_visit *v, const struct pod_way *way)
{
	turn_flow(&v->back, &v->flow, way);
	leave_flows(&v->flow, &v->back);
	bpf_map_delete_elem(&pod_opening, &v->back);
	bpf_map_delete_elem(&pod_opening, &v->flow);
	bpf_map_delete_elem(&pod_datagrams, &v->back);
	bpf_map_delete_elem(&pod_datagrams, &v->flow);
}

/*
 * A datagram, whole or the first fragment of one. The flow of later fragments is not known
 * here, so all fragments go to the pod that was picked.
 */
static __always_inline enum host_reason judge_pod_datagram(struct chance *chance,
							   struct pod_visit *v)
{
	int opening;
	struct pod_way *way = find_way(&v->flow, &opening);

	if (!pick_pod(chance, v))
		return HOST_DROP_NO_POD;
	if (way && seconds_since(way->seen, v->now) < POD_DATAGRAM_TIMEOUT &&
	    (chance->l4 ? is_named(chance, v, way->name) : way->name == v->picked.name)) {
		note_seen(way, v->now);
		if (opening)
			note_turn(v, way);
		return send_to(v, way);
	}
	if (way)
		forget_datagrams(v, way);
	return begin(chance, v);
}

/* An error about what a pod has sent: it quotes the VIP. */
static __always_inline enum host_reason judge_pod_error(struct __sk_buff *skb,
							struct chance *chance, struct pod_visit *v)
{
	struct pod_way *way;
	int opening;

	if (!read_error(skb, v, chance->l4))
		return HOST_DROP_NO_POD;
	/* The VIP has sent what is quoted: it is at its source. */
	if (!read_quoted(skb, v, 1))
		return HOST_DROP_NO_POD;
	way = find_way(&v->flow, &opening);
	if (!(way && has_sent(v, way, opening)) && find_pods_host(chance, v))
		return HOST_PASSED_ON;
	if (!way)
		return HOST_DROP_NO_POD;
	move_error(v, chance->ip - ETH_HLEN);
	return send_to(v, way);
}

/* A packet without ports is a later fragment: it goes to the pod that is picked, like its first. */
static __always_inline enum host_reason judge_rest(struct chance *chance, struct pod_visit *v)
{
	if (!pick_pod(chance, v))
		return HOST_DROP_NO_POD;
	v->to.address = v->picked.address;
	return HOST_DECAP_POD;
}

/* The inner packet's ends. */
static __always_inline int read_ends(struct __sk_buff *skb, const struct chance *chance,
				     struct pod_visit *v)
{
	__be32 words[2];

	if (chance->ipv6) {
		if (bpf_skb_load_bytes(skb, chance->ip + offsetof(struct ipv6hdr, saddr),
				       &v->flow.client, sizeof(struct address)) ||
		    bpf_skb_load_bytes(skb, chance->ip + offsetof(struct ipv6hdr, daddr),
				       &v->flow.local, sizeof(struct address)))
			return 0;
	} else {
		if (bpf_skb_load_bytes(skb, chance->ip + offsetof(struct iphdr, saddr), words,
				       sizeof(words)))
			return 0;
		map_address(&v->flow.client, words[0]);
		map_address(&v->flow.local, words[1]);
	}
	__builtin_memset(&v->l4, 0, sizeof(v->l4));
	if (!chance->ports)
		return 1;
	if (v->protocol == IPPROTO_TCP ? bpf_skb_load_bytes(skb, chance->ports, &v->l4, 14) :
					 bpf_skb_load_bytes(skb, chance->ports, &v->l4, 4))
		return 0;
	v->flow.client_port = v->l4.source;
	v->flow.local_port = v->l4.destination;
	return 1;
}

/*
 * Decides how a packet for a pod goes on, and notes in the visit what is to become of it. Not
 * static: the verifier looks at it once. A packet of ipip has no row; the address that it was
 * sent to is in chance->hop.
 */
__noinline int judge_pod(struct __sk_buff *skb, struct chance *chance)
{
	struct pod_visit *v = pod_visit();

	if (!chance || !v)
		return HOST_DROP_NO_POD;
	__builtin_memset(&v->flow, 0, sizeof(v->flow));
	__builtin_memset(&v->error, 0, sizeof(v->error));
	v->now = pod_now();
	v->protocol = chance->protocol;
	v->ipv6 = chance->ipv6;
	v->flow.protocol = chance->protocol;
	/* Where the ports are once the packet is unwrapped. */
	v->ports = chance->ports ? chance->ports - chance->ip + ETH_HLEN : 0;
	if (chance->gue && !read_row(skb, chance, v))
		return HOST_DROP_ROW_MALFORMED;
	if (!read_ends(skb, chance, v))
		return HOST_DROP_INNER_MALFORMED;
	v->from.address = v->flow.local;
	v->from.port = v->flow.local_port;
	v->to.port = v->from.port;
	if (v->protocol == IPPROTO_UDP && chance->ports)
		return judge_pod_datagram(chance, v);
	if (v->protocol == IPPROTO_TCP && chance->l4)
		return judge_segment(chance, v);
	if (chance->l4 && v->protocol == (v->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return judge_pod_error(skb, chance, v);
	return judge_rest(chance, v);
}

/* Gives the unwrapped packet its pod as its destination; 0: done. */
__noinline int send_to_pod(struct __sk_buff *skb)
{
	struct pod_visit *v = pod_visit();

	if (!v)
		return -1;
	if (v->error.checksum)
		return replace_error(skb, v, 0) ? 0 : -1;
	return replace_flow_end(skb, v, 0) ? 0 : -1;
}
