/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Takes over what another director of the group remembers of a flow, as if the flow's
 * packets had come here. It runs beside packets, also on this CPU, which may come between
 * any two of its steps: what they have written stays.
 */
#pragma once

#include "director/pick/flows.h"

/* Fresh flows that have gone on here. */
#define FLOW_STATES_GONE_ON                                                                        \
	(FLOW_STATE(FLOW_BEGUN) | FLOW_STATE(FLOW_TWICE) | FLOW_STATE(FLOW_ANSWERED))

/* Fresh flows of which this director has seen one packet that need not be the first: guesses. */
#define FLOW_STATES_GUESSED (FLOW_STATE(FLOW_LEARNED) | FLOW_STATE(FLOW_ONCE))

/* Fresh flows that have gone on elsewhere. */
#define FLOW_STATES_TOLD (FLOW_STATE(FLOW_TOLD) | FLOW_STATE(FLOW_TOLD_UDP))

/*
 * Whether a fresh flow that was told takes the place of one that is not fresh: if the client has
 * ended that one, and has been quiet since. Then a new connection has the same port. The quiet is
 * that after which an ended flow gives way to any other one (flow_rank): a client that has sent a
 * FIN may still acknowledge what it gets.
 */
static __always_inline int telling_follows(union flow_word word, union flow_word told)
{
	__s32 quiet = word.state == FLOW_RESET ? FLOW_QUIET : FLOW_ENDED;

	return flow_over(word.state) && !flow_over(told.state) &&
	       (__s32)(told.seen - word.seen) > quiet;
}

/*
 * Whether a told flow is the connection that is remembered here, by the client's numbers: a client
 * may have used the port again before others heard of the end. A number is known only of a flow
 * whose packets come here: of a told one it is as old as the telling, and an answered one has the
 * backend's.
 */
static __always_inline int is_same_connection(const struct flow_known *own,
					      const struct flow_entry *told)
{
	return own->word.state == FLOW_TOLD || own->word.state == FLOW_ANSWERED || !own->next ||
	       !told->next || proof_near(told->next, own->next);
}

/*
 * Whether a told fresh flow of another backend takes the place of a fresh one. In the second in
 * which a client ends a connection it may use the port again: its numbers say so. A told end takes
 * the place only of a guess, or of a flow that is over, and only if it is younger: it may be of
 * the connection before.
 */
static __always_inline int telling_moves(const struct flow_known *own,
					 const struct flow_entry *other, union flow_word told)
{
	const __u32 ended = FLOW_STATES_GUESSED | FLOW_STATES_OVER;
	__s32 younger = told.seen - own->word.seen;
	__u8 state = own->word.state;

	if (FLOW_STATES_GONE_ON >> (state & 31) & 1)
		return 0;
	if (flow_over(told.state))
		return younger > 0 && ended >> (state & 31) & 1;
	if (flow_over(state))
		return younger > 0 || (!younger && !is_same_connection(own, other));
	if (FLOW_STATES_GUESSED >> (state & 31) & 1 && FLOW_STATES_TOLD >> (told.state & 31) & 1)
		return 1;
	return younger > 0;
}

/*
 * Whether what was told takes the place of what this director remembers: a flow that is not
 * fresh prevails over a fresh one, one that has gone on elsewhere over a guess, and else the
 * younger one counts: its client has used the port again. But a fresh flow that has gone on here
 * keeps its backend: another host may have sent the told packets in the client's name. (A flow that
 * an older version tells is fresh, because it may be of a flood.)
 */
static __always_inline int telling_prevails(const struct flow_known *own,
					    const struct flow_entry *told)
{
	union flow_word word = own->word, other = flow_read(told);
	__s32 younger = other.seen - word.seen;

	if (flow_kept(word.state) && !flow_kept(other.state))
		return telling_follows(word, other);
	if (!flow_kept(word.state) && flow_kept(other.state))
		return !flow_over(other.state);
	if (own->backend == told->backend)
		return younger >= 0 && (flow_kept(word.state) || !flow_over(other.state) ||
					is_same_connection(own, told));
	return flow_kept(word.state) ? younger > 0 : telling_moves(own, told, other);
}

/*
 * What becomes of a flow that is remembered with the backend that was told. A flow that has gone on
 * elsewhere stands for the next connection of its port where the one that is known here is over or
 * has only begun. A guess stays one until its next packet comes: that is evidence (inferred_owner.h).
 */
static __always_inline union flow_word telling_renews(union flow_word word, union flow_word told)
{
	const __u32 stays = FLOW_STATES_GONE_ON | FLOW_STATES_GUESSED;

	word.seen = told.seen;
	if (flow_kept(told.state) || (flow_over(told.state) && !flow_kept(word.state))) {
		word.state = told.state;
	} else if (!flow_over(told.state) && !(stays >> (word.state & 31) & 1)) {
		word.state = told.state;
		word.since = told.since;
	}
	return word;
}

/* If a packet of the flow has come meanwhile, what it has written stays, and the told one goes. */
static __noinline int yield_told(const struct settings *settings, const struct flow *flow,
				 const struct telling *told, __u32 number)
{
	struct flow_place *place = place_at(number), *other;
	__u64 hash = flow_hash(settings, flow, told->entry.service);
	union flow_word word, nothing = {};

	other = place_at(search_flow(settings, flow, hash, told->entry.service, number));
	if (!place || !other || !flow_live(flow_read(other), flow_clock()))
		return 0;
	word = flow_read(place);
	nothing.turn = word.turn;
	return flow_swap(place, word, nothing);
}

/* Writes a flow that is not remembered, or is remembered with another backend. */
static __noinline enum told_outcome remember_told(const struct settings *settings,
						  const struct flow *flow,
						  const struct telling *told,
						  const struct flow_known *own)
{
	const struct backend *backend = backend_at(told->entry.backend);
	struct flow_fresh fresh = {
		.to = { .word = flow_read(&told->entry),
			.backend = told->entry.backend,
			.next = told->entry.next,
			.place = own->place },
		.from = own->word,
		.quota = flow_quota(told->entry.service),
	};
	__u64 hash = flow_hash(settings, flow, told->entry.service);
	enum flow_inserted written;

	if (!backend || backend->state == BACKEND_FREE || backend->epoch != fresh.to.word.epoch)
		return TOLD_GONE;
	written = insert_flow(settings, flow, hash, told->entry.service, &fresh);
	if (written != FLOW_HAS_PLACE)
		return written == FLOW_RACED ? TOLD_OLDER : TOLD_REFUSED;
	return yield_told(settings, flow, told, fresh.to.place) ? TOLD_OLDER : TOLD_NEW;
}

static __always_inline enum told_outcome take_told(const struct settings *settings,
						   const struct telling *told, __u8 ipv6)
{
	/* All that flow memory compares, besides the service. */
	struct flow flow = {
		.source = told->entry.source,
		.source_port = told->entry.source_port,
		.destination_port = told->entry.destination_port,
		.ipv6 = ipv6,
	};
	union flow_word next, other = flow_read(&told->entry);
	__u64 hash = flow_hash(settings, &flow, told->entry.service);
	struct flow_known own = {};
	struct flow_place *place;

	if (find_flow(settings, &flow, hash, told->entry.service, &own) &&
	    flow_live(own.word, flow_clock()) && flow_backend(own.backend, own.word)) {
		if (!telling_prevails(&own, &told->entry))
			return TOLD_OLDER;
		place = place_at(own.place);
		if (place && own.backend == told->entry.backend) {
			next = telling_renews(own.word, other);
			if (!flow_swap(place, own.word, next))
				return TOLD_OLDER;
			/* That of an answered flow is what its client has to acknowledge. */
			if (told->entry.next && next.state != FLOW_ANSWERED)
				place->next = told->entry.next;
			return TOLD_AGAIN;
		}
	}
	/* The end of a flow that is not known here. */
	if (other.state == FLOW_RESET || other.state == FLOW_CUT)
		return TOLD_OLDER;
	return remember_told(settings, &flow, told, &own);
}

static long take_telling(__u32 i, void *unused)
{
	struct telling *told = bpf_map_lookup_elem(&flow_tellings, &i);
	const struct settings *settings = get_settings();

	(void)unused;
	if (!told || !settings)
		return 1;
	told->outcome = take_told(settings, told, told->ipv6);
	return 0;
}
