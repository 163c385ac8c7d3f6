/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The MSS clamp: what a VIP offers in its SYNs and SYN-ACKs is lowered to what
 * still fits once a director has put its longest header in front. It is never raised. RSTs that
 * refuse a SYN are counted.
 */
#pragma once

#include <stddef.h>

#include "host/maps.h"
#include "host/tunnel.h"

#define TCP_FLAGS_OFFSET 13
#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_RST 0x04
#define TCP_FLAG_ACK 0x10
#define TCP_OPTIONS_MAX 40
#define TCP_OPTIONS_MASK 0x3c /* with 4 added: any length that there can be, and a few more */
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_MSS_LENGTH 4

/* A leaving SYN, or an answer to one: where its TCP header is, and its source. */
struct syn {
	struct host_endpoint source;
	__u32 tcp;     /* offset of the TCP header */
	__u32 options; /* bytes after its first 20 */
};

/* Reads addresses and moves to the TCP header; 0: there is none. */
static __always_inline int find_tcp(struct cursor *c, struct syn *syn)
{
	__be16 protocol = parse_link(c, &syn->tcp);
	struct iphdr *ip4 = c->at;
	struct ipv6hdr *ip6 = c->at;
	__u32 header;

	if ((void *)(ip4 + 1) > c->end)
		return 0;
	if (protocol == bpf_htons(ETH_P_IP)) {
		header = ip4->ihl * 4;
		if (ip4->protocol != IPPROTO_TCP || header < sizeof(*ip4) ||
		    ip4->frag_off & bpf_htons(IPV4_OFFSET_MASK))
			return 0;
		map_address(&syn->source.address, ip4->saddr);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		header = sizeof(*ip6);
		if ((void *)(ip6 + 1) > c->end || ip6->nexthdr != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(&syn->source.address, &ip6->saddr, sizeof(syn->source.address));
	} else {
		return 0;
	}
	c->at += header;
	syn->tcp += header;
	return 1;
}

/*
 * An RST that answers a SYN without ACK has the sequence number 0 (RFC 9293 section 3.10.7.1):
 * the connection is refused. An RST that ends a connection has a number of the connection's.
 */
static __always_inline int refuses(const struct tcphdr *tcp, __u8 flags)
{
	return flags & TCP_FLAG_RST && flags & TCP_FLAG_ACK && !tcp->seq;
}

/* Finds a SYN, with or without ACK, or an RST that refuses one. Returns its flags; 0: neither. */
static __always_inline __u8 find_syn(struct cursor *c, struct syn *syn)
{
	struct tcphdr *tcp;
	__u8 flags;

	if (!find_tcp(c, syn))
		return 0;
	tcp = c->at;
	if ((void *)(tcp + 1) > c->end || tcp->doff < sizeof(*tcp) / 4)
		return 0;
	flags = ((__u8 *)tcp)[TCP_FLAGS_OFFSET];
	if (!(flags & TCP_FLAG_SYN) && !refuses(tcp, flags))
		return 0;
	syn->source.protocol = IPPROTO_TCP;
	syn->source.port = tcp->source;
	syn->options = tcp->doff * 4 - sizeof(*tcp);
	return flags;
}

/* A walk over the options of one header. */
struct options {
	__u8 bytes[TCP_OPTIONS_MASK + 4];
	__u32 length;
	__u32 at;  /* where the walk stands */
	__u32 mss; /* offset of the MSS option's value, 0: not found */
};

/* Looks at one option; 1: the walk ends. */
static long next_option(__u32 index, struct options *options)
{
	__u32 at = options->at;
	__u8 kind, size;

	(void)index;
	if (at > TCP_OPTIONS_MAX - TCP_OPTION_MSS_LENGTH ||
	    at + TCP_OPTION_MSS_LENGTH > options->length)
		return 1;
	kind = options->bytes[at];
	size = options->bytes[at + 1];
	if (kind == TCP_OPTION_NOP) {
		options->at++;
		return 0;
	}
	if (kind == TCP_OPTION_MSS && size == TCP_OPTION_MSS_LENGTH)
		options->mss = at + 2;
	if (kind == TCP_OPTION_MSS || kind == TCP_OPTION_END || size < 2)
		return 1;
	options->at += size;
	return 0;
}

/*
 * The checksum is a sum of 16-bit words: in a value that begins at an odd byte the
 * two bytes belong to the other halves of two words. Where the device finishes
 * the checksum, the helper leaves it alone.
 */
static __always_inline enum host_reason lower_mss(struct __sk_buff *skb, const struct syn *syn,
						  __u32 at, __u16 from, __u16 to)
{
	__u32 checksum = syn->tcp + offsetof(struct tcphdr, check);
	__u32 value = syn->tcp + sizeof(struct tcphdr) + at;
	__be16 before = bpf_htons(from), after = bpf_htons(to);

	if (bpf_skb_store_bytes(skb, value, &after, sizeof(after), 0))
		return HOST_CLAMP_ABSENT;
	if (at & 1) {
		before = __builtin_bswap16(before);
		after = __builtin_bswap16(after);
	}
	bpf_l4_csum_replace(skb, checksum, before, after, sizeof(after));
	return HOST_CLAMP_LOWERED;
}

static __always_inline enum host_reason clamp_mss(struct __sk_buff *skb)
{
	struct cursor c = { .at = (void *)(long)skb->data, .end = (void *)(long)skb->data_end };
	struct options options = {};
	struct host_service *service;
	struct syn syn = {};
	__u32 index, length, at;
	__u8 flags;
	__u16 mss;

	flags = find_syn(&c, &syn);
	if (!flags)
		return HOST_PASS_EGRESS;
	index = find_service(&syn.source);
	service = bpf_map_lookup_elem(&services, &index);
	if (!index || !service)
		return HOST_PASS_EGRESS;
	if (!(flags & TCP_FLAG_SYN)) {
		count(bpf_map_lookup_elem(&service_refusals, &index), skb->len);
		return HOST_PASS_REFUSED;
	}
	if (!syn.options)
		return HOST_CLAMP_ABSENT;
	/*
	 * The verifiers of 6.1 and 6.12 do not follow two comparisons that the compiler
	 * has merged, and call the length zero or huge: give it bounds by arithmetic.
	 */
	length = syn.options - 4;
	barrier_var(length);
	length = (length & TCP_OPTIONS_MASK) + 4;
	if (bpf_skb_load_bytes(skb, syn.tcp + sizeof(struct tcphdr), options.bytes, length))
		return HOST_CLAMP_ABSENT;
	/* A loop that the verifier sees once: unrolled it takes half a second to load. */
	options.length = length;
	bpf_loop(TCP_OPTIONS_MAX, next_option, &options, 0);
	at = options.mss;
	if (!at || at > TCP_OPTIONS_MAX - sizeof(mss))
		return HOST_CLAMP_ABSENT;
	mss = options.bytes[at] << 8 | options.bytes[at + 1];
	if (!service->mss || mss <= service->mss)
		return HOST_CLAMP_FITS;
	return lower_mss(skb, &syn, at, mss, service->mss);
}
