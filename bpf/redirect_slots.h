/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is remembered of a connection only until it is answered: each flow has one place in an
 * array, which it may share with others. A hash table that pushes out the oldest ones would have
 * to be looked at in several places, which are cold because the connection is new, and keeps
 * lists that all CPUs share.
 *
 * Which flows share a place depends on a number that nobody else knows. A SYN that has asked
 * keeps its place as long as it may be answered, and who finds it taken does not ask. What a
 * backend is to repeat is pushed out by the next one: its answer is due at once.
 */
#pragma once

#include "redirect_maps.h"

/* s after which a SYN that asked makes room: it has been sent again without, and that again. */
#define SLOT_TIME 4

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

/* 0: another SYN that has asked is there, and may be answered yet. */
static __always_inline int keep_syn(const struct host_flow *flow, __u32 sequence,
				    enum redirect_syn_state state)
{
	__u32 slot = slot_of(flow), now = bpf_ktime_get_coarse_ns() / SECOND;
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &slot);
	int taken;

	if (!syn)
		return 0;
	bpf_spin_lock(&syn->lock);
	taken = syn->state == REDIRECT_SYN_ASKED && now - syn->when < SLOT_TIME &&
		!is_same_flow(&syn->flow, flow);
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
 * What is known of the SYN with that number by which a flow began, which has another state from
 * then on, unless that is REDIRECT_SYN_OTHER. REDIRECT_SYN_OTHER: it began with another number.
 */
static __noinline enum redirect_syn_state exchange_syn(const struct host_flow *flow, __u32 sequence,
						       enum redirect_syn_state to)
{
	__u32 slot = slot_of(flow);
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &slot);
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
 * Whether a flow's last SYN has asked, and nobody has answered. A call of its own for its room on
 * the stack.
 */
static __noinline int is_asking(const struct host_flow *flow)
{
	__u32 slot = slot_of(flow);
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &slot);
	int asks = 0;

	if (!syn)
		return 0;
	bpf_spin_lock(&syn->lock);
	if (is_same_flow(&syn->flow, flow))
		asks = syn->state == REDIRECT_SYN_ASKED;
	bpf_spin_unlock(&syn->lock);
	return asks;
}

static __always_inline void keep_echo(const struct host_flow *flow, __u32 sequence,
				      const struct redirect_echo *echo)
{
	__u32 slot = slot_of(flow);
	struct redirect_echo_slot *kept = bpf_map_lookup_elem(&redirect_echoes, &slot);

	if (!kept)
		return;
	bpf_spin_lock(&kept->lock);
	kept->flow = *flow;
	kept->sequence = sequence;
	kept->echo = *echo;
	bpf_spin_unlock(&kept->lock);
}

/* What is to be repeated in an answer to a SYN with that number; 0: nothing. */
static __always_inline int find_echo(const struct host_flow *flow, __u32 sequence,
				     struct redirect_echo *echo)
{
	__u32 slot = slot_of(flow);
	struct redirect_echo_slot *kept = bpf_map_lookup_elem(&redirect_echoes, &slot);
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
