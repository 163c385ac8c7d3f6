/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about packets of redirected connections: the sender of an error quotes the
 * packet as it was on the wire, to the backend; the host's kernel has to read the VIP
 * there, to find the connection and to learn what fits on its path.
 */
#pragma once

#include <stddef.h>
#include <linux/pkt_cls.h>

#include "lib/headers.h"
#include "redirect/connection.h"

/* A TCP packet that an error is about. Offsets are from the start of the frame. */
struct quote {
	struct host_flow flow; /* of the packet: its source is the client */
	__u32 checksum;        /* of the error */
	__u32 ip;
	__u32 l4;
	__u32 ipv6;
};

/* The part of a TCP header that errors always have. */
struct quoted_ports {
	__be16 source;
	__be16 destination;
	__be32 sequence;
};

static __always_inline int read_quoted_ports(struct __sk_buff *skb, struct quote *q)
{
	struct quoted_ports ports;

	if (bpf_skb_load_bytes(skb, q->l4, &ports, sizeof(ports)))
		return 0;
	q->flow.client_port = ports.source;
	q->flow.vip_port = ports.destination;
	return 1;
}

static __always_inline int read_error4(struct __sk_buff *skb, struct quote *q)
{
	struct iphdr ip;
	__u32 at = ETH_HLEN;
	__u8 type;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_ICMP ||
	    ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT_MASK))
		return 0;
	at += ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)) || !is_error(type, 0))
		return 0;
	q->checksum = at + offsetof(struct icmp_header, checksum);
	q->ip = at + sizeof(struct icmp_header);
	if (bpf_skb_load_bytes(skb, q->ip, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
	    ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT_MASK))
		return 0;
	q->l4 = q->ip + ip.ihl * 4;
	map_address(&q->flow.client, ip.saddr);
	map_address(&q->flow.vip, ip.daddr);
	return read_quoted_ports(skb, q);
}

static __always_inline int read_error6(struct __sk_buff *skb, struct quote *q)
{
	struct ipv6hdr ip;
	__u8 type;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_ICMPV6 ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &type, sizeof(type)) ||
	    !is_error(type, 1))
		return 0;
	q->checksum = ETH_HLEN + sizeof(ip) + offsetof(struct icmp_header, checksum);
	q->ip = ETH_HLEN + sizeof(ip) + sizeof(struct icmp_header);
	if (bpf_skb_load_bytes(skb, q->ip, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
		return 0;
	q->l4 = q->ip + sizeof(ip);
	q->ipv6 = 1;
	__builtin_memcpy(&q->flow.client, &ip.saddr, sizeof(q->flow.client));
	__builtin_memcpy(&q->flow.vip, &ip.daddr, sizeof(q->flow.vip));
	return read_quoted_ports(skb, q);
}

/*
 * The quoted destination becomes the VIP. Over IPv4 the quoted header's checksum makes
 * up for the address. The quoted TCP checksum, if there is one, stays: it is not checked.
 */
static __always_inline int rename_quoted(struct __sk_buff *skb, const struct quote *q,
					 const struct redirect_way *way)
{
	__u32 at = q->ip +
		   (q->ipv6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr));
	struct address from = q->flow.vip, to = way->peer;
	__be32 was = last_word(&from), is = last_word(&to);
	__be16 port = way->peer_port;
	__s64 change;

	if (q->ipv6) {
		change = bpf_csum_diff((__be32 *)from.bytes, sizeof(from), (__be32 *)to.bytes,
				       sizeof(to), 0);
		if (change < 0 || bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0) ||
		    bpf_l4_csum_replace(skb, q->checksum, 0, change, 0))
			return 0;
	} else if (bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0) ||
		   bpf_l3_csum_replace(skb, q->ip + offsetof(struct iphdr, check), was, is,
				       sizeof(is))) {
		return 0;
	}
	return !bpf_skb_store_bytes(skb, q->l4 + offsetof(struct tcphdr, dest), &port, sizeof(port),
				    0) &&
	       !bpf_l4_csum_replace(skb, q->checksum, q->flow.vip_port, port, sizeof(port));
}

/* Not inlined: other packets do not need its room on the stack. */
static __noinline int arrive_error(struct __sk_buff *skb)
{
	struct redirect_way *way;
	struct quote q = {};

	if (skb->protocol == bpf_htons(ETH_P_IP) ?
		    !read_error4(skb, &q) :
		    skb->protocol != bpf_htons(ETH_P_IPV6) || !read_error6(skb, &q))
		return TC_ACT_UNSPEC;
	way = bpf_map_lookup_elem(&redirect_arriving, &q.flow);
	if (!way)
		return TC_ACT_UNSPEC;
	note(way->service, REDIRECT_ERROR);
	return rename_quoted(skb, &q, way) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}
