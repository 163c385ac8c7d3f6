/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director of a VTEP: it takes the place of director() there, with the same maps and some more. The
 * program of other directors is compiled without it.
 */
#include "director/vtep/vtep.h"

SEC("xdp.frags")
int director_vtep(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();

	if (!entry)
		return XDP_ABORTED;
	return vtep_verdict(&entry->packet, decide_vtep(ctx, entry));
}
