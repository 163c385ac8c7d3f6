/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What benchmark packets look like: everything in them follows from the number of
 * their flow, so that both ends know it without telling each other.
 */
#pragma once

#include "lib/redirect_option.h"

/* Frame lengths in turns: the simple IMIX has 12 (7 : 4 : 1), and by bytes 177. */
#define FRAME_SIZES_ROOM 256 /* a power of two: the verifier believes masks */
#define SOURCE_BITS 17       /* of a flow's number are its address, the others its port */
#define SOURCE_PORT_FIRST 1024
#define TCP_SYN 0x02
#define TCP_ACK 0x10
#define TRAFFIC_TTL 64
#define SYN_OPTION_WORDS 5 /* of 4 bytes: Linux's, without ours */

/* Set by the loader. Addresses are those of number 0. */
const volatile __u32 out_ifindex;
const volatile __u32 flows = 1;
const volatile __u32 vips = 1;
const volatile __u32 frame_sizes; /* how many of these are used; 0: as the frame is */
const volatile __u32 frame_size[FRAME_SIZES_ROOM];
const volatile __u32 syn_every; /* TCP: every so many packets are a SYN; 0: none is */
const volatile __u8 flows_in_turn;
/* A source's first flow, of `flows`; and how much of flow_order there is, 0: each is as likely. */
const volatile __u32 first_flow, order_length;
/* TCP: every packet has a SYN's options, and the one that asks to be redirected. */
const volatile __u8 asks_redirect;
const volatile __u8 ipv6;
const volatile __u8 protocol;
const volatile __u16 service_port;
const volatile __u32 source4, vip4;
const volatile __u32 source6[4], vip6[4]; /* words in host order */
const volatile __u16 mac[6];              /* halfwords as in memory: destination, source */
const volatile __u16 vlan;                /* the frames' 802.1Q tag; 0: they have none */
/*
 * Frames in a tunnel of VXLAN or Geneve. Flow n is of tenant n % tenants: their networks have the same
 * addresses, and VNIs that follow each other.
 */
const volatile __u16 overlay_port;  /* UDP; 0: they are in none */
const volatile __u32 overlay_first; /* the first word of the tunnel's own header */
const volatile __u32 overlay_vni;   /* of tenant 0 */
const volatile __u8 overlay6;       /* the outer header is IPv6 */
const volatile __u32 vtep_from4, vtep_to4;
const volatile __u32 vtep_from6[4], vtep_to6[4];
const volatile __u16 inside_mac[6]; /* as mac, of the frame inside */
const volatile __u32 tenants = 1;

/* An 802.1Q tag: ETH_P_8021Q takes the place of the Ethernet type, which follows the VLAN's number. */
#define VLAN_LENGTH 4

/* State between packets. */
__u64 source_state = 88172645463325252ULL;
__u64 source_sent;
__u32 source_frame;

struct traffic_packet {
	__u32 flow; /* in its tenant's network */
	__u32 tenant;
	__u32 length; /* of the frame */
	__u8 tcp_flags;
};

static __always_inline __u32 source_offset(__u32 flow)
{
	return flow & ((1 << SOURCE_BITS) - 1);
}

static __always_inline __u16 source_port(__u32 flow)
{
	return SOURCE_PORT_FIRST + (flow >> SOURCE_BITS);
}

/* Also divides by one VIP: sources of one and of many must take the same time. */
static __always_inline __u32 vip_of(__u32 flow)
{
	return vips ? flow % vips : 0;
}

static __always_inline __u32 halves(__u32 word)
{
	return (word >> 16) + (word & 0xffff);
}

/* RFC 1071, of a sum in host order. */
static __always_inline __be16 fold_sum(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	sum += sum >> 16;
	return bpf_htons(~sum);
}

/* How long Ethernet's header is, with its tag. */
static __always_inline __u32 l2_length(void)
{
	return sizeof(struct ethhdr) + (vlan ? VLAN_LENGTH : 0);
}

/* The tunnel's own header: the VNI is in its second word. */
struct overlay_words {
	__be32 first;
	__be32 vni;
};

#define OVERLAY_TTL 64
#define OVERLAY_PORT_FIRST 49152 /* of senders: the dynamic ports (RFC 6335) */
#define OVERLAY_PORT_MASK 0x3fff

/* How much is before the frame inside. */
static __always_inline __u32 overlay_length(void)
{
	if (!overlay_port)
		return 0;
	return sizeof(struct ethhdr) + (overlay6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
	       sizeof(struct udphdr) + sizeof(struct overlay_words);
}

/* The caller has seen that a header of the network layer follows. */
static __always_inline void write_l2(void *data, __be16 ethertype)
{
	__u16 *out = data;

#pragma unroll
	for (int i = 0; i < 6; i++)
		out[i] = overlay_port ? inside_mac[i] : mac[i];
	if (vlan) {
		out[6] = bpf_htons(ETH_P_8021Q);
		out[7] = bpf_htons(vlan);
		out[8] = ethertype;
	} else {
		out[6] = ethertype;
	}
}

/* What Linux puts into a SYN, and our option: as a client's host sends it. */
struct syn_options {
	__be32 words[SYN_OPTION_WORDS];
	struct redirect_option redirect;
};

/* MSS, SACK permitted, timestamps, window scale (RFC 9293, 2018, 7323). */
static __always_inline __u32 syn_option(int i)
{
	return i == 0 ? 0x020405b4 : i == 1 ? 0x0402080a : i == 2 ? 1 : i == 3 ? 0 : 0x01030307;
}

/* Returns their sum, 0 where they find no room. */
static __always_inline __u32 write_options(struct tcphdr *tcp, void *end)
{
	struct syn_options *options = (void *)(tcp + 1);
	__u32 sum = (TCP_EXPERIMENT2 << 8 | REDIRECT_LENGTH) + REDIRECT_EXID +
		    (TCP_NOP << 8 | TCP_NOP);

	if ((void *)(options + 1) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < SYN_OPTION_WORDS; i++) {
		options->words[i] = bpf_htonl(syn_option(i));
		sum += halves(syn_option(i));
	}
	options->redirect = (struct redirect_option){ .kind = TCP_EXPERIMENT2,
						      .length = REDIRECT_LENGTH,
						      .exid = bpf_htons(REDIRECT_EXID),
						      .nops = { TCP_NOP, TCP_NOP } };
	return sum;
}

/*
 * sum: of the pseudo header's addresses. The third word names the tenant: in TCP it is acknowledged, in UDP
 * it is data.
 */
static __always_inline int write_l4(void *l4, void *end, const struct traffic_packet *packet,
				    __u32 length, __u32 sum)
{
	__u16 port = source_port(packet->flow);

	sum += protocol + length + port + service_port;
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		__u32 flags = sizeof(*tcp) / 4 << 12 | packet->tcp_flags;

		if ((void *)(tcp + 1) > end)
			return 0;
		if (asks_redirect) {
			__u32 options = write_options(tcp, end);

			if (!options)
				return 0;
			flags += sizeof(struct syn_options) / 4 << 12;
			sum += options;
		}
		tcp->source = bpf_htons(port);
		tcp->dest = bpf_htons(service_port);
		tcp->seq = bpf_htonl(1);
		tcp->ack_seq = bpf_htonl(packet->tenant);
		((__be16 *)tcp)[6] = bpf_htons(flags);
		tcp->window = bpf_htons(0xffff);
		tcp->urg_ptr = 0;
		tcp->check = fold_sum(sum + 1 + packet->tenant + flags + 0xffff);
	} else {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > end)
			return 0;
		udp->source = bpf_htons(port);
		udp->dest = bpf_htons(service_port);
		udp->len = bpf_htons(length);
		if (tenants > 1) {
			__be32 *data = (__be32 *)(udp + 1);

			if ((void *)(data + 1) > end)
				return 0;
			*data = bpf_htonl(packet->tenant);
			sum += packet->tenant;
		}
		udp->check = fold_sum(sum + length);
		if (!udp->check)
			udp->check = 0xffff;
	}
	return 1;
}

static __always_inline int write_ipv4(void *data, void *end, const struct traffic_packet *packet)
{
	struct iphdr *ip = data + l2_length();
	__u32 length = packet->length - l2_length();
	__u32 from = source4 + source_offset(packet->flow), to = vip4 + vip_of(packet->flow);
	__u32 addresses = halves(from) + halves(to);

	if ((void *)(ip + 1) > end)
		return 0;
	write_l2(data, bpf_htons(ETH_P_IP));
	*(__be16 *)ip = bpf_htons(0x4500);
	ip->tot_len = bpf_htons(length);
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000); /* don't fragment */
	ip->ttl = TRAFFIC_TTL;
	ip->protocol = protocol;
	ip->saddr = bpf_htonl(from);
	ip->daddr = bpf_htonl(to);
	ip->check = fold_sum(0x4500 + length + 0x4000 + (TRAFFIC_TTL << 8 | protocol) + addresses);
	return write_l4(ip + 1, end, packet, length - sizeof(*ip), addresses);
}

static __always_inline __u32 address6_sum(const volatile __u32 *base, __u32 offset)
{
	return halves(base[0]) + halves(base[1]) + halves(base[2]) + halves(base[3] + offset);
}

static __always_inline void write_address6(void *to, const volatile __u32 *base, __u32 offset)
{
	__be32 *words = to;

	words[0] = bpf_htonl(base[0]);
	words[1] = bpf_htonl(base[1]);
	words[2] = bpf_htonl(base[2]);
	words[3] = bpf_htonl(base[3] + offset);
}

static __always_inline int write_ipv6(void *data, void *end, const struct traffic_packet *packet)
{
	struct ipv6hdr *ip = data + l2_length();
	__u32 length = packet->length - l2_length() - sizeof(*ip);
	__u32 from = source_offset(packet->flow), to = vip_of(packet->flow);

	if ((void *)(ip + 1) > end)
		return 0;
	write_l2(data, bpf_htons(ETH_P_IPV6));
	*(__be32 *)ip = bpf_htonl(6U << 28);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = protocol;
	ip->hop_limit = TRAFFIC_TTL;
	write_address6(&ip->saddr, source6, from);
	write_address6(&ip->daddr, vip6, to);
	return write_l4(ip + 1, end, packet, length,
			address6_sum(source6, from) + address6_sum(vip6, to));
}

static __always_inline void write_outer_ipv4(struct iphdr *ip, __u32 length)
{
	*(__be16 *)ip = bpf_htons(0x4500);
	ip->tot_len = bpf_htons(length);
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000); /* don't fragment */
	ip->ttl = OVERLAY_TTL;
	ip->protocol = IPPROTO_UDP;
	ip->saddr = bpf_htonl(vtep_from4);
	ip->daddr = bpf_htonl(vtep_to4);
	ip->check = fold_sum(0x4500 + length + 0x4000 + (OVERLAY_TTL << 8 | IPPROTO_UDP) +
			     halves(vtep_from4) + halves(vtep_to4));
}

static __always_inline void write_outer_ipv6(struct ipv6hdr *ip, __u32 length)
{
	*(__be32 *)ip = bpf_htonl(6U << 28);
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = OVERLAY_TTL;
	write_address6(&ip->saddr, vtep_from6, 0);
	write_address6(&ip->daddr, vtep_to6, 0);
}

/* What is before the frame inside. UDP's checksum is zero (RFC 7348, 4.1; over IPv6 RFC 6935). */
static __always_inline int write_outer(void *data, void *end, const struct traffic_packet *packet)
{
	struct overlay_words *words = data + overlay_length() - sizeof(*words);
	struct udphdr *udp = (struct udphdr *)words - 1;
	__u32 length = packet->length - overlay_length() + sizeof(*udp) + sizeof(*words);
	__u16 *out = data;

	if ((void *)(words + 1) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < 6; i++)
		out[i] = mac[i];
	out[6] = overlay6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (overlay6)
		write_outer_ipv6(data + sizeof(struct ethhdr), length);
	else
		write_outer_ipv4(data + sizeof(struct ethhdr), length + sizeof(struct iphdr));
	udp->source = bpf_htons(OVERLAY_PORT_FIRST | (packet->flow & OVERLAY_PORT_MASK));
	udp->dest = bpf_htons(overlay_port);
	udp->len = bpf_htons(length);
	udp->check = 0;
	words->first = bpf_htonl(overlay_first);
	words->vni = bpf_htonl((overlay_vni + packet->tenant) << 8);
	return 1;
}

/* Returns 0 where the frame is too short for its headers. */
static __always_inline int write_packet(void *data, void *end, struct traffic_packet *packet)
{
	if (overlay_port) {
		if (!write_outer(data, end, packet))
			return 0;
		data += overlay_length();
		packet->length -= overlay_length();
	}
	return ipv6 ? write_ipv6(data, end, packet) : write_ipv4(data, end, packet);
}
