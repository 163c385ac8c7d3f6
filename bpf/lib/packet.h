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
#define unlikely(x) (__builtin_expect(!!(x), 0) && rarely())

/*
 * Makes what is rare a block of its own: else the constants that it returns would be loaded before
 * the test.
 */
static __always_inline int rarely(void)
{
	asm volatile("");
	return 1;
}

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

/* The same by eight bytes, as in memory: for addresses that are aligned to that, as those of flows. */
typedef __u64 half_address __attribute__((may_alias));
#define ADDRESS_HALF(a, i) (((half_address *)(a)->bytes)[i])

/* What identifies a flow: the input of the service lookup and of the hash. */
struct flow {
	__u32 segment;
	__be16 source_port;
	__be16 destination_port;
	struct address source __attribute__((aligned(8)));
	struct address destination __attribute__((aligned(8)));
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

/* Whether weir balances a protocol: in each the ports come first. */
static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
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
	__u8 action;  /* enum xdp_action: what becomes of the frame if it is not dropped */
	__u16 l4;     /* offset of what follows the IP header and its extensions */
	__u32 length; /* of the IP packet, from its header */
	union {
		__u32 quoted_l4; /* ICMP error: offset of the L4 header inside */
		__u32 sequence; /* TCP, where a table of flows is asked: see note_numbers; SCTP: its number */
	};
	__be32 first_word; /* IPv6: version, traffic class and flow label */
	__u32 fragment_id;
	__u32 hash;       /* of the flow: entropy for outer headers */
	__u32 service;    /* index of its service, plus 1; 0: of none */
	__u32 ring;       /* where its ring begins */
	__u32 snat;       /* full NAT: number of the flow, see struct snat_flow; 0: none */
	__u32 backend;    /* index of its backend: for programs that observe what became of it */
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
} __attribute__((aligned(8)));

_Static_assert(offsetof(struct packet, l3) == sizeof(struct flow), "see clear_rest");
_Static_assert(offsetof(struct packet, service) % 8 == 0, "service and ring are one word");
_Static_assert(offsetof(struct packet, slot) % 8 == 0, "a slot is one word");

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

/* What tags say; without any the segment is 0. */
struct tags {
	__u32 segment;
	__u32 l3;        /* offset of what follows them */
	__be16 protocol; /* of that; 0: the tags are cut */
};

/* The segment of a frame with one tag. With ID 0 it carries only a priority (IEEE 802.1Q 6.9.1). */
static __always_inline __u32 segment_of_tag(const struct vlan_tag *tag)
{
	__u32 id = bpf_ntohs(tag->tci) & VLAN_ID_MASK;

	return id ? SEGMENT_VLAN << SEGMENT_KIND_SHIFT | id : SEGMENT_NONE;
}

/* Moves from the Ethernet header past up to two tags. */
static __always_inline struct tags parse_tags(void *data, void *end)
{
	struct tags tags = { .l3 = sizeof(struct ethhdr), .protocol = *ethertype_of(data) };
	__u32 id, segment = 0;

#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		struct vlan_tag *tag = data + tags.l3;

		if (tags.protocol != bpf_htons(ETH_P_8021Q) &&
		    tags.protocol != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end) {
			tags.protocol = 0;
			break;
		}
		/* A tag with ID 0 carries only a priority (IEEE 802.1Q 6.9.1). */
		id = bpf_ntohs(tag->tci) & VLAN_ID_MASK;
		if (id)
			segment = segment << 12 | id;
		tags.protocol = tag->protocol;
		tags.l3 += sizeof(*tag);
	}
	if (segment)
		tags.segment = SEGMENT_VLAN << SEGMENT_KIND_SHIFT | segment;
	return tags;
}

static __always_inline void note_tags(struct packet *packet, const struct tags *tags)
{
	packet->flow.segment = tags->segment;
	packet->tags = (tags->l3 - sizeof(struct ethhdr)) / VLAN_TAG_LENGTH;
}

/*
 * The IP packet must be in the frame as a whole. Frames of several buffers show
 * only the first between data and data_end; the helper knows the whole length. The IP header is
 * between them.
 */
static __always_inline int frame_holds(struct xdp_md *ctx, __u32 l3, __u32 length)
{
	__u32 linear = ctx->data_end - ctx->data;

	/* A number: the compiler would go on with the pointers, which the verifier does not take. */
	asm("" : "+r"(linear));
	if (likely(length <= linear - l3))
		return 1;
	return l3 + length <= bpf_xdp_get_buff_len(ctx);
}

/*
 * A packet is cleared before it is parsed: most of it by clear_rest, and the words that every
 * parser writes as a whole by those.
 */
typedef __u64 packet_word __attribute__((may_alias));
#define KIND_WORD(flow) (*(packet_word *)&(flow)->protocol)

static __always_inline void note_place(struct packet *packet, __u32 l3, __u32 l4, __u32 length)
{
	*(packet_word *)&packet->l3 = (__u64)length << 32 | l4 << 16 | XDP_PASS << 8 | l3;
}

static __always_inline void clear_rest(struct packet *packet)
{
	packet_word *words = (packet_word *)packet;

	words[0] = 0;
#pragma unroll
	for (__u32 i = (offsetof(struct packet, length) + 4) / 8; i < sizeof(*packet) / 8; i++)
		words[i] = 0;
}

/* What a packet's headers say. The caller has checked that they are in the frame, and fit. */
static __always_inline void note_tcp(struct packet *packet, const struct tcphdr *tcp)
{
	set_ports(&packet->flow, tcp);
	packet->tcp_flags = ((const __u8 *)tcp)[13];
	if (unlikely(packet->tcp_flags & TCP_SYN))
		packet->flags |= PACKET_TCP_SYN;
}

static __always_inline void note_udp(struct packet *packet, const struct udphdr *udp)
{
	set_ports(&packet->flow, udp);
	if (!udp->check)
		packet->flags |= PACKET_NO_CHECKSUM;
}

static __always_inline void note_ipv4(struct packet *packet, const struct iphdr *ip, __u32 l3,
				      __u32 header_length, __u32 length)
{
	note_place(packet, l3, l3 + header_length, length);
	KIND_WORD(&packet->flow) = ip->protocol;
	ADDRESS_HALF(&packet->flow.source, 0) = ip->saddr;
	ADDRESS_HALF(&packet->flow.source, 1) = 0;
	ADDRESS_HALF(&packet->flow.destination, 0) = ip->daddr;
	ADDRESS_HALF(&packet->flow.destination, 1) = 0;
	packet->ttl = ip->ttl;
	packet->tos = ip->tos;
}

static __always_inline void note_ipv6(struct packet *packet, const struct ipv6hdr *ip, __u32 l3,
				      __u32 length)
{
	note_place(packet, l3, l3 + sizeof(*ip), length);
	KIND_WORD(&packet->flow) = FLOW_IPV6 | ip->nexthdr;
	__builtin_memcpy(&packet->flow.source, &ip->saddr, sizeof(struct address));
	__builtin_memcpy(&packet->flow.destination, &ip->daddr, sizeof(struct address));
	packet->ttl = ip->hop_limit;
	packet->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	packet->first_word = *(__be32 *)ip;
}

/* Protocols other than TCP, UDP and SCTP have no ports here, and count as parsed. */
static __always_inline enum reason parse_ports(struct packet *packet, void *l4, void *end,
					       __u32 left)
{
	struct tcphdr *tcp = l4;
	struct udphdr *udp = l4;

	if (packet->flow.protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end || left < sizeof(*tcp) || left > 0xffff)
			return PASS_MALFORMED;
		note_tcp(packet, tcp);
	} else if (packet->flow.protocol == IPPROTO_UDP) {
		if ((void *)(udp + 1) > end || left < sizeof(*udp) || left > 0xffff)
			return PASS_MALFORMED;
		note_udp(packet, udp);
	} else if (packet->flow.protocol == IPPROTO_SCTP) {
		if (l4 + sizeof(struct sctp_header) > end || left < sizeof(struct sctp_header) ||
		    left > 0xffff)
			return PASS_MALFORMED;
		set_ports(&packet->flow, l4);
		packet->sequence = IPPROTO_SCTP; /* see snat_has_protocol */
	} else if (is_icmp(&packet->flow)) {
		packet->flags |= PACKET_ICMP;
	}
	return CONTINUE;
}

/* IPv4's flags and offset: more fragments follow, or others came before (RFC 791). */
#define IPV4_FRAGMENT 0x3fff
#define IPV4_OFFSET 0x1fff

static __always_inline enum reason parse_ipv4(struct xdp_md *ctx, struct packet *packet, void *data,
					      void *end, __u32 l3)
{
	struct iphdr *ip = data + l3;
	__u32 header_length, length, offset;

	if ((void *)(ip + 1) > end)
		return PASS_MALFORMED;
	header_length = ip->ihl * 4;
	length = bpf_ntohs(ip->tot_len);
	/* Nothing is noted before: bytes that are not there do not count. */
	if (ip->version != 4 || header_length < sizeof(*ip) || length < header_length ||
	    !frame_holds(ctx, l3, length))
		return PASS_MALFORMED;
	note_ipv4(packet, ip, l3, header_length, length);
	if (header_length > sizeof(*ip))
		packet->flags |= PACKET_OPTIONS;
	offset = bpf_ntohs(ip->frag_off);
	if (offset & IPV4_FRAGMENT) {
		packet->fragment_id = ip->id;
		packet->flags |= offset & IPV4_OFFSET ? PACKET_FRAGMENT_LATER :
							PACKET_FRAGMENT_FIRST;
		if (offset & IPV4_OFFSET)
			return CONTINUE;
	}
	return parse_ports(packet, data + l3 + header_length, end, length - header_length);
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

static __always_inline enum reason parse_ipv6(struct xdp_md *ctx, struct packet *packet, void *data,
					      void *end, __u32 l3)
{
	struct ipv6hdr *ip = data + l3;
	union chain chain;
	__u32 length;

	if ((void *)(ip + 1) > end)
		return PASS_MALFORMED;
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (ip->version != 6 || !frame_holds(ctx, l3, length))
		return PASS_MALFORMED;
	note_ipv6(packet, ip, l3, length);
	if (!is_extension(ip->nexthdr))
		return parse_ports(packet, ip + 1, end, length - sizeof(*ip));
	chain.word = parse_extensions(ctx, packet->l4, ip->nexthdr);
	if (chain.flags & (CHAIN_CUT | CHAIN_UNSUPPORTED))
		return chain.flags & CHAIN_CUT ? PASS_MALFORMED : PASS_UNSUPPORTED;
	if (chain.l4 > l3 + length)
		return PASS_MALFORMED;
	packet->l4 = chain.l4;
	packet->flags |= chain.flags;
	set_kind(&packet->flow, FLOW_IPV6 | chain.protocol);
	packet->fragment_id = chain.fragment_id;
	if (packet->flags & PACKET_FRAGMENT_LATER)
		return CONTINUE;
	return parse_ports(packet, data + (chain.l4 & 0x3fff), end, l3 + length - chain.l4);
}

/* Not inlined: the verifier looks at it once, and goes on with one result instead of many. */
__noinline enum reason parse(struct xdp_md *ctx, struct packet *packet)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	struct tags tags;

	if (!packet || data + sizeof(struct ethhdr) > end)
		return PASS_NOT_IP;
	tags = parse_tags(data, end);
	note_tags(packet, &tags);
	packet->l3 = tags.l3;
	if (tags.protocol == bpf_htons(ETH_P_IP))
		return parse_ipv4(ctx, packet, data, end, tags.l3);
	if (tags.protocol == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(ctx, packet, data, end, tags.l3);
	return PASS_NOT_IP;
}

/*
 * Most packets are plain: whole packets of TCP or UDP, without options and extensions. Where they
 * have no tags, too, the compiler knows where everything is. If a packet is not plain, nothing is
 * noted of it, and parse() says what it is.
 */
static __always_inline int parse_plain_ports(struct packet *packet, __u8 protocol, void *l4,
					     void *end, __u32 before, __u32 length)
{
	struct tcphdr *tcp = l4;
	struct udphdr *udp = l4;

	if (likely(protocol == IPPROTO_TCP)) {
		if ((void *)(tcp + 1) > end || length < before + sizeof(*tcp))
			return 0;
		clear_rest(packet);
		note_tcp(packet, tcp);
		return 1;
	}
	if (protocol != IPPROTO_UDP || (void *)(udp + 1) > end || length < before + sizeof(*udp))
		return 0;
	clear_rest(packet);
	note_udp(packet, udp);
	return 1;
}

/*
 * One test for three: of the header's first eight bytes, as in memory, those with the version, the
 * header's length, and what fragments have.
 */
#define IPV4_PLAIN_MASK (0xffULL | (__u64)bpf_htons(IPV4_FRAGMENT) << 48)
#define IPV4_PLAIN 0x45ULL

static __always_inline int parse_plain_ipv4(struct xdp_md *ctx, struct packet *packet, void *data,
					    void *end, __u32 l3)
{
	struct iphdr *ip = data + l3;
	__u32 length;

	if ((void *)(ip + 1) > end || (*(const __u64 *)ip & IPV4_PLAIN_MASK) != IPV4_PLAIN)
		return 0;
	length = bpf_ntohs(ip->tot_len);
	if (!frame_holds(ctx, l3, length) ||
	    !parse_plain_ports(packet, ip->protocol, ip + 1, end, sizeof(*ip), length))
		return 0;
	note_ipv4(packet, ip, l3, sizeof(*ip), length);
	return 1;
}

static __always_inline int parse_plain_ipv6(struct xdp_md *ctx, struct packet *packet, void *data,
					    void *end, __u32 l3)
{
	struct ipv6hdr *ip = data + l3;
	__u32 length;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return 0;
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (!frame_holds(ctx, l3, length) ||
	    !parse_plain_ports(packet, ip->nexthdr, ip + 1, end, sizeof(*ip), length))
		return 0;
	note_ipv6(packet, ip, l3, length);
	return 1;
}
