/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that a NIC steers. A NIC has a rule for each, which leads its packets to a receive queue of the
 * flow's service: so neither service nor ring nor flow memory is looked up, but only the flow itself, in a
 * table that is as small as the NIC's. Only director_steering has this.
 *
 * The usual way decides: the table has what that has said of a flow. It says so again for one packet in
 * 256, once for each tick, and for every packet that begins or ends a connection. So flow memory, the evidence by which
 * generations leave logs, and what other directors are told are those of any other flow. A connection
 * begins once more by a SYN, whose backend may be another one: whichever queue the SYN comes by, and
 * whatever it looks like, it is compared with the table.
 *
 * A packet is known by its queue's VIP, port and protocol, and by 24 bits of its flow's hash beside its
 * place. Those of another flow, which no rule has led there, are the same once in 60 million such flows;
 * what is written is compared with the whole flow.
 */
#pragma once

#include "director/maps.h"
#include "director/pick/flow_table.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "lib/packet.h"

/*
 * The packet that director_steering works at, and what a receive queue says of it: not on the stack, where
 * steering needs the room, and where the verifier would follow each value.
 */
struct steered {
	struct packet packet;
	__u64 word;   /* of the flow, before the packet's backend is chosen */
	__u32 place;  /* of the flow's word in steered_flows, plus one; 0: the flow has no rule */
	__u16 follow; /* 1: the packet goes to packet.backend, by the table */
	__u16 look;   /* enum look */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct steered);
} steered_packet SEC(".maps");

/* Whether a packet is one of those that are looked at, by its number: one in 1 << bits. */
static __always_inline int is_sample(__u64 number, int bits)
{
	/* Multiples of the golden ratio: no regular order of flows keeps one of them out. */
	return number * HASH_K1 >> (64 - bits) == 0;
}

/*
 * How many bytes of a queue pass until a packet takes the usual way: far fewer than PROOF_AFTER of each
 * flow, because flow memory must not lose sight of a flow's numbers (lib/proof.h).
 */
#define STEERED_BYTES_SHIFT 16

/* Why a packet takes the usual way whatever the table says. */
enum look {
	LOOK_NOT,
	LOOK_SAMPLE, /* it counts for others */
	LOOK_BYTES,  /* because of the bytes since the last one */
};

/* Counts a packet of a queue. */
static __always_inline enum look count_queue(struct steered_queue *queue, __u32 length)
{
	__u64 packets = queue->packets, bytes = queue->bytes;

	queue->packets = packets + 1;
	queue->bytes = bytes + length;
	if (unlikely(is_sample(packets, STEERED_SAMPLE_BITS)))
		return LOOK_SAMPLE;
	return unlikely((bytes ^ (bytes + length)) >> STEERED_BYTES_SHIFT) ? LOOK_BYTES : LOOK_NOT;
}

/* Counts a packet that count_queue has counted, and that takes the usual way. */
static __always_inline void count_usual(struct steered_queue *queue, __u32 length)
{
	queue->usual++;
	queue->usual_bytes += length;
}

/* Where the queues of a NIC begin in steered_queues. */
static __always_inline __u32 steered_place(__u32 interface)
{
	return (interface * *(volatile __u32 *)&steered_factor >> (32 - STEERED_INTERFACES_BITS)) *
	       STEERED_QUEUES;
}

/* The queue that a packet has come by, if flows of it are steered. */
static __always_inline struct steered_queue *find_queue(struct xdp_md *ctx)
{
	__u32 number = ctx->rx_queue_index, interface = ctx->ingress_ifindex;
	__u32 place = steered_place(interface) + number;
	struct steered_queue *queue = bpf_map_lookup_elem(&steered_queues, &place);

	return queue && queue->interface == interface && number < STEERED_QUEUES ? queue : NULL;
}

static __always_inline __u64 steered_hash(__u64 first, __u64 second, __u32 port, __u32 service)
{
	first *= *(volatile __u64 *)&steered_keys[0];
	if (second)
		first += second * *(volatile __u64 *)&steered_keys[1];
	return hash_finish(first, port | (__u64)service << 32);
}

/* The upper half of a word that holds now. The kernel reads its clock by a load here. */
static __always_inline __u32 half_now(__u64 hash)
{
	return (__u32)(hash >> STEERED_HASH_SHIFT << 8) |
	       (__u8)(bpf_jiffies64() >> STEERED_TICK_BITS);
}

/* The word of a hash; 0: there is none, or it does not hold any more. */
static __always_inline __u64 find_word(__u64 hash)
{
	__u32 index = hash & *(volatile __u32 *)&steered_mask, half = half_now(hash);
	const struct steered_words *words = bpf_map_lookup_elem(&steered_words, &index);
	__u64 word;

	if (!words)
		return 0;
	word = *(const volatile __u64 *)&words->word[0];
	if (likely(word >> STEERED_TICK_SHIFT == half))
		return word;
	word = *(const volatile __u64 *)&words->word[1];
	return word >> STEERED_TICK_SHIFT == half ? word : 0;
}

/* The word of a place; NULL: there is no such place. */
static __always_inline __u64 *word_at(__u32 place)
{
	__u32 index = place / STEERED_PLACES;
	struct steered_words *words = bpf_map_lookup_elem(&steered_words, &index);

	return words ? &words->word[place % STEERED_PLACES] : NULL;
}

/*
 * The place of a packet's flow in the service with an index, plus one; 0: it has no rule. The whole
 * flow is compared.
 */
static __noinline __u32 find_steered_flow(const struct flow *flow, __u32 service)
{
	__u64 first = ADDRESS_HALF(&flow->source, 0), second = ADDRESS_HALF(&flow->source, 1);
	__u64 hash = steered_hash(first, second, flow->source_port, service);
	__u32 index = (hash & *(volatile __u32 *)&steered_mask) * STEERED_PLACES;
	const struct steered_flow *at;
	const __u64 *word;

	for (int i = 0; i < STEERED_PLACES; i++, index++) {
		at = bpf_map_lookup_elem(&steered_flows, &index);
		word = word_at(index);
		/* The word first: a place that was taken rests before it has another flow. */
		if (at && word && *(const volatile __u64 *)word && at->address[0] == first &&
		    at->address[1] == second && at->port == flow->source_port &&
		    at->service == service)
			return index + 1;
	}
	return 0;
}

/* Whether the backend of a word of a steered flow is known, and may get the flow's packets. */
static __always_inline int is_followed(__u64 word, __u32 service)
{
	const struct backend *backend = backend_at(word & STEERED_BACKEND);

	return word & STEERED_BACKEND && backend &&
	       backend->epoch == (__u8)(word >> STEERED_EPOCH_SHIFT) &&
	       backend->service == service && alive(backend);
}

/* Whether a packet has what its queue says. `ipv6` is that of the flow, as a constant. */
static __always_inline int is_of_service(const struct steered_queue *queue, const struct flow *flow,
					 int ipv6)
{
	return queue->address[0] == ADDRESS_HALF(&flow->destination, 0) &&
	       (!ipv6 || queue->address[1] == ADDRESS_HALF(&flow->destination, 1)) &&
	       queue->key == (flow->segment | (__u64)flow->destination_port << 32 |
			      (__u64)kind_of(flow) << 48);
}

/*
 * What the queue of a packet says of it. The packet is plain, as those of rules are: NICs do not match
 * fragments by their ports. Those of a queue whose backends are all in l2dsr were looked at before.
 * `ipv6` is that of the flow, as a constant.
 */
static __always_inline void find_steered(struct steered *steered, struct steered_queue *queue,
					 int ipv6)
{
	struct packet *packet = &steered->packet;
	const struct flow *flow = &packet->flow;
	__u64 word;

	if (!is_of_service(queue, flow, ipv6))
		return;
	if (!queue->l2dsr) {
		steered->look = count_queue(queue, packet->length);
		count_usual(queue, packet->length);
		word = find_word(steered_hash(ADDRESS_HALF(&flow->source, 0),
					      ADDRESS_HALF(&flow->source, 1), flow->source_port,
					      queue->service));
		if (likely(!steered->look && is_followed(word, queue->service) &&
			   !(flow->protocol == IPPROTO_TCP &&
			     packet->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)))) {
			queue->followed++;
			packet->backend = word & STEERED_BACKEND;
			packet->hash = hash_by(flow, queue->salt, queue->affinity == AFFINITY_FLOW);
			*(service_word *)&packet->service = 0;
			steered->follow = 1;
			return;
		}
	}
	steered->place = find_steered_flow(flow, queue->service);
	if (steered->place) {
		const __u64 *at = word_at(steered->place - 1);

		steered->word = at ? *(const volatile __u64 *)at : 0;
	}
}

/* What flow memory knows of a flow. */
enum stand {
	STAND_UNKNOWN, /* nothing: the ring decides */
	/*
	 * Its first packet alone. Flow memory has to see the next one: only then does it tell the group of
	 * the flow, take its backend for more than a guess, and keep a UDP flow with a backend that is
	 * suspected to be down.
	 */
	STAND_BEGINS,
	STAND_GOES_ON,
	STAND_OVER, /* the client has ended it, and has proved that it is the client */
};

static __noinline enum stand stand_of(const struct packet *packet, __u32 service)
{
	const __u32 begins = FLOW_STATE(FLOW_SYN) | FLOW_STATE(FLOW_ANSWERED) |
			     FLOW_STATE(FLOW_ONCE) | FLOW_STATE(FLOW_LEARNED);
	const struct settings *settings = get_settings();
	struct flow_known known;

	if (!packet || !settings ||
	    !find_flow(settings, &packet->flow, flow_hash(settings, &packet->flow, service),
		       service, &known) ||
	    !flow_live(known.word, flow_clock()))
		return STAND_UNKNOWN;
	if (flow_over(known.word.state))
		return STAND_OVER;
	return begins >> (known.word.state & 31) & 1 ? STAND_BEGINS : STAND_GOES_ON;
}

/*
 * What the usual way has said of a packet is so of its flow from now on, unless another packet has
 * changed the word that there was before.
 */
static __noinline int note_usual(const struct packet *packet, __u32 place, __u64 before)
{
	const struct backend *backend = backend_at(packet->backend);
	__u64 word = (__u64)half_now(before) << STEERED_TICK_SHIFT | STEERED_PLACE;
	__u64 *at = word_at(place - 1), now;
	enum stand stand;

	if (!at)
		return 0;
	if (!is_syn(packet) && backend && packet->backend != NO_BACKEND) {
		stand = stand_of(packet, backend->service);
		if (stand == STAND_OVER)
			word |= STEERED_ENDED; /* the next connection may be another director's */
		else if (stand != STAND_BEGINS)
			word |= packet->backend | (__u64)backend->epoch << STEERED_EPOCH_SHIFT;
	}
	/* A place that is free, or gets another flow meanwhile, stays as it is. */
	if (!before || before == word)
		return 1;
	now = __sync_val_compare_and_swap(at, before, word);
	if (now == before)
		return 1;
	/* What has ended stays so, whatever else has changed. */
	if (word & STEERED_ENDED && now & STEERED_PLACE &&
	    (now ^ word) >> STEERED_HASH_SHIFT == 0 &&
	    __sync_val_compare_and_swap(at, now, (now & ~(__u64)STEERED_BACKEND) | STEERED_ENDED) ==
		    now)
		return 1;
	/* One of two packets began the flow once more: the next packet asks again. */
	__sync_fetch_and_and(at, ~(__u64)STEERED_BACKEND);
	return 1;
}

/* The same of a SYN that came by any queue: it may begin a flow once more that has a rule. */
static __noinline int note_begun(const struct packet *packet)
{
	__u32 place = find_steered_flow(&packet->flow, packet->service - 1);
	const __u64 *at = place ? word_at(place - 1) : NULL;

	return at ? note_usual(packet, place, *(const volatile __u64 *)at) : 0;
}
