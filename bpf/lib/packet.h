/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Parsing: a frame becomes one struct packet. Every parser checks bounds before
 * it reads and says where the next header is. Nothing here writes to the frame.
 */
#pragma once

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi/export.h"
#include "abi/types.h"
#include "lib/headers.h"

/*
 * Mark what most packets do. For BPF the compiler does not move code by it, but it chooses what
 * stays in registers, and a packet needs more values than there are registers.
 */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* IPv6 extension headers that one packet may have; more are PASS_UNSUPPORTED. */
#define EXTENSION_HEADERS_MAX 6
#define VLAN_TAGS_MAX 2
#define VLAN_TAG_LENGTH 4
#define VLAN_ID_MASK 0x0fff
#define MAC_LENGTH 6

/* Odd constants without pattern: the fractional parts of the golden ratio and sqrt(3), sqrt(5). */
#define HASH_K1 0x9e3779b97f4a7c15ULL
#define HASH_K2 0xbb67ae8584caa73bULL
#define HASH_K3 0x3c6ef372fe94f82bULL

/* Words of an address; IPv4 uses the first. */
#define ADDRESS_WORD(a, i) (((__be32 *)(a)->bytes)[i])

/* What identifies a flow: the input of the service lookup and of the hash. */
struct flow {
	__u32 segment;
	__be16 source_port;
	__be16 destination_port;
	struct address source;
	struct address destination;
	__u8 protocol;
	__u8 ipv6;
};

/* Both ports at once, the source's first. */
typedef __be32 both_ports __attribute__((may_alias));

static __always_inline both_ports ports_of(const struct flow *flow)
{
	return *(const both_ports *)&flow->source_port;
}

static __always_inline void set_ports(struct flow *flow, const void *l4)
{
	*(both_ports *)&flow->source_port = *(const both_ports *)l4;
}

/* The protocol and, above it, whether it is IPv6: read at once, so written at once, too. */
typedef __u16 flow_kind __attribute__((may_alias));
#define FLOW_IPV6 0x100

static __always_inline flow_kind kind_of(const struct flow *flow)
{
	return *(const flow_kind *)&flow->protocol;
}

static __always_inline void set_kind(struct flow *flow, flow_kind kind)
{
	*(flow_kind *)&flow->protocol = kind;
}

static __always_inline int is_icmp(const struct flow *flow)
{
	return flow->protocol == (flow->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

enum packet_flag {
	PACKET_FRAGMENT_FIRST = 1 << 0, /* has ports, more fragments follow */
	PACKET_FRAGMENT_LATER = 1 << 1, /* has no ports */
	PACKET_ICMP_ERROR = 1 << 2,     /* flow is that of the packet inside, reversed */
	PACKET_OPTIONS = 1 << 3,        /* IPv4 options or IPv6 extension headers */
	PACKET_NO_CHECKSUM = 1 << 4,    /* UDP over IPv4 without a checksum */
	PACKET_RELAYED = 1 << 5,        /* its connection ID names a backend that is down here */
	PACKET_TCP_SYN = 1 << 6,        /* TCP's flag of that name is set, perhaps others, too */
	PACKET_ICMP = 1 << 7,           /* of the address's family */
};
EXPORT_ENUM(packet_flag);

/* TCP flags as in the header's 14th byte. */
enum tcp_flag {
	TCP_FIN = 1 << 0,
	TCP_SYN = 1 << 1,
	TCP_RST = 1 << 2,
	TCP_ACK = 1 << 4,
};

/* What another director of the group wants of this one: see group.h. */
enum packet_request {
	PACKET_OWN = 0, /* nothing: no director has sent the packet */
	PACKET_TO_MEET, /* this director is the fragment's owner */
	PACKET_TAKEN,   /* this director forwards it */
};

/* A parsed frame. Offsets are from the start of the frame. */
struct packet {
	struct flow flow;
	__u8 l3;      /* offset of the IP header */
	__u8 action;  /* what a FORWARD or ANSWER reason does to the frame: enum xdp_action */
	__u16 l4;     /* offset of what follows the IP header and its extensions */
	__u32 length; /* of the IP packet, from its header */
	union {
		__u32 quoted_l4; /* ICMP error: offset of the L4 header inside */
		__u32 sequence;  /* TCP, where a table of flows is asked: see note_numbers */
	};
	__be32 first_word; /* IPv6: version, traffic class and flow label */
	__u32 fragment_id;
	__u32 hash;       /* of the flow: entropy for outer headers */
	__u32 snat;       /* full NAT: number of the flow, see struct snat_flow; 0: none */
	__u32 service;    /* index of its service, plus 1; 0: of none */
	__u32 backend;    /* index of its backend: for programs that observe what became of it */
	__u32 ring;       /* where its ring begins */
	struct slot slot; /* of the ring; without an owner: it was not looked at */
	__u8 tags;        /* VLAN tags */
	__u8 flags;       /* enum packet_flag */
	__u8 ttl;
	__u8 tos; /* DSCP and ECN */
	__u8 tcp_flags;
	__u8 request;      /* enum packet_request */
	__u16 redirect_at; /* offset of the option that asks, see find_redirect; 0: not looked for */
	__u32 acknowledgement; /* as sequence */
	__u32 data;            /* bytes of it in the segment: as sequence */
};

/* The parsers' word for "go on"; every other value is a reason to stop. */
#define CONTINUE REASON_COUNT

/* Whether the packet opens a connection. */
static __always_inline int is_syn(const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_TCP && !(packet->flags & PACKET_ICMP_ERROR) &&
	       (packet->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

static __always_inline void *frame(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *frame_end(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

static __always_inline int same_address(const struct address *a, const struct address *b)
{
	__u32 differ = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		differ |= ADDRESS_WORD(a, i) ^ ADDRESS_WORD(b, i);
	return !differ;
}

/* The masks tell the verifier what the parsers guarantee: headers begin near the front. */
static __always_inline void *l3_header(struct xdp_md *ctx, const struct packet *packet)
{
	return frame(ctx) + (packet->l3 & 0x1f);
}

static __always_inline void *l4_at(struct xdp_md *ctx, __u32 offset)
{
	return frame(ctx) + (offset & 0x3fff);
}

static __always_inline void *l4_header(struct xdp_md *ctx, const struct packet *packet)
{
	return l4_at(ctx, packet->l4);
}

/* struct ethhdr is packed: the compiler would read it byte by byte. */
static __always_inline __be16 *ethertype_of(struct ethhdr *ethernet)
{
	return (__be16 *)ethernet + offsetof(struct ethhdr, h_proto) / sizeof(__be16);
}

/* Moves past the Ethernet header and up to two tags; returns the ethertype or 0. */
static __always_inline __be16 parse_ethernet(void *data, void *end, struct packet *packet)
{
	struct ethhdr *ethernet = data;
	__u32 segment = 0;
	__be16 protocol;

	if ((void *)(ethernet + 1) > end)
		return 0;
	protocol = *ethertype_of(ethernet);
	packet->l3 = sizeof(*ethernet);

#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		struct vlan_tag *tag = data + packet->l3;
		__u32 id;

		if (likely(protocol != bpf_htons(ETH_P_8021Q) &&
			   protocol != bpf_htons(ETH_P_8021AD)))
			break;
		if ((void *)(tag + 1) > end)
			return 0;
		/* A tag with ID 0 carries only a priority (IEEE 802.1Q 6.9.1). */
		id = bpf_ntohs(tag->tci) & VLAN_ID_MASK;
		if (id)
			segment = segment << 12 | id;
		protocol = tag->protocol;
		packet->l3 += sizeof(*tag);
		packet->tags++;
	}
	if (segment)
		packet->flow.segment = SEGMENT_VLAN << SEGMENT_KIND_SHIFT | segment;
	return protocol;
}

/*
 * The IP packet must be in the frame as a whole. Frames of several buffers show
 * only the first between data and data_end; the helper knows the whole length.
 */
static __always_inline int frame_holds(struct xdp_md *ctx, __u32 bytes)
{
	if (likely(bytes <= ctx->data_end - ctx->data))
		return 1;
	return bytes <= bpf_xdp_get_buff_len(ctx);
}

static __always_inline enum reason parse_ipv4(struct xdp_md *ctx, struct packet *packet)
{
	struct iphdr *ip = l3_header(ctx, packet);
	__u32 header_length, length, offset;

	if ((void *)(ip + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	header_length = ip->ihl * 4;
	length = bpf_ntohs(ip->tot_len);
	if (unlikely(ip->version != 4 || header_length < sizeof(*ip) || length < header_length ||
		     !frame_holds(ctx, packet->l3 + length)))
		return PASS_MALFORMED;
	packet->length = length; /* not before: bytes that are not there do not count */
	if (unlikely(header_length > sizeof(*ip)))
		packet->flags |= PACKET_OPTIONS;

	set_kind(&packet->flow, ip->protocol);
	ADDRESS_WORD(&packet->flow.source, 0) = ip->saddr;
	ADDRESS_WORD(&packet->flow.destination, 0) = ip->daddr;
	packet->ttl = ip->ttl;
	packet->tos = ip->tos;
	packet->l4 = packet->l3 + header_length;

	/* RFC 791: flags in the top three bits (0x2000: more fragments), then the offset. */
	if (unlikely(ip->frag_off & bpf_htons(0x3fff))) {
		offset = bpf_ntohs(ip->frag_off);
		packet->fragment_id = ip->id;
		packet->flags |= offset & 0x1fff ? PACKET_FRAGMENT_LATER : PACKET_FRAGMENT_FIRST;
	}
	return CONTINUE;
}

/* Where a chain of extension headers ends; one register, to keep packets off the stack. */
union chain {
	struct {
		__u16 l4;
		__u8 protocol;
		__u8 flags; /* enum packet_flag, enum chain_flag */
		__u32 fragment_id;
	};
	__u64 word;
};

enum chain_flag {
	CHAIN_CUT = 1 << 6, /* ends outside of the frame */
	CHAIN_UNSUPPORTED = 1 << 7,
};

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_AH || protocol == IPPROTO_MH;
}

/* Moves past one extension header. Returns whether the chain may go on. */
static __always_inline int parse_extension(struct xdp_md *ctx, union chain *chain)
{
	struct extension_header *extension = l4_at(ctx, chain->l4);
	__u32 fragment;

	if ((void *)(extension + 1) > frame_end(ctx)) {
		chain->flags |= CHAIN_CUT;
		return 0;
	}
	chain->flags |= PACKET_OPTIONS;
	switch (chain->protocol) {
	case IPPROTO_FRAGMENT:
		fragment = bpf_ntohs(extension->fragment_offset);
		chain->fragment_id = extension->fragment_id;
		/* Offset 0 and no more fragments is a whole packet (RFC 6946). */
		if (fragment & 0xfff8)
			chain->flags |= PACKET_FRAGMENT_LATER;
		else if (fragment & 1)
			chain->flags |= PACKET_FRAGMENT_FIRST;
		chain->l4 += sizeof(*extension);
		break;
	case IPPROTO_AH:
		chain->l4 += (extension->length + 2) * 4;
		break;
	case IPPROTO_MH:
		chain->flags |= CHAIN_UNSUPPORTED;
		return 0;
	case IPPROTO_ROUTING:
		/* Segments left: the packet only passes, its checksum is of another address. */
		if (extension->segments_left) {
			chain->flags |= CHAIN_UNSUPPORTED;
			return 0;
		}
		chain->l4 += (extension->length + 1) * 8;
		break;
	default:
		chain->l4 += (extension->length + 1) * 8;
	}
	chain->protocol = extension->next;
	/* What follows in a later fragment is not a header. */
	return !(chain->flags & PACKET_FRAGMENT_LATER);
}

/* Not static: the verifier looks at it once, and goes on with one result instead of many. */
__noinline __u64 parse_extensions(struct xdp_md *ctx, __u32 l4, __u8 protocol)
{
	union chain chain = { .l4 = l4, .protocol = protocol };

	for (int i = 0; i < EXTENSION_HEADERS_MAX; i++) {
		if (!is_extension(chain.protocol) || !parse_extension(ctx, &chain))
			return chain.word;
	}
	if (is_extension(chain.protocol))
		chain.flags |= CHAIN_UNSUPPORTED;
	return chain.word;
}

static __always_inline enum reason parse_ipv6(struct xdp_md *ctx, struct packet *packet)
{
	struct ipv6hdr *ip = l3_header(ctx, packet);
	union chain chain;
	__u32 length;

	if ((void *)(ip + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (ip->version != 6 || !frame_holds(ctx, packet->l3 + length))
		return PASS_MALFORMED;
	packet->length = length;
	set_kind(&packet->flow, FLOW_IPV6 | ip->nexthdr);
	__builtin_memcpy(&packet->flow.source, &ip->saddr, sizeof(struct address));
	__builtin_memcpy(&packet->flow.destination, &ip->daddr, sizeof(struct address));
	packet->ttl = ip->hop_limit;
	packet->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	packet->first_word = *(__be32 *)ip;
	packet->l4 = packet->l3 + sizeof(*ip);
	if (ip->nexthdr == IPPROTO_TCP || ip->nexthdr == IPPROTO_UDP)
		return CONTINUE;
	chain.word = parse_extensions(ctx, packet->l4, ip->nexthdr);
	if (chain.flags & (CHAIN_CUT | CHAIN_UNSUPPORTED))
		return chain.flags & CHAIN_CUT ? PASS_MALFORMED : PASS_UNSUPPORTED;
	if (chain.l4 > packet->l3 + length)
		return PASS_MALFORMED;
	packet->l4 = chain.l4;
	packet->flags |= chain.flags;
	set_kind(&packet->flow, FLOW_IPV6 | chain.protocol);
	packet->fragment_id = chain.fragment_id;
	return CONTINUE;
}

/* Reads both ports at once; protocols other than TCP and UDP have none and count as parsed. */
static __always_inline enum reason parse_ports(struct xdp_md *ctx, struct packet *packet)
{
	void *l4 = l4_header(ctx, packet);
	__u32 left = packet->l3 + packet->length - packet->l4;

	if (packet->flow.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > frame_end(ctx) || left < sizeof(*tcp) || left > 0xffff)
			return PASS_MALFORMED;
		set_ports(&packet->flow, tcp);
		packet->tcp_flags = ((__u8 *)tcp)[13];
		if (packet->tcp_flags & TCP_SYN)
			packet->flags |= PACKET_TCP_SYN;
	} else if (packet->flow.protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > frame_end(ctx) || left < sizeof(*udp) || left > 0xffff)
			return PASS_MALFORMED;
		set_ports(&packet->flow, udp);
		if (!udp->check)
			packet->flags |= PACKET_NO_CHECKSUM;
	} else if (is_icmp(&packet->flow)) {
		packet->flags |= PACKET_ICMP;
	}
	return CONTINUE;
}

static __always_inline enum reason parse(struct xdp_md *ctx, struct packet *packet)
{
	__be16 protocol = parse_ethernet(frame(ctx), frame_end(ctx), packet);
	enum reason reason;

	if (protocol == bpf_htons(ETH_P_IP))
		reason = parse_ipv4(ctx, packet);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		reason = parse_ipv6(ctx, packet);
	else
		return PASS_NOT_IP;
	if (unlikely(reason != CONTINUE || packet->flags & PACKET_FRAGMENT_LATER))
		return reason;
	return parse_ports(ctx, packet);
}
