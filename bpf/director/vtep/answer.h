/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Questions for addresses that this director has in a tenant's network, which come in a tunnel: ARP
 * (RFC 826), neighbor solicitations (RFC 4861) and pings. The outer headers are off.
 */
#pragma once

#include "director/forward/icmp.h"
#include "director/forward/link.h"
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

/* What this director has at an address of the segment that the packet came in by; 0: nothing. */
static __noinline __u32 own_at(__u32 segment, const struct address *address, __u8 ipv6)
{
	struct vtep_address key = { .segment = segment, .ipv6 = !!ipv6, .address = *address };
	const struct vtep_own *own = bpf_map_lookup_elem(&vtep_own_addresses, &key);

	return own ? own->flags : 0;
}

/* Writes the MAC addresses of an answer. */
static __always_inline void answer_ethernet(struct ethhdr *ethernet, __u64 mac)
{
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_source, &mac, MAC_LENGTH);
}

static __always_inline enum reason answer_arp(struct xdp_md *ctx, struct packet *packet,
					      const struct vtep_entry *entry)
{
	struct ethhdr *ethernet = frame(ctx);
	struct arp_packet *arp = (struct arp_packet *)(ethernet + 1);
	struct address target = {};
	__u64 mac = entry->mac;
	__u8 asked[4];

	if ((void *)(arp + 1) > frame_end(ctx) || ethernet->h_proto != bpf_htons(ETH_P_ARP) ||
	    arp->hardware != bpf_htons(ARP_ETHERNET) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->hardware_length != MAC_LENGTH || arp->protocol_length != sizeof(asked) ||
	    arp->operation != bpf_htons(ARP_REQUEST))
		return PASS_NOT_IP;
	__builtin_memcpy(&target, arp->target, sizeof(asked));
	if (!(own_at(entry->segment, &target, 0) & VTEP_OWN_ANSWERS))
		return PASS_NOT_IP;
	answer_ethernet(ethernet, mac);
	__builtin_memcpy(asked, arp->target, sizeof(asked));
	__builtin_memcpy(arp->target, arp->sender, sizeof(asked));
	__builtin_memcpy(arp->target_mac, arp->sender_mac, MAC_LENGTH);
	__builtin_memcpy(arp->sender, asked, sizeof(asked));
	__builtin_memcpy(arp->sender_mac, &mac, MAC_LENGTH);
	arp->operation = bpf_htons(ARP_REPLY);
	packet->action = XDP_TX;
	return ANSWER_NEIGHBOR;
}

/* A solicitation has the target in it, and the answer is as long as one with an option. */
static __always_inline enum reason answer_solicitation(struct xdp_md *ctx, struct packet *packet,
						       const struct vtep_entry *entry)
{
	__u32 length = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) +
		       sizeof(struct neighbor_message);
	struct neighbor_message *message;
	__u64 mac = entry->mac, sum;
	struct ethhdr *ethernet;
	struct address target;
	struct ipv6hdr *ip;
	__u8 unspecified;

	if (packet->ttl != ND_HOP_LIMIT || packet->flags & PACKET_OPTIONS ||
	    packet->length < sizeof(*ip) + offsetof(struct neighbor_message, option) ||
	    bpf_xdp_load_bytes(ctx, packet->l4 + offsetof(struct neighbor_message, target), &target,
			       sizeof(target)) ||
	    !(own_at(entry->segment, &target, 1) & VTEP_OWN_ANSWERS))
		return PASS_NO_SERVICE;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
		return DROP_NO_HEADROOM;
	ethernet = frame(ctx);
	ip = (struct ipv6hdr *)(ethernet + 1);
	message = (struct neighbor_message *)(ip + 1);
	if ((void *)(message + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	answer_ethernet(ethernet, mac);
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
	__builtin_memcpy(message->mac, &mac, MAC_LENGTH);
	sum = (__u64)bpf_htons(sizeof(*message)) + bpf_htons(IPPROTO_ICMPV6);
	message->icmp.checksum =
		~checksum_fold(sum_bytes(&ip->saddr, 2 * sizeof(struct address) + sizeof(*message),
					 sum));
	packet->action = XDP_TX;
	return ANSWER_NEIGHBOR;
}

/* A packet that was parsed, for an address of this director itself. */
static __always_inline enum reason answer_icmp(struct xdp_md *ctx, struct packet *packet,
					       const struct vtep_entry *entry)
{
	struct icmp_header *icmp = l4_header(ctx, packet);

	if (packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP_ERROR) ||
	    (void *)(icmp + 1) > frame_end(ctx) || icmp->code)
		return PASS_NO_SERVICE;
	if (packet->flow.ipv6 && icmp->type == ICMPV6_SOLICITATION)
		return answer_solicitation(ctx, packet, entry);
	if (icmp->type == (packet->flow.ipv6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST) &&
	    own_at(entry->segment, &packet->flow.destination, packet->flow.ipv6) & VTEP_OWN_HOST)
		return answer_echo(ctx, packet);
	return PASS_NO_SERVICE;
}

/* A packet that has come in a tunnel and is of no flow: PASS_NOT_IP, or PASS_NO_SERVICE. */
__noinline enum reason answer_inside(struct xdp_md *ctx, struct packet *packet, enum reason reason)
{
	const struct vtep_entry *entry = this_entry();

	if (!packet || !entry)
		return reason;
	if (reason == PASS_NOT_IP)
		return answer_arp(ctx, packet, entry);
	return packet->flags & PACKET_ICMP ? answer_icmp(ctx, packet, entry) : reason;
}
