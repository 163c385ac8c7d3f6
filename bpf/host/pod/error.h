/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rewriting packets between clients and pods, and ICMP errors about them, which quote the
 * packet as the error's sender has seen it: the addresses and ports in there change, too.
 */
#pragma once

#include "host/pod/maps.h"
#include "host/socket.h"

#define POD_FRAGMENT_OFFSET 0x1fff /* RFC 791 */

/* An error whose ICMP header is at an offset: where what it quotes is. */
static __always_inline int read_error(struct __sk_buff *skb, struct pod_visit *v, __u32 at)
{
	struct icmp_header icmp;

	if (bpf_skb_load_bytes(skb, at, &icmp, sizeof(icmp)) || !is_error(icmp.type, v->ipv6))
		return 0;
	v->error.checksum = at + offsetof(struct icmp_header, checksum);
	v->error.ip = at + sizeof(icmp);
	return 1;
}

/*
 * Addresses, ports and sequence number of the quoted packet; the client is at the end that is
 * not `local`.
 */
static __always_inline int name_quoted_flow(struct __sk_buff *skb, struct pod_visit *v,
					    const struct address *source,
					    const struct address *destination, int local_is_source)
{
	struct tcp_beginning l4;

	if (v->error.protocol != IPPROTO_TCP && v->error.protocol != IPPROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, v->error.ports, &l4, sizeof(l4)))
		return 0;
	v->flow.client = local_is_source ? *destination : *source;
	v->flow.local = local_is_source ? *source : *destination;
	v->flow.client_port = local_is_source ? l4.destination : l4.source;
	v->flow.local_port = local_is_source ? l4.source : l4.destination;
	v->l4.sequence = l4.sequence;
	v->flow.protocol = v->error.protocol;
	v->from.port = v->flow.local_port;
	return 1;
}

/* Reads the packet that an error quotes into the visit's flow. */
static __always_inline int read_quoted(struct __sk_buff *skb, struct pod_visit *v,
				       int local_is_source)
{
	struct address source, destination;
	struct ipv6hdr ip6;
	struct iphdr ip4;

	if (v->ipv6) {
		if (bpf_skb_load_bytes(skb, v->error.ip, &ip6, sizeof(ip6)))
			return 0;
		__builtin_memcpy(&source, &ip6.saddr, sizeof(source));
		__builtin_memcpy(&destination, &ip6.daddr, sizeof(destination));
		v->error.protocol = ip6.nexthdr;
		v->error.ports = v->error.ip + sizeof(ip6);
	} else {
		if (bpf_skb_load_bytes(skb, v->error.ip, &ip4, sizeof(ip4)) || ip4.ihl < 5 ||
		    ip4.frag_off & bpf_htons(POD_FRAGMENT_OFFSET))
			return 0;
		map_address(&source, ip4.saddr);
		map_address(&destination, ip4.daddr);
		v->error.protocol = ip4.protocol;
		v->error.ports = v->error.ip + ip4.ihl * 4;
	}
	return name_quoted_flow(skb, v, &source, &destination, local_is_source);
}

/*
 * Replaces the local end of the quoted packet. Over IPv4 the quoted header's checksum makes up for
 * the address. The quoted packet's own checksum, if there is one, stays: it is not checked.
 */
static __always_inline int replace_quoted(struct __sk_buff *skb, struct pod_visit *v, int source,
					  const struct address *from)
{
	const struct pod_error *e = &v->error;
	__u32 port = e->ports + (source ? 0 : sizeof(__be16)), at = e->ip;
	__be32 was = last_word(from), is = last_word(&v->to.address);
	__s64 change;

	if (v->ipv6) {
		at += source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr);
		change = bpf_csum_diff((__be32 *)from->bytes, sizeof(*from),
				       (__be32 *)v->to.address.bytes, sizeof(*from), 0);
		if (change < 0 || bpf_skb_store_bytes(skb, at, &v->to.address, sizeof(*from), 0) ||
		    bpf_l4_csum_replace(skb, e->checksum, 0, change, 0))
			return 0;
	} else {
		at += source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr);
		if (bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0) ||
		    bpf_l3_csum_replace(skb, e->ip + offsetof(struct iphdr, check), was, is,
					sizeof(is)))
			return 0;
	}
	return replace_port(skb, port, e->checksum, 0, v->from.port, v->to.port);
}

/* ICMPv6's checksum covers the addresses, ICMP's does not. */
static __always_inline __u32 error_checksum(const struct pod_visit *v)
{
	return v->ipv6 ? v->error.checksum : NO_CHECKSUM;
}

/* Moves the offsets of an error that has been unwrapped. */
static __always_inline void move_error(struct pod_visit *v, __u32 by)
{
	v->error.checksum -= by;
	v->error.ip -= by;
	v->error.ports -= by;
}

/*
 * Replaces the local end of an error to a pod, or from behind one: on the way it is the VIP, here
 * the pod. A leaving error has this end as the quoted packet's destination, and as its own source
 * only if the pod has sent the error, and not a router before the pod.
 */
static __always_inline int replace_error(struct __sk_buff *skb, struct pod_visit *v, int leaves)
{
	if (!leaves || same_bytes(&v->from.address, &v->flow.local)) {
		if (!replace_address(skb, v->ipv6, leaves, error_checksum(v), 0, &v->from.address,
				     &v->to.address))
			return 0;
	}
	return replace_quoted(skb, v, !leaves, &v->flow.local);
}

/* The source or the destination of a packet that is no error. */
static __always_inline int replace_flow_end(struct __sk_buff *skb, struct pod_visit *v, int source)
{
	if (!v->ports)
		return replace_address(skb, v->ipv6, source, NO_CHECKSUM, 0, &v->from.address,
				       &v->to.address);
	if (v->protocol == IPPROTO_TCP)
		return replace_tcp_end(skb, v->ports, v->ipv6, source, &v->from, &v->to);
	return replace_udp_end(skb, v->ports, v->ipv6, source, &v->from, &v->to);
}
