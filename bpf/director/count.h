/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Every verdict goes through verdict(): one counter per reason, no packet without one. */
#pragma once

#include "director/maps.h"
#include "lib/packet.h"

static __always_inline void count(struct counter *counter, const struct packet *packet)
{
	if (!counter)
		return;
	counter->packets++;
	counter->bytes += packet->length;
}

static __always_inline void count_drop(__u32 service, const struct packet *packet)
{
	count(bpf_map_lookup_elem(&service_drops, &service), packet);
}

static __always_inline void count_forwarded(const struct packet *packet)
{
	count(bpf_map_lookup_elem(&backend_counters, &packet->backend), packet);
}

static __always_inline void count_opened(__u32 backend)
{
	__u64 *opened = bpf_map_lookup_elem(&backend_opened, &backend);

	if (opened)
		(*opened)++;
}

/*
 * The classes of reasons. The enum has each class in one piece, in this order. Reasons are
 * appended to it, because counters outlive versions: one that is no DROP is told apart here.
 */

/* Whether the kernel gets the packet untouched because weir did not look for its service. */
static __always_inline int is_left_alone(enum reason reason)
{
	return reason >= PASS_NO_SERVICE && reason <= PASS_UNSUPPORTED;
}

/*
 * Whether the packet went to its backend, on this host or another one, or back to a client: or
 * would have, PASS_SENT_ALREADY.
 */
static __always_inline int is_forwarded(enum reason reason)
{
	return reason >= PASS_LOCAL && reason < ANSWER_ECHO;
}

/* Whether the packet went to a backend on another host. */
static __always_inline int is_sent(enum reason reason)
{
	return reason >= FORWARD_L2DSR && reason <= FORWARD_NAT;
}

static __always_inline int is_dropped(enum reason reason)
{
	return reason >= DROP_NO_BACKEND;
}

/* Counts the packet under its reason. One for a backend was counted for that, too, in forward(). */
static __always_inline int verdict(const struct packet *packet, enum reason reason)
{
	__u32 index = reason;

	count(bpf_map_lookup_elem(&reasons, &index), packet);
	return likely(!is_dropped(reason)) ? packet->action : XDP_DROP;
}
