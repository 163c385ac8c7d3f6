/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The agent's programs, on a host that has backends.
 *
 * Ingress (host_xdp where the driver has native XDP, else host_ingress) takes the
 * outer headers off packets that directors sent:
 *
 *   parse outer -> here? -> from where? -> parse inner -> service -> connection here?
 *               -> ECN -> unwrap
 *
 * A packet without a connection here goes to the next host that may have it (second_chance.h, for UDP
 * datagram.h). XDP cannot find its way there, so such packets are left to host_after_xdp. So are
 * packets for pods of this host, whose destination becomes the pod (host/pod/pod.h).
 *
 * Egress (host_egress) gives answers of pods the VIP's address (host/pod/reply.h), lowers the MSS that
 * a VIP offers in its SYNs and SYN-ACKs to what fits together with those headers, and counts the
 * SYNs that are refused.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "host/clamp.h"
#include "host/datagram.h"
#include "host/maps.h"
#include "host/pod/pod.h"
#include "host/pod/reply.h"
#include "host/refuse.h"
#include "host/second_chance.h"
#include "host/tunnel.h"
#include "lib/checksum.h"

#define HEADERS_MAX 512 /* more than ingress ever has to read */

/* The kind of host that sent it; 0: none that weir knows. */
static __always_inline __u32 find_source(const struct tunnel *t)
{
	struct host_source key = { .prefix_len = 8 * sizeof(key.address), .address = t->source };
	__u32 *flags = bpf_map_lookup_elem(&sources, &key);

	return flags ? *flags : 0;
}

/* Tunnels of ipip to pods end here, too, whatever is inside. */
static __always_inline int ends_at_pod(struct tunnel *t)
{
	struct pod_end end = { .address = t->destination };

	if (t->protocol == IPPROTO_UDP || !bpf_map_lookup_elem(&pod_ends, &end))
		return 0;
	t->pod = 1;
	return 1;
}

/*
 * A packet to no service of a VIP is dropped: given to the kernel as it came, it
 * would be answered with "protocol unreachable" to the director. A packet to
 * another address is not weir's; the host may have tunnels of its own.
 */
static __always_inline enum host_reason admit(const struct tunnel *t, struct inner *inner,
					      __u32 senders)
{
	__u32 *peer;

	inner->service = find_service(&inner->destination);
	if (!inner->service)
		return is_vip(inner, &inner->destination.address) ? HOST_DROP_NO_SERVICE :
								    HOST_PASS_NOT_VIP;
	if (comes_from_nobody(inner))
		return HOST_DROP_INNER_SOURCE;
	if (senders & HOST_SOURCE_DIRECTOR)
		return PARSED;
	peer = find_peer(inner->service, &t->source);
	return peer && *peer & HOST_PEER_SENDS ? PARSED : HOST_DROP_NOT_PEER;
}

/* Updates the ECN field of the inner header, which the caller has not checked. */
static __always_inline enum host_reason take_ecn(void *ip, void *end, int ipv6, __u8 outer)
{
	if (ip + (ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) > end)
		return HOST_DROP_INNER_MALFORMED;
	if ((ipv6 ? propagate_ecn6(ip, outer) : propagate_ecn4(ip, outer)) < 0)
		return HOST_DROP_CONGESTED;
	return PARSED;
}

static __always_inline int is_decap(enum host_reason reason)
{
	return reason >= HOST_DECAP_IPIP && reason <= HOST_DECAP_POD;
}

/*
 * Decides whether a frame of this length, whose headers are between data and end, is a
 * tunnel to a service here: HOST_DECAP_*.
 */
static __always_inline enum host_reason ingress(void *data, void *end, __u32 length,
						struct tunnel *t, struct inner *inner)
{
	struct cursor c = { .at = data, .end = end };
	enum host_reason reason;
	__u32 senders;

	reason = parse_outer(&c, length, t);
	if (reason == PARSED && t->protocol == IPPROTO_UDP)
		reason = parse_udp(&c);
	if (reason != PARSED)
		return reason;
	if (!bpf_map_lookup_elem(&tunnel_ends, &t->destination) && !ends_at_pod(t))
		return HOST_PASS_NOT_HERE;
	if (t->protocol == IPPROTO_UDP)
		reason = parse_gue(&c, t);
	if (reason != PARSED)
		return reason;
	senders = find_source(t);
	if (!senders)
		return HOST_PASS_UNKNOWN_SOURCE;

	reason = parse_inner(&c, t, inner);
	if (reason == PARSED)
		reason = admit(t, inner, senders);
	if (reason != PARSED)
		return reason;
	return t->gue ? HOST_DECAP_GUE : HOST_DECAP_IPIP;
}

/*
 * Updates the ECN field of the inner header. The inner TTL stays: the tunnel is one hop,
 * which the director did not count.
 */
static __always_inline enum host_reason propagate_ecn(void *data, void *end,
						      enum host_reason reason,
						      const struct tunnel *t,
						      const struct inner *inner)
{
	void *ip = data + ((t->link + t->outer) & OFFSET_MASK);
	enum host_reason ecn = take_ecn(ip, end, inner->ipv6, t->ecn);

	return ecn == PARSED ? reason : ecn;
}

/* Whether the packet may have to go on, or its flow to be remembered. */
static __always_inline int has_chance(const struct tunnel *t, const struct inner *inner)
{
	return t->private >= sizeof(struct row_header) ||
	       is_remembered(inner->destination.protocol);
}

/*
 * Packets go on only to backends of their service. Otherwise anybody who can send from a source
 * that this host believes could make it send to any address.
 */
static __always_inline enum host_reason keep_known(enum host_reason reason,
						   const struct chance *chance)
{
	if (reason != HOST_PASSED_ON || find_peer(chance->service, &chance->hop))
		return reason;
	return HOST_DROP_UNKNOWN_HOP;
}

/* Whether this host has only pods of the service: the kernel would send the VIP's packets away. */
static __always_inline int has_pods_only(__u32 index)
{
	const struct host_service *service = bpf_map_lookup_elem(&services, &index);

	return service && service->flags & HOST_SERVICE_PODS;
}

/* In ipip the outer address says that a packet is a pod's, in GUE the private data have said so. */
static __always_inline enum host_reason
classify_pod(enum host_reason reason, const struct tunnel *t, const struct inner *inner)
{
	if (!is_decap(reason) || reason == HOST_DECAP_POD)
		return reason;
	if (t->gue)
		return has_pods_only(inner->service) ? HOST_DROP_NO_POD : reason;
	return t->pod || has_pods_only(inner->service) ? HOST_DECAP_POD : reason;
}

static __always_inline int is_drop(enum host_reason reason)
{
	return (reason >= HOST_DROP_INNER_MALFORMED && reason <= HOST_DROP_DECAP_FAILED) ||
	       reason == HOST_DROP_UNKNOWN_HOP || reason == HOST_DROP_INNER_SOURCE;
}

/* Every verdict is counted here. Says whether to drop. */
static __always_inline int verdict(enum host_reason reason, __u32 length, const struct tunnel *t,
				   const struct inner *inner)
{
	count_reason(reason, length - t->link);
	if (is_decap(reason))
		count(bpf_map_lookup_elem(&service_packets, &inner->service), inner->length);
	return is_drop(reason);
}

static __always_inline __be16 inner_ethertype(const struct inner *inner)
{
	return inner->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
}

struct link_header {
	struct ethhdr ethernet;
	struct vlan_tag tag;
};

/* Puts the link header in front of the inner packet; 0: done. */
static __always_inline int unwrap_xdp(struct xdp_md *ctx, const struct tunnel *t,
				      const struct inner *inner)
{
	struct link_header *link = (void *)(long)ctx->data;
	int tagged = t->link > sizeof(link->ethernet);
	struct link_header copy;

	if ((void *)(link + 1) > (void *)(long)ctx->data_end)
		return -1;
	copy = *link;
	if (bpf_xdp_adjust_head(ctx, t->outer))
		return -1;
	link = (void *)(long)ctx->data;
	if ((void *)(link + 1) > (void *)(long)ctx->data_end)
		return -1;
	link->ethernet = copy.ethernet;
	if (tagged) {
		link->tag.tci = copy.tag.tci;
		link->tag.protocol = inner_ethertype(inner);
	} else {
		link->ethernet.h_proto = inner_ethertype(inner);
	}
	return 0;
}

SEC("xdp.frags")
int host_xdp(struct xdp_md *ctx)
{
	__u32 length = bpf_xdp_get_buff_len(ctx);
	struct tunnel t = {};
	struct inner inner = {};
	struct chance chance;
	enum host_reason reason;

	reason = ingress((void *)(long)ctx->data, (void *)(long)ctx->data_end, length, &t, &inner);
	if (reason == HOST_DECAP_GUE && has_chance(&t, &inner)) {
		chance = chance_of(&t, &inner);
		reason = judge_xdp(ctx, &chance);
		if (reason == PARSED)
			reason = judge_datagram_xdp(ctx, &chance);
	}
	reason = classify_pod(reason, &t, &inner);
	reason = keep_known(reason, &chance);
	if (reason == HOST_PASSED_ON || reason == HOST_DECAP_POD)
		return XDP_PASS; /* as it came, and counted by host_after_xdp */
	if (is_decap(reason))
		reason = propagate_ecn((void *)(long)ctx->data, (void *)(long)ctx->data_end, reason,
				       &t, &inner);
	if (is_decap(reason) && unwrap_xdp(ctx, &t, &inner))
		reason = HOST_DROP_DECAP_FAILED;
	return verdict(reason, length, &t, &inner) ? XDP_DROP : XDP_PASS;
}

/*
 * The kernel coalesces IPIP packets before they come here: up to 64 kB, of which
 * every segment keeps its size (FIXED_GSO). Where the families differ, changing
 * the protocol does 20 bytes of the work: unlike BPF_F_ADJ_ROOM_DECAP_L3_*
 * (Linux 6.3) it is there on every kernel that weir supports.
 */
static __always_inline int unwrap_skb(struct __sk_buff *skb, const struct tunnel *t,
				      const struct inner *inner)
{
	const int difference = sizeof(struct ipv6hdr) - sizeof(struct iphdr);
	__be16 protocol = inner_ethertype(inner);
	int outer = t->outer;

	if (t->ipv6 != inner->ipv6) {
		if (bpf_skb_change_proto(skb, protocol, 0))
			return -1;
		outer += inner->ipv6 ? difference : -difference;
		if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol,
					sizeof(protocol), 0))
			return -1;
	}
	return bpf_skb_adjust_room(skb, -outer, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/*
 * Drivers may leave headers outside the part of the packet that programs see.
 * They are brought in only for packets that may be tunnels.
 */
static __always_inline void pull_headers(struct __sk_buff *skb)
{
	__u32 offset = sizeof(struct ethhdr) + offsetof(struct iphdr, protocol);
	__u32 linear = skb->data_end - skb->data;
	__u8 protocol;

	if (linear >= HEADERS_MAX || linear >= skb->len)
		return;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		offset = sizeof(struct ethhdr) + offsetof(struct ipv6hdr, nexthdr);
	if (!bpf_skb_load_bytes(skb, offset, &protocol, sizeof(protocol)) && is_tunnel(protocol))
		bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX);
}

/*
 * The kernel has taken the outermost VLAN tag off before, so a tag that is still
 * there is a second one, and skb->protocol says so.
 */
static __always_inline enum host_reason ingress_skb(struct __sk_buff *skb, struct tunnel *t,
						    struct inner *inner)
{
	t->link = sizeof(struct ethhdr);
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return HOST_PASS_NOT_IP;
	pull_headers(skb);
	return ingress((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, t, inner);
}

/* Decides about a packet to a service, acts on it, counts it, and returns tc's verdict. */
static __always_inline int finish_ingress(struct __sk_buff *skb, enum host_reason reason,
					  const struct tunnel *t, const struct inner *inner)
{
	__u32 length = skb->len;
	struct chance chance;
	int action = TC_ACT_UNSPEC, pod = 0;

	if (reason == HOST_DECAP_GUE && has_chance(t, inner)) {
		chance = chance_of(t, inner);
		reason = judge_skb(skb, &chance);
		if (reason == PARSED)
			reason = judge_datagram_skb(skb, &chance);
	}
	reason = classify_pod(reason, t, inner);
	if (reason == HOST_DECAP_POD) {
		pod = 1;
		chance = chance_of(t, inner);
		chance.hop = t->destination;
		reason = judge_pod(skb, &chance);
	}
	if (is_decap(reason))
		reason = propagate_ecn((void *)(long)skb->data, (void *)(long)skb->data_end, reason,
				       t, inner);
	if (is_decap(reason) && (unwrap_skb(skb, t, inner) || (pod && send_to_pod(skb))))
		reason = HOST_DROP_DECAP_FAILED;
	reason = keep_known(reason, &chance);
	if (reason == HOST_PASSED_ON) {
		action = pass_on(skb, t, &chance);
		if (action < 0)
			reason = HOST_DROP_DECAP_FAILED;
	}
	return verdict(reason, length, t, inner) ? TC_ACT_SHOT : action;
}

SEC("tc")
int host_ingress(struct __sk_buff *skb)
{
	struct tunnel t = {};
	struct inner inner = {};
	enum host_reason reason = ingress_skb(skb, &t, &inner);

	return finish_ingress(skb, reason, &t, &inner);
}

/*
 * Handles the packets that host_xdp has left. It sees all others, too, which host_xdp has
 * unwrapped, or passed and counted; only those left are in a tunnel to this host's services.
 */
SEC("tc")
int host_after_xdp(struct __sk_buff *skb)
{
	struct tunnel t = {};
	struct inner inner = {};
	enum host_reason reason = ingress_skb(skb, &t, &inner);

	if (reason < HOST_DECAP_IPIP)
		return TC_ACT_UNSPEC;
	return finish_ingress(skb, reason, &t, &inner);
}

SEC("tc")
int host_egress(struct __sk_buff *skb)
{
	enum host_reason reason = has_pods() ? leave_pod(skb) : HOST_PASS_EGRESS;
	enum host_reason clamped = is_drop(reason) ? HOST_PASS_EGRESS : clamp_mss(skb);

	count_reason(clamped == HOST_PASS_EGRESS ? reason : clamped,
		     skb->len - sizeof(struct ethhdr));
	return is_drop(reason) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
