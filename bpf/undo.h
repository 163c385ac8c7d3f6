/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * NAT for a backend that is this host: its packets never come in by XDP, so they
 * are translated where they leave. They may be super-packets, and the device may
 * yet have to finish their checksums: the helpers know about both.
 */
#pragma once

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "nat.h"

/* Longest headers that are read: Ethernet, IP, ICMP, IP with options, TCP. */
#define UNDO_HEADERS (14 + 60 + 8 + 60 + 20)

/* Reads IPv4; 0: it is not as this host would send it. */
static __always_inline int parse_own4(void *data, void *end, struct packet *packet)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 offset;

	if ((void *)(ip + 1) > end || ip->ihl < 5)
		return 0;
	packet->flow.protocol = ip->protocol;
	ADDRESS_WORD(&packet->flow.source, 0) = ip->saddr;
	ADDRESS_WORD(&packet->flow.destination, 0) = ip->daddr;
	packet->l4 = packet->l3 + ip->ihl * 4;
	packet->fragment_id = ip->id;
	offset = bpf_ntohs(ip->frag_off);
	if (offset & 0x3fff)
		packet->flags |= offset & 0x1fff ? PACKET_FRAGMENT_LATER : PACKET_FRAGMENT_FIRST;
	return 1;
}

/* Reads IPv6, of whose extension headers a host adds only the fragment's by itself. */
static __always_inline int parse_own6(void *data, void *end, struct packet *packet)
{
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct extension_header *extension = (void *)(ip + 1);

	if ((void *)(ip + 1) > end)
		return 0;
	packet->flow.ipv6 = 1;
	packet->flow.protocol = ip->nexthdr;
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

/* The flow of an ICMP error that this host sends: that of the packet inside, reversed. */
static __always_inline int parse_own_error(void *data, void *end, struct packet *packet)
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
	if ((void *)(ports + 1) > end ||
	    (flow.protocol != IPPROTO_TCP && flow.protocol != IPPROTO_UDP) ||
	    !same_address(&flow.destination, &packet->flow.destination))
		return 0;
	flow.source_port = ports->dest;
	flow.destination_port = ports->source;
	packet->flow = flow;
	packet->quoted_l4 = at;
	packet->flags |= PACKET_ICMP_ERROR;
	return 1;
}

static __always_inline int parse_own(struct __sk_buff *skb, struct packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *ports;
	__u32 needed;

	packet->l3 = sizeof(struct ethhdr);
	packet->length = skb->len - sizeof(struct ethhdr);
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !parse_own4(data, end, packet) :
						   !parse_own6(data, end, packet))
		return 0;
	if (packet->flags & PACKET_FRAGMENT_LATER)
		return 1;
	if (is_icmp(&packet->flow))
		return !(packet->flags & PACKET_FRAGMENT_FIRST) &&
		       parse_own_error(data, end, packet);
	if (packet->flow.protocol != IPPROTO_TCP && packet->flow.protocol != IPPROTO_UDP)
		return 0;
	/* The helpers that change the checksum must not find half a header. */
	needed = packet->flow.protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(*ports);
	ports = data + (packet->l4 & 0x3fff);
	if ((void *)(ports + 1) > end || packet->l4 + needed > skb->len)
		return 0;
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->dest;
	return 1;
}

/* What the packet becomes; 0: it is no reply of a backend on this host. */
static __always_inline int undo_what(struct packet *packet, struct flow *to)
{
	const struct backend *backend;
	struct fragment *first;
	__u32 index, local = NO_BACKEND, *found;

	if (packet->flags & PACKET_FRAGMENT_LATER) {
		first = find_fragment(packet);
		if (!first || first->path != FRAGMENT_TO_CLIENT)
			return 0;
		index = first->backend;
	} else {
		found = find_reply(&packet->flow);
		if (!found)
			return 0;
		local = find_local(packet);
		index = local != NO_BACKEND ? local : *found;
	}
	backend = backend_at(index);
	if (!backend || backend->state == BACKEND_FREE || !(backend->flags & BACKEND_LOCAL))
		return 0;
	/* In full NAT every flow has a place: another director has handed this one over. */
	if (backend->flags & BACKEND_SNAT && local == NO_BACKEND)
		return 0;
	*to = packet->flow;
	to->source = backend->vip;
	if (backend->vip_port)
		to->source_port = backend->vip_port;
	if (packet->flags & PACKET_FRAGMENT_FIRST)
		remember_fragment(packet, index, FRAGMENT_TO_CLIENT);
	return 1;
}

/* The checksum of TCP or UDP after source address and port have changed. */
static __always_inline void undo_checksum(struct __sk_buff *skb, const struct packet *packet,
					  const struct flow *to)
{
	int tcp = packet->flow.protocol == IPPROTO_TCP;
	__u32 at = packet->l4 +
		   (tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 flags = tcp ? 0 : BPF_F_MARK_MANGLED_0;
	__u32 from_address = ADDRESS_WORD(&packet->flow.source, 0);
	__u32 to_address = ADDRESS_WORD(&to->source, 0);
	__u64 size = sizeof(__be32);

	if (to->ipv6) {
		/* Size 0: the value is a difference of sums. */
		from_address = 0;
		to_address = bpf_csum_diff((void *)&packet->flow.source, sizeof(struct address),
					   (void *)&to->source, sizeof(struct address), 0);
		size = 0;
	}
	bpf_l4_csum_replace(skb, at, from_address, to_address, flags | BPF_F_PSEUDO_HDR | size);
	bpf_l4_csum_replace(skb, at, packet->flow.source_port, to->source_port,
			    flags | sizeof(__be16));
}

/*
 * Addresses and ports are written, then checksums: after a helper the packet may
 * be somewhere else. An ICMP error of this host has its whole checksum already.
 */
static __always_inline int undo(struct __sk_buff *skb, const struct packet *packet,
				const struct translation *t)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *ports = data + (packet->l4 & 0x3fff);

	if (packet->flags & PACKET_ICMP_ERROR)
		return translate_error(data, end, packet, t);
	if (!rewrite_ip(data + (packet->l3 & 0x1f), end, &t->to.source, &t->to.destination,
			packet->flow.ipv6, 0))
		return 0;
	if (packet->flags & PACKET_FRAGMENT_LATER)
		return 1;
	if ((void *)(ports + 1) > end)
		return 0;
	ports->source = t->to.source_port;
	undo_checksum(skb, packet, &t->to);
	return 1;
}

/* Never stops a packet: what is not weir's goes on to whoever is next. */
SEC("tcx/egress")
int undo_nat(struct __sk_buff *skb)
{
	const struct settings *settings = get_settings();
	struct packet packet = {};
	struct translation t = {};
	__u32 reason = FORWARD_REPLY;

	if (!settings || !(settings->flags & SETTINGS_REPLIES) || skb->vlan_present ||
	    (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6)))
		return TC_ACT_UNSPEC;
	if (skb->data_end - skb->data < UNDO_HEADERS && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < UNDO_HEADERS ? skb->len : UNDO_HEADERS);
	if (parse_own(skb, &packet) && undo_what(&packet, &t.to) && undo(skb, &packet, &t))
		count(bpf_map_lookup_elem(&reasons, &reason), &packet);
	return TC_ACT_UNSPEC;
}
