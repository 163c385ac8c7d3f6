/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows between clients and pods of this host: finding them, keeping and ending them. */
#pragma once

#include <bpf/bpf_endian.h>

#include "host/pod/maps.h"
#include "lib/clock.h"
#include "lib/proof.h"

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

/* The way of a flow; `opening`: the flow is one that begins. */
static __always_inline struct pod_way *find_way(const struct pod_flow *flow, int *opening)
{
	struct pod_way *way;

	*opening = 0;
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return NULL;
	way = bpf_map_lookup_elem(&pod_flows, flow);
	if (way)
		return way;
	*opening = 1;
	way = bpf_map_lookup_elem(&pod_opening, flow);
	if (way || flow->protocol == IPPROTO_TCP)
		return way;
	*opening = 0;
	return bpf_map_lookup_elem(&pod_datagrams, flow);
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
		.acknowledgement = v->protocol == IPPROTO_UDP ? v->now : 0,
		.name = v->picked.name,
	};

	v->way = way;
	turn_flow(&v->back, &v->flow, &way);
	way.address = v->flow.local;
	way.port = v->flow.local_port;
	way.kind = POD_LEAVING;
	v->reply = way;
}

/* What the client's SYN says of a new flow. */
static __always_inline void note_syn(struct pod_visit *v)
{
	v->way.signs = POD_SYN;
	v->reply.signs = POD_NUMBER;
	v->reply.acknowledgement = bpf_ntohl(v->l4.sequence) + 1;
}

/* Whether a flow that stays makes room for another one. */
static __always_inline int makes_room(const struct pod_visit *v, const struct pod_way *way)
{
	if (v->protocol == IPPROTO_UDP)
		return seconds_since(way->seen, v->now) >= POD_DATAGRAM_TIMEOUT;
	return has_ended(way);
}

/* The service of a flow as the client's packets have it. Not inlined, for its room on the stack. */
static __noinline __u32 service_of(const struct pod_flow *flow)
{
	struct host_endpoint vip = {
		.address = flow->local,
		.port = flow->local_port,
		.protocol = flow->protocol,
	};

	return find_service(&vip);
}

/* Removes a flow from those that stay. The quota counts the entry of the client's packets. */
static __noinline void leave_flows(const struct pod_flow *flow, const struct pod_flow *back)
{
	bpf_map_delete_elem(&pod_flows, back);
	if (!bpf_map_delete_elem(&pod_flows, flow))
		count_quota(&pod_quotas, service_of(flow), -1);
}

/*
 * Whether the client's port has a flow to the pod by way of another VIP, whose answers could
 * not be told from those of this one. A flow that has ended makes room.
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
	if (way && !makes_room(v, way))
		return 1;
	leave_flows(&other, &v->back);
	return 0;
}

static __always_inline int number_known(const struct pod_way *way)
{
	return way->acknowledgement || way->signs & POD_NUMBER;
}

/* The next numbers of client and pod that are known. */
static __always_inline struct proof_numbers numbers_of(const struct pod_way *way,
						       const struct pod_way *reply)
{
	struct proof_numbers numbers = {
		.client = reply->acknowledgement,
		.backend = way->acknowledgement,
	};

	if (number_known(reply))
		numbers.known |= PROOF_CLIENT;
	if (number_known(way))
		numbers.known |= PROOF_BACKEND;
	return numbers;
}

static __always_inline struct proof_segment proof_segment_of(const struct pod_visit *v, __u8 from)
{
	struct proof_segment segment = {
		.sequence = bpf_ntohl(v->l4.sequence),
		.acknowledgement = bpf_ntohl(v->l4.acknowledgement),
		.length = from == PROOF_BACKEND ? v->data : 0,
		.flags = v->l4.flags,
		.from = from,
	};

	return segment;
}

/* Whether one more flow of the service may stay. */
static __noinline int may_stay(__u32 service)
{
	if (has_quota(&pod_quotas, service, POD_FLOWS_MAX / 2))
		return 1;
	count(bpf_map_lookup_elem(&service_no_place, &service), 0);
	return 0;
}

/*
 * Moves a flow to those that stay. If there is no place, it goes on as it is. Not inlined,
 * because few packets need it.
 */
static __noinline void establish(struct pod_visit *v, const struct pod_way *way)
{
	struct pod_way *reply;
	__u32 service = service_of(&v->flow);

	if (!may_stay(service))
		return;
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
	count_quota(&pod_quotas, service, 1);
	bpf_map_delete_elem(&pod_opening, &v->flow);
	bpf_map_delete_elem(&pod_opening, &v->back);
}

/*
 * Notes a client's datagram of a flow that begins: the flow stays when client and pod have
 * taken turns for a while.
 */
static __always_inline void note_turn(struct pod_visit *v, struct pod_way *way)
{
	__u8 signs = way->signs;

	if (!(signs & POD_ANSWERED))
		return;
	if (signs < POD_TURNS * POD_TURN)
		way->signs = (signs & ~POD_ANSWERED) + POD_TURN;
	else if (seconds_since(way->acknowledgement, v->now) >= PROOF_LASTS)
		establish(v, way);
}

/* Establishes a connection that is being opened, if a client's segment proves it. */
static __noinline void prove(struct pod_visit *v, const struct pod_way *way)
{
	struct proof_segment segment = proof_segment_of(v, PROOF_CLIENT);
	struct proof_numbers numbers;
	struct pod_way *reply;

	turn_flow(&v->back, &v->flow, way);
	reply = bpf_map_lookup_elem(&pod_opening, &v->back);
	if (!reply)
		return;
	numbers = numbers_of(way, reply);
	if (proof_signs(&numbers, &segment) & PROOF_PROVES)
		establish(v, way);
}

/*
 * How far a client's FIN or RST may be from what the pod has acknowledged: one that is farther off
 * ends nothing, because its number is a guess (RFC 5961). Retransmissions are before it.
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
	return !reply || !number_known(reply) ||
	       is_near(bpf_ntohl(v->l4.sequence), reply->acknowledgement, POD_END_BEFORE,
		       POD_END_AFTER);
}

/*
 * Packets of a connection that has ended: the client's segments may be this far from what the pod
 * has acknowledged. They may acknowledge, and errors may quote, this much of what the pod sent
 * before its FIN.
 */
#define POD_ENDED_CLIENT (1 << 20)
#define POD_ENDED_POD (1 << 26)

static __always_inline int is_near_fin(const struct pod_way *way, __u32 number)
{
	return is_near(number, way->acknowledgement, POD_ENDED_POD, POD_END_AFTER);
}

/* Whether the pod has sent nothing yet, or only its SYN-ACK. */
static __always_inline int is_unanswered(const struct pod_way *way, int opening)
{
	return opening && !(way->signs & POD_ANSWERED);
}

/*
 * Whether a client's segment that is no SYN is of this connection. A connection that goes on has
 * its addresses and ports for itself. While it is opened, or after it has ended, another host may
 * have a connection with the same ones, whose SYN never came here: the numbers tell the two apart.
 */
static __always_inline int is_of(struct pod_visit *v, const struct pod_way *way, int opening)
{
	__u32 acknowledgement = bpf_ntohl(v->l4.acknowledgement);
	int acknowledges = v->l4.flags & POD_TCP_ACK;
	struct pod_way *reply;

	if (is_unanswered(way, opening)) {
		if (acknowledges)
			return acknowledgement == way->acknowledgement;
		if (!number_known(way)) /* not even by a SYN-ACK */
			return 0;
	} else if (!has_ended(way)) {
		return 1;
	}
	turn_flow(&v->back, &v->flow, way);
	reply = find_way(&v->back, &opening);
	if (!reply)
		return 1;
	if (!number_known(reply) || !is_near(bpf_ntohl(v->l4.sequence), reply->acknowledgement,
					     POD_ENDED_CLIENT, POD_ENDED_CLIENT))
		return 0;
	return !acknowledges || !(way->signs & POD_FIN_POD) || is_near_fin(way, acknowledgement);
}

/* The same for a pod's packet that an error quotes. After a RST no errors are needed. */
static __always_inline int has_sent(const struct pod_visit *v, const struct pod_way *way,
				    int opening)
{
	__u32 sequence = bpf_ntohl(v->l4.sequence);

	if (is_unanswered(way, opening))
		return sequence + 1 == way->acknowledgement;
	return !has_ended(way) || (way->signs & POD_FIN_POD && is_near_fin(way, sequence));
}

/* Notes a client's segment that is no SYN. A connection that goes on has not been reset. */
static __always_inline void note_arriving(struct pod_visit *v, struct pod_way *way, int opening)
{
	__u8 signs = way->signs, flags = v->l4.flags;

	note_seen(way, v->now);
	if (!(flags & POD_TCP_RST))
		signs &= ~POD_RESET;
	if (flags & (POD_TCP_FIN | POD_TCP_RST) && may_end(v, way))
		signs |= flags & POD_TCP_RST ? POD_RESET : POD_FIN_CLIENT;
	note_signs(way, signs);
	if (opening)
		prove(v, way);
}

/*
 * Whether a pod's segment is of a connection that goes on, also if nothing is known of it. A bare
 * ACK is not: a listener that waits for the handshake's end also answers other segments with it.
 */
static __always_inline int goes_on(const struct pod_visit *v)
{
	return !(v->l4.flags & POD_TCP_SYN) && (v->data || v->l4.flags & POD_TCP_FIN);
}

/* Notes what a pod's segment says of a connection that is being opened. */
static __noinline void note_opening(struct pod_visit *v, struct pod_way *reply, struct pod_way *way)
{
	struct proof_segment segment = proof_segment_of(v, PROOF_BACKEND);
	struct proof_numbers numbers = numbers_of(way, reply);
	__u32 proves = proof_signs(&numbers, &segment) & PROOF_PROVES;
	__u8 flags = v->l4.flags;

	/*
	 * A bare ACK before any SYN-ACK was seen proves nothing, either: a listener that waits
	 * since another SYN acknowledges that SYN's number.
	 */
	if (!goes_on(v) && !number_known(way))
		proves = 0;

	if (flags & POD_TCP_ACK) {
		reply->acknowledgement = segment.acknowledgement;
		note_signs(reply, reply->signs | POD_NUMBER);
	}
	if (flags & POD_TCP_RST) {
		note_signs(way, way->signs | POD_RESET);
		return;
	}
	way->acknowledgement = flags & POD_TCP_FIN ? segment.sequence : proof_next(&segment);
	if (proves || (!(way->signs & POD_SYN) && goes_on(v)))
		way->signs |= POD_ANSWERED;
	note_signs(way, way->signs | POD_NUMBER | (flags & POD_TCP_FIN ? POD_FIN_POD : 0));
	if (proves)
		establish(v, way);
}

/*
 * Notes a pod's segment: what it says is noted where the client's packets are looked up.
 * Most segments say nothing new.
 */
static __always_inline void note_leaving(struct pod_visit *v, struct pod_way *reply, int opening)
{
	__u8 flags = v->l4.flags;
	struct pod_way *way;

	note_seen(reply, v->now);
	if (opening) {
		turn_flow(&v->flow, &v->back, reply);
		way = bpf_map_lookup_elem(&pod_opening, &v->flow);
		if (way)
			note_opening(v, reply, way);
		return;
	}
	if (flags & POD_TCP_ACK && reply->acknowledgement != bpf_ntohl(v->l4.acknowledgement))
		reply->acknowledgement = bpf_ntohl(v->l4.acknowledgement);
	if (!(flags & (POD_TCP_SYN | POD_TCP_FIN | POD_TCP_RST)))
		return;
	turn_flow(&v->flow, &v->back, reply);
	way = bpf_map_lookup_elem(&pod_flows, &v->flow);
	if (!way)
		return;
	if (flags & POD_TCP_RST) {
		note_signs(way, way->signs | POD_RESET);
	} else if (flags & POD_TCP_SYN) {
		way->acknowledgement = bpf_ntohl(v->l4.sequence) + 1;
	} else {
		way->acknowledgement = bpf_ntohl(v->l4.sequence);
		note_signs(way, way->signs | POD_FIN_POD | POD_ANSWERED);
	}
}

/* Notes a datagram of the pod's. */
static __always_inline void note_answer(struct pod_visit *v, struct pod_way *reply, int opening)
{
	struct pod_way *way;

	note_seen(reply, v->now);
	if (!opening)
		return;
	turn_flow(&v->flow, &v->back, reply);
	way = bpf_map_lookup_elem(&pod_opening, &v->flow);
	if (way)
		note_signs(way, way->signs | POD_ANSWERED);
}
