/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The place of a new flow of full NAT: see snat.h. */
#pragma once

#include "director/nat/snat_table.h"
#include "director/quota_number.h"

/*
 * How good a place is for a new flow: a taken one is worth its age, and a free one is better in
 * a bucket with more free places. The first choice, where a flow is found sooner, is good
 * enough while its bucket has this many. Of equal places in a bucket the one is best that comes
 * first from the flow's own: it is found soonest, and the ports that are in use are spread.
 */
#define SNAT_PLACE_FREE 0xffffff00U
#define SNAT_PLACE_SAME 0xffffffffU
#define SNAT_PLACES_ENOUGH (SNAT_BUCKET / 4)
/* How good a place is for a new flow; 0: another flow keeps it. */
static __always_inline __u32 snat_rank(const struct snat_flow *entry, union snat_word word,
				       const struct packet *packet, __u32 hash, __u32 now)
{
	__u32 age;

	if (word.state == SNAT_CLAIMED)
		return 0;
	if (word.state == SNAT_FREE)
		return SNAT_PLACE_FREE;
	/* The flow itself, with a backend that is gone: it must not get a second place. */
	if (snat_matches(entry, &packet->flow, hash))
		return snat_usable(entry, word, packet, now) ? 0 : SNAT_PLACE_SAME;
	if (!snat_live(word, now) || !snat_backend(entry, word))
		return SNAT_PLACE_FREE;
	if (!snat_fresh(word.state) && !snat_over(word.state))
		return 0;
	age = snat_age(word, now);
	return age >= FLOW_QUIET ? age : 0;
}

struct snat_place {
	__u64 hash;
	__u32 rank;
	__u32 number;
};

/*
 * The best place of one bucket. What a new flow may have there depends on the flows that count for
 * its share: those of its segment, if that has a quota of flows, else those of its service.
 */
struct snat_scan {
	const struct snat_bucket *bucket;
	const struct snat_bucket *near; /* whose flows are counted, if the segment has a quota */
	const struct packet *packet;
	__u64 hash;
	__u32 begin; /* with a quota: the number of the first flow that is counted; 0: it has none */
	__u32 now;
	__u32 left; /* how many more flows make the share */
	__u32 free; /* free places, counted from now: from 0 the verifier would walk each number */
	__u32 rank;
	__u32 place;
};

/*
 * Whether a flow is of the service of a client's packet. A flow whose backend is gone is of
 * none: the backend's index may be another service's by now.
 */
static __always_inline int snat_is_of(const struct snat_flow *entry, union snat_word word,
				      const struct packet *packet)
{
	const struct backend *backend = snat_backend(entry, word);

	return backend && backend->service + 1 == packet->service;
}

/* The same of the packet's segment. */
static __always_inline int snat_is_in(const struct snat_flow *entry, union snat_word word,
				      const struct packet *packet)
{
	return entry->segment == packet->flow.segment && snat_backend(entry, word);
}

/*
 * Counts the service's own flows, down to 0: no number of turns takes the verifier beyond what the
 * share may be.
 */
static long snat_count_place(__u32 i, struct snat_scan *scan)
{
	const struct snat_flow *entry = &scan->bucket->flows[i % SNAT_BUCKET];
	union snat_word word = snat_read(entry);

	if (!snat_live(word, scan->now) || !snat_is_of(entry, word, scan->packet))
		return 0;
	return !--scan->left;
}

/* The same of the segment's. */
static long snat_count_own(__u32 i, struct snat_scan *scan)
{
	const struct snat_flow *entry = &scan->near->flows[i % SNAT_BUCKET];
	union snat_word word = snat_read(entry);

	if (!snat_live(word, scan->now) || !snat_is_in(entry, word, scan->packet))
		return 0;
	return !--scan->left;
}

/* Those in a bucket and its neighbors. */
static long snat_count_near(__u32 i, struct snat_scan *scan)
{
	void *table = snat_table();
	struct snat_bucket *bucket = table ? snat_bucket(table, scan->begin + i * SNAT_BUCKET) :
					     NULL;

	if (!bucket)
		return 1;
	scan->near = bucket;
	bpf_loop(SNAT_BUCKET, snat_count_own, scan, 0);
	return !scan->left;
}

static __always_inline void snat_note(struct snat_scan *scan, __u32 position, __u32 rank)
{
	if (rank > scan->rank) {
		scan->rank = rank;
		scan->place = position;
	}
	if (rank == SNAT_PLACE_FREE)
		scan->free++;
}

static long snat_scan_place(__u32 i, struct snat_scan *scan)
{
	__u32 position = (snat_own(scan->hash) + i) % SNAT_BUCKET;
	const struct snat_flow *entry = &scan->bucket->flows[position];

	snat_note(scan, position,
		  snat_rank(entry, snat_read(entry), scan->packet, scan->hash, scan->now));
	return 0;
}

/*
 * As snat_scan_place, if the service or the segment has its share of the bucket: only its own flows give
 * way. The flow itself is the best place, whether it goes on or not: if another CPU has just put it
 * there, snat_take does not take it, and find_snat finds it.
 */
static long snat_scan_own(__u32 i, struct snat_scan *scan)
{
	__u32 position = (snat_own(scan->hash) + i) % SNAT_BUCKET;
	const struct snat_flow *entry = &scan->bucket->flows[position];
	union snat_word word = snat_read(entry);
	__u32 rank;

	if (word.state <= SNAT_CLAIMED)
		return 0;
	rank = snat_matches(entry, &scan->packet->flow, scan->hash) ?
		       SNAT_PLACE_SAME :
		       snat_rank(entry, word, scan->packet, scan->hash, scan->now);
	if (rank == SNAT_PLACE_FREE)
		return 0;
	if (rank == SNAT_PLACE_SAME || (scan->begin ? snat_is_in(entry, word, scan->packet) :
						      snat_is_of(entry, word, scan->packet)))
		snat_note(scan, position, rank);
	return 0;
}

/* What is left of the part of a segment with a quota of flows, in a bucket and its neighbors: see quota_number.h. */
static __always_inline void snat_count_segment(struct snat_scan *scan, __u32 number, __u32 flows)
{
	struct snat_header *header = snat_header(snat_table());
	__u32 group = quota_group(flows), begin, buckets;

	if (!header)
		return;
	buckets = (header->addresses4 + header->addresses6) * 2 * (header->ports / SNAT_BUCKET);
	begin = (number / SNAT_BUCKET - 1) & -group;
	if (group > buckets - begin) /* the last ones may be fewer */
		group = buckets - begin;
	scan->begin = (begin + 1) * SNAT_BUCKET;
	scan->left = quota_share(flows, group, begin);
	if (scan->left)
		bpf_loop(group, snat_count_near, scan, 0);
}

/* Counts a flow that finds no place, for the quota of its segment. */
static __always_inline void snat_refuse(const struct packet *packet)
{
	const struct settings *settings = get_settings();
	__u32 number;

	if (likely(!settings || !(settings->flags & SETTINGS_QUOTAS)))
		return;
	number = flow_quota(packet->service - 1);
	if (number)
		refuse_flow(number);
}

/*
 * Looks for a better place in one more bucket. By bpf_loop (Linux 5.17), whose
 * body the verifier walks once: in a plain loop every place doubles its work.
 * Not static: verified once, and not for each bucket.
 */
__noinline int snat_compare(const struct snat_bucket *bucket, __u32 number,
			    const struct packet *packet, struct snat_place *best)
{
	const struct settings *settings = get_settings();
	__u32 share = settings ? settings->snat_share : SNAT_BUCKET, quota = 0, free;
	struct snat_scan scan = {
		.bucket = bucket,
		.near = bucket,
		.packet = packet,
		.now = flow_clock(),
		.left = share,
	};

	if (!bucket || !packet || !best)
		return 0;
	scan.hash = best->hash;
	scan.free = scan.now;
	if (settings && unlikely(settings->flags & SETTINGS_QUOTAS))
		quota = flow_quota(packet->service - 1);
	if (quota)
		snat_count_segment(&scan, number, quota_flows(quota));
	else if (share && share < SNAT_BUCKET)
		bpf_loop(SNAT_BUCKET, snat_count_place, &scan, 0);
	if ((quota || share) && !scan.left)
		bpf_loop(SNAT_BUCKET, snat_scan_own, &scan, 0);
	else
		bpf_loop(SNAT_BUCKET, snat_scan_place, &scan, 0);
	free = scan.free - scan.now;
	if (scan.rank == SNAT_PLACE_FREE)
		scan.rank += free < SNAT_PLACES_ENOUGH ? free : SNAT_PLACES_ENOUGH;
	if (scan.rank > best->rank) {
		best->rank = scan.rank;
		best->number = number + scan.place;
	}
	return 0;
}
