/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP packets on a host, in tc: reading their headers, changing an end of them, adding
 * the option. They may be super-packets, and the device may yet have to finish their
 * checksums: the helpers know about both. Only helpers write, so that packets that are not
 * weir's are not copied first.
 */
#pragma once

#include <stddef.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/checksum.h"
#include "lib/ending.h"
#include "lib/headers.h"
#include "lib/redirect_option.h"
#include "redirect/maps.h"

#define IPV4_FRAGMENT_MASK 0x3fff /* RFC 791: more fragments, and the offset */
#define SEGMENT_HEADERS (ETH_HLEN + 60 + sizeof(struct tcphdr))
#define SEGMENT_L4_MASK 0x7f /* Ethernet and at most 60 bytes */

enum segment_flag {
	SEGMENT_FIN = 1 << 0,
	SEGMENT_SYN = 1 << 1,
	SEGMENT_RST = 1 << 2,
	SEGMENT_ACK = 1 << 4,
};

/* A TCP packet: offsets are from the start of the frame. */
struct segment {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 sequence;
	__u32 acknowledgement;
	__u32 l4;
	__u32 end;     /* of the IP packet */
	__u32 options; /* bytes */
	__u8 flags;    /* enum segment_flag */
	__u8 ipv6;
	__sum16 check; /* of the IPv4 header */
};

static __always_inline int read_ipv4(void *data, void *end, struct segment *s)
{
	struct iphdr *ip = data + ETH_HLEN;
	__u32 header;

	if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP ||
	    ip->frag_off & bpf_htons(IPV4_FRAGMENT_MASK))
		return 0;
	header = ip->ihl * 4;
	if (header < sizeof(*ip))
		return 0;
	map_address(&s->source, ip->saddr);
	map_address(&s->destination, ip->daddr);
	s->l4 = ETH_HLEN + header;
	s->end = ETH_HLEN + bpf_ntohs(ip->tot_len);
	s->check = ip->check;
	return 1;
}

/* Hosts put no extension headers in front of TCP. */
static __always_inline int read_ipv6(void *data, void *end, struct segment *s)
{
	struct ipv6hdr *ip = data + ETH_HLEN;

	if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(&s->source, &ip->saddr, sizeof(s->source));
	__builtin_memcpy(&s->destination, &ip->daddr, sizeof(s->destination));
	s->l4 = ETH_HLEN + sizeof(*ip);
	s->end = s->l4 + bpf_ntohs(ip->payload_len);
	s->ipv6 = 1;
	return 1;
}

static __always_inline int read_tcp(void *data, void *end, struct segment *s)
{
	struct tcphdr *tcp = data + (s->l4 & SEGMENT_L4_MASK);

	if ((void *)(tcp + 1) > end || tcp->doff < sizeof(*tcp) / 4)
		return 0;
	s->source_port = tcp->source;
	s->destination_port = tcp->dest;
	s->sequence = bpf_ntohl(tcp->seq);
	s->acknowledgement = bpf_ntohl(tcp->ack_seq);
	s->options = tcp->doff * 4 - sizeof(*tcp);
	s->flags = ((__u8 *)tcp)[13];
	return 1;
}

/*
 * The length of a packet's headers, up to TCP's, as far as the bytes that are there tell; 0: it
 * is not TCP.
 */
static __always_inline __u32 headers_of(void *data, void *end, __be16 protocol)
{
	struct ipv6hdr *ip6 = data + ETH_HLEN;
	struct iphdr *ip4 = data + ETH_HLEN;

	if (protocol == bpf_htons(ETH_P_IP) && (void *)(ip4 + 1) <= end)
		return ip4->protocol != IPPROTO_TCP ?
			       0 :
			       ETH_HLEN + ip4->ihl * 4 + sizeof(struct tcphdr);
	if (protocol == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end)
		return ip6->nexthdr != IPPROTO_TCP ?
			       0 :
			       ETH_HLEN + sizeof(*ip6) + sizeof(struct tcphdr);
	return SEGMENT_HEADERS;
}

/*
 * Reads a TCP packet; 0: it is none, or a fragment. The kernel has removed the outermost
 * VLAN tag; a packet with one more is not weir's.
 *
 * Drivers may leave headers outside the part of the packet that programs see. What the
 * host's own TCP sends has its headers there and its data elsewhere, and would be copied
 * if more than the headers were asked for.
 */
static __always_inline int read_segment(struct __sk_buff *skb, struct segment *s)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 linear = skb->data_end - skb->data;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	if (linear < SEGMENT_HEADERS && linear < skb->len &&
	    linear < headers_of(data, end, skb->protocol)) {
		bpf_skb_pull_data(skb, skb->len < SEGMENT_HEADERS ? skb->len : SEGMENT_HEADERS);
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !read_ipv4(data, end, s) :
						   !read_ipv6(data, end, s))
		return 0;
	return read_tcp(data, end, s);
}

/* The flags of a packet that opens a connection, or answers that; else 0. */
static __always_inline __u8 opening(const struct segment *s)
{
	__u8 flags = s->flags & (SEGMENT_FIN | SEGMENT_SYN | SEGMENT_RST | SEGMENT_ACK);

	return flags & SEGMENT_SYN && !(flags & (SEGMENT_FIN | SEGMENT_RST)) ? flags : 0;
}

/* An RST that answers a SYN (RFC 9293 section 3.10.7.1: with sequence number 0). */
static __always_inline int refuses(const struct segment *s)
{
	return s->flags & SEGMENT_RST && s->flags & SEGMENT_ACK && !s->sequence;
}

/* Whether a packet has no data; a super-packet's header may not tell its length. */
static __always_inline int is_bare(const struct segment *s)
{
	return s->l4 + sizeof(struct tcphdr) + s->options == s->end;
}

/* Reads the options of a bare packet. */
static __always_inline int read_options(struct __sk_buff *skb, const struct segment *s,
					struct tcp_options *o)
{
	__u32 length = s->options;

	if (length) {
		length = bounded_options(length);
		if (bpf_skb_load_bytes(skb, s->l4 + sizeof(struct tcphdr), o->bytes, length))
			return 0;
	}
	o->length = length;
	walk_options(o);
	return 1;
}

/* The part of an IPv4 header from its checksum to its addresses. */
struct ipv4_ends {
	__sum16 check;
	__be32 source;
	__be32 destination;
} __attribute__((packed));

static __always_inline int replace_address4(struct __sk_buff *skb, const struct segment *s,
					    int source, __be32 was, __be32 is)
{
	struct ipv4_ends ends = {
		.check = checksum_update(s->check, was, is),
		.source = source ? is : last_word(&s->source),
		.destination = source ? last_word(&s->destination) : is,
	};

	return !bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, check), &ends,
				    sizeof(ends), 0);
}

static __always_inline int replace_address6(struct __sk_buff *skb, int source,
					    const struct address *to)
{
	__u32 at = ETH_HLEN +
		   (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));

	return !bpf_skb_store_bytes(skb, at, to, sizeof(*to), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Replaces the source or the destination. The checksum helper takes what it changes of
 * a pseudo header off the sum that a device made of the whole packet; over IPv6 the
 * addresses themselves have to be added to that sum, over IPv4 the header's own checksum
 * makes up for them.
 */
static __always_inline int replace_end(struct __sk_buff *skb, const struct segment *s, int source,
				       const struct address *to, __be16 to_port)
{
	const struct address *from = source ? &s->source : &s->destination;
	__be16 from_port = source ? s->source_port : s->destination_port;
	__u32 checksum = s->l4 + offsetof(struct tcphdr, check);
	__u32 port = s->l4 +
		     (source ? offsetof(struct tcphdr, source) : offsetof(struct tcphdr, dest));
	__be32 was = last_word(from), is = last_word(to);
	__s64 change;

	if (s->ipv6) {
		change = bpf_csum_diff((__be32 *)from->bytes, sizeof(*from), (__be32 *)to->bytes,
				       sizeof(*to), 0);
		if (change < 0 || !replace_address6(skb, source, to) ||
		    bpf_l4_csum_replace(skb, checksum, 0, change, BPF_F_PSEUDO_HDR))
			return 0;
	} else if (!replace_address4(skb, s, source, was, is) ||
		   bpf_l4_csum_replace(skb, checksum, was, is, BPF_F_PSEUDO_HDR | sizeof(is))) {
		return 0;
	}
	if (from_port == to_port)
		return 1;
	return !bpf_skb_store_bytes(skb, port, &to_port, sizeof(to_port), 0) &&
	       !bpf_l4_csum_replace(skb, checksum, from_port, to_port, sizeof(to_port));
}

/* Adds the option's length to the length in the IP header. */
static __always_inline int lengthen(struct __sk_buff *skb, const struct segment *s)
{
	__u32 ip = ETH_HLEN, length = s->end - ETH_HLEN, checksum = offsetof(struct iphdr, check);
	__u32 field = offsetof(struct iphdr, tot_len);
	__be16 was, is;

	if (s->ipv6) {
		length -= sizeof(struct ipv6hdr);
		field = offsetof(struct ipv6hdr, payload_len);
	}
	was = bpf_htons(length);
	is = bpf_htons(length + sizeof(struct redirect_option));
	if (bpf_skb_store_bytes(skb, ip + field, &is, sizeof(is), BPF_F_RECOMPUTE_CSUM))
		return 0;
	return s->ipv6 || !bpf_l3_csum_replace(skb, ip + checksum, was, is, sizeof(is));
}

/*
 * Adds the option to a bare packet, behind its other options, which is behind the
 * packet. The checksum changes by the length in the pseudo header, the header's own
 * length, and the option. A failure half-way leaves a packet that its receiver drops.
 */
static __always_inline int add_option(struct __sk_buff *skb, const struct segment *s, __be32 tail,
				      __be16 port)
{
	struct redirect_option option = REDIRECT_OPTION(tail, port);
	__u32 checksum = s->l4 + offsetof(struct tcphdr, check), offset = s->l4 + 12;
	__u32 length = s->end - s->l4;
	__be16 was, is;
	__s64 sum;

	/* This cuts off the padding of short frames. */
	if (bpf_skb_change_tail(skb, s->end + sizeof(option), 0))
		return 0;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&option, sizeof(option), 0);
	if (sum < 0 || bpf_skb_store_bytes(skb, s->end, &option, sizeof(option), 0) ||
	    bpf_l4_csum_replace(skb, checksum, 0, sum, 0) || !lengthen(skb, s))
		return 0;
	if (bpf_skb_load_bytes(skb, offset, &was, sizeof(was)))
		return 0;
	is = was + bpf_htons((sizeof(option) / 4) << 12);
	return !bpf_skb_store_bytes(skb, offset, &is, sizeof(is), 0) &&
	       !bpf_l4_csum_replace(skb, checksum, was, is, sizeof(is)) &&
	       !bpf_l4_csum_replace(skb, checksum, bpf_htons(length),
				    bpf_htons(length + sizeof(option)),
				    BPF_F_PSEUDO_HDR | sizeof(is));
}
