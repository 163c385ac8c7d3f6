/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is remembered of a connection only until it is answered. A flow has SLOT_WAYS places side
 * by side in an array, which it shares with other flows. A hash table that evicts the oldest
 * entries would have to be looked at in several places, which are cold because the connection is
 * new, and keeps lists that all CPUs share.
 *
 * Several places, because a SYN that finds none free has to do without the option: with one place
 * a flow, some hundred SYNs whose answers are late are enough for that, and a server that listens
 * only at its own address then refuses the connection. Which flows share places depends on a
 * secret number.
 *
 * A SYN that has asked keeps its place as long as it may be answered. What a backend has to repeat
 * is evicted by newer SYNs, the oldest first: its answer is due at once. An answer that comes too
 * late has no option: the client's host does not take it, and tries again without.
 */
#pragma once

#include "lib/clock.h"
#include "redirect/maps.h"

/* s after which a SYN that asked makes room: it has been sent again twice, without the option. */
#define SLOT_TIME 4
#define SLOT_WAYS 4 /* a power of two */

/* The first place of a flow that is looked at. Earlier versions know only this one. */
static __always_inline __u32 slot_of(const struct host_flow *flow)
{
	const __u32 *words = (const __u32 *)flow;
	__u64 *seed = memory_of(REDIRECT_SEED);
	__u64 hash = seed ? *seed : 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*flow) / sizeof(*words); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL; /* 2^64 / golden ratio */
		hash ^= hash >> 32;
	}
	return hash & (REDIRECT_SLOTS - 1);
}

static __always_inline int is_same_flow(const struct host_flow *a, const struct host_flow *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	__u32 differ = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*a) / sizeof(*x); i++)
		differ |= x[i] ^ y[i];
	return !differ;
}

/* Whether a place is held: by a SYN that has asked and may still be answered. */
static __always_inline int is_held(const struct redirect_syn *syn, __u32 now)
{
	return syn->state == REDIRECT_SYN_ASKED && seconds_since(syn->when, now) < SLOT_TIME;
}

/*
 * The place of a flow's last SYN; NULL: there is none. Without the lock: callers compare the flow
 * again with the lock.
 */
static __always_inline struct redirect_syn *look_for_syn(const struct host_flow *flow)
{
	__u32 first = slot_of(flow);

#pragma unroll
	for (__u32 way = 0; way < SLOT_WAYS; way++) {
		__u32 slot = first ^ way;
		struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &slot);

		if (syn && is_same_flow(&syn->flow, flow))
			return syn;
	}
	return NULL;
}

/* The same, not inlined, where a call has room on the stack. */
static __noinline struct redirect_syn *find_syn(const struct host_flow *flow)
{
	return look_for_syn(flow);
}

/*
 * The place that was written first, among those that no SYN holds; NULL: there is none. A SYN that
 * must not ask again has left its place not long ago.
 */
static __noinline struct redirect_syn *free_syn(const struct host_flow *flow, __u32 now)
{
	__u32 first = slot_of(flow), longest = 0;
	struct redirect_syn *oldest = NULL;

#pragma unroll
	for (__u32 way = 0; way < SLOT_WAYS; way++) {
		__u32 slot = first ^ way;
		struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &slot);

		if (!syn || is_held(syn, now))
			continue;
		if (!oldest || seconds_since(syn->when, now) > longest) {
			oldest = syn;
			longest = seconds_since(syn->when, now);
		}
	}
	return oldest;
}

/* 0: other SYNs that have asked hold all places of the flow, or another CPU has just taken one. */
static __always_inline int keep_syn(const struct host_flow *flow, __u32 sequence,
				    enum redirect_syn_state state)
{
	__u32 now = bpf_ktime_get_coarse_ns() / SECOND;
	struct redirect_syn *syn = find_syn(flow);
	int taken;

	if (!syn)
		syn = free_syn(flow, now);
	if (!syn)
		return 0;
	bpf_spin_lock(&syn->lock);
	taken = is_held(syn, now) && !is_same_flow(&syn->flow, flow);
	if (!taken) {
		syn->flow = *flow;
		syn->sequence = sequence;
		syn->state = state;
		syn->when = now;
	}
	bpf_spin_unlock(&syn->lock);
	return !taken;
}

/*
 * The state of the SYN with that number by which a flow began. Its state becomes `to`, unless
 * that is REDIRECT_SYN_OTHER. Returns REDIRECT_SYN_OTHER if the flow began with another number.
 */
static __noinline enum redirect_syn_state exchange_syn(const struct host_flow *flow, __u32 sequence,
						       enum redirect_syn_state to)
{
	struct redirect_syn *syn = find_syn(flow);
	enum redirect_syn_state was = REDIRECT_SYN_NONE;

	if (!syn)
		return was;
	bpf_spin_lock(&syn->lock);
	if (is_same_flow(&syn->flow, flow))
		was = syn->state;
	if (was != REDIRECT_SYN_NONE && syn->sequence != sequence)
		was = REDIRECT_SYN_OTHER;
	else if (was != REDIRECT_SYN_NONE && to != REDIRECT_SYN_OTHER)
		syn->state = to;
	bpf_spin_unlock(&syn->lock);
	return was;
}

/*
 * Whether a flow's last SYN has asked, and was not answered. Not inlined, for its room on the
 * stack.
 */
static __noinline int is_asking(const struct host_flow *flow)
{
	struct redirect_syn *syn = look_for_syn(flow);
	int asks = 0;

	if (!syn)
		return 0;
	bpf_spin_lock(&syn->lock);
	if (is_same_flow(&syn->flow, flow))
		asks = syn->state == REDIRECT_SYN_ASKED;
	bpf_spin_unlock(&syn->lock);
	return asks;
}

/* Units of a coarse time in which echoes are told apart by age: 16 ms, of which 16 bits last 18 minutes. */
#define ECHO_TIME_SHIFT 24

/* Another CPU may have written an echo after this one has read the clock: by less than 1 s. */
static __always_inline __u16 echo_age(__u16 when, __u16 now)
{
	__u16 age = now - when;

	return age < (__u16) - (SECOND >> ECHO_TIME_SHIFT) ? age : 0;
}

/*
 * The place that a flow's SYN with that number has; else the place to use: that of the oldest.
 * SYNs of one flow with several numbers have a place each: only one is the client's. The others
 * are of strangers that know its port and not its number, and must not end what it has begun.
 * Without the lock, as find_syn.
 */
static __noinline struct redirect_echo_slot *place_echo(const struct host_flow *flow,
							__u32 sequence, __u16 now)
{
	struct redirect_echo_slot *oldest = NULL;
	__u32 first = slot_of(flow), most = 0;

#pragma unroll
	for (__u32 way = 0; way < SLOT_WAYS; way++) {
		__u32 slot = first ^ way;
		struct redirect_echo_slot *kept = bpf_map_lookup_elem(&redirect_echoes, &slot);
		__u32 age;

		if (!kept)
			continue;
		if (kept->sequence == sequence && is_same_flow(&kept->flow, flow))
			return kept;
		age = kept->echo.service ? echo_age(kept->echo.when, now) : 1 << 16;
		if (!oldest || age > most) {
			oldest = kept;
			most = age;
		}
	}
	return oldest;
}

static __always_inline void keep_echo(const struct host_flow *flow, __u32 sequence,
				      struct redirect_echo *echo)
{
	struct redirect_echo_slot *kept;

	echo->when = bpf_ktime_get_coarse_ns() >> ECHO_TIME_SHIFT;
	kept = place_echo(flow, sequence, echo->when);
	if (!kept)
		return;
	bpf_spin_lock(&kept->lock);
	kept->flow = *flow;
	kept->sequence = sequence;
	kept->echo = *echo;
	bpf_spin_unlock(&kept->lock);
}

/* What an answer to a SYN with that number has to repeat; 0: nothing. */
static __always_inline int find_echo(const struct host_flow *flow, __u32 sequence,
				     struct redirect_echo *echo)
{
	struct redirect_echo_slot *kept = place_echo(flow, sequence, 0);
	int found = 0;

	if (!kept)
		return 0;
	bpf_spin_lock(&kept->lock);
	if (is_same_flow(&kept->flow, flow) && kept->sequence == sequence) {
		*echo = kept->echo;
		found = echo->service != 0;
	}
	bpf_spin_unlock(&kept->lock);
	return found;
}
