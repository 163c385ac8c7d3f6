/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director while somebody captures: it takes the place of director() on the interfaces,
 * with the same maps, and does the same by the same functions. Nothing of this is in the
 * program that interfaces have otherwise.
 */
#include "director/vtep/vtep.h"

#include "director/observe/capture.h"

/* Not inlined: capture() has no more stack than director() may have (Linux 6.1). */
__noinline int capture_packet(struct xdp_md *ctx, const struct packet *packet, enum reason reason)
{
	int action;

	if (!packet)
		return XDP_ABORTED;
	action = vtep_verdict(packet, reason);
	end_capture(ctx, packet, reason, action);
	return action;
}

SEC("xdp.frags")
int capture(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();

	begin_capture(ctx);
	if (!entry)
		return XDP_ABORTED;
	return capture_packet(ctx, &entry->packet, decide_apart(ctx, entry));
}
