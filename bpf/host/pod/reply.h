/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that pods of this host send to clients leave with the VIP as their source, and so do
 * errors about what clients have sent to them.
 */
#pragma once

#include "host/pod/error.h"
#include "host/pod/flow.h"

#define POD_MORE_FRAGMENTS 0x2000
#define POD_FRAGMENT_OFFSET6 0xfff8
#define POD_MORE_FRAGMENTS6 1

struct pod_fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

/* Which part of its packet a fragment is. */
enum pod_part {
	POD_WHOLE = 0,
	POD_FIRST,
	POD_LATER,
};

/* A packet that leaves. */
struct pod_leaving {
	__be32 id; /* of its fragments */
	__u32 l4;
	enum pod_part part;
};

static __always_inline int read_leaving4(struct __sk_buff *skb, struct pod_visit *v,
					 struct pod_leaving *l)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.ihl < 5)
		return 0;
	map_address(&v->back.local, ip.saddr);
	map_address(&v->back.client, ip.daddr);
	v->protocol = ip.protocol;
	l->l4 = ETH_HLEN + ip.ihl * 4;
	l->id = ip.id;
	if (ip.frag_off & bpf_htons(POD_FRAGMENT_OFFSET))
		l->part = POD_LATER;
	else if (ip.frag_off & bpf_htons(POD_MORE_FRAGMENTS))
		l->part = POD_FIRST;
	return 1;
}

static __always_inline int read_leaving6(struct __sk_buff *skb, struct pod_visit *v,
					 struct pod_leaving *l)
{
	struct pod_fragment_header fragment;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(&v->back.local, &ip.saddr, sizeof(v->back.local));
	__builtin_memcpy(&v->back.client, &ip.daddr, sizeof(v->back.client));
	v->ipv6 = 1;
	v->protocol = ip.nexthdr;
	l->l4 = ETH_HLEN + sizeof(ip);
	if (ip.nexthdr != IPPROTO_FRAGMENT)
		return 1;
	if (bpf_skb_load_bytes(skb, l->l4, &fragment, sizeof(fragment)))
		return 0;
	v->protocol = fragment.next;
	l->l4 += sizeof(fragment);
	l->id = fragment.id;
	if (fragment.offset & bpf_htons(POD_FRAGMENT_OFFSET6))
		l->part = POD_LATER;
	else if (fragment.offset & bpf_htons(POD_MORE_FRAGMENTS6))
		l->part = POD_FIRST;
	return 1;
}

static __always_inline int read_leaving(struct __sk_buff *skb, struct pod_visit *v,
					struct pod_leaving *l)
{
	if (skb->protocol == bpf_htons(ETH_P_IP) ?
		    !read_leaving4(skb, v, l) :
		    skb->protocol != bpf_htons(ETH_P_IPV6) || !read_leaving6(skb, v, l))
		return 0;
	v->from.address = v->back.local;
	v->back.protocol = v->protocol;
	return 1;
}

static __always_inline struct pod_fragment fragment_of(const struct pod_visit *v,
						       const struct pod_leaving *l)
{
	struct pod_fragment fragment = {
		.pod = v->back.local,
		.client = v->back.client,
		.id = l->id,
		.protocol = v->protocol,
	};

	return fragment;
}

static __always_inline int find_later(struct pod_visit *v, const struct pod_leaving *l)
{
	struct pod_fragment key = fragment_of(v, l);
	struct address *vip = bpf_map_lookup_elem(&pod_fragments, &key);

	if (!vip)
		return 0;
	v->to.address = *vip;
	return 1;
}

static __always_inline int find_reply(struct __sk_buff *skb, struct pod_visit *v,
				      const struct pod_leaving *l)
{
	struct pod_fragment key;
	struct pod_way *reply;
	int opening;

	__builtin_memset(&v->l4, 0, sizeof(v->l4));
	if (v->protocol == IPPROTO_TCP ? bpf_skb_load_bytes(skb, l->l4, &v->l4, 14) :
					 bpf_skb_load_bytes(skb, l->l4, &v->l4, 4))
		return 0;
	v->ports = l->l4;
	v->data = skb->len - l->l4 - (v->l4.offset >> 4) * 4;
	v->back.local_port = v->l4.source;
	v->back.client_port = v->l4.destination;
	reply = find_way(&v->back, &opening);
	if (!reply || reply->kind != POD_LEAVING)
		return 0;
	v->from.port = v->back.local_port;
	v->to.address = reply->address;
	v->to.port = reply->port;
	if (v->protocol == IPPROTO_TCP)
		note_leaving(v, reply, opening);
	else
		note_answer(v, reply, opening);
	if (l->part == POD_FIRST) {
		key = fragment_of(v, l);
		bpf_map_update_elem(&pod_fragments, &key, &v->to.address, BPF_ANY);
	}
	return 1;
}

static __always_inline int find_error(struct __sk_buff *skb, struct pod_visit *v,
				      const struct pod_leaving *l)
{
	struct pod_way *reply;
	int opening;

	if (!read_error(skb, v, l->l4) || !read_quoted(skb, v, 0))
		return 0;
	reply = find_way(&v->flow, &opening);
	if (!reply || reply->kind != POD_LEAVING)
		return 0;
	v->to.address = reply->address;
	v->to.port = reply->port;
	return 1;
}

/*
 * Handles a packet that leaves: HOST_POD_REPLY: its source is the VIP now; HOST_PASS_EGRESS: it
 * is as it was. Not static: the verifier looks at it once.
 */
__noinline int leave_pod(struct __sk_buff *skb)
{
	struct pod_visit *v = pod_visit();
	struct pod_leaving l = {};
	int found = 0;

	if (!v)
		return HOST_PASS_EGRESS;
	__builtin_memset(&v->back, 0, sizeof(v->back));
	__builtin_memset(&v->flow, 0, sizeof(v->flow));
	__builtin_memset(&v->error, 0, sizeof(v->error));
	v->now = pod_now();
	v->ipv6 = 0;
	v->ports = 0;
	if (!read_leaving(skb, v, &l))
		return HOST_PASS_EGRESS;
	if (l.part == POD_LATER)
		found = find_later(v, &l);
	else if (v->protocol == IPPROTO_TCP || v->protocol == IPPROTO_UDP)
		found = find_reply(skb, v, &l);
	else if (v->protocol == (v->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && l.part == POD_WHOLE)
		found = find_error(skb, v, &l);
	if (!found)
		return HOST_PASS_EGRESS;
	if (v->error.checksum ? !replace_error(skb, v, 1) : !replace_flow_end(skb, v, 1))
		return HOST_DROP_DECAP_FAILED;
	return HOST_POD_REPLY;
}
