/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director, observed: the functions of director() decide what becomes of a packet, and
 * what they found out is kept. Nothing of this is in the program that interfaces have.
 */
#include "director/vtep/vtep.h"

#include "director/observe/observe.h"

/* Of the last packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct observation);
} observed SEC(".maps");

/* Not inlined: explain() has no more stack than director() may have (Linux 6.1). */
__noinline int observe_packet(const struct packet *packet, enum reason reason)
{
	struct observation *last;
	__u32 zero = 0;
	int action;

	last = bpf_map_lookup_elem(&observed, &zero);
	if (!packet || !last)
		return XDP_ABORTED;
	action = vtep_verdict(packet, reason);
	last->packet = *packet;
	last->reason = reason;
	last->action = action;
	return action;
}

/* By BPF_PROG_TEST_RUN, one at a time: what would become of a packet. */
SEC("xdp.frags")
int explain(struct xdp_md *ctx)
{
	struct vtep_entry *entry = this_entry();

	if (!entry)
		return XDP_ABORTED;
	return observe_packet(&entry->packet, decide_apart(ctx, entry));
}
