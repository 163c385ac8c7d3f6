/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The agent's programs, on a host that has backends.
 *
 * Ingress (host_xdp where the driver has native XDP, else host_ingress) takes the
 * outer headers off packets that directors sent:
 *
 *   parse outer -> here? -> from whom? -> parse inner -> service -> ECN -> unwrap
 *
 * Egress (host_egress) lowers the MSS that a VIP offers in its SYNs and SYN-ACKs
 * to what fits together with those headers.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "checksum.h"
#include "clamp.h"
#include "host_maps.h"
#include "tunnel.h"

#define LINK_MAX (sizeof(struct ethhdr) + sizeof(struct vlan_tag))
#define HEADERS_MAX 256 /* what ingress may have to read, and then some */

static __always_inline enum host_reason parse_outer(struct cursor *c, __u32 length, struct tunnel *t)
{
	__be16 protocol = parse_link(c);

	if (protocol == bpf_htons(ETH_P_IP))
		return parse_outer4(c, length, t);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return parse_outer6(c, length, t);
	return HOST_PASS_NOT_IP;
}

/* Who sent it, or 0: nobody that weir knows. */
static __always_inline __u32 find_source(const struct tunnel *t)
{
	struct host_source key = { .prefix_len = 8 * sizeof(key.address), .address = t->source };
	__u32 *flags = bpf_map_lookup_elem(&sources, &key);

	return flags ? *flags : 0;
}

static __always_inline int is_vip(const struct inner *inner)
{
	struct host_endpoint vip = {
		.address = inner->destination.address,
		.protocol = inner->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP,
	};

	return bpf_map_lookup_elem(&endpoints, &vip) != NULL;
}

/*
 * A packet to no service of a VIP is dropped: given to the kernel as it came, it
 * would be answered with "protocol unreachable" to the director. A packet to
 * another address is none of weir's; the host may have tunnels of its own.
 */
static __always_inline enum host_reason admit(const struct tunnel *t, const struct inner *inner,
					      __u32 senders, __u32 *service)
{
	struct host_peer peer = { .address = t->source };

	*service = find_service(&inner->destination);
	if (!*service)
		return is_vip(inner) ? HOST_DROP_NO_SERVICE : HOST_PASS_NOT_VIP;
	if (senders & HOST_SOURCE_DIRECTOR)
		return PARSED;
	peer.service = *service;
	return bpf_map_lookup_elem(&peers, &peer) ? PARSED : HOST_DROP_NOT_PEER;
}

/* RFC 6040 section 4.2: the inner ECN field after decapsulation, -1 to drop. */
static __always_inline int decapsulated_ecn(__u8 outer, __u8 inner)
{
	if (!inner)
		return outer == ECN_CE ? -1 : 0;
	if (outer == ECN_CE || (outer == ECN_ECT1 && inner == ECN_ECT0))
		return outer;
	return inner;
}

static __always_inline enum host_reason propagate_ecn4(struct iphdr *ip, void *end, __u8 outer)
{
	__u16 *first = (__u16 *)ip;
	__u16 before;
	int ecn;

	if ((void *)(ip + 1) > end)
		return HOST_DROP_INNER_MALFORMED;
	ecn = decapsulated_ecn(outer, ip->tos & ECN_MASK);
	if (ecn < 0)
		return HOST_DROP_CONGESTED;
	if (ecn == (ip->tos & ECN_MASK))
		return PARSED;
	before = *first;
	ip->tos = (ip->tos & ~ECN_MASK) | ecn;
	ip->check = checksum_update(ip->check, before, *first);
	return PARSED;
}

static __always_inline enum host_reason propagate_ecn6(struct ipv6hdr *ip, void *end, __u8 outer)
{
	__u8 inner;
	int ecn;

	if ((void *)(ip + 1) > end)
		return HOST_DROP_INNER_MALFORMED;
	inner = ip->flow_lbl[0] >> 4 & ECN_MASK;
	ecn = decapsulated_ecn(outer, inner);
	if (ecn < 0)
		return HOST_DROP_CONGESTED;
	if (ecn != inner)
		ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(ECN_MASK << 4)) | ecn << 4;
	return PARSED;
}

/*
 * Decides about a frame of some length, of which the headers are between data and
 * end, and makes the inner header right. HOST_DECAP_*: t says what to take off.
 * The inner TTL stays: the tunnel is one hop, which the director did not count.
 */
static __always_inline enum host_reason ingress(void *data, void *end, __u32 length,
						struct tunnel *t, struct inner *inner)
{
	struct cursor c = { .at = data, .end = end };
	enum host_reason reason;
	__u32 senders, service, bytes;

	reason = parse_outer(&c, length, t);
	if (reason != PARSED)
		return reason;
	if (!bpf_map_lookup_elem(&tunnel_ends, &t->destination))
		return t->protocol == IPPROTO_UDP ? HOST_PASS_NOT_TUNNEL : HOST_PASS_NOT_HERE;
	if (t->protocol == IPPROTO_UDP) {
		reason = parse_gue(&c, t);
		if (reason != PARSED)
			return reason;
	}
	senders = find_source(t);
	if (!senders)
		return HOST_PASS_UNKNOWN_SOURCE;
	bytes = c.left;
	t->outer = c.at - data;
	reason = parse_inner(&c, t, inner);
	if (reason == PARSED)
		reason = admit(t, inner, senders, &service);
	if (reason == PARSED)
		reason = inner->ipv6 ? propagate_ecn6(inner->ip, end, t->ecn) :
				       propagate_ecn4(inner->ip, end, t->ecn);
	if (reason != PARSED)
		return reason;
	count(bpf_map_lookup_elem(&service_packets, &service), bytes);
	return t->gue ? HOST_DECAP_GUE : HOST_DECAP_IPIP;
}
