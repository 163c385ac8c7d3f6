/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Slots whose flows may be of several backends, without agents: the director knows a
 * flow's backend by what it has seen of the flow. A SYN that it does not know goes where
 * the ring says, and is remembered; any other packet that it does not know goes to the
 * oldest owner that is alive, and is remembered, too.
 */
#pragma once

#include "director/budget.h"
#include "director/pick/flow_table.h"
#include "director/pick/quota_places.h"
#include "director/pick/former_table.h"
#include "director/pick/inferred_owner.h"
#include "director/pick/policy.h"
#include "director/pick/previous_ring.h"

/* The flow is remembered, but its backend is gone or must not get this packet. */
#define FLOW_GONE 0xffffffffU

/* Reports a flow for the group's other directors. The reader is woken if it has read all before. */
static __noinline int tell_flow(const struct flow *flow, __u32 service,
				const struct flow_known *known)
{
	struct flow_entry *told = bpf_ringbuf_reserve(&told_flows, sizeof(*told), 0);

	if (!told) {
		count_flow(FLOW_UNTOLD);
		return 0;
	}
	write_entry(told, flow, service, known);
	bpf_ringbuf_submit(told, 0);
	return 1;
}

/*
 * Whether the group may be told of one more fresh flow. A flood uses the budget up, and then only
 * flows of the sources that send least are told. Not inlined, for its room on the stack.
 */
static __noinline int may_tell_fresh(const struct settings *settings, const struct packet *packet)
{
	return may_spend(BUDGET_FRESH, &packet->flow, FRESH_FLOWS_TOLD / settings->cpus, settings);
}

/* Whether the group should know how a packet has changed its flow. */
static __always_inline int is_news(const struct settings *settings, const struct packet *packet,
				   union flow_word before, union flow_word now, __u64 hash)
{
	return flow_is_news(before, now, hash) ||
	       (flow_is_fresh_news(before, now) && may_tell_fresh(settings, packet));
}

/*
 * The backend of a flow that is remembered, NO_BACKEND or FLOW_GONE, and what this packet makes of
 * the flow. known: what was remembered. Not static: verified once.
 */
__noinline __u32 follow_flow(const struct settings *settings, const struct packet *packet,
			     __u64 hash, __u32 service, struct flow_known *known)
{
	__u32 now = flow_clock(), number;
	struct flow_place *place;
	union flow_word before;
	int changed, evidence;

	if (!settings || !packet || !known ||
	    !find_flow(settings, &packet->flow, hash, service, known) ||
	    !flow_live(known->word, now))
		return NO_BACKEND;
	place = place_at(known->place);
	if (!place || !flow_usable(known, packet))
		return FLOW_GONE;
	if (flow_may_stay(packet) && flow_age(known->word, now) < FLOW_SEEN_LATE &&
	    flow_stays(known->word, known->next, packet, packet->sequence))
		return known->backend;
	before = known->word;
	number = known->next;
	known->word.word = flow_follow(before.word, &known->next, packet, now);
	changed = known->word.word != before.word;
	/* The number is written only if the word has not changed meanwhile. */
	if ((changed || number != known->next) && !flow_swap(place, before, known->word))
		return known->backend;
	if (number != known->next)
		place->next = known->next;
	if (changed && settings->former_buckets)
		write_former(settings, &packet->flow, service, known);
	/* Evidence of a guess is told even if the budget is used up: once a second for a service. */
	evidence = flow_goes_on(before, known->word) && note_guess(packet, service, known->backend);
	if (settings->flags & SETTINGS_TELL &&
	    (evidence || (changed && is_news(settings, packet, before, known->word, hash))))
		tell_flow(&packet->flow, service, known);
	return known->backend;
}

/*
 * The backend of a flow that only the former table has, and that is taken over from there. Without a
 * place here it stays there.
 */
static __always_inline __u32 take_former(const struct settings *settings,
					 const struct packet *packet,
					 const struct ring_header *header, __u64 hash,
					 struct flow_fresh *fresh)
{
	__u32 place = fresh->to.place, found; /* of a flow that had timed out, or none */
	__u32 service = header->service;

	fresh->from = fresh->to.word;
	if (!find_former(settings, &packet->flow, service, &fresh->to))
		return NO_BACKEND;
	fresh->to.place = place;
	note_quota(header, fresh);
	if (insert_flow(settings, &packet->flow, hash, service, fresh) == FLOW_HAS_PLACE) {
		count_flow(FLOW_MOVED);
		return follow_flow(settings, packet, hash, service, &fresh->to);
	}
	found = flow_usable(&fresh->to, packet) ? fresh->to.backend : FLOW_GONE;
	fresh->to.place = FLOW_NOWHERE;
	return found;
}

/*
 * A backend's SYN-ACK on its way to the client, in nat: when the client acknowledges its number,
 * both have sent what only they can.
 */
static __always_inline int note_syn_ack(const struct settings *settings,
					const struct packet *packet, const struct flow *flow,
					__u32 service, __u32 index)
{
	struct proof_segment segment = segment_from(packet, PROOF_BACKEND);
	__u64 hash = flow_hash(settings, flow, service);
	struct proof_numbers numbers = {};
	struct flow_known known = {};
	struct flow_place *place;
	union flow_word next;

	if (!find_flow(settings, flow, hash, service, &known))
		return 0;
	place = place_at(known.place);
	if (known.word.state == FLOW_SYN) {
		numbers.client = known.next;
		numbers.known = PROOF_CLIENT;
	} else if (known.word.state != FLOW_ANSWERED) {
		return 0;
	}
	if (!place || known.backend != index || flow_age(known.word, flow_clock()) >= FLOW_QUIET ||
	    !(proof_signs(&numbers, &segment) & PROOF_ANSWERS))
		return 0;
	next = known.word;
	next.state = FLOW_ANSWERED;
	/* Swapped even if the word stays as it is: the place may be another flow's by now. */
	if (flow_swap(place, known.word, next))
		place->next = flow_number(proof_next(&segment));
	return 1;
}

/*
 * Remembers a placed flow if its packet may begin one. fresh: what was known of it, and does not hold
 * any more.
 */
static __always_inline enum flow_inserted
remember_flow(const struct settings *settings, const struct packet *packet,
	      const struct ring_header *header, __u64 hash, __u32 index, struct flow_fresh *fresh)
{
	const struct backend *backend = backend_at(index);
	struct flow_known *to = &fresh->to;
	__u8 state = flow_first(packet);
	enum flow_inserted written;

	if (!backend || state == FLOW_FREE)
		return FLOW_HAS_PLACE;
	/* Full NAT remembers its flows itself. */
	if (backend->mode == MODE_NAT && backend->flags & BACKEND_SNAT)
		return FLOW_HAS_PLACE;
	fresh->from = to->word;
	to->word.seen = flow_clock();
	to->word.since = to->word.seen;
	to->word.state = state;
	to->word.epoch = backend->epoch;
	to->backend = index;
	to->next = flow_next_number(packet);
	note_quota(header, fresh);
	written = insert_flow(settings, &packet->flow, hash, header->service, fresh);
	if (written != FLOW_HAS_PLACE)
		return written;
	count_flow(FLOW_INSERTED);
	if (settings->former_buckets)
		write_former(settings, &packet->flow, header->service, to);
	return written;
}

/*
 * After a change of the ring's size a slot may have parts of two slots of the older ring,
 * which had different owners. Whether the flow is beyond the border: in another slot of the
 * older ring than the first hash of its slot.
 */
static __noinline int beyond_border(const struct packet *packet, const struct ring_header *header,
				    __u32 number)
{
	__u64 size = header->size, older = header->older, first;

	if (!older || !size)
		return 0;
	first = (((__u64)number << 32) + size - 1) / size;
	return slot_of(hash_flow(&packet->flow, header), older) != (__u32)(first * older >> 32);
}

/*
 * Whether the backend may have an unknown flow. A datagram may be the flow's first, which
 * a backend that is suspected to be down does not get.
 */
static __always_inline int may_have(const struct backend *backend, const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_TCP ? keeps(backend) : alive(backend);
}

/* The first candidate that may have the flow, in the order in which they are likely to. */
static __noinline __u32 oldest_candidate(const struct packet *packet, __u32 ring, __u32 owner,
					 __u32 next, int beyond)
{
	const struct candidates *list = ring_line_at(ring + (next & ~SLOT_LIST));

	if (!list)
		return NO_BACKEND;
	for (__u32 i = 0; i < RING_CANDIDATES_MAX && i <= list->count; i++) {
		__u32 index = beyond ? candidate_at(list, list->beyond[i], owner) :
				       candidate_by_age(list, i, owner);
		const struct backend *backend = backend_at(index);

		if (backend && may_have(backend, packet))
			return index;
	}
	return NO_BACKEND;
}

/* The same for any slot: in one without a list, flows of others than the owner are remembered. */
static __noinline __u32 likely_in(const struct packet *packet, __u32 ring, const struct slot *slot,
				  int beyond)
{
	const struct backend *owner;

	if (slot->next & SLOT_LIST)
		return oldest_candidate(packet, ring, slot->owner, slot->next, beyond);
	owner = backend_at(slot->owner);
	return owner && may_have(owner, packet) ? slot->owner : next_candidate(ring, slot->next);
}

/* The likely backend of a flow that is not remembered and does not begin. */
static __noinline __u32 likely_candidate(const struct packet *packet, __u32 ring,
					 const struct ring_header *header, __u32 number)
{
	const struct slot *slot = slot_at(ring, number);
	struct before before = {};
	__u32 found = NO_BACKEND;

	if (!slot)
		return NO_BACKEND;
	if (header->before && find_before(packet, ring, &before))
		found = likely_in(packet, before.ring, &before.slot, 0);
	if (found != NO_BACKEND)
		return found;
	return likely_in(packet, ring, slot,
			 slot->next & SLOT_LIST && beyond_border(packet, header, number));
}

/* A new connection: by the ring's policy, or where the ring says. */
static __noinline __u32 place_new(struct packet *packet, const struct ring_header *header)
{
	__u32 chosen = NO_BACKEND;

	if (header->policy != POLICY_MAGLEV && !(header->flags & RING_REDIRECTED) && is_syn(packet))
		chosen = choose_by_policy(packet);
	return chosen != NO_BACKEND ? chosen : first_candidate(packet->ring, &packet->slot);
}

/*
 * Places a new connection that flow memory has no room for, as in a flood. Its later packets are
 * those of an unknown flow, so the SYN goes to the same backend as they do: to an earlier owner
 * while the slot has several. The ring's or the policy's choice would get only the SYN.
 */
static __noinline __u32 place_unremembered(const struct packet *packet, __u32 ring,
					   const struct ring_header *header, __u32 number,
					   __u32 chosen)
{
	__u32 likely = likely_candidate(packet, ring, header, number);
	const struct backend *backend = backend_at(likely);

	return backend && alive(backend) ? likely : chosen;
}

/* The backend of a packet of a slot whose flows may be of several, or NO_BACKEND: the long way. */
__noinline __u32 pick_remembered(struct packet *packet, __u32 number)
{
	const struct settings *settings = get_settings();
	struct flow_fresh fresh = { .to = { .place = FLOW_NOWHERE } };
	const struct ring_header *header;
	enum flow_inserted written;
	__u32 found, raced;
	__u64 hash;

	if (!packet || !settings)
		return NO_BACKEND;
	header = ring_line_at(packet->ring);
	if (!header)
		return NO_BACKEND;
	hash = flow_hash(settings, &packet->flow, header->service);
	found = follow_flow(settings, packet, hash, header->service, &fresh.to);
	if (found == NO_BACKEND && settings->flags & SETTINGS_FORMER && !is_syn(packet))
		found = take_former(settings, packet, header, hash, &fresh);
	if (found != NO_BACKEND && found != FLOW_GONE)
		return found;
	if (found == NO_BACKEND && !is_syn(packet))
		found = likely_candidate(packet, packet->ring, header, number);
	else
		found = place_new(packet, header);
	if (found == NO_BACKEND || packet->flags & PACKET_ICMP_ERROR)
		return found;
	written = remember_flow(settings, packet, header, hash, found, &fresh);
	if (written == FLOW_RACED) {
		raced = follow_flow(settings, packet, hash, header->service, &fresh.to);
		if (raced != NO_BACKEND && raced != FLOW_GONE)
			return raced;
		written = remember_flow(settings, packet, header, hash, found, &fresh);
	}
	if (written != FLOW_HAS_PLACE) {
		count_flow(FLOW_REFUSED);
		if (is_syn(packet))
			found = place_unremembered(packet, packet->ring, header, number, found);
	}
	if (is_syn(packet))
		load_open(header, found);
	return found;
}
