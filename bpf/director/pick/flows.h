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
#include "director/pick/inferred_owner.h"
#include "director/pick/policy.h"
#include "director/pick/previous_ring.h"

/* The flow is remembered, but its backend is gone or must not get this packet. */
#define FLOW_GONE 0xffffffffU

/* Frees other CPUs' entries of the flow with another backend: this CPU's entry is younger. */
static __noinline int forget_elsewhere(const struct settings *settings, const struct flow *flow,
				       __u64 hash, __u32 service, __u32 backend)
{
	struct flow_hunt hunt = {
		.settings = settings,
		.flow = flow,
		.hash = hash,
		.service = service,
		.own = bpf_get_smp_processor_id(),
		.keep = backend,
	};

	return bpf_loop(settings->flow_cpus, flow_forget_cpu, &hunt, 0);
}

/* Reports a flow for the group's other directors. The reader is woken if it has read all before. */
static __noinline int tell_flow(const struct flow_entry *entry, __u64 word)
{
	struct flow_entry *told = bpf_ringbuf_reserve(&told_flows, sizeof(*told), 0);

	if (!told) {
		count_flow(FLOW_UNTOLD);
		return 0;
	}
	*told = *entry;
	*(__u64 *)told = word;
	bpf_ringbuf_submit(told, 0);
	return 1;
}

/*
 * Whether the group may be told of one more fresh flow. A flood uses the budget up, and then only
 * flows of the sources that send least are told. Not inlined, for its room on the stack.
 */
static __noinline int may_tell_fresh(const struct settings *settings, const struct packet *packet)
{
	return may_spend(&fresh_budgets, &packet->flow, FRESH_FLOWS_TOLD / settings->flow_cpus,
			 settings);
}

/* Whether the group should know how a packet has changed its flow. */
static __always_inline int is_news(const struct settings *settings, const struct packet *packet,
				   union flow_word before, union flow_word now, __u64 hash)
{
	return flow_is_news(before, now, hash) ||
	       (flow_is_fresh_news(before, now) && may_tell_fresh(settings, packet));
}

/*
 * Whether a packet is of another connection than the one that this CPU remembers of its flow. Its
 * client may have used the port again, and another CPU may have seen that SYN: the import of flows
 * writes to any CPU's bucket. What is remembered of an open flow that is sustained or proved stays:
 * anybody can send a SYN and what follows it.
 */
static __always_inline int is_strange(const struct flow_entry *entry, union flow_word word,
				      const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_TCP &&
	       (!flow_kept(word.state) || flow_over(word.state)) &&
	       !flow_has_number(entry, word, packet->sequence);
}

/*
 * Frees this CPU's entry of a flow if another CPU has the connection that the packet belongs to.
 * Returns whether it has. Not inlined, for its room on the stack.
 */
static __noinline int yield_flow(const struct settings *settings, const struct packet *packet,
				 __u64 hash, __u32 service, struct flow_entry *entry)
{
	struct flow_hunt hunt = {
		.settings = settings,
		.flow = &packet->flow,
		.hash = hash,
		.service = service,
		.now = flow_clock(),
		.own = bpf_get_smp_processor_id(),
		.way = FLOW_WAYS,
		.numbered = packet->flow.protocol == IPPROTO_TCP,
		.sequence = packet->sequence,
	};
	union flow_word word = flow_read(entry), nothing = { .turn = word.turn };

	if (is_syn(packet) || packet->flags & PACKET_ICMP_ERROR)
		return 0;
	bpf_loop(settings->flow_cpus, flow_hunt_cpu, &hunt, 0);
	if (hunt.way >= FLOW_WAYS)
		return 0;
	return flow_swap(entry, word, nothing);
}

/* The flow in this CPU's bucket: its backend, NO_BACKEND or FLOW_GONE. */
static __noinline __u32 find_flow(const struct settings *settings, const struct packet *packet,
				  __u64 hash, __u32 service)
{
	struct flow_bucket *bucket = flow_bucket(settings, hash, bpf_get_smp_processor_id());
	union flow_word word, next;
	struct flow_entry *entry;
	__u32 now = flow_clock(), way;
	int changed, evidence, usable;
	__u32 number;

	if (!bucket)
		return NO_BACKEND;
	way = flow_search(bucket, &packet->flow, service, FLOW_EVERY_PLACE);
	if (way >= FLOW_WAYS)
		return NO_BACKEND;
	entry = &bucket->entries[way];
	word = flow_read(entry);
	if (!flow_live(word, now))
		return NO_BACKEND;
	usable = flow_usable(entry, word, packet, now);
	if (unlikely(!usable || is_strange(entry, word, packet)) &&
	    yield_flow(settings, packet, hash, service, entry))
		return NO_BACKEND;
	if (!usable)
		return FLOW_GONE;
	number = entry->next;
	next.word = flow_follow(word.word, &number, packet, now);
	changed = next.word != word.word && flow_swap(entry, word, next);
	if (number != entry->next)
		entry->next = number;
	/* Evidence of a guess is told even if the budget is used up: once a second for a service. */
	evidence = flow_goes_on(word, next) && note_guess(packet, service, entry->backend);
	if (settings->flags & SETTINGS_TELL &&
	    (evidence || (changed && is_news(settings, packet, word, next, hash))))
		tell_flow(entry, next.word);
	/* The connection is new: another CPU may have an earlier one that never ended. */
	if ((word.state == FLOW_SYN || word.state == FLOW_ANSWERED) && next.state != word.state)
		forget_elsewhere(settings, &packet->flow, hash, service, entry->backend);
	return entry->backend;
}

/*
 * The flow in another CPU's bucket (returned as by find_flow), from where it moves to this CPU's.
 * It is written here before it is freed there, and stays there if it has no place here.
 */
static __noinline __u32 move_flow(const struct settings *settings, const struct packet *packet,
				  __u64 hash, __u32 service)
{
	struct flow_hunt hunt = {
		.settings = settings,
		.flow = &packet->flow,
		.hash = hash,
		.service = service,
		.now = flow_clock(),
		.own = bpf_get_smp_processor_id(),
		.way = FLOW_WAYS,
	};
	union flow_word word, next, nothing = {};
	struct flow_fresh fresh = {};
	struct flow_entry *entry;
	struct flow_bucket *bucket;
	__u32 place;
	int evidence;

	bpf_loop(settings->flow_cpus, flow_hunt_cpu, &hunt, 0);
	bucket = flow_bucket(settings, hunt.hash, hunt.cpu);
	if (!bucket || hunt.way >= FLOW_WAYS)
		return NO_BACKEND;
	entry = &bucket->entries[hunt.way];
	word = flow_read(entry);
	fresh.backend = entry->backend;
	fresh.next = entry->next;
	fresh.word.word = flow_follow(word.word, &fresh.next, packet, hunt.now);
	next = fresh.word;
	/* Another CPU has changed it meanwhile: the flow's next packet looks again. */
	if (!flow_live(word, hunt.now) || !flow_matches(entry, &packet->flow, hunt.service))
		return NO_BACKEND;
	if (!flow_usable(entry, word, packet, hunt.now))
		return FLOW_GONE;
	if (packet->flags & PACKET_ICMP_ERROR)
		return fresh.backend;
	evidence = flow_goes_on(word, next) && note_guess(packet, service, fresh.backend);
	if (settings->flags & SETTINGS_TELL &&
	    (evidence || (settings->flags & SETTINGS_MOVES && flow_kept(next.state)) ||
	     is_news(settings, packet, word, next, hunt.hash)))
		tell_flow(entry, next.word);
	place = insert_flow(settings, &packet->flow, hunt.hash, hunt.service, &fresh);
	if (place) {
		flow_put_tag(settings, hunt.hash, place - 1);
		nothing.turn = word.turn;
		next = nothing;
		count_flow(FLOW_MOVED);
	}
	flow_swap(entry, word, next);
	return fresh.backend;
}

/*
 * A backend's SYN-ACK on its way to the client, in nat: when the client acknowledges its number,
 * both have sent what only they can. Another CPU fills the flow's bucket: it has not given the
 * place to another flow, because this one has just been seen.
 */
static __always_inline int note_syn_ack(const struct settings *settings,
					const struct packet *packet, const struct flow *flow,
					__u32 service, __u32 index)
{
	struct flow_hunt hunt = {
		.settings = settings,
		.flow = flow,
		.hash = flow_hash(settings, flow),
		.service = service,
		.now = flow_clock(),
		.own = NO_CPU,
		.way = FLOW_WAYS,
	};
	struct proof_segment segment = segment_from(packet, PROOF_BACKEND);
	struct proof_numbers numbers = {};
	struct flow_bucket *bucket;
	struct flow_entry *entry;
	union flow_word word, next;

	bpf_loop(settings->flow_cpus, flow_hunt_cpu, &hunt, 0);
	bucket = flow_bucket(settings, hunt.hash, hunt.cpu);
	if (!bucket || hunt.way >= FLOW_WAYS)
		return 0;
	entry = &bucket->entries[hunt.way];
	word = next = flow_read(entry);
	if (word.state == FLOW_SYN) {
		numbers.client = entry->next;
		numbers.known = PROOF_CLIENT;
	} else if (word.state != FLOW_ANSWERED) {
		return 0;
	}
	if (entry->backend != index || flow_age(word, hunt.now) >= FLOW_QUIET ||
	    !(proof_signs(&numbers, &segment) & PROOF_ANSWERS))
		return 0;
	next.state = FLOW_ANSWERED;
	/* Swapped even if the word stays as it is: the place may be another flow's by now. */
	if (flow_swap(entry, word, next))
		entry->next = flow_number(proof_next(&segment));
	return 1;
}

/* Remembers a placed flow if its packet may begin one. Returns 0 if there was no place for it. */
static __noinline int remember_flow(const struct settings *settings, const struct packet *packet,
				    __u64 hash, __u32 service, __u32 index)
{
	const struct backend *backend = backend_at(index);
	struct flow_fresh fresh = { .backend = index };
	__u8 state = flow_first(packet);
	__u32 place;

	if (!backend || state == FLOW_FREE)
		return 1;
	/* Full NAT remembers its flows itself. */
	if (backend->mode == MODE_NAT && backend->flags & BACKEND_SNAT)
		return 1;
	fresh.word.seen = flow_clock();
	fresh.word.since = fresh.word.seen;
	fresh.word.state = state;
	fresh.word.epoch = backend->epoch;
	fresh.next = flow_next_number(packet);
	place = insert_flow(settings, &packet->flow, hash, service, &fresh);
	if (place)
		flow_put_tag(settings, hash, place - 1);
	count_flow(place ? FLOW_INSERTED : FLOW_REFUSED);
	return place != 0;
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

/* The backend of a packet of a slot whose flows may be of several, or NO_BACKEND. */
__noinline __u32 pick_remembered(struct packet *packet, __u32 ring, __u32 number)
{
	const struct settings *settings = get_settings();
	const struct ring_header *header = ring_line_at(ring);
	struct slot *slot = slot_at(ring, number);
	__u32 service, found, moved = 0;
	__u64 hash;

	if (!packet || !settings || !header || !slot)
		return NO_BACKEND;
	service = header->service;
	hash = flow_hash(settings, &packet->flow);
	found = find_flow(settings, packet, hash, service);
	if (found == NO_BACKEND && !is_syn(packet))
		found = moved = move_flow(settings, packet, hash, service);
	if (found != NO_BACKEND && found != FLOW_GONE)
		return found;
	if (found == NO_BACKEND && !is_syn(packet))
		found = likely_candidate(packet, ring, header, number);
	else
		found = place_new(packet, header);
	if (found == NO_BACKEND || packet->flags & PACKET_ICMP_ERROR)
		return found;
	if (!remember_flow(settings, packet, hash, service, found) && is_syn(packet))
		found = place_unremembered(packet, ring, header, number, found);
	if (is_syn(packet))
		load_open(header, found);
	if (moved == FLOW_GONE)
		forget_elsewhere(settings, &packet->flow, hash, service, found);
	return found;
}
