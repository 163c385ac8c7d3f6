/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Power of two choices in GUE (elsewhere: policy.h): a new connection goes to its slot's
 * owner or to the owner's backup, whichever has less load for its weight. Nothing is
 * remembered of it: both are in its row, and the row is in its packets, so that the host
 * which gets them sends them on to the one that has it (row.h).
 *
 * Packets go to the owner first, so each connection of the backup costs its packets a
 * hop. Therefore the backup gets one only if it has an eighth less load even then, and
 * gets none while the loads are about the same.
 */
#pragma once

#include "director/forward/row.h"
#include "director/pick/ring.h"

/* The backup has less load if the owner has more than 9/8 of it. */
#define P2C_OWNER_PARTS 8
#define P2C_BACKUP_PARTS 9

static __always_inline struct load *load_at(__u32 index)
{
	return bpf_map_lookup_elem(&loads, &index);
}

/* The first word of struct load. */
union load_word {
	struct {
		__u32 opened;
		__u32 period;
	};
	__u64 word;
};

/*
 * The load in this period, in units. The first CPU to look in a new period halves it for
 * all CPUs. A CPU whose clock is a little behind takes it as it is.
 */
static __always_inline __u32 load_now(struct load *load, __u32 period)
{
	union load_word was = { .word = *(const volatile __u64 *)load }, now = was;
	__s32 passed = period - was.period;

	if (passed <= 0)
		return was.opened;
	now.period = period;
	now.opened = passed < 32 ? was.opened >> passed : 0;
	__sync_val_compare_and_swap((__u64 *)load, was.word, now.word);
	return now.opened;
}

/*
 * One connection more for a backend, if the ring's policy compares loads. Added and not stored: no
 * CPU loses what another one counts. Called for the backend that gets the connection, which may be
 * another one than the policy's choice.
 */
static __noinline int count_load(__u32 index)
{
	struct load *load = load_at(index);

	if (load && load_now(load, bpf_ktime_get_coarse_ns() >> LOAD_PERIOD) < LOAD_MOST)
		__sync_fetch_and_add((__u64 *)load, LOAD_CONNECTION);
	return 0;
}

static __always_inline void load_open(const struct ring_header *header, __u32 index)
{
	if (header->policy == POLICY_P2C || header->policy == POLICY_LEAST_CONN)
		count_load(index);
}

/*
 * Whether the backup would have less load for its weight than the owner, also with one
 * connection more. This is the one place that says what a load is.
 */
static __always_inline int has_less_load(__u32 backup, __u32 owner, __u32 period)
{
	struct load *its = load_at(backup), *owners = load_at(owner);
	__u64 its_load, owners_load;

	if (!its || !owners || !its->weight || !owners->weight)
		return 0;
	its_load = load_now(its, period) + LOAD_CONNECTION;
	owners_load = load_now(owners, period);
	return owners_load * its->weight * P2C_OWNER_PARTS >
	       its_load * owners->weight * P2C_BACKUP_PARTS;
}

/* The backend that the owner's generation names as its backup, or NO_BACKEND. */
static __always_inline __u32 backup_of(__u32 ring, const struct slot *slot)
{
	const struct candidates *list;

	if (!(slot->next & SLOT_LIST))
		return slot->next & ~SLOT_SETTLING;
	list = ring_line_at(ring + (slot->next & ~SLOT_LIST));
	return list && list->count && !list->fixed ? list->index[0] : NO_BACKEND;
}

/*
 * Whether the backup may have connections that its owner is asked for: both have agents,
 * in one family, and neither is this host, which keeps what it gets.
 */
static __always_inline int may_share(const struct backend *owner, const struct backend *backup)
{
	return owner->mode == MODE_GUE && may_be_named(backup, owner->flags) &&
	       backup->state == BACKEND_ACTIVE && !((owner->flags | backup->flags) & BACKEND_LOCAL);
}

/* The backend of a new connection, or NO_BACKEND. Not static: the verifier looks at it once. */
__noinline __u32 pick_less_loaded(struct packet *packet)
{
	__u32 period = bpf_ktime_get_coarse_ns() >> LOAD_PERIOD;
	const struct backend *owner, *other;
	__u32 chosen, backup;

	if (!packet)
		return NO_BACKEND;
	chosen = packet->slot.owner;
	owner = backend_at(chosen);
	if (!owner || !alive(owner)) {
		chosen = next_candidate(packet->ring, packet->slot.next);
	} else {
		backup = backup_of(packet->ring, &packet->slot);
		other = backend_at(backup);
		if (other && may_share(owner, other) && has_less_load(backup, chosen, period))
			chosen = backup;
	}
	return chosen;
}
