/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the director asks where tenants' networks in VXLAN and Geneve may end, in programs that are no VTEP:
 * the answers are constants, so these programs pay nothing. Each program includes this file or vtep.h first.
 */
#pragma once

#include "lib/packet.h"

struct translation;

/* The segment that the packet has come in by a tunnel of this VTEP, whose headers are off; 0: by none. */
static __always_inline __u32 entered_segment(void)
{
	return 0;
}

/* The network in VXLAN or Geneve that a backend is in; 0: none. */
static __always_inline __u32 overlay_segment_of(__u32 backend)
{
	(void)backend;
	return 0;
}

/* Full NAT's source for a backend in a network where this director has an address for that. */
static __always_inline void set_inside_source(__u32 backend, struct flow *to)
{
	(void)backend;
	(void)to;
}

/* Whether a packet is to such an address. */
static __always_inline int is_to_inside_source(const struct packet *packet)
{
	(void)packet;
	return 0;
}

/* Answers a packet in a tenant's network that is of no flow: PASS_NOT_IP, or PASS_NO_SERVICE. */
static __always_inline enum reason answer_inside(struct xdp_md *ctx, struct packet *packet,
						 enum reason reason)
{
	(void)ctx;
	(void)packet;
	return reason;
}

/* Sends a reply whose client is in a tenant's network to that client's host. CONTINUE: it is in none. */
static __always_inline enum reason reply_to_host(struct xdp_md *ctx, struct packet *packet,
						 struct translation *t, enum reason sent)
{
	(void)ctx;
	(void)packet;
	(void)t;
	(void)sent;
	return CONTINUE;
}

/* Takes an answer to a health check in a tenant's network. CONTINUE: it is none. */
static __always_inline enum reason take_answer(struct xdp_md *ctx, struct packet *packet)
{
	(void)ctx;
	(void)packet;
	return CONTINUE;
}
