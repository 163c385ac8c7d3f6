/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The outer headers of VXLAN (RFC 7348) and Geneve (RFC 8926). Nothing here depends on maps, or on the kind of
 * program that writes the headers.
 */
#pragma once

#include "abi/vtep_types.h"
#include "lib/checksum.h"
#include "lib/outer.h"
#include "lib/packet.h"

#define VXLAN_HAS_VNI 0x08 /* in the header's first byte (RFC 7348, 5) */
/* In Geneve's first two bytes (RFC 8926, 3.4). */
#define GENEVE_VERSION 0xc0
#define GENEVE_OPTIONS 0x3f /* words of them */
#define GENEVE_CONTROL 0x80
#define GENEVE_CRITICAL 0x40
#define GENEVE_OPTION_CRITICAL 0x80 /* in an option's type */
#define ETHERTYPE_BRIDGING 0x6558   /* an Ethernet frame follows */
/* What OVN's tunnels have: the ports of its logical switch. Class, type and length, as in memory. */
#define OVN_OPTION bpf_htonl(0x01028001)
#define OVN_OPTION_LENGTH 8

/* Both kinds have headers of this size, with the VNI in the same place. */
struct overlay_header {
	__u8 first, second;
	__be16 protocol; /* Geneve */
	__be32 vni;      /* its lowest byte is reserved */
};

/* Bytes that headers with these have before the frame inside. */
static __always_inline __u32 outer_length(const struct vtep_place *place)
{
	return sizeof(struct ethhdr) + (place->vlan ? VLAN_TAG_LENGTH : 0) +
	       (place->flags & VTEP_PLACE_IPV6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
	       sizeof(struct udphdr) + sizeof(struct overlay_header) + place->options;
}

static __always_inline __u64 sum_ethernet(const struct ethhdr *ethernet)
{
	const __u16 *halves = (const __u16 *)ethernet;
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*ethernet) / 2; i++)
		sum += halves[i];
	return sum;
}

/* By words, as write_gue. Returns the sum of what is written. */
static __always_inline __u64 write_overlay(void *at, const struct vtep_self *self,
					   const struct vtep_place *place, __u32 hash,
					   __u32 udp_length)
{
	int geneve = place->flags & VTEP_PLACE_GENEVE;
	__be32 port = geneve ? self->geneve_port : self->vxlan_port;
	__be32 *words = at;
	__u64 sum;

	/* From 49152 to 65535: the dynamic ports (RFC 6335). */
	words[0] = bpf_htonl((0xc000 | (hash & 0x3fff)) << 16) | port << 16;
	words[1] = bpf_htonl(udp_length << 16);
	words[2] = geneve ? bpf_htonl((__u32)place->options << 22 |
				      (place->flags & VTEP_PLACE_CRITICAL ? GENEVE_CRITICAL << 16 :
									    0) |
				      ETHERTYPE_BRIDGING) :
			    bpf_htonl(VXLAN_HAS_VNI << 24);
	words[3] = place->vni;
	sum = (__u64)words[0] + words[1] + words[2] + words[3];
	if (likely(!place->options))
		return sum;
#pragma unroll
	for (int i = 0; i < VTEP_OPTIONS_MAX / 4; i++) {
		if (i * 4 >= place->options)
			break;
		words[4 + i] = place->option[i];
		sum += place->option[i];
	}
	return sum;
}

static __always_inline void write_outer4(struct iphdr *ip, const struct vtep_self *self,
					 const struct vtep_place *place, __u8 tos, __u32 length)
{
	__be32 source = self->address4, destination = ADDRESS_WORD(&place->vtep, 0);
	__be32 first = bpf_htonl(0x45000000 | (__u32)tos << 16 | length);
	/* DF, and as the packet is atomic, ID may be 0 (RFC 6864). */
	__be32 second = bpf_htonl(0x4000);
	__be32 third = bpf_htonl(OUTER_TTL << 24 | IPPROTO_UDP << 16);
	__be32 *words = (__be32 *)ip;

	words[0] = first;
	words[1] = second;
	words[2] = third;
	words[3] = source;
	words[4] = destination;
	ip->check = ~checksum_fold_few((__u64)first + second + third + source + destination);
}

/* Returns the sum of the pseudo-header. */
static __always_inline __u64 write_outer6(struct ipv6hdr *ip, const struct vtep_self *self,
					  const struct vtep_place *place, __u8 tos, __u32 hash,
					  __u32 payload)
{
	half_address *addresses = (half_address *)&ip->saddr;
	__u64 sum = (__u64)bpf_htons(payload) + bpf_htons(IPPROTO_UDP);

	*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)tos << 20 | (hash & 0xfffff));
	ip->payload_len = bpf_htons(payload);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = OUTER_TTL;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		addresses[i] = ADDRESS_HALF(&self->address6, i);
		addresses[2 + i] = ADDRESS_HALF(&place->vtep, i);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)ADDRESS_WORD(&self->address6, i) + ADDRESS_WORD(&place->vtep, i);
	return sum;
}
