/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Health checks go to the VIP on the path of clients' packets. A socket says which way its
 * packets take (SO_PRIORITY), and a rule for their mark leads them to a device of their own.
 * Where they leave it, this program gives them what the director's program would: the
 * backend's MAC address, or outer headers. Answers come as they come to clients.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "abi/check_types.h"
#include "lib/outer.h"
#include "lib/overlay.h"
#include "lib/packet.h"

/* By number: numbers are never given twice, so no entry is ever another backend's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct check_way);
} check_ways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CHECK_VERDICT_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} check_verdicts SEC(".maps");

static __always_inline void *data_of(struct __sk_buff *skb)
{
	return (void *)(long)skb->data;
}

static __always_inline void *end_of(struct __sk_buff *skb)
{
	return (void *)(long)skb->data_end;
}

/* The outer headers' view of the packet: without options and extension headers, as sockets send. */
static __always_inline int look(struct __sk_buff *skb, struct packet *packet)
{
	void *data = data_of(skb) + sizeof(struct ethhdr), *end = end_of(skb);
	struct iphdr *ip4 = data;
	struct ipv6hdr *ip6 = data;

	packet->l3 = sizeof(struct ethhdr);
	packet->length = skb->len - sizeof(struct ethhdr);
	packet->hash = bpf_get_hash_recalc(skb);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > end)
			return 0;
		packet->tos = ip4->tos;
		packet->flow.protocol = ip4->protocol;
		ADDRESS_WORD(&packet->flow.source, 0) = ip4->saddr;
		ADDRESS_WORD(&packet->flow.destination, 0) = ip4->daddr;
		packet->l4 = packet->l3 + sizeof(*ip4);
		return 1;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return 0;
	packet->flow.ipv6 = 1;
	packet->first_word = *(__be32 *)ip6;
	packet->tos = bpf_ntohl(packet->first_word) >> 20;
	packet->ttl = ip6->hop_limit;
	packet->flow.protocol = ip6->nexthdr;
	__builtin_memcpy(&packet->flow.source, &ip6->saddr, sizeof(packet->flow.source));
	__builtin_memcpy(&packet->flow.destination, &ip6->daddr, sizeof(packet->flow.destination));
	packet->l4 = packet->l3 + sizeof(*ip6);
	return 1;
}

static __always_inline void write_tunnel6(struct ipv6hdr *ip, const struct packet *packet,
					  const struct check_way *way, int gue)
{
	struct gue_outer *outer = (struct gue_outer *)(ip + 1);
	__u32 payload = packet->length + (gue ? sizeof(*outer) : 0);
	__u64 sum;

	write_ipv6(ip, packet, &way->to, &way->settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   payload);
	if (!gue)
		return;
	sum = write_gue(outer, packet, payload, 0);
	outer->udp.check = checksum_gue6(packet, ip, payload, sum);
}

static __always_inline void write_tunnel4(struct iphdr *ip, const struct packet *packet,
					  const struct check_way *way, int gue)
{
	struct gue_outer *outer = (struct gue_outer *)(ip + 1);
	__u32 length = sizeof(*ip) + packet->length + (gue ? sizeof(*outer) : 0);

	write_ipv4(ip, packet, &way->to, &way->settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   length);
	if (gue)
		write_gue(outer, packet, length - sizeof(*ip), 0);
}

/* Bytes of the tunnel's headers; 0: the backend has none. */
static __always_inline __u32 tunnel_length(const struct backend *to)
{
	if (to->mode == MODE_L2DSR)
		return 0;
	return (to->flags & BACKEND_IPV6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
	       (to->mode == MODE_GUE ? sizeof(struct gue_outer) : 0);
}

/* Fills the room for the tunnel's headers; 0: there is none. */
static __always_inline int write_tunnel(struct __sk_buff *skb, void *ip,
					const struct packet *packet, const struct check_way *way)
{
	int gue = way->to.mode == MODE_GUE;

	/* With what is behind it, each is longer than the longest outer header of its family. */
	if (way->to.flags & BACKEND_IPV6) {
		if (ip + sizeof(struct ipv6hdr) + sizeof(struct gue_outer) > end_of(skb))
			return 0;
		write_tunnel6(ip, packet, way, gue);
		return 1;
	}
	if (ip + sizeof(struct iphdr) + sizeof(struct gue_outer) > end_of(skb))
		return 0;
	write_tunnel4(ip, packet, way, gue);
	return 1;
}

static __always_inline int wrap(struct __sk_buff *skb, const struct packet *packet,
				const struct check_way *way)
{
	int gue = way->to.mode == MODE_GUE, six = way->to.flags & BACKEND_IPV6;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (gue ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0) |
		      (six ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);

	return !bpf_skb_adjust_room(skb, tunnel_length(&way->to), BPF_ADJ_ROOM_MAC, flags) &&
	       write_tunnel(skb, data_of(skb) + sizeof(struct ethhdr), packet, way);
}

/* Where the checksum of what a socket has sent is, and how it changes; 0: it has none. */
static __always_inline __u32 checksum_at(const struct packet *packet, __u64 *flags)
{
	*flags = BPF_F_PSEUDO_HDR;
	if (packet->flow.protocol == IPPROTO_TCP)
		return packet->l4 + offsetof(struct tcphdr, check);
	if (packet->flow.protocol == IPPROTO_UDP) {
		*flags |= BPF_F_MARK_MANGLED_0;
		return packet->l4 + offsetof(struct udphdr, check);
	}
	if (packet->flow.ipv6 && packet->flow.protocol == IPPROTO_ICMPV6)
		return packet->l4 + offsetof(struct icmp_header, checksum);
	return 0;
}

/* Writes another address in the place of one of the packet's, which begins `at` bytes after its IP header does. */
static __always_inline int readdress(struct __sk_buff *skb, const struct packet *packet,
				     struct address *was, const struct address *is, __u32 at)
{
	__u64 flags;
	__u32 checksum = checksum_at(packet, &flags);

#pragma unroll
	for (int i = 0; i < 4; i++) {
		__be32 from = ADDRESS_WORD(was, i), to = ADDRESS_WORD(is, i);

		if (checksum && bpf_l4_csum_replace(skb, checksum, from, to, flags | sizeof(from)))
			return 0;
		if (!packet->flow.ipv6) {
			if (bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check),
						from, to, sizeof(from)))
				return 0;
			break;
		}
	}
	*was = *is;
	return !bpf_skb_store_bytes(skb, packet->l3 + at, is,
				    packet->flow.ipv6 ? sizeof(*is) : sizeof(__be32), 0);
}

static __always_inline int is_given(const struct address *address)
{
	return ADDRESS_WORD(address, 0) || ADDRESS_WORD(address, 3);
}

/* The packet gets the addresses of the tenant's network in the place of the socket's. */
static __always_inline int address_inside(struct __sk_buff *skb, struct packet *packet,
					  const struct check_way *way)
{
	int six = packet->flow.ipv6;

	if (is_given(&way->own) &&
	    !readdress(skb, packet, &packet->flow.source, &way->own,
		       six ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr)))
		return 0;
	return !is_given(&way->target) ||
	       readdress(skb, packet, &packet->flow.destination, &way->target,
			 six ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr));
}

/* As inner_sum, also of pings. */
static __always_inline __u64 sum_sent(const struct packet *packet, int *known)
{
	__u64 sum = inner_sum(packet, known);

	if (is_icmp(&packet->flow)) {
		*known = 1;
		/* The message sums up to zero, as the header does; in IPv6 with its pseudo-header. */
		return packet->flow.ipv6 ? sum : 0;
	}
	return sum;
}

/* The sum of a tunnel's headers. */
static __always_inline __u64 sum_tunnel(struct __sk_buff *skb, const void *at, __u32 length)
{
	const __be32 *words = at;
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < (sizeof(struct ipv6hdr) + sizeof(struct gue_outer)) / 4; i++)
		if (i * 4 < length && (void *)(words + i + 1) <= end_of(skb))
			sum += words[i];
	return sum;
}

/* The director's tunnel into a tenant's network. The device gets packets without segments. */
static __always_inline int wrap_overlay(struct __sk_buff *skb, const struct packet *packet,
					const struct check_way *way)
{
	const struct vtep_place *place = &way->place;
	int six = place->flags & VTEP_PLACE_IPV6, known;
	__u32 tunnel = tunnel_length(&way->to);
	__u32 inside = skb->len + tunnel, options = place->options & 0x1c;
	__u32 length = sizeof(struct ethhdr) +
		       (six ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
		       sizeof(struct udphdr) + sizeof(struct overlay_header) + options;
	__u32 udp = sizeof(struct udphdr) + sizeof(struct overlay_header) + options + inside;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr)) |
		      (six ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	int inner_six = tunnel ? way->to.flags & BACKEND_IPV6 : packet->flow.ipv6;
	struct ethhdr *outer, *inner;
	void *ip;
	__u64 sum;

	if (bpf_skb_adjust_room(skb, length + tunnel, BPF_ADJ_ROOM_MAC, flags) ||
	    bpf_skb_pull_data(skb, length + sizeof(struct ethhdr) + tunnel))
		return 0;
	if (tunnel &&
	    !write_tunnel(skb, data_of(skb) + (length & 0x7f) + sizeof(struct ethhdr), packet, way))
		return 0;
	outer = data_of(skb);
	ip = outer + 1;
	inner = data_of(skb) + (length & 0x7f);
	if (ip + sizeof(struct ipv6hdr) + sizeof(struct udphdr) + sizeof(struct overlay_header) +
			    VTEP_OPTIONS_MAX >
		    end_of(skb) ||
	    (void *)(inner + 1) > end_of(skb))
		return 0;
	write_macs(outer, link_word(place->mac), link_word(place->source_mac));
	outer->h_proto = six ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	write_macs(inner, link_word(way->to.mac), link_word(way->to.source_mac));
	inner->h_proto = inner_six ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (!six) {
		write_outer4(ip, &way->self, place, packet->tos, sizeof(struct iphdr) + udp);
		write_overlay(ip + sizeof(struct iphdr), &way->self, place, packet->hash, udp);
	} else {
		sum = write_outer6(ip, &way->self, place, packet->tos, packet->hash, udp);
		sum += write_overlay(ip + sizeof(struct ipv6hdr), &way->self, place, packet->hash,
				     udp);
		sum += sum_sent(packet, &known) + sum_ethernet(inner) +
		       sum_tunnel(skb, inner + 1, tunnel);
		if (known)
			((struct udphdr *)(ip + sizeof(struct ipv6hdr)))->check =
				checksum_not_zero(~checksum_fold(sum));
	}
	return !place->vlan ||
	       !bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), bpf_ntohs(place->vlan));
}

/* Ethernet as the director writes it; the tag is the device's to add. */
static __always_inline int address(struct __sk_buff *skb, const struct backend *to)
{
	struct ethhdr *ethernet = data_of(skb);

	if ((void *)(ethernet + 1) > end_of(skb))
		return 0;
	write_macs(ethernet, link_word(to->mac), link_word(to->source_mac));
	ethernet->h_proto = skb->protocol;
	return !to->vlan || !bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), bpf_ntohs(to->vlan));
}

/* Gives the packet the headers of its way. */
static __always_inline enum check_verdict lead(struct __sk_buff *skb, struct packet *packet,
					       const struct check_way *way)
{
	if (way->place.ifindex)
		return wrap_overlay(skb, packet, way) ? CHECK_SENT : CHECK_NO_ROOM;
	if ((way->to.mode != MODE_L2DSR && !wrap(skb, packet, way)) || !address(skb, &way->to))
		return CHECK_NO_ROOM;
	return CHECK_SENT;
}

static __always_inline enum check_verdict send(struct __sk_buff *skb)
{
	__u32 number = skb->priority;
	struct packet packet = {};
	enum check_verdict verdict;
	struct check_way *way;

	if (!skb->mark)
		return CHECK_NOT_MARKED;
	way = bpf_map_lookup_elem(&check_ways, &number);
	if (!way || !way->to.ifindex)
		return CHECK_NO_WAY;
	if (!look(skb, &packet))
		return CHECK_NOT_IP;
	if (!address_inside(skb, &packet, way))
		return CHECK_NO_ROOM;
	verdict = lead(skb, &packet, way);
	if (verdict != CHECK_SENT)
		return verdict;
	/* They were for this program: the next one may give them another meaning. */
	skb->mark = 0;
	skb->priority = 0;
	bpf_redirect(way->to.ifindex, 0);
	return CHECK_SENT;
}

SEC("tc")
int send_check(struct __sk_buff *skb)
{
	__u32 verdict = send(skb);
	__u64 *counter = bpf_map_lookup_elem(&check_verdicts, &verdict);

	if (counter)
		(*counter)++;
	if (verdict == CHECK_SENT)
		return TC_ACT_REDIRECT;
	return verdict == CHECK_NOT_MARKED ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
