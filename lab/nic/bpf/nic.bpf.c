/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stands for a NIC with a flow table, at the end of a veth that sends to it: chooses the queue by which
 * a packet comes in at the other end. A packet without a rule gets one by its hash, as RSS does.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define RSS_SIZE 16

struct card_flow {
	__u8 source[16]; /* IPv4: the first four bytes */
	__u8 destination[16];
	__be16 source_port, destination_port;
	__u8 protocol;
	__u8 ipv6;
	__u16 pad;
};

struct card_rule {
	__u32 queue;
	__u32 location;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct card_flow);
	__type(value, struct card_rule);
} card_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSS_SIZE);
	__type(key, __u32);
	__type(value, __u32);
} card_rss SEC(".maps");

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* 0 if the frame is of a flow. */
static __always_inline int read_flow(const struct __sk_buff *skb, struct card_flow *flow)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct ethhdr *ethernet = data;
	const __be16 *ports;

	if ((const void *)(ethernet + 1) > end)
		return -1;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = data + sizeof(*ethernet);

		if ((const void *)(ip + 1) > end || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(0x3fff))
			return -1;
		__builtin_memcpy(flow->source, &ip->saddr, 4);
		__builtin_memcpy(flow->destination, &ip->daddr, 4);
		flow->protocol = ip->protocol;
		ports = (const void *)(ip + 1);
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = data + sizeof(*ethernet);

		if ((const void *)(ip + 1) > end)
			return -1;
		__builtin_memcpy(flow->source, &ip->saddr, 16);
		__builtin_memcpy(flow->destination, &ip->daddr, 16);
		flow->protocol = ip->nexthdr;
		flow->ipv6 = 1;
		ports = (const void *)(ip + 1);
	} else {
		return -1;
	}
	if ((flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP) ||
	    (const void *)(ports + 2) > end)
		return -1;
	flow->source_port = ports[0];
	flow->destination_port = ports[1];
	return 0;
}

SEC("tcx/egress")
int card(struct __sk_buff *skb)
{
	struct card_flow flow = {};
	const struct card_rule *rule = NULL;
	__u32 entry, queue = 0;
	const __u32 *by_hash;

	if (!read_flow(skb, &flow))
		rule = bpf_map_lookup_elem(&card_rules, &flow);
	if (rule) {
		queue = rule->queue;
	} else {
		entry = bpf_get_hash_recalc(skb) % RSS_SIZE;
		by_hash = bpf_map_lookup_elem(&card_rss, &entry);
		if (by_hash)
			queue = *by_hash;
	}
	skb->queue_mapping = queue + 1;
	return TC_ACT_UNSPEC;
}
