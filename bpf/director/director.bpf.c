/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs of directors that are no VTEP. */
#include "director/vtep/none.h"

#include "director/director.h"
#include "director/fan_out.h"
#include "director/group/flow_import.h"
#include "director/pick/heavy.h"

SEC("xdp.frags")
int director(struct xdp_md *ctx)
{
	struct packet packet;
	enum reason reason = decide(ctx, &packet, NULL, NULL);

	return verdict(&packet, reason);
}

/* Whether NICs may steer the flows of the packet's service; the packet has taken the usual way. */
static __always_inline int may_steer(const struct packet *packet)
{
	const struct ring_header *header = ring_line_at(packet->ring);

	return header && header->steering;
}

/* The director where NICs steer flows: it takes the place of director() then. */
SEC("xdp.frags")
int director_steering(struct xdp_md *ctx)
{
	struct steered_queue *queue = find_queue(ctx);
	const struct counter *counter;
	struct steered *steered;
	enum reason reason;
	__u32 index = 0;
	int action = SEND_OTHERWISE;

	if (queue && queue->l2dsr) {
		action = send_steered(ctx, queue);
		if (likely(action >= 0))
			return action;
	}
	steered = bpf_map_lookup_elem(&steered_packet, &index);
	if (!steered)
		return XDP_ABORTED;
	steered->place = 0;
	steered->follow = 0;
	steered->look = action == SEND_SAMPLE ? LOOK_SAMPLE : LOOK_NOT;
	reason = decide(ctx, &steered->packet, steered, queue);
	action = verdict(&steered->packet, reason);
	if (!is_sent(reason) || !steered->packet.service || is_syn(&steered->packet))
		return action;
	if (steered->place) { /* what goes by the table is one of its queue's samples, or not counted */
		if (steered->look == LOOK_SAMPLE)
			count_heavy(&steered->packet, 1);
		return action;
	}
	index = reason;
	counter = bpf_map_lookup_elem(&reasons, &index);
	if (counter && is_sample(counter->packets, HEAVY_SAMPLE_BITS) &&
	    !(steered->packet.flags & PACKETS_BESIDE_RULES) && may_steer(&steered->packet))
		count_heavy(&steered->packet, 0);
	return action;
}

/* The director of hosts that have more CPUs than receive queues: it takes the place of director() then. */
SEC("xdp.frags")
int director_fan_out(struct xdp_md *ctx)
{
	struct packet packet;
	enum reason reason;

	if (fan_out(ctx, &packet))
		return XDP_REDIRECT;
	reason = decide(ctx, &packet, NULL, NULL);
	return verdict(&packet, reason);
}

/*
 * The director on the CPUs that get packets. XDP_TX does nothing there: what leaves by the interface that it
 * came in by is redirected to it.
 */
SEC("xdp.frags/cpumap")
int director_on_cpu(struct xdp_md *ctx)
{
	struct packet packet;
	enum reason reason = decide(ctx, &packet, NULL, NULL);

	note_fan_out(FAN_OUT_TAKEN);
	if (!is_dropped(reason) && packet.action == XDP_TX) {
		packet.action = bpf_redirect_map(&egress, ctx->ingress_ifindex, 0);
		if (unlikely(packet.action != XDP_REDIRECT))
			reason = DROP_REDIRECT_FAILED;
	}
	return verdict(&packet, reason);
}

/* Not run for packets: userspace runs it when other directors have told of flows. */
SEC("syscall")
int take_tellings(struct tellings *ctx)
{
	return bpf_loop(ctx->count, take_telling, NULL, 0);
}
