/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Redirected connections of this host's clients: finding them, keeping and ending them. */
#pragma once

#include "redirect/neighbor.h"
#include "redirect/slots.h"

/* The flow of a segment whose client is its source, or its destination; vip is the other end. */
static __always_inline struct host_flow flow_of(const struct segment *s, int client_is_source)
{
	struct host_flow flow = {
		.client = client_is_source ? s->source : s->destination,
		.vip = client_is_source ? s->destination : s->source,
		.client_port = client_is_source ? s->source_port : s->destination_port,
		.vip_port = client_is_source ? s->destination_port : s->source_port,
	};

	return flow;
}

/* The same client with another peer. */
static __always_inline struct host_flow flow_to(const struct host_flow *flow,
						const struct address *peer, __be16 port)
{
	struct host_flow other = *flow;

	other.vip = *peer;
	other.vip_port = port;
	return other;
}

/*
 * How far a FIN or an RST may be from what the host has acknowledged: one that is farther off ends
 * nothing, because its number is a guess (RFC 5961). Data that has come may not be acknowledged
 * yet, and a FIN, which may be sent again, may come with data that has been.
 */
#define END_AFTER (1 << 20)
#define FIN_BEFORE (1 << 16)
#define RST_BEFORE 1 /* a host that has sent a FIN may reset from its number */

static __always_inline void note_time(struct redirect_way *way, __u64 now)
{
	if (since(way->seen, now) <= SECOND)
		return;
	way->seen = now;
	way->neighbor = 0;
}

/*
 * Notes a packet of the host's own, if it says something new. Every packet that leaves, except an
 * RST, shows that the connection lives: also the ACK by which a host answers an RST that is in its
 * window but does not have the number that the host waits for.
 */
static __always_inline void note_leaving(struct redirect_way *way, const struct segment *s,
					 __u64 now)
{
	__u16 ends = way->ends & REDIRECT_FIN;

	note_time(way, now);
	if (s->flags & SEGMENT_FIN)
		ends |= REDIRECT_FIN;
	if (s->flags & SEGMENT_RST)
		ends |= REDIRECT_RST;
	else if (s->flags & SEGMENT_ACK && way->acknowledged != s->acknowledgement)
		way->acknowledged = s->acknowledgement;
	if (ends != way->ends)
		way->ends = ends;
}

/*
 * Notes a FIN or an RST that came to the client of a connection. A FIN acknowledges something, like
 * all that follows the SYNs (RFC 9293, 3.10.7.4). Not inlined, because few packets need it.
 */
static __noinline void note_end(struct redirect_way *way, const struct segment *s)
{
	struct host_flow arriving = flow_of(s, 0);
	struct host_flow leaving = flow_to(&arriving, &way->peer, way->peer_port);
	struct redirect_way *out = bpf_map_lookup_elem(&redirect_leaving, &leaving);
	__u32 before = s->flags & SEGMENT_RST ? RST_BEFORE : FIN_BEFORE;

	if (!(s->flags & (SEGMENT_RST | SEGMENT_ACK)))
		return;
	if (!out || s->sequence + before - out->acknowledged > before + END_AFTER)
		return;
	if (s->flags & SEGMENT_RST)
		out->ends |= REDIRECT_RST;
	else
		way->ends |= REDIRECT_FIN;
}

static __always_inline void note_arriving(struct redirect_way *way, const struct segment *s)
{
	note_time(way, bpf_ktime_get_coarse_ns());
	if (s->flags & (SEGMENT_FIN | SEGMENT_RST))
		note_end(way, s);
}

static __always_inline struct redirect_counter *counter_of(__u32 service)
{
	return bpf_map_lookup_elem(&redirect_counters, &service);
}

/* Whether one more connection of a service may be remembered. */
static __always_inline int has_place(__u32 service)
{
	return has_quota(&redirect_quotas, service, REDIRECT_CONNECTIONS_MAX);
}

/* Removes the entry for the host's packets of a connection. */
static __always_inline void stop_leaving(const struct host_flow *leaving, __u32 service)
{
	if (!bpf_map_delete_elem(&redirect_leaving, leaving))
		count_quota(&redirect_quotas, service, -1);
}

/* Forgets a connection that another one has replaced. */
static __always_inline void forget(const struct host_flow *leaving, const struct redirect_way *way)
{
	struct host_flow arriving = flow_to(leaving, &way->peer, way->peer_port);

	stop_leaving(leaving, way->service);
	bpf_map_delete_elem(&redirect_arriving, &arriving);
}

/* Whether both sides have ended the connection, or one side has reset it. */
static __always_inline int has_ended(const struct redirect_way *a, const struct redirect_way *b)
{
	return ((a->ends | b->ends) & REDIRECT_RST) || (a->ends & b->ends & REDIRECT_FIN);
}

/* The interface that the host's packets leave by: the answer's own, or the bridge that has it. */
static __always_inline __u32 leaves_by(__u32 ifindex)
{
	__u32 *bridge = bpf_map_lookup_elem(&redirect_ports, &ifindex);

	return bridge ? *bridge : ifindex;
}

/*
 * Whether the client's port has a connection to that backend by way of another VIP. A connection
 * that has ended makes room. Not inlined: few packets need it, and the others do not need its
 * room on the stack.
 */
static __noinline int meets_another(const struct host_flow *arriving,
				    const struct redirect_service *service)
{
	struct redirect_way *in = bpf_map_lookup_elem(&redirect_arriving, arriving), *out;
	struct host_flow leaving;

	if (!in || (in->peer_port == service->port && same_bytes(&in->peer, &service->vip)))
		return 0;
	leaving = flow_to(arriving, &in->peer, in->peer_port);
	out = bpf_map_lookup_elem(&redirect_leaving, &leaving);
	if (out && !has_ended(in, out))
		return 1;
	stop_leaving(&leaving, in->service);
	return 0;
}

/*
 * Remembers a connection: first what arrives, because its packets leave only when the host
 * has got the answer. 0: there is no place. Not inlined, as meets_another.
 */
static __noinline int remember(const struct host_flow *leaving, const struct segment *s,
			       const struct redirect_service *service, __u32 index, __u32 ifindex)
{
	struct host_flow arriving = flow_of(s, 0);
	struct redirect_way way = {
		.peer = service->vip,
		.peer_port = service->port,
		.sequence = s->acknowledgement - 1,
		.ifindex = leaves_by(ifindex),
		.service = index,
		.seen = bpf_ktime_get_coarse_ns(),
	};
	__u64 *remembered = memory_of(REDIRECT_REMEMBERED);

	if (!remembered || !has_place(index) ||
	    bpf_map_update_elem(&redirect_arriving, &arriving, &way, BPF_ANY))
		return 0;
	way.peer = s->source;
	way.peer_port = s->source_port;
	way.acknowledged = s->sequence + 1;
	if (bpf_map_update_elem(&redirect_leaving, leaving, &way, BPF_ANY)) {
		bpf_map_delete_elem(&redirect_arriving, &arriving);
		return 0;
	}
	count_quota(&redirect_quotas, index, 1);
	/* Its result, which is never 0, is used, so this is also a barrier: first the maps. */
	return __sync_fetch_and_add(remembered, 1) != 0;
}
