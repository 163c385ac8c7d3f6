/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * NAT for a backend that is this host: its packets never come in by XDP, so they
 * are translated where they leave.
 */
#pragma once

#include "director/nat/nat_tc_packet.h"

/* Finds what the packet becomes; 0: it is no reply of a backend on this host. */
static __always_inline int undo_what(struct packet *packet, struct flow *to)
{
	const struct backend *backend;
	struct fragment *first;
	__u32 index, local = NO_BACKEND, *found;

	if (packet->flags & PACKET_FRAGMENT_LATER) {
		first = find_fragment(packet);
		if (!first || first->path != FRAGMENT_TO_CLIENT)
			return 0;
		index = first->backend;
	} else {
		found = find_reply(&packet->flow);
		if (!found)
			return 0;
		local = find_local(packet);
		index = local != NO_BACKEND ? local : *found;
	}
	backend = backend_at(index);
	if (!backend || backend->state == BACKEND_FREE || !(backend->flags & BACKEND_LOCAL))
		return 0;
	/* In full NAT every flow has a place: this one was handed over by another director. */
	if (backend->flags & BACKEND_SNAT && local == NO_BACKEND)
		return 0;
	*to = packet->flow;
	to->source = backend->vip;
	if (backend->vip_port)
		to->source_port = backend->vip_port;
	if (packet->flags & PACKET_FRAGMENT_FIRST)
		remember_fragment(packet, index, FRAGMENT_TO_CLIENT);
	return 1;
}
