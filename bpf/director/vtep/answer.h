/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Questions for addresses that this director has in a tenant's network, which come in a tunnel: ARP
 * (RFC 826), neighbor solicitations (RFC 4861) and pings. The outer headers are off.
 */
#pragma once

#include "director/forward/icmp.h"
#include "director/forward/link.h"
#include "director/nat/translate.h"
#include "director/socket.h"
#include "director/vtep/maps.h"
#include "lib/checksum.h"
#include "lib/packet.h"

struct arp_packet {
	__be16 hardware, protocol;
	__u8 hardware_length, protocol_length;
	__be16 operation;
	__u8 sender_mac[MAC_LENGTH];
	__u8 sender[4];
	__u8 target_mac[MAC_LENGTH];
	__u8 target[4];
} __attribute__((packed));

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

#define ICMPV6_SOLICITATION 135
#define ICMPV6_ADVERTISEMENT 136
#define ND_HOP_LIMIT 255
#define ND_SOLICITED 0x40
#define ND_OVERRIDE 0x20
#define ND_TARGET_ADDRESS 2 /* the option with the target's MAC address */

struct neighbor_message {
	struct icmp_header icmp; /* its last four bytes are flags */
	struct address target;
	__u8 option, option_length;
	__u8 mac[MAC_LENGTH];
};

/* What this director has at an address of a segment; NULL: nothing. */
static __noinline struct vtep_own *own_at(__u32 segment, const struct address *address, __u8 ipv6)
{
	struct vtep_address key = { .segment = segment, .ipv6 = !!ipv6, .address = *address };

	return bpf_map_lookup_elem(&vtep_own_addresses, &key);
}

static __always_inline int is_answered(const struct vtep_own *own)
{
	return own && own->flags & VTEP_OWN_ANSWERS;
}

static __always_inline int is_own_host(const struct vtep_own *own)
{
	return own && own->flags & VTEP_OWN_HOST;
}

/* Writes the MAC addresses of an answer. */
static __always_inline void answer_ethernet(struct ethhdr *ethernet, const struct vtep_own *own)
{
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_source, own->mac, MAC_LENGTH);
}

static __always_inline enum reason answer_arp(struct xdp_md *ctx, struct packet *packet)
{
	struct ethhdr *ethernet = frame(ctx);
	struct arp_packet *arp = l3_header(ctx, packet);
	struct address target = {};
	const struct vtep_own *own;
	__be16 protocol = 0;
	__u8 asked[4];

	if (bpf_xdp_load_bytes(ctx, packet->l3 - sizeof(protocol), &protocol, sizeof(protocol)) ||
	    protocol != bpf_htons(ETH_P_ARP) || (void *)(ethernet + 1) > frame_end(ctx) ||
	    (void *)(arp + 1) > frame_end(ctx) || arp->hardware != bpf_htons(ARP_ETHERNET) ||
	    arp->protocol != bpf_htons(ETH_P_IP) || arp->hardware_length != MAC_LENGTH ||
	    arp->protocol_length != sizeof(asked) || arp->operation != bpf_htons(ARP_REQUEST))
		return PASS_NOT_IP;
	__builtin_memcpy(&target, arp->target, sizeof(asked));
	own = own_at(packet->flow.segment, &target, 0);
	if (!is_answered(own))
		return PASS_NOT_IP;
	if (!may_answer(packet))
		return DROP_SEGMENT_LIMIT;
	/* Linux 6.1 forgets what was checked of a packet where a function is called. */
	ethernet = frame(ctx);
	arp = l3_header(ctx, packet);
	if ((void *)(ethernet + 1) > frame_end(ctx) || (void *)(arp + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	answer_ethernet(ethernet, own);
	__builtin_memcpy(asked, arp->target, sizeof(asked));
	__builtin_memcpy(arp->target, arp->sender, sizeof(asked));
	__builtin_memcpy(arp->target_mac, arp->sender_mac, MAC_LENGTH);
	__builtin_memcpy(arp->sender, asked, sizeof(asked));
	__builtin_memcpy(arp->sender_mac, own->mac, MAC_LENGTH);
	arp->operation = bpf_htons(ARP_REPLY);
	packet->action = XDP_TX;
	return ANSWER_NEIGHBOR;
}

/* A solicitation has the target in it, and the answer is as long as one with an option. */
static __always_inline enum reason answer_solicitation(struct xdp_md *ctx, struct packet *packet)
{
	__u32 length = packet->l3 + sizeof(struct ipv6hdr) + sizeof(struct neighbor_message);
	struct neighbor_message *message;
	const struct vtep_own *own;
	struct ethhdr *ethernet;
	struct address target;
	struct ipv6hdr *ip;
	__u8 unspecified;
	__u64 sum;

	if (packet->ttl != ND_HOP_LIMIT || packet->flags & PACKET_OPTIONS ||
	    packet->length < sizeof(*ip) + offsetof(struct neighbor_message, option) ||
	    bpf_xdp_load_bytes(ctx, packet->l4 + offsetof(struct neighbor_message, target), &target,
			       sizeof(target)))
		return PASS_NO_SERVICE;
	own = own_at(packet->flow.segment, &target, 1);
	if (!is_answered(own))
		return PASS_NO_SERVICE;
	if (!may_answer(packet))
		return DROP_SEGMENT_LIMIT;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
		return DROP_NO_HEADROOM;
	ethernet = frame(ctx);
	ip = l3_header(ctx, packet);
	message = (struct neighbor_message *)(ip + 1);
	if ((void *)(ethernet + 1) > frame_end(ctx) || (void *)(message + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	answer_ethernet(ethernet, own);
	unspecified = !ADDRESS_HALF(&packet->flow.source, 0) &&
		      !ADDRESS_HALF(&packet->flow.source, 1);
	*ip = (struct ipv6hdr){ .version = 6,
				.payload_len = bpf_htons(sizeof(*message)),
				.nexthdr = IPPROTO_ICMPV6,
				.hop_limit = ND_HOP_LIMIT };
	__builtin_memcpy(&ip->saddr, &target, sizeof(target));
	__builtin_memcpy(&ip->daddr, &packet->flow.source, sizeof(target));
	if (unspecified) { /* a host that is about to take the address: all hear that it is taken */
		ip->daddr.s6_addr32[0] = bpf_htonl(0xff020000);
		ip->daddr.s6_addr32[3] = bpf_htonl(1);
	}
	message->icmp = (struct icmp_header){ .type = ICMPV6_ADVERTISEMENT };
	message->icmp.mtu6 = bpf_htonl((unspecified ? ND_OVERRIDE : ND_OVERRIDE | ND_SOLICITED)
				       << 24);
	message->target = target;
	message->option = ND_TARGET_ADDRESS;
	message->option_length = 1;
	__builtin_memcpy(message->mac, own->mac, MAC_LENGTH);
	sum = (__u64)bpf_htons(sizeof(*message)) + bpf_htons(IPPROTO_ICMPV6);
	message->icmp.checksum =
		~checksum_fold(sum_bytes(&ip->saddr, 2 * sizeof(struct address) + sizeof(*message),
					 sum));
	packet->action = XDP_TX;
	return ANSWER_NEIGHBOR;
}

/* The address of this host's own that sockets of health checks in a segment have. */
static __always_inline struct address check_address(__u32 segment, __u8 ipv6)
{
	struct address address = {};

	if (ipv6) {
		ADDRESS_WORD(&address, 0) = bpf_htonl(CHECK_ADDRESS6_WORD0);
		ADDRESS_WORD(&address, 1) = bpf_htonl(CHECK_ADDRESS6_WORD1);
		ADDRESS_WORD(&address, 3) = bpf_htonl(segment);
	} else {
		ADDRESS_WORD(&address, 0) = bpf_htonl(CHECK_ADDRESS4 | segment);
	}
	return address;
}

/* What sockets of health checks have in the place of a sender's address that this host has, too. */
static __always_inline void stand_in(const struct packet *packet, struct flow *to)
{
	struct vtep_address key = { .segment = packet->flow.segment, .ipv6 = packet->flow.ipv6 };
	const struct vtep_stand_in *found;

	key.address = packet->flow.source;
	found = bpf_map_lookup_elem(&vtep_stand_ins, &key);
	if (found)
		to->source = found->address;
}

/*
 * Whether a health check of this host waits for a packet of this flow: no other socket gets any. One of
 * SCTP holds a UDP socket at its port.
 */
static __always_inline int is_for_check(struct xdp_md *ctx, const struct flow *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 length;
	int waits;

	length = socket_tuple(flow, &tuple);
	if (flow->protocol == IPPROTO_TCP)
		socket = bpf_sk_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	else
		socket = bpf_sk_lookup_udp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	waits = socket->mark == this_vtep.check_mark && socket->dst_port == flow->source_port;
	bpf_sk_release(socket);
	return waits;
}

/* Gives a packet, without tags and outer headers now, another destination: a socket's of this host. */
static __always_inline int to_socket(struct xdp_md *ctx, struct packet *packet,
				     struct translation *t)
{
	int tags = (int)packet->l3 - (int)sizeof(struct ethhdr);
	struct icmp_header *icmp;
	__u64 mac[2] = {};

	if (tags > 0) {
		if (bpf_xdp_load_bytes(ctx, 0, mac, 2 * MAC_LENGTH) ||
		    bpf_xdp_adjust_head(ctx, tags) ||
		    bpf_xdp_store_bytes(ctx, 0, mac, 2 * MAC_LENGTH))
			return 0;
		packet->l3 = sizeof(struct ethhdr);
		packet->l4 -= tags;
	}
	if (!is_icmp(&packet->flow))
		return translate_packet(ctx, packet, t);
	icmp = l4_header(ctx, packet);
	if ((void *)(icmp + 1) > frame_end(ctx) ||
	    !rewrite_ip(l3_header(ctx, packet), frame_end(ctx), &t->to.source, &t->to.destination,
			packet->flow.ipv6, 0))
		return 0;
	if (packet->flow.ipv6)
		icmp->checksum = checksum_update(icmp->checksum, sum_addresses(&packet->flow),
						 sum_addresses(&t->to));
	return 1;
}

/*
 * An answer to a health check of this host, at the address that this director has in the segment. CONTINUE: it
 * is for another address. The host's own services are not for tenants.
 */
__noinline enum reason take_answer(struct xdp_md *ctx, struct packet *packet)
{
	struct vtep_entry *entry = this_entry();
	const struct icmp_header *icmp;
	struct flow *to;

	if (!packet || !entry || !packet->flow.segment ||
	    packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP_ERROR) ||
	    !is_own_host(own_at(packet->flow.segment, &packet->flow.destination,
				packet->flow.ipv6)))
		return CONTINUE;
	to = &entry->answer.to;
	*to = packet->flow;
	to->destination = check_address(packet->flow.segment, packet->flow.ipv6);
	stand_in(packet, to);
	if (is_icmp(&packet->flow)) {
		icmp = l4_header(ctx, packet);
		if ((const void *)(icmp + 1) > frame_end(ctx) ||
		    icmp->type != (packet->flow.ipv6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY))
			return CONTINUE;
	} else if (!has_ports(packet->flow.protocol)) {
		return CONTINUE;
	} else if (!is_for_check(ctx, to)) {
		return DROP_ANSWER_LATE; /* the kernel would answer for a port that it does not have there */
	}
	if (!to_socket(ctx, packet, &entry->answer))
		return PASS_MALFORMED;
	packet->flow = *to; /* the socket's, which stay() looks for */
	entry->direction = VTEP_TO_SOCKET;
	packet->action = XDP_PASS;
	return PASS_NO_SERVICE;
}

/* A packet that was parsed, for an address of this director itself. */
static __always_inline enum reason answer_icmp(struct xdp_md *ctx, struct packet *packet)
{
	struct icmp_header *icmp = l4_header(ctx, packet);
	enum reason reason;

	if (packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP_ERROR) ||
	    (void *)(icmp + 1) > frame_end(ctx) || icmp->code)
		return PASS_NO_SERVICE;
	if (packet->flow.ipv6 && icmp->type == ICMPV6_SOLICITATION)
		return answer_solicitation(ctx, packet);
	if (icmp->type == (packet->flow.ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST) &&
	    is_own_host(own_at(packet->flow.segment, &packet->flow.destination, packet->flow.ipv6)))
		return answer_echo(ctx, packet);
	reason = take_answer(ctx, packet);
	return reason == CONTINUE ? PASS_NO_SERVICE : reason;
}

/* A packet in a tenant's network that is of no flow: PASS_NOT_IP, or PASS_NO_SERVICE. */
__noinline enum reason answer_inside(struct xdp_md *ctx, struct packet *packet, enum reason reason)
{
	if (!packet || !packet->flow.segment)
		return reason;
	if (reason == PASS_NOT_IP)
		return answer_arp(ctx, packet);
	return packet->flags & PACKET_ICMP ? answer_icmp(ctx, packet) : reason;
}
