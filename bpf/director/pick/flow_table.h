/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where a remembered flow is: in its bucket of this CPU or, when RSS has moved it, of
 * another CPU. A flow's hash chooses one bucket of each CPU. A new flow takes a place
 * that is free; else that of a flow that has ended or is fresh: see flow_rank. A flow
 * that is sustained or proved is never pushed out. If there are several services, none
 * has more than its share of a bucket.
 *
 * Only its own CPU fills a bucket, so that what it reads there does not change under it.
 * Other CPUs may free an entry, by a compare-and-swap of its first word, whose count of turns
 * tells them whether it is still the entry that they have read.
 *
 * Each place also has a tag, a byte of its flow's hash, which stays when the flow goes: a
 * different tag says that a flow is not there, an equal one that it may be. A CPU looks first
 * at the tags of other CPUs; it does not need its own.
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
 * bucket is too young to do so. Only flows that were quiet for minutes give way before that.
 */
#define FLOW_PLACE_SAME 0xfffffffeU
#define FLOW_PLACE_FREE 0xffffff00U
#define FLOW_PLACE_UNANSWERED 0x30000000U
#define FLOW_PLACE_OLD 0x20000000U
#define FLOW_PLACE_YOUNG 0x10000000U
#define FLOW_PLACE_BUSY 1U /* of a fresh flow that was seen just now: all other ranks are even */
#define FLOW_YOUNG FLOW_SECONDS(300)
#define NO_CPU (~0U)
#define FLOW_TAGS(byte) ((byte) * 0x0101010101010101ULL)
#define FLOW_EVERY_PLACE FLOW_TAGS(0x80)

static __always_inline void count_flow(__u32 event)
{
	__u64 *counter = bpf_map_lookup_elem(&flow_events, &event);

	if (counter)
		*counter += 1;
}

static __always_inline __u64 flow_hash(const struct settings *settings, const struct flow *flow)
{
	struct ring_header key = { .salt = settings->flow_salt, .affinity = AFFINITY_FLOW };

	return hash_flow(flow, &key);
}

/* The flow's bucket of a CPU; NULL: the CPU has none. */
static __always_inline struct flow_bucket *flow_bucket(const struct settings *settings, __u64 hash,
						       __u32 cpu)
{
	__u32 index = cpu * settings->flow_buckets + slot_of(hash, settings->flow_buckets);

	if (cpu >= settings->flow_cpus)
		return NULL;
	return bpf_map_lookup_elem(&flows, &index);
}

static __always_inline __u8 flow_tag_of(__u64 hash)
{
	__u8 tag = hash; /* the upper half has chosen the bucket */

	return tag > FLOW_TAG_ANY ? tag : tag + FLOW_TAG_ANY + 1;
}

static __always_inline __u64 *flow_tags_at(const struct settings *settings, __u64 hash, __u32 cpu)
{
	__u32 index = slot_of(hash, settings->flow_buckets) * settings->flow_cpus + cpu;

	return bpf_map_lookup_elem(&flow_tags, &index);
}

/* Not inlined: its callers have no stack left. */
static __noinline int flow_put_tag(const struct settings *settings, __u64 hash, __u32 place)
{
	__u64 *tags = flow_tags_at(settings, hash, bpf_get_smp_processor_id());

	if (tags)
		((volatile __u8 *)tags)[place % FLOW_WAYS] = flow_tag_of(hash);
	return 0;
}

/* The highest bit of each byte that is zero, and perhaps of some behind one. */
static __always_inline __u64 zero_bytes(__u64 word)
{
	return (word - FLOW_TAGS(1)) & ~word & FLOW_TAGS(0x80);
}

/* The places of a CPU's bucket in which the flow may be, as the highest bits of bytes. */
static __always_inline __u64 flow_places(const struct settings *settings, __u64 hash, __u32 cpu)
{
	__u64 *tags = flow_tags_at(settings, hash, cpu), now;

	if (!tags)
		return 0;
	now = *(volatile __u64 *)tags;
	return zero_bytes(now ^ FLOW_TAGS((__u64)flow_tag_of(hash))) |
	       zero_bytes(now ^ FLOW_TAGS((__u64)FLOW_TAG_ANY));
}

static __always_inline int flow_matches(const struct flow_entry *entry, const struct flow *flow,
					__u32 service)
{
	return entry->source_port == flow->source_port && entry->service == service &&
	       entry->destination_port == flow->destination_port &&
	       same_address(&entry->source, &flow->source);
}

/*
 * In which of these places in the bucket the flow is, live or not; FLOW_WAYS: in none. Not
 * static: the verifier looks at it once, and goes on with one result instead of nine. It takes
 * the result for any number, so the compiler must not know its range, and drop checks of it.
 */
__noinline __u32 flow_search(const struct flow_bucket *bucket, const struct flow *flow,
			     __u32 service, __u64 places)
{
	__u32 place;

	if (!bucket || !flow)
		return FLOW_WAYS;
	for (place = 0; place < FLOW_WAYS; place++) {
		const struct flow_entry *entry = &bucket->entries[place];

		if (places >> place * 8 & 0x80 && flow_read(entry).state > FLOW_CLAIMED &&
		    flow_matches(entry, flow, service))
			break;
	}
	barrier_var(place);
	return place;
}

/* The flow's backend, if it is still the one that the flow began with. */
static __always_inline const struct backend *flow_backend(const struct flow_entry *entry,
							  union flow_word word)
{
	const struct backend *backend = backend_at(entry->backend);

	if (!backend || backend->epoch != word.epoch || backend->state == BACKEND_FREE)
		return NULL;
	return backend;
}

/*
 * Whether the packet may go on with this flow. A SYN on a flow that is over begins a new
 * connection, which a draining backend does not get. A backend that is suspected to be down
 * gets only what surely goes on: no SYN, and no datagram that may be a flow's second try.
 */
static __always_inline int flow_usable(const struct flow_entry *entry, union flow_word word,
				       const struct packet *packet, __u32 now)
{
	const struct backend *backend;

	if (!flow_live(word, now))
		return 0;
	backend = flow_backend(entry, word);
	if (!backend || !keeps(backend))
		return 0;
	if (backend->state == BACKEND_SUSPECT)
		return !is_syn(packet) && word.state != FLOW_ONCE;
	return backend->state == BACKEND_ACTIVE || !flow_over(word.state) || !is_syn(packet);
}

/* What is to be remembered of a flow. */
struct flow_fresh {
	union flow_word word;
	__u32 backend;
	__u32 next;
};

/* The best place of a bucket for a new flow. */
struct flow_scan {
	const struct flow_bucket *bucket;
	const struct flow *flow;
	__u32 service;
	__u32 now;
	__u32 rank;
	__u32 place;
	__u32 ranks; /* of all places, combined by OR */
	__u32 busy; /* FLOW_PLACE_BUSY; 0: the new flow is sustained or proved: any fresh one gives way */
};

/* How good the place of a fresh flow that goes on is. */
static __always_inline __u32 flow_rank_begun(__u32 age)
{
	return age > FLOW_YOUNG ? FLOW_PLACE_OLD + age * 2 : FLOW_PLACE_YOUNG - age * 2;
}

/* How good a place is; 0, or FLOW_PLACE_BUSY: another flow keeps it. */
static __always_inline __u32 flow_rank(const struct flow_entry *entry, const struct flow_scan *scan)
{
	union flow_word word = flow_read(entry);
	__u32 age = flow_age(word, scan->now);

	if (word.state == FLOW_CLAIMED)
		return 0;
	if (word.state == FLOW_FREE)
		return FLOW_PLACE_FREE;
	if (flow_matches(entry, scan->flow, scan->service))
		return FLOW_PLACE_SAME;
	if (!flow_live(word, scan->now) || !flow_backend(entry, word))
		return FLOW_PLACE_FREE;
	if (word.state == FLOW_CLOSING)
		return age > FLOW_ENDED ? FLOW_PLACE_UNANSWERED + age * 2 : 0;
	if (flow_kept(word.state) && word.state != FLOW_RESET)
		return 0;
	if (age < FLOW_QUIET)
		return FLOW_PLACE_BUSY;
	if (FLOW_STATES_OPEN >> (word.state & 31) & 1)
		return flow_rank_begun(age);
	return FLOW_PLACE_UNANSWERED + age * 2;
}

/* Chooses a place of the bucket if it is better than those before it. */
static __always_inline void flow_consider(struct flow_scan *scan, __u32 place, __u32 rank)
{
	scan->ranks |= rank;
	if (rank > scan->rank) {
		scan->rank = rank;
		scan->place = place;
	}
}

/* By bpf_loop (Linux 5.17), whose body the verifier walks once. */
static long flow_scan_place(__u32 i, struct flow_scan *scan)
{
	__u32 place = i % FLOW_WAYS;

	flow_consider(scan, place, flow_rank(&scan->bucket->entries[place], scan));
	return 0;
}

/* Counts the service's own flows, in rank. Flows of backends that are gone do not count. */
static long flow_count_place(__u32 i, struct flow_scan *scan)
{
	const struct flow_entry *entry = &scan->bucket->entries[i % FLOW_WAYS];
	union flow_word word = flow_read(entry);

	scan->rank += entry->service == scan->service && flow_live(word, scan->now) &&
		      flow_backend(entry, word);
	return 0;
}

/* As flow_scan_place, if the service has its share of the bucket: only its own flows give way. */
static long flow_scan_own(__u32 i, struct flow_scan *scan)
{
	__u32 place = i % FLOW_WAYS, rank;

	if (scan->bucket->entries[place].service != scan->service)
		return 0;
	rank = flow_rank(&scan->bucket->entries[place], scan);
	if (rank != FLOW_PLACE_FREE)
		flow_consider(scan, place, rank);
	return 0;
}

/* Chooses a place, within the service's share of the bucket. Returns whether there is one. */
static __always_inline int flow_scan_bucket(const struct settings *settings, struct flow_scan *scan)
{
	int own;

	if (settings->flow_share < FLOW_WAYS)
		bpf_loop(FLOW_WAYS, flow_count_place, scan, 0);
	own = scan->rank && scan->rank >= settings->flow_share;
	scan->rank = 0;
	if (own)
		bpf_loop(FLOW_WAYS, flow_scan_own, scan, 0);
	else
		bpf_loop(FLOW_WAYS, flow_scan_place, scan, 0);
	return scan->rank > (scan->ranks & scan->busy ? FLOW_PLACE_YOUNG : 0);
}

/*
 * Remembers a flow's backend. Returns 0 if there was no place for it, else one more than
 * the place's number. The place's tag is still that of another flow. Not static: verified once.
 */
__noinline int insert_flow(const struct settings *settings, const struct flow *flow, __u64 hash,
			   __u32 service, const struct flow_fresh *fresh)
{
	struct flow_scan scan = { .flow = flow, .service = service, .now = flow_clock() };
	union flow_word word, claimed = { .state = FLOW_CLAIMED }, ready;
	struct flow_bucket *bucket;
	struct flow_entry *entry;
	int place;

	if (!settings || !flow || !fresh)
		return 0;
	ready = fresh->word;
	bucket = flow_bucket(settings, hash, bpf_get_smp_processor_id());
	scan.bucket = bucket;
	scan.busy = ~(FLOW_STATES_KEPT & ~FLOW_STATE(FLOW_RESET)) >> (ready.state & 31) &
		    FLOW_PLACE_BUSY;
	if (!bucket || !flow_scan_bucket(settings, &scan))
		return 0;
	entry = &bucket->entries[scan.place % FLOW_WAYS];
	word = flow_read(entry);
	claimed.turn = ready.turn = word.turn + 1;
	claimed.seen = ready.seen;
	if (!flow_swap(entry, word, claimed))
		return 0;
	entry->backend = fresh->backend;
	entry->service = service;
	entry->source = flow->source;
	entry->source_port = flow->source_port;
	entry->destination_port = flow->destination_port;
	entry->next = fresh->next;
	__sync_lock_test_and_set((__u64 *)entry, ready.word);
	place = 1 + scan.place % FLOW_WAYS;
	barrier_var(place); /* as in flow_search */
	return place;
}

/* Looks for a flow in the other CPUs' buckets. */
struct flow_hunt {
	const struct settings *settings;
	const struct flow *flow;
	__u64 hash;
	__u32 service;
	__u32 now;
	__u32 own;    /* this CPU */
	__u32 cpu;    /* that has the flow ... */
	__u32 way;    /* ... here; FLOW_WAYS: none has */
	__u32 keep;   /* flow_forget_cpu leaves entries with this backend */
	int numbered; /* flow_hunt_cpu passes over flows whose next number is not near this: */
	__u32 sequence;
};

/* Whether a segment with this number may be of the connection that is remembered. */
static __always_inline int flow_has_number(const struct flow_entry *entry, union flow_word word,
					   __u32 sequence)
{
	/* That of an answered flow is the backend's. */
	return word.state == FLOW_ANSWERED || !entry->next || proof_near(sequence, entry->next);
}

static long flow_hunt_cpu(__u32 cpu, struct flow_hunt *hunt)
{
	__u64 places = flow_places(hunt->settings, hunt->hash, cpu);
	struct flow_bucket *bucket;
	struct flow_entry *entry;
	union flow_word word;
	__u32 way;

	if (cpu == hunt->own || !places)
		return 0;
	bucket = flow_bucket(hunt->settings, hunt->hash, cpu);
	if (!bucket)
		return 0;
	way = flow_search(bucket, hunt->flow, hunt->service, places);
	if (way >= FLOW_WAYS)
		return 0;
	entry = &bucket->entries[way];
	word = flow_read(entry);
	if (!flow_live(word, hunt->now))
		return 0;
	if (hunt->numbered && !flow_has_number(entry, word, hunt->sequence))
		return 0;
	hunt->cpu = cpu;
	hunt->way = way;
	return 1;
}

/*
 * Frees another CPU's entry of the flow, unless it has the same backend: that CPU may be
 * moving the flow to itself at this moment, and free the entry here.
 */
static long flow_forget_cpu(__u32 cpu, struct flow_hunt *hunt)
{
	__u64 places = flow_places(hunt->settings, hunt->hash, cpu);
	union flow_word word, nothing = {};
	struct flow_bucket *bucket;
	struct flow_entry *entry;
	__u32 way;

	if (cpu == hunt->own || !places)
		return 0;
	bucket = flow_bucket(hunt->settings, hunt->hash, cpu);
	if (!bucket)
		return 0;
	way = flow_search(bucket, hunt->flow, hunt->service, places);
	if (way >= FLOW_WAYS)
		return 0;
	entry = &bucket->entries[way];
	word = flow_read(entry);
	if (entry->backend == hunt->keep && flow_backend(entry, word))
		return 0;
	nothing.turn = word.turn;
	if (word.state > FLOW_CLAIMED && flow_matches(entry, hunt->flow, hunt->service))
		flow_swap(entry, word, nothing);
	return 0;
}
