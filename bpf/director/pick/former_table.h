/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The table of versions before 0.2. After an upgrade, what changes in the new table is written here,
 * too, as far as there is room, so that the way back loses no flow, also if a process is killed. And
 * a packet of an unknown flow looks here until the process has copied all flows to the new table
 * (SETTINGS_FORMER). Where no such version has run, a process that ends leaves such a table, for a
 * version that may come next. See internal/datapath/flows_former.go.
 *
 * It has buckets of each CPU, which that CPU fills. A byte of each flow's hash tells the other
 * CPUs which of the places may have it.
 */
#pragma once

#include "director/pick/flow_table.h"

static __always_inline __u64 former_hash(const struct settings *settings, const struct flow *flow)
{
	return hash_by(flow, settings->flow_salt, 1);
}

/* The table in an array of one. */
static __always_inline void *lookup_in(void *tables)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(tables, &zero);
}

static __always_inline struct former_bucket *former_bucket(const struct settings *settings,
							   __u64 hash, __u32 cpu)
{
	__u32 index = cpu * settings->former_buckets + slot_of(hash, settings->former_buckets);
	void *table = lookup_in(&former_flows);

	return table && cpu < settings->former_cpus ? bpf_map_lookup_elem(table, &index) : NULL;
}

/*
 * In which place of the bucket the flow is, live or not; FORMER_WAYS: in none. Not static: verified
 * once.
 */
__noinline __u32 search_former(const struct former_bucket *bucket, const struct flow *flow,
			       __u32 service)
{
	__u32 way;

	if (!bucket || !flow)
		return FORMER_WAYS;
	for (way = 0; way < FORMER_WAYS; way++) {
		const struct flow_entry *entry = &bucket->entries[way];

		if (flow_read(entry).state > FLOW_CLAIMED && entry->service == service &&
		    entry->source_port == flow->source_port &&
		    entry->destination_port == flow->destination_port &&
		    same_address(&entry->source, &flow->source))
			break;
	}
	barrier_var(way); /* the verifier takes the result for any number, so may the compiler */
	return way;
}

struct former_search {
	const struct settings *settings;
	const struct flow *flow;
	__u64 hash;
	__u32 service;
	__u32 now;
	struct flow_known found; /* a word of 0: nothing */
};

/* The highest bit of each byte that is zero, and perhaps of some behind one. */
static __always_inline __u64 zero_bytes(__u64 word)
{
	return (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL;
}

static __always_inline __u8 former_tag(__u64 hash)
{
	__u8 tag = hash; /* the upper half has chosen the bucket */

	return tag > FLOW_TAG_ANY ? tag : tag + FLOW_TAG_ANY + 1;
}

/* The tags of a CPU's bucket; NULL: there are none. */
static __always_inline __u64 *former_tags(const struct settings *settings, __u64 hash, __u32 cpu)
{
	__u32 index = slot_of(hash, settings->former_buckets) * settings->former_cpus + cpu;
	void *tags = lookup_in(&former_flow_tags);

	return tags ? bpf_map_lookup_elem(tags, &index) : NULL;
}

/* Whether a CPU's bucket may have the flow. */
static __always_inline int may_have_former(const struct settings *settings, __u64 hash, __u32 cpu)
{
	__u64 *tags = former_tags(settings, hash, cpu), now;

	if (!tags)
		return 1;
	now = *(volatile __u64 *)tags;
	return zero_bytes(now ^ former_tag(hash) * 0x0101010101010101ULL) ||
	       zero_bytes(now ^ FLOW_TAG_ANY * 0x0101010101010101ULL);
}

/* A CPU's place with the flow: of several, the one that a packet has changed last. */
static long search_former_cpu(__u32 cpu, struct former_search *search)
{
	const struct flow_entry *entry;
	struct former_bucket *bucket;
	struct flow_known known = { .place = FLOW_NOWHERE };
	union flow_word word;
	__u32 way;

	if (!may_have_former(search->settings, search->hash, cpu))
		return 0;
	bucket = former_bucket(search->settings, search->hash, cpu);
	if (!bucket)
		return 0;
	way = search_former(bucket, search->flow, search->service);
	if (way >= FORMER_WAYS)
		return 0;
	entry = &bucket->entries[way];
	word = flow_read(entry);
	if (!flow_live(word, search->now) ||
	    (search->found.word.word && (__s32)(word.seen - search->found.word.seen) <= 0))
		return 0;
	known.word = word;
	known.backend = *(const volatile __u32 *)&entry->backend;
	known.next = *(const volatile __u32 *)&entry->next;
	if (flow_read(entry).turn == word.turn) /* else the place has got another flow meanwhile */
		search->found = known;
	return 0;
}

/* Not inlined, for its room on the stack. */
static __noinline int find_former(const struct settings *settings, const struct flow *flow,
				  __u32 service, struct flow_known *found)
{
	struct former_search search = {
		.settings = settings,
		.flow = flow,
		.hash = former_hash(settings, flow),
		.service = service,
		.now = flow_clock(),
	};

	bpf_loop(settings->former_cpus, search_former_cpu, &search, 0);
	if (!search.found.word.word)
		return 0;
	*found = search.found;
	return 1;
}

/* A place for a flow that has none: a free one, or that of a fresh flow. */
static __always_inline __u32 room_in_former(const struct former_bucket *bucket, __u32 now)
{
	__u32 way, fresh = FORMER_WAYS;

	for (way = 0; way < FORMER_WAYS; way++) {
		union flow_word word = flow_read(&bucket->entries[way]);

		if (word.state == FLOW_CLAIMED)
			continue;
		if (!flow_live(word, now))
			return way;
		if (!flow_kept(word.state))
			fresh = way;
	}
	return fresh;
}

/* Writes there what is known of a flow now. Not static: verified once. */
__noinline int write_former(const struct settings *settings, const struct flow *flow, __u32 service,
			    const struct flow_known *known)
{
	union flow_word before, claimed = { .state = FLOW_CLAIMED }, ready;
	__u32 cpu = bpf_get_smp_processor_id(), way;
	struct former_bucket *bucket;
	struct flow_entry *entry;
	__u64 *tags, hash;

	if (!settings || !flow || !known)
		return 0;
	hash = former_hash(settings, flow);
	bucket = former_bucket(settings, hash, cpu);
	if (!bucket)
		return 0;
	way = search_former(bucket, flow, service);
	if (way >= FORMER_WAYS)
		way = room_in_former(bucket, flow_clock());
	if (way >= FORMER_WAYS)
		return 0;
	entry = &bucket->entries[way];
	before = flow_read(entry);
	ready = known->word;
	claimed.seen = ready.seen;
	claimed.turn = ready.turn = before.turn + 1;
	if (!flow_swap(entry, before, claimed))
		return 0;
	entry->backend = known->backend;
	entry->service = service;
	entry->source = flow->source;
	*(both_ports *)&entry->source_port = ports_of(flow);
	entry->next = known->next;
	__sync_lock_test_and_set((__u64 *)entry, ready.word);
	tags = former_tags(settings, hash, cpu);
	if (tags)
		((volatile __u8 *)tags)[way % FORMER_WAYS] = former_tag(hash);
	return 1;
}
