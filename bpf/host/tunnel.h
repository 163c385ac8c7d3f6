/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading a tunnel packet: link header, outer IP header, GUE header, inner IP
 * header and ports. A cursor checks bounds before it reads and moves on. Nothing
 * here writes to the packet, and nothing depends on the kind of program.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi/host_types.h"
#include "lib/ecn.h"
#include "lib/headers.h"

#define IPV4_MORE_FRAGMENTS 0x2000 /* RFC 791 */
#define IPV4_OFFSET_MASK 0x1fff
#define IPV6_OFFSET_MASK 0xfff8 /* RFC 8200 section 4.5 */
#define IPV6_MORE_FRAGMENTS 1
#define INNER_EXTENSIONS_MAX 6 /* as many as a director follows */
#define EXTENSION_LENGTH_MASK 0xfff

#define GUE_VERSION_SHIFT 6 /* draft-ietf-intarea-gue-09 section 3.1 */
#define GUE_CONTROL (1 << 5)
#define GUE_HLEN_MASK 0x1f /* 4-byte words after the first */

struct gue_header {
	__u8 version_control_hlen;
	__u8 protocol;
	__be16 flags; /* of extension fields: part of hlen, so skipped with it */
};

/* Where reading stands. */
struct cursor {
	void *at;
	void *end;
	__u32 left; /* bytes of the packet from here, by its own length field */
};

/* What the outer headers say. */
struct tunnel {
	struct address source;
	struct address destination;
	__u32 link;    /* bytes of the link header */
	__u32 outer;   /* bytes between the link header and the inner IP header */
	__u8 protocol; /* of the next header */
	__u8 ipv6;     /* the outer header is IPv6 */
	__u8 gue;
	__u8 ecn;     /* of the outer header */
	__u8 pod;     /* it ends at a pod's address, not at this host's */
	__u8 private; /* bytes of GUE's private data, which ends where the inner packet begins */
};

/* Whether a flow is known by packets that came before, and by no socket of the kernel's. */
static __always_inline int is_remembered(__u8 protocol)
{
	return protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* What the inner headers say. */
struct inner {
	struct host_endpoint destination;
	struct address source;
	__u32 service; /* index of its service */
	__u32 length;
	__u32 l4;    /* bytes before its L4 header; 0: none, or not all of it: a fragment */
	__u32 ports; /* bytes before its ports; also of a first fragment; 0: it has none */
	__u8 ipv6;
};

/* The parsers' word for "go on"; every other value is a reason to stop. */
#define PARSED HOST_REASON_COUNT

/* Moves past Ethernet and at most one VLAN tag; returns the ethertype or 0. */
static __always_inline __be16 parse_link(struct cursor *c, __u32 *length)
{
	struct ethhdr *ethernet = c->at;
	struct vlan_tag *tag = (struct vlan_tag *)(ethernet + 1);

	*length = sizeof(*ethernet);
	if ((void *)(ethernet + 1) > c->end)
		return 0;
	c->at = ethernet + 1;
	if (ethernet->h_proto != bpf_htons(ETH_P_8021Q) &&
	    ethernet->h_proto != bpf_htons(ETH_P_8021AD))
		return ethernet->h_proto;
	if ((void *)(tag + 1) > c->end)
		return 0;
	c->at = tag + 1;
	*length += sizeof(*tag);
	return tag->protocol;
}

static __always_inline int is_tunnel(__u8 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6 || protocol == IPPROTO_UDP;
}

/* length: bytes of the packet and of what the link padded it with. */
static __always_inline enum host_reason parse_outer4(struct cursor *c, __u32 length,
						     struct tunnel *t)
{
	struct iphdr *ip = c->at;

	if ((void *)(ip + 1) > c->end)
		return HOST_PASS_MALFORMED;
	if (!is_tunnel(ip->protocol))
		return HOST_PASS_NOT_TUNNEL;
	c->left = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl < 5 || c->left < sizeof(*ip) || c->left > length)
		return HOST_PASS_MALFORMED;
	/* Directors send neither options nor fragments: their packets have DF. */
	if (ip->ihl > 5)
		return HOST_PASS_OPTIONS;
	if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK))
		return HOST_PASS_FRAGMENT;
	map_address(&t->source, ip->saddr);
	map_address(&t->destination, ip->daddr);
	t->protocol = ip->protocol;
	t->ecn = ip->tos & ECN_MASK;
	t->outer = sizeof(*ip);
	c->at = ip + 1;
	c->left -= sizeof(*ip);
	return PARSED;
}

static __always_inline enum host_reason not_tunnel6(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
		return HOST_PASS_OPTIONS;
	case IPPROTO_FRAGMENT:
		return HOST_PASS_FRAGMENT;
	}
	return HOST_PASS_NOT_TUNNEL;
}

static __always_inline enum host_reason parse_outer6(struct cursor *c, __u32 length,
						     struct tunnel *t)
{
	struct ipv6hdr *ip = c->at;

	if ((void *)(ip + 1) > c->end)
		return HOST_PASS_MALFORMED;
	if (!is_tunnel(ip->nexthdr))
		return not_tunnel6(ip->nexthdr);
	c->left = bpf_ntohs(ip->payload_len);
	if (ip->version != 6 || c->left + sizeof(*ip) > length)
		return HOST_PASS_MALFORMED;
	__builtin_memcpy(&t->source, &ip->saddr, sizeof(t->source));
	__builtin_memcpy(&t->destination, &ip->daddr, sizeof(t->destination));
	t->protocol = ip->nexthdr;
	t->ecn = ip->flow_lbl[0] >> 4 & ECN_MASK;
	t->ipv6 = 1;
	t->outer = sizeof(*ip);
	c->at = ip + 1;
	return PARSED;
}

static __always_inline enum host_reason parse_outer(struct cursor *c, __u32 length,
						    struct tunnel *t)
{
	__be16 protocol = parse_link(c, &t->link);

	if (protocol == bpf_htons(ETH_P_IP))
		return parse_outer4(c, length - t->link, t);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return parse_outer6(c, length - t->link, t);
	return HOST_PASS_NOT_IP;
}

/* Is this UDP packet GUE's? */
static __always_inline enum host_reason parse_udp(const struct cursor *c)
{
	struct udphdr *udp = c->at;

	if ((void *)(udp + 1) > c->end || c->left < sizeof(*udp))
		return HOST_PASS_MALFORMED;
	return udp->dest == bpf_htons(GUE_PORT) ? PARSED : HOST_PASS_NOT_TUNNEL;
}

/*
 * Moves past UDP and GUE and their private data. The UDP checksum is not looked
 * at: zero is allowed for tunnels in IPv6 too (RFC 6935), and what RFC 6936 asks
 * of receivers that accept it is done: outer addresses and inner packet are checked.
 */
static __always_inline enum host_reason parse_gue(struct cursor *c, struct tunnel *t)
{
	struct udphdr *udp = c->at;
	struct gue_header *gue = (struct gue_header *)(udp + 1);
	__u32 length;

	if ((void *)(gue + 1) > c->end || bpf_ntohs(udp->len) != c->left)
		return HOST_PASS_MALFORMED;
	if (gue->version_control_hlen >> GUE_VERSION_SHIFT)
		return HOST_PASS_GUE_VERSION;
	if (gue->version_control_hlen & GUE_CONTROL)
		return HOST_PASS_GUE_CONTROL;
	length = (gue->version_control_hlen & GUE_HLEN_MASK) * 4;
	/* With flags it begins with extension fields, which directors do not send. */
	t->private = gue->flags ? 0 : length;
	length += sizeof(*udp) + sizeof(*gue);
	if (c->left < length)
		return HOST_PASS_MALFORMED;
	t->protocol = gue->protocol;
	if (t->protocol != IPPROTO_IPIP && t->protocol != IPPROTO_IPV6)
		return HOST_PASS_GUE_PROTOCOL;
	t->gue = 1;
	t->outer += length;
	c->at += length;
	c->left -= length;
	return PARSED;
}

/* Reads the port. A packet without ports belongs to the VIP itself. */
static __always_inline enum host_reason parse_port(struct cursor *c, struct inner *inner)
{
	struct host_endpoint *destination = &inner->destination;
	__be16 *ports = c->at;
	__u32 header = sizeof(struct udphdr);

	if (destination->protocol == IPPROTO_TCP)
		header = sizeof(struct tcphdr);
	else if (destination->protocol == IPPROTO_SCTP)
		header = sizeof(struct sctp_header);
	else if (destination->protocol != IPPROTO_UDP)
		return PARSED;
	if ((void *)(ports + 2) > c->end || c->left < header)
		return HOST_DROP_INNER_MALFORMED;
	destination->port = ports[1];
	inner->ports = inner->length - c->left;
	return PARSED;
}

/*
 * The inner packet must be all that the outer one carries. Otherwise it was cut,
 * or the kernel glued several GUE packets together (rx-udp-gro-forwarding), of
 * which all but the first would be lost in silence.
 */
static __always_inline enum host_reason parse_inner4(struct cursor *c, struct inner *inner)
{
	struct host_endpoint *destination = &inner->destination;
	struct iphdr *ip = c->at;
	__u32 header;

	if ((void *)(ip + 1) > c->end)
		return HOST_DROP_INNER_MALFORMED;
	header = ip->ihl * 4;
	if (ip->version != 4 || header < sizeof(*ip) || c->left < header ||
	    bpf_ntohs(ip->tot_len) != c->left)
		return HOST_DROP_INNER_MALFORMED;
	map_address(&destination->address, ip->daddr);
	map_address(&inner->source, ip->saddr);
	destination->protocol = ip->protocol;
	if (ip->frag_off & bpf_htons(IPV4_OFFSET_MASK)) {
		destination->protocol = IPPROTO_ICMP;
		return PARSED;
	}
	c->at += header;
	c->left -= header;
	if (!(ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS)))
		inner->l4 = header;
	return parse_port(c, inner);
}

/*
 * Bytes of an extension header. Not static: the verifier takes the result for any number,
 * so that headers of different kinds look the same to it, and their orders need not be
 * tried one by one.
 */
__noinline __u32 extension_length(__u8 protocol, __u8 length)
{
	if (protocol == IPPROTO_FRAGMENT)
		return 8;
	if (protocol == IPPROTO_AH)
		return (length + 2) * 4;
	return (length + 1) * 8;
}

/*
 * Moves past one extension header; returns 0 when what follows is no header. A whole packet
 * with a fragment header is no fragment (RFC 6946).
 */
static __always_inline int skip_extension(struct cursor *c, __u8 *protocol, int *fragment)
{
	struct extension_header *extension = c->at;
	__u32 length;
	int first = 1;

	if ((void *)(extension + 1) > c->end)
		return 0;
	length = extension_length(*protocol, extension->length);
	/* For the verifier; the compiler knows that it is so. */
	barrier_var(length);
	length &= EXTENSION_LENGTH_MASK;
	if (*protocol == IPPROTO_FRAGMENT) {
		first = !(extension->fragment_offset & bpf_htons(IPV6_OFFSET_MASK));
		if (!first || extension->fragment_offset & bpf_htons(IPV6_MORE_FRAGMENTS))
			*fragment = 1;
	}
	if (c->left < length)
		return 0;
	*protocol = first ? extension->next : IPPROTO_ICMPV6;
	c->at += length;
	c->left -= length;
	return first;
}

static __always_inline enum host_reason parse_inner6(struct cursor *c, struct inner *inner)
{
	struct host_endpoint *destination = &inner->destination;
	struct ipv6hdr *ip = c->at;
	int fragment = 0;

	if ((void *)(ip + 1) > c->end)
		return HOST_DROP_INNER_MALFORMED;
	if (ip->version != 6 || bpf_ntohs(ip->payload_len) + sizeof(*ip) != c->left)
		return HOST_DROP_INNER_MALFORMED;
	inner->ipv6 = 1;
	__builtin_memcpy(&destination->address, &ip->daddr, sizeof(destination->address));
	__builtin_memcpy(&inner->source, &ip->saddr, sizeof(inner->source));
	destination->protocol = ip->nexthdr;
	c->at = ip + 1;
	c->left -= sizeof(*ip);
	for (int i = 0; i <= INNER_EXTENSIONS_MAX; i++) {
		switch (destination->protocol) {
		case IPPROTO_FRAGMENT:
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_AH:
			break;
		default:
			if (!fragment)
				inner->l4 = inner->length - c->left;
			return parse_port(c, inner);
		}
		if (!skip_extension(c, &destination->protocol, &fragment))
			return destination->protocol == IPPROTO_ICMPV6 ? PARSED :
									 HOST_DROP_INNER_MALFORMED;
	}
	return HOST_DROP_INNER_MALFORMED;
}

static __always_inline enum host_reason parse_inner(struct cursor *c, const struct tunnel *t,
						    struct inner *inner)
{
	inner->length = c->left;
	if (t->protocol == IPPROTO_IPIP)
		return parse_inner4(c, inner);
	return parse_inner6(c, inner);
}
