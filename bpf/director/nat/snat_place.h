/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The place of a new flow of full NAT: see snat.h. */
#pragma once

#include "director/nat/snat_table.h"

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

/* The best place of one bucket. */
struct snat_scan {
	const struct snat_bucket *bucket;
	const struct packet *packet;
	__u64 hash;
	__u32 now;
	__u32 left; /* how many more flows make the service's share */
	__u32 free; /* its free places, counted from now: from 0 the verifier would walk each number */
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

static long snat_scan_place(__u32 i, struct snat_scan *scan)
{
	__u32 position = (snat_own(scan->hash) + i) % SNAT_BUCKET;
	const struct snat_flow *entry = &scan->bucket->flows[position];
	__u32 rank = snat_rank(entry, snat_read(entry), scan->packet, scan->hash, scan->now);

	if (rank > scan->rank) {
		scan->rank = rank;
		scan->place = position;
	}
	if (rank == SNAT_PLACE_FREE)
		scan->free++;
	return 0;
}

/*
 * As snat_scan_place, if the service has its share of the bucket: only its own flows give way.
 * The flow itself is the best place, whether it goes on or not: if another CPU has just put it
 * there, snat_take does not take it, and find_snat finds it.
 */
static long snat_scan_own(__u32 i, struct snat_scan *scan)
{
	__u32 position = (snat_own(scan->hash) + i) % SNAT_BUCKET, age;
	const struct snat_flow *entry = &scan->bucket->flows[position];
	union snat_word word = snat_read(entry);

	if (word.state <= SNAT_CLAIMED)
		return 0;
	age = snat_age(word, scan->now);
	if (snat_matches(entry, &scan->packet->flow, scan->hash))
		age = SNAT_PLACE_SAME;
	else if (!(snat_fresh(word.state) || snat_over(word.state)) || age < FLOW_QUIET ||
		 !snat_is_of(entry, word, scan->packet))
		return 0;
	if (age > scan->rank) {
		scan->rank = age;
		scan->place = position;
	}
	return 0;
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
	__u32 share = settings ? settings->snat_share : SNAT_BUCKET;
	struct snat_scan scan = {
		.bucket = bucket,
		.packet = packet,
		.now = flow_clock(),
		.left = share,
	};
	__u32 free;

	if (!bucket || !packet || !best)
		return 0;
	scan.hash = best->hash;
	scan.free = scan.now;
	if (share && share < SNAT_BUCKET)
		bpf_loop(SNAT_BUCKET, snat_count_place, &scan, 0);
	if (share && !scan.left)
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
