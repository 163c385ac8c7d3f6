/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Health checks go to the VIP on the path of clients' packets. A socket says which way its
 * packets take (SO_PRIORITY), and a rule for their mark leads them to a device of their own.
 * Where they leave it, this program gives them what the director's program would: the
 * backend's MAC address, or outer headers. Answers come as they come to clients.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "abi/check_types.h"
#include "lib/outer.h"
#include "lib/packet.h"

/* By number: numbers are never given twice, so no entry is ever another backend's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct check_way);
} check_ways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CHECK_VERDICT_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} check_verdicts SEC(".maps");

static __always_inline void *data_of(struct __sk_buff *skb)
{
	return (void *)(long)skb->data;
}

static __always_inline void *end_of(struct __sk_buff *skb)
{
	return (void *)(long)skb->data_end;
}

/* The outer headers' view of the packet: without options and extension headers, as sockets send. */
static __always_inline int look(struct __sk_buff *skb, struct packet *packet)
{
	void *data = data_of(skb) + sizeof(struct ethhdr), *end = end_of(skb);
	struct iphdr *ip4 = data;
	struct ipv6hdr *ip6 = data;

	packet->l3 = sizeof(struct ethhdr);
	packet->length = skb->len - sizeof(struct ethhdr);
	packet->hash = bpf_get_hash_recalc(skb);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end)
			return 0;
		packet->tos = ip4->tos;
		packet->flow.protocol = ip4->protocol;
		ADDRESS_WORD(&packet->flow.source, 0) = ip4->saddr;
		ADDRESS_WORD(&packet->flow.destination, 0) = ip4->daddr;
		packet->l4 = packet->l3 + sizeof(*ip4);
		return 1;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return 0;
	packet->flow.ipv6 = 1;
	packet->first_word = *(__be32 *)ip6;
	packet->tos = bpf_ntohl(packet->first_word) >> 20;
	packet->ttl = ip6->hop_limit;
	packet->flow.protocol = ip6->nexthdr;
	packet->l4 = packet->l3 + sizeof(*ip6);
	return 1;
}

/* Segments of one packet have headers alike, so none may have a checksum of its own. */
static __always_inline void write_outer6(struct __sk_buff *skb, struct ipv6hdr *ip,
					 const struct packet *packet, const struct check_way *way,
					 int gue)
{
	struct gue_outer *outer = (struct gue_outer *)(ip + 1);
	__u32 payload = packet->length + (gue ? sizeof(*outer) : 0);
	__u64 sum;

	write_ipv6(ip, packet, &way->to, &way->settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   payload);
	if (!gue)
		return;
	sum = write_gue(outer, packet, payload, 0);
	outer->udp.check = skb->gso_size ? 0 : checksum_gue6(packet, ip, payload, sum);
}

static __always_inline void write_outer4(struct iphdr *ip, const struct packet *packet,
					 const struct check_way *way, int gue)
{
	struct gue_outer *outer = (struct gue_outer *)(ip + 1);
	__u32 length = sizeof(*ip) + packet->length + (gue ? sizeof(*outer) : 0);

	write_ipv4(ip, packet, &way->to, &way->settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   length);
	if (gue)
		write_gue(outer, packet, length - sizeof(*ip), 0);
}

/* Makes room for the outer headers and fills it; 0: there is none. */
static __always_inline int wrap(struct __sk_buff *skb, const struct packet *packet,
				const struct check_way *way)
{
	int gue = way->to.mode == MODE_GUE, six = way->to.flags & BACKEND_IPV6;
	__u32 outer = (six ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
		      (gue ? sizeof(struct gue_outer) : 0);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (gue ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0) |
		      (six ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	void *ip;

	if (bpf_skb_adjust_room(skb, outer, BPF_ADJ_ROOM_MAC, flags))
		return 0;
	/* With what is behind it, each is longer than the longest outer header of its family. */
	ip = data_of(skb) + sizeof(struct ethhdr);
	if (six) {
		if (ip + sizeof(struct ipv6hdr) + sizeof(struct gue_outer) > end_of(skb))
			return 0;
		write_outer6(skb, ip, packet, way, gue);
		return 1;
	}
	if (ip + sizeof(struct iphdr) + sizeof(struct gue_outer) > end_of(skb))
		return 0;
	write_outer4(ip, packet, way, gue);
	return 1;
}

/* Ethernet as the director writes it; the tag is the device's to add. */
static __always_inline int address(struct __sk_buff *skb, const struct backend *to)
{
	struct ethhdr *ethernet = data_of(skb);

	if ((void *)(ethernet + 1) > end_of(skb))
		return 0;
	write_macs(ethernet, link_word(to->mac), link_word(to->source_mac));
	ethernet->h_proto = skb->protocol;
	return !to->vlan || !bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), bpf_ntohs(to->vlan));
}

static __always_inline enum check_verdict send(struct __sk_buff *skb)
{
	__u32 number = skb->priority;
	struct packet packet = {};
	struct check_way *way;

	if (!skb->mark)
		return CHECK_NOT_MARKED;
	way = bpf_map_lookup_elem(&check_ways, &number);
	if (!way || !way->to.ifindex)
		return CHECK_NO_WAY;
	if (!look(skb, &packet))
		return CHECK_NOT_IP;
	if ((way->to.mode != MODE_L2DSR && !wrap(skb, &packet, way)) || !address(skb, &way->to))
		return CHECK_NO_ROOM;
	/* They were for this program: the next one may give them another meaning. */
	skb->mark = 0;
	skb->priority = 0;
	bpf_redirect(way->to.ifindex, 0);
	return CHECK_SENT;
}

SEC("tc")
int send_check(struct __sk_buff *skb)
{
	__u32 verdict = send(skb);
	__u64 *counter = bpf_map_lookup_elem(&check_verdicts, &verdict);

	if (counter)
		(*counter)++;
	if (verdict == CHECK_SENT)
		return TC_ACT_REDIRECT;
	return verdict == CHECK_NOT_MARKED ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
