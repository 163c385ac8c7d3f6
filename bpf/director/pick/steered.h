/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that a NIC steers. A NIC has a rule for each, which leads its packets to a receive queue of the
 * flow's service: so neither service nor ring nor flow memory is looked up, but only the flow itself, in a
 * table that is as small as the NIC's. Only director_steering has this.
 *
 * The usual way decides: the table has what that has said of a flow. It says so again for one packet in
 * 64, and for every packet that begins or ends a connection. So flow memory, the evidence by which
 * generations leave logs, and what other directors are told are those of any other flow. A connection
 * begins once more by a SYN, whose backend may be another one: whichever queue the SYN comes by, and
 * whatever it looks like, it is compared with the table.
 */
#pragma once

#include "director/maps.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "lib/packet.h"

/* What a receive queue says of a packet. */
struct steered {
	const struct steered_queue *queue; /* NULL: nothing */
	struct steered_flow *flow;         /* NULL: the packet is of no flow that has a rule */
	struct backend *backend;           /* of the flow; NULL: the packet takes the usual way */
	__u64 word;                        /* of the flow, before the packet's backend is chosen */
};

/* Whether a packet is one of those that are looked at, by its number. */
static __always_inline int is_sample(__u64 number)
{
	/* Multiples of the golden ratio: no regular order of flows keeps one of them out. */
	return number * HASH_K1 >> (64 - HEAVY_SAMPLE_BITS) == 0;
}

/* A quarter of PROOF_AFTER: flow memory must not lose sight of a flow's numbers (lib/proof.h). */
#define STEERED_BYTES_UNSEEN (1 << 18)

/* Counts a packet of a flow. Whether it may go without the usual way. */
static __always_inline int pass_unseen(struct steered_flow *flow, __u32 length)
{
	__u32 left = *(volatile __u32 *)&flow->left, room = *(volatile __u32 *)&flow->room;

	/* CPUs that count at the same time must not count below zero. */
	if (!left || left > 2 << HEAVY_SAMPLE_BITS || room < length)
		return 0;
	*(volatile __u32 *)&flow->left = left - 1;
	*(volatile __u32 *)&flow->room = room - length;
	flow->packets++;
	flow->bytes += length;
	return 1;
}

/* After a packet that took the usual way: how many may go without, 64 on average. */
static __always_inline void note_seen(struct steered_flow *flow, __u32 length)
{
	flow->packets++;
	flow->bytes += length;
	*(volatile __u32 *)&flow->left = flow->packets * HASH_K1 >> (64 - HEAVY_SAMPLE_BITS - 1);
	*(volatile __u32 *)&flow->room = STEERED_BYTES_UNSEEN;
}

/* Where the queues of a NIC begin in steered_queues. */
static __always_inline __u32 steered_place(__u32 interface)
{
	return (interface * *(volatile __u32 *)&steered_factor >> (32 - STEERED_INTERFACES_BITS)) *
	       STEERED_QUEUES;
}

/* The queue that a packet has come by, if flows of it are steered. */
static __always_inline const struct steered_queue *find_queue(struct xdp_md *ctx)
{
	__u32 number = ctx->rx_queue_index, interface = ctx->ingress_ifindex;
	__u32 place = steered_place(interface) + number;
	const struct steered_queue *queue = bpf_map_lookup_elem(&steered_queues, &place);

	return queue && queue->interface == interface && number < STEERED_QUEUES ? queue : NULL;
}

/* The flow of a client's address and port in a service; NULL: it has no rule. */
static __noinline struct steered_flow *find_steered_flow(__u64 first, __u64 second, __u32 port,
							 __u32 service)
{
	__u64 hash = hash_finish(first ^ second * HASH_K3, port | (__u64)service << 32);
	__u32 index = (hash & *(volatile __u32 *)&steered_mask) * STEERED_PLACES;
	struct steered_flow *at;

	for (int i = 0; i < STEERED_PLACES; i++, index++) {
		at = bpf_map_lookup_elem(&steered_flows, &index);
		/* The word first: a place that was taken rests before it has another flow. */
		if (at && *(volatile __u64 *)&at->word && at->address[0] == first &&
		    at->address[1] == second && at->port == port && at->service == service)
			return at;
	}
	return NULL;
}

/* The backend of a word of a steered flow; NULL: it is not known, or must not get the flow's packets. */
static __always_inline struct backend *steered_backend(__u64 word, __u32 service)
{
	struct backend *backend = backend_at(word);

	return (__u32)word && backend && backend->epoch == word >> STEERED_EPOCH_SHIFT &&
			       backend->service == service && keeps(backend) ?
		       backend :
		       NULL;
}

/*
 * What the queue of a packet says of it. The packet is plain, as those of rules are: NICs do not match
 * fragments by their ports. `ipv6` is that of the flow, as a constant.
 */
static __always_inline void find_steered(const struct packet *packet, int ipv6,
					 struct steered *steered)
{
	const struct steered_queue *queue = steered->queue;
	const struct flow *flow = &packet->flow;
	struct steered_flow *found;

	if (queue->address[0] != ADDRESS_HALF(&flow->destination, 0) ||
	    (ipv6 && queue->address[1] != ADDRESS_HALF(&flow->destination, 1)) ||
	    queue->key != (flow->segment | (__u64)flow->destination_port << 32 |
			   (__u64)kind_of(flow) << 48))
		return;
	found = find_steered_flow(ADDRESS_HALF(&flow->source, 0), ADDRESS_HALF(&flow->source, 1),
				  flow->source_port, queue->service);
	if (!found)
		return;
	steered->flow = found;
	steered->word = *(volatile __u64 *)&found->word;
	if (flow->protocol == IPPROTO_TCP && packet->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return;
	steered->backend = steered_backend(steered->word, queue->service);
	if (steered->backend && !pass_unseen(found, packet->length))
		steered->backend = NULL;
}

/* The packet goes to its flow's backend. */
static __always_inline void follow_steered(struct packet *packet, const struct steered *steered)
{
	packet->backend = steered->word;
	*(service_word *)&packet->service = 0;
	if (steered->backend->mode == MODE_IPIP)
		packet->hash = hash_by(&packet->flow, steered->queue->salt,
				       steered->queue->affinity == AFFINITY_FLOW);
}

/*
 * What the usual way has said of a packet is so of its flow from now on, unless another packet has
 * changed the word that there was before.
 */
static __noinline int note_usual(const struct packet *packet, struct steered_flow *flow,
				 __u64 before)
{
	const struct backend *backend = backend_at(packet->backend);
	__u64 word = STEERED_PLACE;

	if (!flow)
		return 0;
	if (backend && packet->backend != NO_BACKEND)
		word |= packet->backend | (__u64)backend->epoch << STEERED_EPOCH_SHIFT;
	/* A place that is free, or gets another flow meanwhile, stays as it is. */
	if (before && before != word)
		__sync_val_compare_and_swap(&flow->word, before, word);
	note_seen(flow, packet->length);
	return 1;
}

/* The same of a SYN that came by any queue: it may begin a flow once more that has a rule. */
static __noinline int note_begun(const struct packet *packet)
{
	const struct flow *flow = &packet->flow;
	struct steered_flow *found;

	found = find_steered_flow(ADDRESS_HALF(&flow->source, 0), ADDRESS_HALF(&flow->source, 1),
				  flow->source_port, packet->service - 1);
	return found ? note_usual(packet, found, *(volatile __u64 *)&found->word) : 0;
}
