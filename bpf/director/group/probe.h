/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tells whether a director of the group is there, with its program attached. The process of
 * another director asks by a datagram to its address, a control message of GUE, and only the
 * program answers: it sends the datagram back.
 */
#pragma once

#include "director/forward/encap.h"
#include "director/forward/icmp.h"
#include "director/group/group.h"

struct probe {
	struct udphdr udp;
	struct guehdr gue;
	__be32 magic;
};

/* CONTINUE: the packet is no probe, or not from a director of the group. */
__noinline enum reason answer_probe(struct xdp_md *ctx, struct packet *packet)
{
	struct probe *probe;

	if (!packet || packet->flow.protocol != IPPROTO_UDP ||
	    packet->flags & ~PACKET_NO_CHECKSUM || !find_peer(ctx))
		return CONTINUE;
	probe = l4_header(ctx, packet);
	if ((void *)(probe + 1) > frame_end(ctx) ||
	    !packet_holds(packet, packet->l4 + sizeof(*probe)) ||
	    probe->gue.version_length != GUE_CONTROL || probe->gue.protocol != PROBE_TYPE ||
	    probe->magic != bpf_htonl(PROBE_MAGIC))
		return CONTINUE;
	probe->udp.source = packet->flow.destination_port;
	probe->udp.dest = packet->flow.source_port;
	/* No checksum over IPv4: the asking host's device may have left it to be finished. */
	if (!packet->flow.ipv6)
		probe->udp.check = 0;
	if (packet->flow.ipv6 ? !answer_ipv6(ctx, packet) : !answer_ipv4(ctx, packet))
		return PASS_MALFORMED;
	if (frame(ctx) + sizeof(struct ethhdr) > frame_end(ctx))
		return PASS_MALFORMED;
	swap_ethernet(frame(ctx));
	packet->action = XDP_TX;
	return ANSWER_PROBE;
}
