/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows between clients and pods of this host: finding them, keeping and ending them. */
#pragma once

#include "pod_maps.h"

#define POD_SECOND 1000000000ULL
#define POD_OPENING_TIMEOUT 60   /* s in which a SYN that is sent again goes to the same pod */
#define POD_DATAGRAM_TIMEOUT 300 /* s without a datagram that a flow of UDP is remembered */

#define POD_TCP_FIN 0x01
#define POD_TCP_SYN 0x02
#define POD_TCP_RST 0x04
#define POD_TCP_ACK 0x10

static __always_inline __u32 pod_now(void)
{
	return bpf_ktime_get_coarse_ns() / POD_SECOND;
}

/* The way of a flow: of TCP in `opening` too, which is said. */
static __always_inline struct pod_way *find_way(const struct pod_flow *flow, int *opening)
{
	struct pod_way *way;

	*opening = 0;
	if (flow->protocol == IPPROTO_UDP)
		return bpf_map_lookup_elem(&pod_datagrams, flow);
	if (flow->protocol != IPPROTO_TCP)
		return NULL;
	way = bpf_map_lookup_elem(&pod_flows, flow);
	if (way)
		return way;
	*opening = 1;
	return bpf_map_lookup_elem(&pod_opening, flow);
}

/* The same flow as the other end sees it. */
static __always_inline void turn_flow(struct pod_flow *back, const struct pod_flow *flow,
				      const struct pod_way *way)
{
	*back = *flow;
	back->local = way->address;
	back->local_port = way->port;
}

/* Written when it says something new. */
static __always_inline void note_seen(struct pod_way *way, __u32 now)
{
	if (way->seen != now)
		way->seen = now;
}

static __always_inline void note_signs(struct pod_way *way, __u8 signs)
{
	if (way->signs != signs)
		way->signs = signs;
}

static __always_inline int has_ended(const struct pod_way *way)
{
	const __u8 both = POD_FIN_CLIENT | POD_FIN_POD;

	return way->signs & POD_RESET || (way->signs & both) == both;
}

/* Both ways of a new flow to the pod that was picked: visit->flow is there. */
static __always_inline void make_ways(struct pod_visit *v)
{
	struct pod_way way = {
		.address = v->picked.address,
		.port = v->picked.port ? v->picked.port : v->flow.local_port,
		.kind = POD_ARRIVING,
		.seen = v->now,
		.name = v->picked.name,
	};

	v->way = way;
	turn_flow(&v->back, &v->flow, &way);
	way.address = v->flow.local;
	way.port = v->flow.local_port;
	way.kind = POD_LEAVING;
	v->reply = way;
}

/*
 * Whether the client's port has a connection to the pod by way of another VIP, whose answers
 * could not be told from those of this one. One that has ended makes room.
 */
static __always_inline int is_taken(struct pod_visit *v)
{
	struct pod_way *reply = bpf_map_lookup_elem(&pod_flows, &v->back), *way;
	struct pod_flow other;

	if (!reply ||
	    (reply->port == v->flow.local_port && same_bytes(&reply->address, &v->flow.local)))
		return 0;
	turn_flow(&other, &v->back, reply);
	way = bpf_map_lookup_elem(&pod_flows, &other);
	if (way && !has_ended(way))
		return 1;
	bpf_map_delete_elem(&pod_flows, &other);
	bpf_map_delete_elem(&pod_flows, &v->back);
	return 0;
}

/* The client has an answer of the pod, or the pod one of the client: no flood is of that kind. */
static __always_inline int is_established(const struct pod_way *way, const struct pod_l4 *l4)
{
	if (!(l4->flags & POD_TCP_ACK) || l4->flags & POD_TCP_RST)
		return 0;
	return way->signs & POD_ANSWERED ||
	       (way->acknowledgement && way->acknowledgement == bpf_ntohl(l4->acknowledgement));
}

/* Takes a connection over among those that stay. Where there is no place, it goes on opening. */
static __always_inline void establish(struct pod_visit *v, const struct pod_way *way)
{
	struct pod_way *reply;

	v->way = *way;
	turn_flow(&v->back, &v->flow, way);
	reply = bpf_map_lookup_elem(&pod_opening, &v->back);
	if (!reply)
		return;
	v->reply = *reply;
	if (bpf_map_update_elem(&pod_flows, &v->back, &v->reply, BPF_ANY))
		return;
	if (bpf_map_update_elem(&pod_flows, &v->flow, &v->way, BPF_ANY)) {
		bpf_map_delete_elem(&pod_flows, &v->back);
		return;
	}
	bpf_map_delete_elem(&pod_opening, &v->flow);
	bpf_map_delete_elem(&pod_opening, &v->back);
}

/*
 * How far from what the pod has acknowledged a client's FIN or RST may be: what is farther
 * ends nothing, for somebody has guessed its number (RFC 5961). What is sent again is before.
 */
#define POD_END_BEFORE (1 << 16)
#define POD_END_AFTER (1 << 20)

static __always_inline int is_near(__u32 number, __u32 end, __u32 before, __u32 after)
{
	return number + before - end <= before + after;
}

static __always_inline int may_end(struct pod_visit *v, const struct pod_way *way)
{
	struct pod_way *reply;
	int opening;

	turn_flow(&v->back, &v->flow, way);
	reply = find_way(&v->back, &opening);
	return !reply || !reply->acknowledgement ||
	       is_near(bpf_ntohl(v->l4.sequence), reply->acknowledgement, POD_END_BEFORE,
		       POD_END_AFTER);
}

/*
 * What may still be said of a connection that has ended: by the client this far from what the
 * pod has acknowledged, and about this much of what the pod has sent before its FIN.
 */
#define POD_ENDED_CLIENT (1 << 20)
#define POD_ENDED_POD (1 << 26)

static __always_inline int is_near_fin(const struct pod_way *way, __u32 number)
{
	return is_near(number, way->acknowledgement, POD_ENDED_POD, POD_END_AFTER);
}

/* The pod has sent nothing yet but, if at all, its SYN-ACK. */
static __always_inline int is_unanswered(const struct pod_way *way, int opening)
{
	return opening && !(way->signs & POD_ANSWERED);
}

/*
 * Whether a segment of the client's that is no SYN is of this connection. One that goes on has
 * its ends for itself. While one is opened, or when it has ended, another host may have
 * another one, whose SYN never came here: the numbers tell.
 */
static __always_inline int is_of(struct pod_visit *v, const struct pod_way *way, int opening)
{
	__u32 acknowledgement = bpf_ntohl(v->l4.acknowledgement);
	int acknowledges = v->l4.flags & POD_TCP_ACK;
	struct pod_way *reply;

	if (is_unanswered(way, opening)) {
		if (acknowledges)
			return acknowledgement == way->acknowledgement;
	} else if (!has_ended(way)) {
		return 1;
	}
	turn_flow(&v->back, &v->flow, way);
	reply = find_way(&v->back, &opening);
	if (!reply)
		return 1;
	if (!reply->acknowledgement || !is_near(bpf_ntohl(v->l4.sequence), reply->acknowledgement,
						POD_ENDED_CLIENT, POD_ENDED_CLIENT))
		return 0;
	return !acknowledges || !(way->signs & POD_FIN_POD) || is_near_fin(way, acknowledgement);
}

/* The same of what an error quotes, which a pod has sent. After a RST nobody wants it. */
static __always_inline int has_sent(const struct pod_visit *v, const struct pod_way *way,
				    int opening)
{
	__u32 sequence = bpf_ntohl(v->l4.sequence);

	if (is_unanswered(way, opening))
		return sequence + 1 == way->acknowledgement;
	return !has_ended(way) || (way->signs & POD_FIN_POD && is_near_fin(way, sequence));
}

/* A segment of the client's that is no SYN. Whatever goes on has not been reset. */
static __always_inline void note_arriving(struct pod_visit *v, struct pod_way *way, int opening)
{
	__u8 signs = way->signs, flags = v->l4.flags;

	note_seen(way, v->now);
	if (!(flags & POD_TCP_RST))
		signs &= ~POD_RESET;
	if (flags & (POD_TCP_FIN | POD_TCP_RST) && may_end(v, way))
		signs |= flags & POD_TCP_RST ? POD_RESET : POD_FIN_CLIENT;
	note_signs(way, signs);
	if (opening && is_established(way, &v->l4))
		establish(v, way);
}

/*
 * A segment of the pod's: what it says is noted where the client's packets are looked up.
 * Most say nothing new.
 */
static __always_inline void note_leaving(struct pod_visit *v, struct pod_way *reply, int opening)
{
	__u8 flags = v->l4.flags;
	struct pod_way *way;

	note_seen(reply, v->now);
	if (flags & POD_TCP_ACK && reply->acknowledgement != bpf_ntohl(v->l4.acknowledgement))
		reply->acknowledgement = bpf_ntohl(v->l4.acknowledgement);
	if (!opening && !(flags & (POD_TCP_SYN | POD_TCP_FIN | POD_TCP_RST)))
		return;
	turn_flow(&v->flow, &v->back, reply);
	way = opening ? bpf_map_lookup_elem(&pod_opening, &v->flow) :
			bpf_map_lookup_elem(&pod_flows, &v->flow);
	if (!way)
		return;
	if (flags & POD_TCP_RST) {
		note_signs(way, way->signs | POD_RESET);
	} else if (flags & POD_TCP_SYN) {
		way->acknowledgement = bpf_ntohl(v->l4.sequence) + 1;
	} else if (flags & POD_TCP_FIN) {
		way->acknowledgement = bpf_ntohl(v->l4.sequence);
		note_signs(way, way->signs | POD_FIN_POD | POD_ANSWERED);
	} else {
		note_signs(way, way->signs | POD_ANSWERED);
	}
}
