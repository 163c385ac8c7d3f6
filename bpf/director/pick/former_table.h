/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The table of versions before 0.2. For a day after an upgrade both tables have all flows: one that
 * is not in the new table is looked for here, and what changes there is written here, too. So an
 * upgrade and the way back lose no flow, also if a process is killed. Where no such version has run,
 * a process that ends leaves such a table, for a version that may come next.
 *
 * It has buckets of each CPU, which only that CPU fills. A byte of each flow's hash tells the other
 * CPUs which of the places may have it.
 */
#pragma once

#include "director/pick/flow_table.h"

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

/* A CPU's place with the flow: of several, the one that a packet has changed last. */
static long search_former_cpu(__u32 cpu, struct former_search *search)
{
	struct former_bucket *bucket = former_bucket(search->settings, search->hash, cpu);
	const struct flow_entry *entry;
	union flow_word word;
	__u32 way;

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
	search->found.word = word;
	search->found.backend = entry->backend;
	search->found.next = entry->next;
	return 0;
}

/* Not inlined, for its room on the stack. */
static __noinline int find_former(const struct settings *settings, const struct flow *flow,
				  __u64 hash, __u32 service, struct flow_known *found)
{
	struct former_search search = {
		.settings = settings,
		.flow = flow,
		.hash = hash,
		.service = service,
		.now = flow_clock(),
	};

	bpf_loop(settings->former_cpus, search_former_cpu, &search, 0);
	if (!search.found.word.word)
		return 0;
	*found = search.found;
	found->place = FLOW_NOWHERE;
	return 1;
}

/*
 * Takes a flow over from there that has no living place here. Returns whether there was one, and a
 * place for it.
 */
static __always_inline int take_former(const struct settings *settings, const struct flow *flow,
				       __u64 hash, __u32 service, struct flow_fresh *fresh)
{
	struct flow_known known = fresh->to;

	if (!find_former(settings, flow, hash, service, &fresh->to))
		return 0;
	fresh->from = known.word;
	fresh->to.place = known.place; /* of a flow that had timed out */
	if (!insert_flow(settings, flow, hash, service, fresh))
		return 0;
	count_flow(FLOW_MOVED);
	return 1;
}

/* A place for a flow that has none: a free one, or that of a fresh flow. */
static __always_inline __u32 room_in_former(const struct former_bucket *bucket, __u32 now)
{
	__u32 way, fresh = FORMER_WAYS;

	for (way = 0; way < FORMER_WAYS; way++) {
		union flow_word word = flow_read(&bucket->entries[way]);

		if (!flow_live(word, now))
			return way;
		if (!flow_kept(word.state))
			fresh = way;
	}
	return fresh;
}

/* Writes there what is known of a flow now. Not static: verified once. */
__noinline int write_former(const struct settings *settings, const struct flow *flow, __u64 hash,
			    __u32 service, const struct flow_known *known)
{
	__u32 cpu = bpf_get_smp_processor_id(), way, index;
	struct former_bucket *bucket;
	struct flow_entry *entry;
	union flow_word word;
	__u8 tag = hash, *tags;
	void *table;
	__u64 *all;

	if (!settings || !flow || !known)
		return 0;
	bucket = former_bucket(settings, hash, cpu);
	if (!bucket)
		return 0;
	way = search_former(bucket, flow, service);
	if (way >= FORMER_WAYS)
		way = room_in_former(bucket, flow_clock());
	if (way >= FORMER_WAYS)
		return 0;
	entry = &bucket->entries[way];
	word.word = known->word.word;
	word.turn = flow_read(entry).turn + 1;
	write_entry(entry, flow, service, known);
	*(volatile __u64 *)entry = word.word;
	index = slot_of(hash, settings->former_buckets) * settings->former_cpus + cpu;
	table = lookup_in(&former_flow_tags);
	all = table ? bpf_map_lookup_elem(table, &index) : NULL;
	if (!all)
		return 1;
	tags = (__u8 *)all;
	tags[way % FORMER_WAYS] = tag > FLOW_TAG_ANY ? tag : tag + FLOW_TAG_ANY + 1;
	return 1;
}
