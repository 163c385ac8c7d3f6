/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The numbers of a packet's segment, as proof.h asks for them. */
#pragma once

#include "lib/packet.h"
#include "lib/proof.h"

/* The numbers for tables of flows: see proof.h. The caller has checked that the header is there. */
static __always_inline void set_numbers(struct packet *packet, const struct tcphdr *tcp)
{
	__u32 left = packet->l3 + packet->length - packet->l4, header = tcp->doff * 4;

	packet->sequence = bpf_ntohl(tcp->seq);
	packet->acknowledgement = bpf_ntohl(tcp->ack_seq);
	packet->data = header < left ? left - header : 0;
}

/* Not read with the ports: packets that need no table do not pay for it. */
static __always_inline void note_numbers(struct xdp_md *ctx, struct packet *packet)
{
	struct tcphdr *tcp = l4_header(ctx, packet);

	if (packet->flow.protocol == IPPROTO_TCP && !(packet->flags & PACKET_ICMP_ERROR) &&
	    (void *)(tcp + 1) <= frame_end(ctx))
		set_numbers(packet, tcp);
}

static __always_inline struct proof_segment segment_from(const struct packet *packet, __u8 side)
{
	struct proof_segment segment = {
		.sequence = packet->sequence,
		.acknowledgement = packet->acknowledgement,
		.length = packet->data,
		.flags = packet->tcp_flags,
		.from = side,
	};

	return segment;
}
