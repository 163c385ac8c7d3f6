/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Full NAT in a group: a director tells the others of its flows, with the address and port
 * that each has, and keeps those of the others here. So a flow's packets go on at any director of
 * the group, whichever director its packets or its replies come to. Only the director that has an
 * address gives away the address's ports.
 *
 * The flows of other directors lie in an array. Two hash tables say where in it a flow is: by the
 * hash of the flow as its client sees it, and by its address and port. Userspace writes all three,
 * and frees places (internal/datapath/sharednat.go); programs change a flow's first word and its
 * numbers, as in the table of this director's own flows. There a flow can also be outside of its
 * buckets, if this director has lost its memory and was told of the flow: then only the first hash
 * table has it.
 */
#pragma once

#include "director/budget.h"
#include "director/maps.h"
#include "director/nat/snat_state.h"
#include "director/pick/flow_table.h"
#include "lib/packet.h"

/* A proved flow that goes on is news again once in 2^this units of seen: see flow_news_shift. */
static __always_inline __u32 snat_news_shift(__u8 state)
{
	if (state == SNAT_TWO_WAY)
		return 6;
	return state == SNAT_ESTABLISHED ? 10 : 5;
}

/* Whether the other directors should know how a packet has changed a flow: see flow_is_news. */
static __always_inline int snat_is_news(union snat_word before, union snat_word now, __u32 phase)
{
	if (now.state <= SNAT_CLAIMED || snat_fresh(now.state))
		return 0;
	if (now.state != before.state)
		return !snat_fresh(before.state) || !snat_over(now.state);
	return ((before.seen + phase) ^ (now.seen + phase)) >> snat_news_shift(now.state) != 0;
}

/*
 * The same of a fresh flow: that the backend has answered, by numbers that let the other directors
 * tell the client's next segment from a forged one.
 */
static __always_inline int snat_is_fresh_news(union snat_word before, union snat_word now)
{
	return now.state != before.state &&
	       (now.state == SNAT_TRIED || (now.state == SNAT_ANSWERED && now.proof & SNAT_ANSWER));
}

/* Whether the group may be told of one more fresh flow: see may_tell_fresh. */
static __noinline int may_tell_fresh_snat(const struct settings *settings,
					  const struct snat_flow *entry, __u8 ipv6)
{
	struct flow client = {};

	if (!settings || !entry)
		return 0;
	client.segment = entry->segment;
	client.source = entry->client;
	client.ipv6 = ipv6;
	return may_spend(BUDGET_FRESH, &client, FRESH_FLOWS_TOLD / settings->cpus, settings);
}

/* Not inlined: most packets are no news. */
static __noinline int tell_snat(const struct snat_flow *entry, __u32 number, __u8 ipv6)
{
	const struct settings *settings = get_settings();
	struct told_snat *told;

	if (!entry || !settings || !(settings->flags & SETTINGS_TELL))
		return 0;
	if (snat_fresh(snat_read(entry).state) && !may_tell_fresh_snat(settings, entry, ipv6))
		return 0;
	told = bpf_ringbuf_reserve(&told_flows, sizeof(*told), 0);
	if (!told) {
		count_flow(FLOW_UNTOLD);
		return 0;
	}
	told->number = number;
	told->pad = 0;
	told->flow = *entry;
	bpf_ringbuf_submit(told, 0);
	return 1;
}

/* Tells of a flow whose word was `before` until this packet. */
static __always_inline void share_snat(const struct snat_flow *entry, __u32 number,
				       union snat_word before, __u8 ipv6)
{
	union snat_word now = snat_read(entry);

	if (unlikely(now.word != before.word) &&
	    (snat_is_news(before, now, entry->hash) || snat_is_fresh_news(before, now)))
		tell_snat(entry, number, ipv6);
}

static __noinline struct snat_shared *shared_at(__u32 number)
{
	__u32 zero = 0, place = number & ~SNAT_SHARED;
	void *table = bpf_map_lookup_elem(&shared_tables, &zero);

	return table ? bpf_map_lookup_elem(table, &place) : NULL;
}

/* The number of the flow of this client, if another director has told of it; 0: none has. */
static __noinline __u32 shared_client(const struct flow *flow, __u64 hash)
{
	void *clients;
	__u32 zero = 0, *number;

	if (!flow)
		return 0;
	clients = bpf_map_lookup_elem(&shared_clients, &zero);
	number = clients ? bpf_map_lookup_elem(clients, &hash) : NULL;
	return number ? *(volatile __u32 *)number : 0;
}

/* The number of the flow with the address and port that a packet is sent to; 0: there is none. */
static __noinline __u32 shared_end(const struct flow *flow)
{
	struct snat_end end = {};
	__u32 zero = 0, *number;
	void *ends;

	if (!flow)
		return 0;
	ends = bpf_map_lookup_elem(&shared_ends, &zero);
	if (!ends)
		return 0;
	end.address = flow->destination;
	end.port = flow->destination_port;
	end.protocol = flow->protocol;
	end.ipv6 = flow->ipv6;
	number = bpf_map_lookup_elem(ends, &end);
	return number ? *(volatile __u32 *)number : 0;
}

/* Whether the place still has a flow with the address and port that a packet is sent to. */
static __noinline int shared_is_at(const struct flow *flow, __u32 number)
{
	const struct snat_shared *shared = shared_at(number);

	return shared && flow && same_address(&shared->source, &flow->destination) &&
	       shared->source_port == flow->destination_port && shared->protocol == flow->protocol;
}
