/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where a remembered flow is. Its hash chooses two buckets, and a place in each: its own places. The
 * cache lines that they are in are its own lines. A new flow takes a free place in the first of
 * these; else one of the bucket with more free places, where its own line comes first; else the place
 * of a flow that has ended or is fresh (see flow_rank), in either bucket. A flow that is sustained or
 * proved is never pushed out. If there are several services, none has more than its share of a bucket.
 *
 * All CPUs fill the table. A place belongs to the CPU that has swapped its first word for
 * FLOW_CLAIMED, and the count of turns in that word tells a reader that another flow has got the
 * place while it was read (see read_place). Where a CPU may reorder its loads (arm64), one packet
 * that comes in that moment may go to the other flow's backend.
 *
 * A flow of IPv6 takes the two places of a cache line, of which the first one says what there is,
 * and has three buckets to choose from.
 */
#pragma once

#include "director/maps.h"
#include "director/pick/flow_state.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "lib/packet.h"

/*
 * How good a place is for a new flow, by the flow that is there. Flows that have sent only
 * their beginning give way first, those that were quiet longest before others. Flows that
 * have gone on come after them, the youngest first, because a flood is younger than the
 * connections that were there before it; so none of these gives way while a flow in the
 * buckets is too young to do so. Only flows that were quiet for minutes give way before that.
 */
#define FLOW_PLACE_FREE 0xffffff00U
#define FLOW_PLACE_UNANSWERED 0x30000000U
#define FLOW_PLACE_OLD 0x20000000U
#define FLOW_PLACE_YOUNG 0x10000000U
#define FLOW_PLACE_BUSY 1U /* of a fresh flow that was seen just now: all other ranks are even */
#define FLOW_YOUNG FLOW_SECONDS(300)

/* A place's number that is none. */
#define FLOW_NOWHERE 0xffffffffU

static __always_inline void count_flow(__u32 event)
{
	__u64 *counter = bpf_map_lookup_elem(&flow_events, &event);

	if (counter)
		*counter += 1;
}

static __always_inline struct flow_bucket *flow_bucket_at(__u32 index)
{
	return bpf_map_lookup_elem(&flow_table, &index);
}

/* In how many buckets a flow may be. A bucket has room for half as many of IPv6. */
static __always_inline __u32 flow_choices(const struct flow *flow)
{
	return flow->ipv6 ? 3 : 2;
}

/*
 * A flow's own place in its first bucket (choice 0), its second or its third one: 32 bits of its
 * hash, of which the upper ones choose the bucket and the lower ones the place.
 */
static __always_inline __u32 own_place(const struct settings *settings, const struct flow *flow,
				       __u64 hash, __u32 choice)
{
	__u32 bits = choice == 0 ? hash >> 32 : choice == 1 ? hash : hash >> 16;
	__u32 bucket = (__u64)bits * settings->flow_buckets >> 32, way = bits % FLOW_WAYS;

	return bucket * FLOW_WAYS + (flow->ipv6 ? way & ~1U : way);
}

/* The other place of the same cache line. */
static __always_inline __u32 beside(__u32 number)
{
	return number ^ 1;
}

/* A place by its number, of a bucket that has it. */
static __always_inline struct flow_place *place_in(struct flow_bucket *bucket, __u32 number)
{
	return &bucket->places[number % FLOW_WAYS];
}

static __always_inline struct flow_place *place_at(__u32 number)
{
	struct flow_bucket *bucket = flow_bucket_at(number / FLOW_WAYS);

	return bucket ? place_in(bucket, number) : NULL;
}

/* The second place of a flow of IPv6, by the number of the first. */
static __always_inline struct flow_place *rest_in(struct flow_bucket *bucket, __u32 number)
{
	return &bucket->places[number % FLOW_WAYS | 1];
}

/* A source's last word and both ports, or two words of a source. */
static __always_inline __u64 place_key(const struct flow_place *place)
{
	const void *source = &place->source; /* a whole word: see is_from */

	return *(const volatile __u64 *)source;
}

static __always_inline __u64 flow_key(const struct flow *flow)
{
	__u64 word = flow->ipv6 ? ADDRESS_WORD(&flow->source, 3) : ADDRESS_WORD(&flow->source, 0);

	return word | (__u64)ports_of(flow) << 32;
}

/* Of the service, the source and both ports: the service stands for the rest of a flow. */
static __always_inline __u64 flow_hash(const struct settings *settings, const struct flow *flow,
				       __u32 service)
{
	__u64 hash = hash_mix(settings->flow_salt, service);

	if (flow->ipv6) {
		hash = hash_mix(hash, ADDRESS_HALF(&flow->source, 0));
		hash = hash_mix(hash, ADDRESS_WORD(&flow->source, 2));
	}
	return hash_finish(hash, flow_key(flow));
}

/* Whether a place has this flow, of that key. Services of IPv4 and of IPv6 are different ones. */
static __always_inline int place_has(struct flow_bucket *bucket, __u32 number,
				     const struct flow *flow, __u64 key, __u32 service)
{
	const struct flow_place *place = place_in(bucket, number);

	if (place_key(place) != key || place->service != service)
		return 0;
	return !flow->ipv6 ||
	       (place->more == ADDRESS_WORD(&flow->source, 2) &&
		place_key(rest_in(bucket, number)) == ADDRESS_HALF(&flow->source, 0));
}

/* What is remembered of a flow, as it was at one moment. */
struct flow_known {
	union flow_word word;
	__u32 backend;
	__u32 next;
	__u32 place; /* its number; FLOW_NOWHERE: the flow has none */
};

/* Reads a place if it has this flow, live or not. Returns whether it has. */
static __always_inline int read_place(struct flow_bucket *bucket, __u32 number,
				      const struct flow *flow, __u64 key, __u32 service,
				      struct flow_known *known)
{
	const struct flow_place *place = place_in(bucket, number);

	known->word = flow_read(place);
	if (known->word.state <= FLOW_CLAIMED || !place_has(bucket, number, flow, key, service))
		return 0;
	known->backend = *(const volatile __u32 *)&place->backend;
	known->next = *(const volatile __u32 *)&place->next;
	/* Else the place has got another flow meanwhile. */
	return flow_read(place).turn == known->word.turn;
}

/* What is known of a flow as other directors are told of it. */
static __always_inline void write_entry(struct flow_entry *entry, const struct flow *flow,
					__u32 service, const struct flow_known *known)
{
	*(__u64 *)entry = known->word.word;
	entry->backend = known->backend;
	entry->service = service;
	entry->source = flow->source;
	*(both_ports *)&entry->source_port = ports_of(flow);
	entry->next = known->next;
}

/* Whether a place has this flow, live or not. */
static __always_inline int flow_is_at(struct flow_bucket *bucket, __u32 number,
				      const struct flow *flow, __u32 service)
{
	return flow_read(place_in(bucket, number)).state > FLOW_CLAIMED &&
	       place_has(bucket, number, flow, flow_key(flow), service);
}

/* The number of the flow's place in a bucket, but for one; FLOW_NOWHERE: it has none there. */
static __always_inline __u32 search_bucket(__u32 index, const struct flow *flow, __u32 service,
					   __u32 but)
{
	struct flow_bucket *bucket = flow_bucket_at(index);
	__u32 step = flow->ipv6 ? 2 : 1;

	if (!bucket)
		return FLOW_NOWHERE;
	for (__u32 way = 0; way < FLOW_WAYS; way += step) {
		__u32 number = index * FLOW_WAYS + way;

		if (number != but && flow_is_at(bucket, way, flow, service))
			return number;
	}
	return FLOW_NOWHERE;
}

/*
 * The same in all buckets that may have it. Before the buckets it looks at the own lines but for the
 * first one, where find_flow has looked. Not static: verified once.
 */
__noinline __u32 search_flow(const struct settings *settings, const struct flow *flow, __u64 hash,
			     __u32 service, __u32 but)
{
	__u32 found = FLOW_NOWHERE;

	if (!settings || !flow)
		return FLOW_NOWHERE;
	for (__u32 i = 1; i < flow_choices(flow); i++) {
		__u32 number = own_place(settings, flow, hash, i);
		struct flow_bucket *bucket = flow_bucket_at(number / FLOW_WAYS);

		if (bucket && number != but && flow_is_at(bucket, number, flow, service))
			return number;
		number = beside(number);
		if (bucket && number != but && flow_is_at(bucket, number, flow, service))
			return number;
	}
	for (__u32 i = 0; i < flow_choices(flow) && found == FLOW_NOWHERE; i++)
		found = search_bucket(own_place(settings, flow, hash, i) / FLOW_WAYS, flow, service,
				      but);
	return found;
}

/* Reads a flow from the first line that may have it. */
static __always_inline int read_first_line(const struct settings *settings, const struct flow *flow,
					   __u64 hash, __u32 service, struct flow_known *known)
{
	__u64 key = flow_key(flow);
	__u32 number = own_place(settings, flow, hash, 0);
	struct flow_bucket *bucket = flow_bucket_at(number / FLOW_WAYS);

	known->place = number;
	if (bucket && read_place(bucket, number, flow, key, service, known))
		return 1;
	known->place = number = beside(number);
	return bucket && !flow->ipv6 && read_place(bucket, number, flow, key, service, known);
}

/* Reads what is remembered of a flow, live or not. Returns whether it has a place. */
static __always_inline int find_flow(const struct settings *settings, const struct flow *flow,
				     __u64 hash, __u32 service, struct flow_known *known)
{
	__u64 key = flow_key(flow);
	struct flow_bucket *bucket;
	__u32 number;

	if (read_first_line(settings, flow, hash, service, known))
		return 1;
	number = search_flow(settings, flow, hash, service, FLOW_NOWHERE);
	bucket = flow_bucket_at(number / FLOW_WAYS);
	known->place = number;
	if (bucket && read_place(bucket, number, flow, key, service, known))
		return 1;
	known->place = FLOW_NOWHERE;
	return 0;
}

/* The flow's backend, if it is still the one that the flow began with. */
static __always_inline const struct backend *flow_backend(__u32 index, union flow_word word)
{
	const struct backend *backend = backend_at(index);

	if (!backend || backend->epoch != word.epoch || backend->state == BACKEND_FREE)
		return NULL;
	return backend;
}

/*
 * Whether the packet may go on with this flow. A SYN on a flow that is over begins a new
 * connection, which a draining backend does not get. A backend that is suspected to be down
 * gets only what surely goes on: no SYN, and no datagram that may be a flow's second try.
 */
static __always_inline int flow_usable(const struct flow_known *known, const struct packet *packet)
{
	const struct backend *backend = flow_backend(known->backend, known->word);

	if (!backend || !keeps(backend))
		return 0;
	if (backend->state == BACKEND_SUSPECT)
		return !is_syn(packet) && known->word.state != FLOW_ONCE;
	return backend->state == BACKEND_ACTIVE || !flow_over(known->word.state) || !is_syn(packet);
}

/* The best place for a new flow. */
struct flow_scan {
	struct flow_bucket *bucket;
	__u32 service;
	__u32 now;
	__u32 step;  /* how many places the flow takes */
	__u32 share; /* with so many places in a bucket, only the service's own flows give way */
	__u32 own;  /* the service's places in this bucket, counted from now: see flow_scan_begin */
	__u32 free; /* this bucket's free places, counted from now */
	__u32 ranks; /* of all places, combined by OR */
	__u32 rank;
	__u32 number;
	union flow_word word; /* of that place when it was ranked */
};

/* How good the place of a fresh flow that goes on is. */
static __always_inline __u32 flow_rank_begun(__u32 age)
{
	return age > FLOW_YOUNG ? FLOW_PLACE_OLD + age * 2 : FLOW_PLACE_YOUNG - age * 2;
}

/*
 * How good a place is that has this first word; 0, or FLOW_PLACE_BUSY: another flow keeps it. Not
 * static: the verifier looks at it once, and goes on with one result instead of nine.
 */
__noinline __u32 flow_rank(const struct flow_place *place, __u64 first, __u32 now)
{
	union flow_word word = { .word = first };
	__u32 age = flow_age(word, now), rank;

	if (!place || word.state == FLOW_CLAIMED || word.state == FLOW_REST)
		return 0;
	if (!flow_live(word, now) || !flow_backend(place->backend, word))
		rank = FLOW_PLACE_FREE;
	else if (word.state == FLOW_CLOSING)
		rank = age > FLOW_ENDED ? FLOW_PLACE_UNANSWERED + age * 2 : 0;
	else if (flow_kept(word.state) && word.state != FLOW_RESET)
		rank = 0;
	else if (age < FLOW_QUIET)
		rank = FLOW_PLACE_BUSY;
	else if (FLOW_STATES_OPEN >> (word.state & 31) & 1)
		rank = flow_rank_begun(age);
	else
		rank = FLOW_PLACE_UNANSWERED + age * 2;
	return rank;
}

/* The same of both places of a line: the one that is kept decides. */
static __always_inline __u32 flow_rank_line(struct flow_bucket *bucket, __u32 way,
					    union flow_word word, __u32 now)
{
	const struct flow_place *rest = rest_in(bucket, way);
	union flow_word other = flow_read(rest);
	__u32 first = flow_rank(place_in(bucket, way), word.word, now), second;

	if (other.state == FLOW_REST)
		return first;
	second = flow_rank(rest, other.word, now);
	return second < first ? second : first;
}

/* Counts places of the service. Flows of backends that are gone do not count. */
static long flow_count_place(__u32 i, struct flow_scan *scan)
{
	const struct flow_place *place = place_in(scan->bucket, i);
	union flow_word word = flow_read(place);

	if (place->service == scan->service && flow_live(word, scan->now) &&
	    flow_backend(place->backend, word))
		scan->own += scan->step;
	return 0;
}

/* Whether the service has its share of the bucket. */
static __always_inline int has_share(const struct flow_scan *scan)
{
	return scan->own - scan->now >= scan->share;
}

/* Notes a place if it is better than those before it. */
static __always_inline void flow_consider(struct flow_scan *scan, __u32 number)
{
	struct flow_place *place = place_in(scan->bucket, number);
	union flow_word word = flow_read(place);
	__u32 rank;

	rank = scan->step > 1 ? flow_rank_line(scan->bucket, number, word, scan->now) :
				flow_rank(place, word.word, scan->now);
	if (has_share(scan) && (place->service != scan->service || rank == FLOW_PLACE_FREE))
		return;
	scan->free += rank == FLOW_PLACE_FREE;
	scan->ranks |= rank;
	if (rank > scan->rank) {
		scan->rank = rank;
		scan->number = number;
		scan->word = word;
	}
}

/* By bpf_loop (Linux 5.17), whose body the verifier walks once. */
static long flow_scan_place(__u32 i, struct flow_scan *scan)
{
	flow_consider(scan, scan->number / FLOW_WAYS * FLOW_WAYS + i * scan->step);
	return 0;
}

/*
 * Turns to the bucket of a place. Counts do not begin at 0, from where the verifier would walk the
 * loops once for each of them, but at the clock's value, of which it knows nothing.
 */
static __always_inline int flow_scan_begin(struct flow_scan *scan, __u32 number)
{
	scan->bucket = flow_bucket_at(number / FLOW_WAYS);
	scan->number = number;
	scan->rank = 0;
	scan->own = scan->free = scan->now;
	return scan->bucket != NULL;
}

/* Counts the service's own places in the bucket, if it may have its share of them. */
static __always_inline void flow_scan_own(struct flow_scan *scan)
{
	if (scan->share < FLOW_WAYS)
		bpf_loop(FLOW_WAYS, flow_count_place, scan, 0);
}

/* What is to be remembered of a flow, and where. */
struct flow_fresh {
	struct flow_known to;
	union flow_word from; /* of the place when it was looked at */
	__u32 rank;           /* of the place; 0: the flow has it already */
	__u32 quota;          /* number of its segment's, if that is of flows; 0: there is none */
};

/*
 * Takes the place for a new flow, or both places of its line, if nothing has changed since they
 * were ranked.
 */
static __always_inline int claim_place(struct flow_bucket *bucket, const struct flow *flow,
				       const struct flow_fresh *fresh, union flow_word claimed)
{
	struct flow_place *place = place_in(bucket, fresh->to.place);
	struct flow_place *rest = rest_in(bucket, fresh->to.place);
	union flow_word other, taken, nothing = { .turn = claimed.turn };

	if (!flow_swap(place, fresh->from, claimed))
		return 0;
	other = taken = flow_read(rest);
	if (flow->ipv6) {
		/* Until the rest is written, its place looks like that of the flow before. */
		taken.state = FLOW_CLAIMED;
		taken.turn++;
		if (other.state == FLOW_REST)
			return 1;
		if (fresh->rank && flow_rank(rest, other.word, claimed.seen) >= fresh->rank &&
		    flow_swap(rest, other, taken))
			return 1;
		flow_swap(place, claimed, nothing);
		return 0;
	}
	/* The line had a flow of IPv6: its second place is free now. */
	taken.state = FLOW_FREE;
	if (!(fresh->to.place & 1) && other.state == FLOW_REST)
		flow_swap(rest, other, taken);
	return 1;
}

/* Writes a flow to its place. Not static: verified once. */
__noinline int write_place(const struct flow *flow, __u32 service, const struct flow_fresh *fresh)
{
	union flow_word claimed = { .state = FLOW_CLAIMED }, ready, other;
	struct flow_bucket *bucket;
	struct flow_place *place, *rest;

	if (!flow || !fresh)
		return 0;
	bucket = flow_bucket_at(fresh->to.place / FLOW_WAYS);
	if (!bucket)
		return 0;
	place = place_in(bucket, fresh->to.place);
	rest = rest_in(bucket, fresh->to.place);
	ready = fresh->to.word;
	claimed.turn = ready.turn = fresh->from.turn + 1;
	claimed.seen = flow_clock();
	if (!claim_place(bucket, flow, fresh, claimed))
		return 0;
	place->source = ADDRESS_WORD(&flow->source, 0);
	*(both_ports *)&place->source_port = ports_of(flow);
	place->backend = fresh->to.backend;
	place->service = service;
	place->next = fresh->to.next;
	if (flow->ipv6) {
		place->source = ADDRESS_WORD(&flow->source, 3);
		place->more = ADDRESS_WORD(&flow->source, 2);
		*(__u64 *)&rest->source = ADDRESS_HALF(&flow->source, 0);
		rest->service = NO_SERVICE;
		other = flow_read(rest);
		other.state = FLOW_REST;
		__sync_lock_test_and_set((__u64 *)rest, other.word);
	}
	__sync_lock_test_and_set((__u64 *)place, ready.word);
	return 1;
}

/* Notes the place that was found. */
static __always_inline int choose(const struct flow_scan *scan, struct flow_fresh *fresh)
{
	fresh->to.place = scan->number;
	fresh->from = scan->word;
	fresh->rank = scan->rank;
	return 1;
}

/* Chooses an own place of a flow if it is free. */
static __always_inline int choose_own(struct flow_scan *scan, __u32 number,
				      struct flow_fresh *fresh)
{
	if (!flow_scan_begin(scan, number))
		return 0;
	flow_consider(scan, number);
	if (scan->rank != FLOW_PLACE_FREE)
		return 0;
	flow_scan_own(scan);
	return !has_share(scan) && choose(scan, fresh);
}

/* Chooses the best place of a bucket if it is better than what was chosen before. */
static __always_inline int choose_in(struct flow_scan *scan, __u32 number, __u32 free,
				     struct flow_fresh *fresh)
{
	if (!flow_scan_begin(scan, number))
		return 0;
	flow_scan_own(scan);
	flow_consider(scan, number); /* before others that are as good */
	if (scan->step == 1)
		flow_consider(scan, beside(number));
	bpf_loop(FLOW_WAYS / scan->step, flow_scan_place, scan, 0);
	return scan->rank &&
	       (scan->rank > fresh->rank || (scan->rank == fresh->rank && scan->free > free)) &&
	       choose(scan, fresh);
}

/*
 * Chooses a place for a flow that has none. Returns whether there is one. Not static: verified
 * once.
 */
__noinline int choose_place(const struct settings *settings, const struct flow *flow, __u64 hash,
			    __u32 service, struct flow_fresh *fresh)
{
	struct flow_scan scan = { .service = service, .now = flow_clock() };
	__u32 choices, free = scan.now, kept, number;

	if (!settings || !flow || !fresh)
		return 0;
	scan.share = settings->flow_share;
	scan.step = flow->ipv6 ? 2 : 1;
	choices = flow_choices(flow);
	number = own_place(settings, flow, hash, 0);
	if (choose_own(&scan, number, fresh) ||
	    (scan.step == 1 && choose_own(&scan, beside(number), fresh)))
		return 1;
	scan.ranks = fresh->rank = 0;
	for (__u32 i = 0; i < choices; i++) {
		if (choose_in(&scan, own_place(settings, flow, hash, i), free, fresh))
			free = scan.free;
	}
	/* A fresh flow pushes out none that goes on while one is too young to give way. */
	kept = (FLOW_STATES_KEPT & ~FLOW_STATE(FLOW_RESET)) >> (fresh->to.word.state & 31) & 1;
	return fresh->rank > (!kept && scan.ranks & FLOW_PLACE_BUSY ? FLOW_PLACE_YOUNG : 0);
}

enum flow_inserted {
	FLOW_NO_PLACE = 0,
	FLOW_HAS_PLACE = 1,
	FLOW_RACED = 2, /* another CPU has changed the place: it may have written this flow */
};
