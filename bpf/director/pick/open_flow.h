/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The short way of most packets of known flows: they change at most the flow's time, and the flow is
 * in the first line that is read. All others go the long way: see flows.h.
 */
#pragma once

#include "director/pick/flow_table.h"
#include "director/pick/ring.h"
#include "director/segment.h"

/* Writes the time of a flow of which nothing else changes. It is long before the flow times out. */
static __noinline int renew_flow(const struct settings *settings, const struct flow_known *known,
				 __u64 hash, __u32 now)
{
	struct flow_place *place;
	union flow_word word;

	if (!settings || !known || settings->former_buckets || !flow_live(known->word, now))
		return 0;
	word = known->word;
	word.seen = now;
	if (settings->flags & SETTINGS_TELL && flow_is_news(known->word, word, hash))
		return 0;
	place = place_at(known->place);
	return place && flow_swap(place, known->word, word);
}

/*
 * The backend of the flow, also in packet->backend; NULL: the packet has to go the long way. Any
 * backend that keeps its connections may have the packet.
 */
static __noinline struct backend *follow_open(struct xdp_md *ctx, struct packet *packet,
					      __u32 service)
{
	const struct settings *settings = get_settings();
	const struct tcphdr *tcp;
	struct flow_known known;
	struct backend *backend;
	__u32 sequence = 0, now;
	__u64 hash;

	if (!packet || !settings || !flow_may_stay(packet))
		return NULL;
	if (packet->flow.protocol == IPPROTO_TCP) {
		tcp = l4_header(ctx, packet);
		if ((void *)(tcp + 1) > frame_end(ctx))
			return NULL;
		sequence = bpf_ntohl(tcp->seq);
	}
	now = flow_clock();
	hash = flow_hash(settings, &packet->flow, service);
	if (!read_first_line(settings, &packet->flow, hash, service, &known))
		return NULL;
	backend = backend_at(known.backend);
	if (!backend || backend->epoch != known.word.epoch || !keeps(backend))
		return NULL;
	if (flow_stays(known.word, known.next, packet, sequence)) {
		if (unlikely(flow_age(known.word, now) >= FLOW_SEEN_LATE) &&
		    !renew_flow(settings, &known, hash, now))
			return NULL;
	} else if (!flow_stays_fresh(known.word, known.next, packet, sequence, now)) {
		return NULL;
	}
	packet->backend = known.backend;
	return backend;
}
