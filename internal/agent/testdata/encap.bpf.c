/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A director made by hand, of what the kernel has for tunnels, for the tests of the
 * agent: every packet to a VIP that leaves gets an outer header in front. Large
 * packets stay whole, as from a tunnel device on a link with TSO.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/checksum.h"

#define OUTER_MAX 64

/* The outer header, without lengths and checksum, and how long it is. */
const volatile __u8 outer[OUTER_MAX];
const volatile __u32 outer_length;
const volatile __u8 outer_ipv6;
const volatile __u8 gue;

/* The VIPs: the last four bytes say enough. */
const volatile __u32 vip4;
const volatile __u32 vip6;

static __always_inline int is_for_vip(struct __sk_buff *skb)
{
	__u32 last = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return !bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, daddr), &last,
					   4) &&
		       last == vip4;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, daddr) + 12,
					   &last, 4) &&
		       last == vip6;
	return 0;
}

static __always_inline void write_lengths(__u8 *header, __u32 packet)
{
	struct ipv6hdr *ip6 = (struct ipv6hdr *)header;
	struct iphdr *ip4 = (struct iphdr *)header;
	struct udphdr *udp;

	if (outer_ipv6) {
		udp = (struct udphdr *)(ip6 + 1);
		ip6->payload_len = bpf_htons(packet - sizeof(*ip6));
		packet -= sizeof(*ip6);
	} else {
		udp = (struct udphdr *)(ip4 + 1);
		ip4->tot_len = bpf_htons(packet);
		ip4->check = 0;
		ip4->check = ipv4_header_checksum(ip4);
		packet -= sizeof(*ip4);
	}
	if (gue)
		udp->len = bpf_htons(packet);
}

SEC("tc")
int encap(struct __sk_buff *skb)
{
	__be16 protocol = outer_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u8 header[OUTER_MAX] __attribute__((aligned(4)));
	__u32 length = outer_length;

	if (!is_for_vip(skb))
		return TC_ACT_UNSPEC;
	for (int i = 0; i < OUTER_MAX; i++)
		header[i] = outer[i];
	flags |= outer_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (gue)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (length < 20 || length > OUTER_MAX ||
	    bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC, flags))
		return TC_ACT_SHOT;
	write_lengths(header, skb->len - ETH_HLEN);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, header, length, 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, 2, 0))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
