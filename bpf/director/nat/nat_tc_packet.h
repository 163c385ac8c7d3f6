/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets of NAT as the kernel has them, in tc: they may be super-packets, and the device may
 * yet have to finish their checksums. The helpers know about both.
 */
#pragma once

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "director/nat/nat.h"
#include "director/segment.h"

/* Longest headers that are read: Ethernet, IP, ICMP, IP with options, TCP. */
#define SKB_HEADERS (14 + 60 + 8 + 60 + 20)

/* Reads IPv4; 0: it is not as a host sends it. */
static __always_inline int parse_skb4(void *data, void *end, struct packet *packet, __u32 l3)
{
	struct iphdr *ip = data + l3;
	__u32 offset;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return 0;
	packet->flow.protocol = ip->protocol;
	packet->ttl = ip->ttl;
	ADDRESS_WORD(&packet->flow.source, 0) = ip->saddr;
	ADDRESS_WORD(&packet->flow.destination, 0) = ip->daddr;
	packet->l4 = packet->l3 + ip->ihl * 4;
	packet->fragment_id = ip->id;
	offset = bpf_ntohs(ip->frag_off);
	if (offset & 0x3fff)
		packet->flags |= offset & 0x1fff ? PACKET_FRAGMENT_LATER : PACKET_FRAGMENT_FIRST;
	return 1;
}

/* Reads IPv6. A host adds only one extension header by itself: the fragment header. */
static __always_inline int parse_skb6(void *data, void *end, struct packet *packet, __u32 l3)
{
	struct ipv6hdr *ip = data + l3;
	struct extension_header *extension = (void *)(ip + 1);

	if ((void *)(ip + 1) > end || ip->version != 6)
		return 0;
	packet->flow.ipv6 = 1;
	packet->flow.protocol = ip->nexthdr;
	packet->ttl = ip->hop_limit;
	__builtin_memcpy(&packet->flow.source, &ip->saddr, sizeof(struct address));
	__builtin_memcpy(&packet->flow.destination, &ip->daddr, sizeof(struct address));
	packet->l4 = packet->l3 + sizeof(*ip);
	if (ip->nexthdr != IPPROTO_FRAGMENT)
		return 1;
	if ((void *)(extension + 1) > end)
		return 0;
	packet->flow.protocol = extension->next;
	packet->fragment_id = extension->fragment_id;
	packet->l4 += sizeof(*extension);
	if (bpf_ntohs(extension->fragment_offset) & 0xfff8)
		packet->flags |= PACKET_FRAGMENT_LATER;
	else if (bpf_ntohs(extension->fragment_offset) & 1)
		packet->flags |= PACKET_FRAGMENT_FIRST;
	return 1;
}

/* The flow of an ICMP error: that of the packet inside, reversed. */
static __always_inline int parse_skb_error(void *data, void *end, struct packet *packet)
{
	struct icmp_header *icmp = data + (packet->l4 & 0x3fff);
	struct flow flow = { .ipv6 = packet->flow.ipv6 };
	__u32 at = packet->l4 + sizeof(*icmp);
	struct ipv6hdr *ip6 = data + (at & 0x3fff);
	struct iphdr *ip4 = data + (at & 0x3fff);
	struct udphdr *ports;

	if ((void *)(icmp + 1) > end || !is_error(icmp->type, flow.ipv6))
		return 0;
	if (flow.ipv6) {
		if ((void *)(ip6 + 1) > end)
			return 0;
		__builtin_memcpy(&flow.source, &ip6->daddr, sizeof(struct address));
		__builtin_memcpy(&flow.destination, &ip6->saddr, sizeof(struct address));
		flow.protocol = ip6->nexthdr;
		at += sizeof(*ip6);
	} else {
		if ((void *)(ip4 + 1) > end || ip4->ihl < 5 || ip4->frag_off & bpf_htons(0x1fff))
			return 0;
		ADDRESS_WORD(&flow.source, 0) = ip4->daddr;
		ADDRESS_WORD(&flow.destination, 0) = ip4->saddr;
		flow.protocol = ip4->protocol;
		at += ip4->ihl * 4;
	}
	ports = data + (at & 0x3fff);
	if ((void *)(ports + 1) > end || !has_ports(flow.protocol) ||
	    !same_address(&flow.destination, &packet->flow.destination))
		return 0;
	flow.source_port = ports->dest;
	flow.destination_port = ports->source;
	packet->flow = flow;
	packet->quoted_l4 = at;
	packet->flags |= PACKET_ICMP_ERROR;
	return 1;
}

/* Reads what the states of flows depend on. */
static __always_inline int parse_skb_tcp(void *tcp, void *end, struct packet *packet)
{
	if (tcp + sizeof(struct tcphdr) > end)
		return 0;
	packet->tcp_flags = ((__u8 *)tcp)[13];
	set_numbers(packet, tcp);
	return 1;
}

/* Bytes of the header with the ports. */
static __always_inline __u32 l4_length(__u8 protocol)
{
	if (protocol == IPPROTO_SCTP)
		return sizeof(struct sctp_header);
	return protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);
}

/* The packet's length as its IP header has it; 0: the header is cut. */
static __always_inline __u32 stated_length(struct __sk_buff *skb, const struct packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = data + (packet->l3 & 0x1f);
	struct iphdr *ip4 = (void *)ip6;

	if ((void *)(ip4 + 1) > end || (packet->flow.ipv6 && (void *)(ip6 + 1) > end))
		return 0;
	return packet->flow.ipv6 ? sizeof(*ip6) + bpf_ntohs(ip6->payload_len) :
				   bpf_ntohs(ip4->tot_len);
}

/*
 * Whether the length in the IP header covers what is read, and is no more than there is: the
 * kernel has not checked it yet. It has checked super-packets, and the largest of these do not
 * state a length.
 */
static __always_inline int is_complete(struct __sk_buff *skb, const struct packet *packet,
				       __u32 read)
{
	__u32 length;

	if (skb->gso_size)
		return 1;
	length = stated_length(skb, packet);
	return length && packet->l3 + length >= read && length <= packet->length;
}

/* Reads a packet whose IP header is at l3, and brings in as many bytes as are read. */
static __always_inline int parse_skb(struct __sk_buff *skb, struct packet *packet, __u32 l3)
{
	struct udphdr *ports;
	void *data, *end;
	__u32 needed;

	if (skb->vlan_present ||
	    (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6)))
		return 0;
	if (skb->data_end - skb->data < SKB_HEADERS && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < SKB_HEADERS ? skb->len : SKB_HEADERS);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	packet->l3 = l3;
	packet->length = skb->len - l3;
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !parse_skb4(data, end, packet, l3) :
						   !parse_skb6(data, end, packet, l3))
		return 0;
	if (packet->flags & PACKET_FRAGMENT_LATER)
		return is_complete(skb, packet, packet->l4);
	if (is_icmp(&packet->flow))
		return !(packet->flags & PACKET_FRAGMENT_FIRST) &&
		       parse_skb_error(data, end, packet) &&
		       is_complete(skb, packet, packet->quoted_l4 + sizeof(*ports));
	if (!has_ports(packet->flow.protocol))
		return 0;
	/* The helpers that change the checksum must not find half a header. */
	needed = l4_length(packet->flow.protocol);
	ports = data + (packet->l4 & 0x3fff);
	if ((void *)(ports + 1) > end || packet->l4 + needed > skb->len)
		return 0;
	if (packet->flow.protocol == IPPROTO_TCP && !parse_skb_tcp((void *)ports, end, packet))
		return 0;
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->dest;
	if (!is_complete(skb, packet, packet->l4 + needed))
		return 0;
	/* SCTP's checksum depends on it. That of a super-packet is not computed yet. */
	if (packet->flow.protocol == IPPROTO_SCTP && !skb->gso_size)
		packet->length = stated_length(skb, packet);
	if (packet->flow.protocol == IPPROTO_SCTP)
		packet->sequence = IPPROTO_SCTP;
	return 1;
}

/* The checksum of TCP or UDP after addresses and ports have changed. */
static __always_inline void replace_checksum(struct __sk_buff *skb, const struct packet *packet,
					     const struct flow *to)
{
	int tcp = packet->flow.protocol == IPPROTO_TCP;
	__u32 at = packet->l4 +
		   (tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 flags = tcp ? 0 : BPF_F_MARK_MANGLED_0;
	const struct flow *from = &packet->flow;
	__s64 sum;

	/* For IPv4, what is behind the address is 0. Size 0: the value is a difference of sums. */
	sum = bpf_csum_diff((void *)&from->source, sizeof(struct address), (void *)&to->source,
			    sizeof(struct address), 0);
	sum = bpf_csum_diff((void *)&from->destination, sizeof(struct address),
			    (void *)&to->destination, sizeof(struct address), sum);
	bpf_l4_csum_replace(skb, at, 0, sum, flags | BPF_F_PSEUDO_HDR);
	bpf_l4_csum_replace(skb, at, from->source_port, to->source_port, flags | sizeof(__be16));
	bpf_l4_csum_replace(skb, at, from->destination_port, to->destination_port,
			    flags | sizeof(__be16));
}

/*
 * A packet of packet->flow becomes one of t->to; 0: it is cut short. Not inlined, for its room on
 * the stack. Addresses and ports are written, then checksums: after a helper the packet may be
 * somewhere else. An ICMP error has its whole checksum already.
 */
static __noinline int translate_skb(struct __sk_buff *skb, const struct packet *packet,
				    const struct translation *t)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *ports = data + (packet->l4 & 0x3fff);

	if (packet->flags & PACKET_ICMP_ERROR)
		return translate_error(data, end, packet, t);
	if (packet->flow.protocol == IPPROTO_SCTP)
		return translate(data, end, packet, t);
	if (!rewrite_ip(data + (packet->l3 & 0x1f), end, &t->to.source, &t->to.destination,
			packet->flow.ipv6, t->hops))
		return 0;
	if (packet->flags & PACKET_FRAGMENT_LATER)
		return 1;
	if ((void *)(ports + 1) > end)
		return 0;
	ports->source = t->to.source_port;
	ports->dest = t->to.destination_port;
	replace_checksum(skb, packet, &t->to);
	return 1;
}
