/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Places for flows of a segment that may have only some of flow memory. A new flow takes a free place in
 * one of its buckets while the segment has less than its part (quota_number.h); else it takes the place of
 * another flow of the same segment that gives way, or none. It never takes one of other segments.
 */
#pragma once

#include "director/pick/flow_table.h"
#include "director/quota_number.h"

/* A bucket, and the best places in it for a new flow of a segment with a quota. */
struct quota_scan {
	struct flow_bucket *bucket;
	__u32 quota; /* its number */
	__u32 now;
	__u32 step;  /* how many places the flow takes */
	__u32 first; /* where in the bucket its own place is */
	__u32 own;   /* places of the segment in the group, counted from now: see flow_scan_begin */
	__u32 begin; /* number of the group's first bucket */
	__u32 free;  /* a free place; FLOW_NOWHERE */
	__u32 place; /* the best place of the segment itself ... */
	__u32 rank;  /* ... and how good it is */
	__u32 ranks; /* of all of them, combined by OR */
	union flow_word free_word;
	union flow_word word;
};

/* The place itself has the key, which takes no room on the stack then. */
static __always_inline int is_of_quota(const struct flow_place *place, __u32 quota)
{
	__u64 *number = bpf_map_lookup_elem(&service_quotas, &place->service);

	return number && *(volatile __u64 *)number == quota;
}

/* Whether both places of a line have flows of the segment, or one of IPv6: then it has no more after a new one. */
static __always_inline int has_line(const struct flow_place *rest, const struct quota_scan *scan)
{
	union flow_word word = flow_read(rest);

	return word.state == FLOW_REST ||
	       (is_of_quota(rest, scan->quota) && flow_live(word, scan->now));
}

/* Notes a place if it is better than those before it: the flow's own one comes first. */
static long quota_scan_place(__u32 i, struct quota_scan *scan)
{
	__u32 way = (scan->first + i) % FLOW_WAYS, rank;
	struct flow_place *place = place_in(scan->bucket, way);
	union flow_word word = flow_read(place);

	if (scan->step > 1) {
		if (way & 1)
			return 0;
		rank = flow_rank_line(scan->bucket, way, word, scan->now);
	} else {
		rank = flow_rank(place, word.word, scan->now);
	}
	if (rank == FLOW_PLACE_FREE) {
		if (scan->free == FLOW_NOWHERE) {
			scan->free = way;
			scan->free_word = word;
		}
		return 0;
	}
	if (!is_of_quota(place, scan->quota) || !flow_live(word, scan->now) ||
	    (scan->step > 1 && !has_line(rest_in(scan->bucket, way), scan)))
		return 0;
	scan->ranks |= rank;
	if (rank > scan->rank) {
		scan->rank = rank;
		scan->place = way;
		scan->word = word;
	}
	return 0;
}

/* Counts the segment's places in a line of the group. A flow of IPv6 has two. */
static long quota_count_line(__u32 i, struct quota_scan *scan)
{
	struct flow_bucket *bucket = flow_bucket_at(scan->begin + i * 2 / FLOW_WAYS);

	if (!bucket)
		return 1;
	for (__u32 way = 0; way < 2; way++) {
		const struct flow_place *place = place_in(bucket, i * 2 + way);
		union flow_word word = flow_read(place);

		if (flow_live(word, scan->now) && is_of_quota(place, scan->quota) &&
		    flow_backend(place->backend, word))
			scan->own += 1 + (flow_read(rest_in(bucket, i * 2)).state == FLOW_REST);
	}
	return 0;
}

/* What was chosen in the buckets before. */
struct quota_choice {
	__u32 quota;   /* the number of the segment's */
	__u32 flows;   /* struct quota's */
	__u32 step;    /* how many places the flow takes */
	__u32 buckets; /* of the whole table */
	__u32 room;    /* places that the segment may still have where one was chosen; 0: none */
	__u32 ranks;   /* of the segment's places, combined by OR */
};

/*
 * Notes a place in the bucket of an own place, if it is better than what was chosen before. Not
 * static: verified once.
 */
__noinline int choose_in_share(__u32 number, struct quota_choice *choice, struct flow_fresh *fresh)
{
	struct quota_scan scan = { .now = flow_clock() };
	__u32 group;
	__s32 left;

	if (!choice || !fresh)
		return 0;
	scan.bucket = flow_bucket_at(number / FLOW_WAYS);
	if (!scan.bucket)
		return 0;
	scan.quota = choice->quota;
	scan.step = choice->step;
	scan.first = number % FLOW_WAYS;
	scan.own = scan.now;
	scan.free = FLOW_NOWHERE;
	bpf_loop(FLOW_WAYS, quota_scan_place, &scan, 0);
	choice->ranks |= scan.ranks;
	group = quota_group(choice->flows);
	scan.begin = number / FLOW_WAYS & -group;
	if (group > choice->buckets - scan.begin) /* the last ones may be fewer */
		group = choice->buckets - scan.begin;
	bpf_loop(group * (FLOW_WAYS / 2), quota_count_line, &scan, 0);
	left = quota_share(choice->flows, group, scan.begin) - (scan.own - scan.now);
	number -= scan.first;
	if (scan.free != FLOW_NOWHERE && left >= (__s32)scan.step && left > (__s32)choice->room) {
		choice->room = left;
		fresh->to.place = number + scan.free;
		fresh->from = scan.free_word;
		fresh->rank = FLOW_PLACE_FREE;
	} else if (scan.rank > fresh->rank) {
		fresh->to.place = number + scan.place;
		fresh->from = scan.word;
		fresh->rank = scan.rank;
	}
	return 0;
}

/*
 * Chooses a place for a flow that has none. Returns whether there is one. Not static: verified
 * once.
 */
__noinline int choose_quota_place(const struct settings *settings, const struct flow *flow,
				  __u64 hash, __u32 number, struct flow_fresh *fresh)
{
	struct quota_choice choice = { .quota = number };
	__u32 kept;

	if (!settings || !flow || !fresh)
		return 0;
	choice.flows = quota_flows(number);
	choice.step = flow->ipv6 ? 2 : 1;
	choice.buckets = settings->flow_buckets;
	fresh->rank = 0;
	for (__u32 i = 0; i < flow_choices(flow); i++)
		choose_in_share(own_place(settings, flow, hash, i), &choice, fresh);
	/* A fresh flow pushes out none that goes on while one is too young to give way. */
	kept = (FLOW_STATES_KEPT & ~FLOW_STATE(FLOW_RESET)) >> (fresh->to.word.state & 31) & 1;
	if (fresh->rank > (!kept && choice.ranks & FLOW_PLACE_BUSY ? FLOW_PLACE_YOUNG : 0))
		return 1;
	refuse_flow(number);
	return 0;
}

/* Notes the quota of a flow's segment before the flow is inserted. */
static __always_inline void note_quota(const struct ring_header *header, struct flow_fresh *fresh)
{
	if (unlikely(header->flags & RING_QUOTA))
		fresh->quota = flow_quota(header->service);
}

/*
 * Remembers a flow's backend, at the place that the flow has already or at a new one, which is noted
 * in fresh.
 */
static __always_inline enum flow_inserted insert_flow(const struct settings *settings,
						      const struct flow *flow, __u64 hash,
						      __u32 service, struct flow_fresh *fresh)
{
	fresh->rank = 0;
	if (fresh->to.place == FLOW_NOWHERE &&
	    !(unlikely(fresh->quota) ?
		      choose_quota_place(settings, flow, hash, fresh->quota, fresh) :
		      choose_place(settings, flow, hash, service, fresh)))
		return FLOW_NO_PLACE;
	return write_place(flow, service, fresh) ? FLOW_HAS_PLACE : FLOW_RACED;
}
