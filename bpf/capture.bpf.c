/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director while somebody captures: it takes the place of director() on the interfaces,
 * with the same maps, and does the same by the same functions. Nothing of this is in the
 * program that interfaces have otherwise.
 */
#include "director.bpf.c"

#include "capture.h"

/* As in director.bpf.c: the reader needs these. */
const enum capture_size *export_capture_size __attribute__((unused));

SEC("xdp.frags")
int capture(struct xdp_md *ctx)
{
	int capturing = begin_capture(ctx);
	struct packet packet = {};
	enum reason reason = balance(ctx, &packet);
	int action = verdict(&packet, reason);

	if (capturing)
		end_capture(ctx, &packet, reason, action);
	return action;
}
