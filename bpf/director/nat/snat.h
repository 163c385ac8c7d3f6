/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Full NAT's flows: see struct snat_flow. A flow's hash chooses two buckets, and
 * it is in one of them or nowhere; and in both its own place, where every search begins. A new
 * flow takes a place that is free, its own if it can; else, if there is one, the place of a flow
 * that has ended or is fresh (proof.h): the one that was quiet for longest. A flow that is
 * proved is never pushed out. If there are several services, none has more than its share of a
 * bucket, and a segment with a quota has no more than its part: see snat_place.h.
 *
 * Any CPU may change any flow, by one compare-and-swap of its first word:
 * - Two CPUs that want the same place: one gets it, the other looks again.
 * - Two that start the same flow at once, in different places: each looks again
 *   when its own is in place, and a CPU that finds the other's first gives its own
 *   up. If neither could see the other in time, the flow has two places: the
 *   backend sees the first packet twice, later ones take the first place, and
 *   the other one runs out.
 * - A flow that ends and is replaced while a packet of it is under way: a flow is
 *   replaced only when it was quiet for more than a second, and a packet that
 *   finds it quiet must first mark it as seen, which fails if it was replaced.
 */
#pragma once

#include "director/nat/snat_place.h"

/* claim_snat: every place is taken, or another CPU was faster. No flow has these numbers. */
#define SNAT_FULL 0
#define SNAT_LOST 1

/* Writes a flow in the place that was found. No CPU reads it before its state says so. */
static __noinline __u32 snat_take(void *table, const struct snat_place *place,
				  const struct packet *packet, __u32 index, __u8 epoch)
{
	struct snat_flow *entry = snat_flow(table, place->number);
	__u32 now = flow_clock();
	union snat_word claimed = { .seen = now, .state = SNAT_CLAIMED };
	union snat_word fresh = {
		.seen = now,
		.state = packet->flow.protocol == IPPROTO_TCP ? SNAT_SYN : SNAT_ONE_WAY,
		.epoch = epoch,
		.proof = packet->flow.protocol == IPPROTO_TCP ? SNAT_KNOWS_CLIENT : now,
	};
	union snat_word word;

	if (!entry)
		return SNAT_FULL;
	word = snat_read(entry);
	if (!snat_rank(entry, word, packet, place->hash, now) || !snat_swap(entry, word, claimed))
		return SNAT_LOST;
	entry->hash = place->hash;
	entry->backend = index;
	entry->client = packet->flow.source;
	entry->vip = packet->flow.destination;
	entry->segment = packet->flow.segment;
	entry->client_port = packet->flow.source_port;
	entry->vip_port = packet->flow.destination_port;
	entry->asked = (struct snat_asked){ .sequence = packet->sequence };
	__sync_lock_test_and_set((__u64 *)entry, fresh.word);
	return place->number;
}

/* Takes a place for a new flow to this backend. Returns its number, SNAT_FULL or SNAT_LOST. */
__noinline __u32 claim_snat(const struct packet *packet, __u32 index, __u8 epoch)
{
	void *table = snat_table();
	struct snat_header *header = snat_header(table);
	struct snat_place best = {};

	if (!header || !packet)
		return SNAT_FULL;
	best.hash = snat_hash(header, &packet->flow);
	for (int choice = 0; choice < SNAT_CHOICES; choice++) {
		__u32 number = snat_choose(header, &packet->flow, best.hash, choice);
		struct snat_bucket *bucket = snat_bucket(table, number);

		if (bucket)
			snat_compare(bucket, number, packet, &best);
	}
	if (!best.rank) {
		snat_refuse(packet);
		return SNAT_FULL;
	}
	return snat_take(table, &best, packet, index, epoch);
}

/* Gives up a place that was just taken. */
static __always_inline void release_snat(__u32 number)
{
	struct snat_flow *entry = snat_at(number);
	union snat_word word, nothing = {};

	if (!entry)
		return;
	word = snat_read(entry);
	snat_swap(entry, word, nothing);
}

static __always_inline int needs_snat(const struct backend *backend)
{
	return backend->mode == MODE_NAT && backend->flags & BACKEND_SNAT;
}

/*
 * Begins a flow to the backend that was picked, if it is one for full NAT. The
 * backend may turn out to be another CPU's choice.
 */
__noinline enum reason start_snat(struct packet *packet)
{
	const struct backend *backend;

	if (!packet)
		return DROP_SNAT_UNKNOWN;
	backend = backend_at(packet->backend);
	if (!backend || !needs_snat(backend))
		return CONTINUE;
	if (packet->flags & PACKET_ICMP_ERROR ||
	    (packet->flow.protocol == IPPROTO_TCP && !is_syn(packet)))
		return DROP_SNAT_UNKNOWN;
	for (int i = 0; i < SNAT_TRIES; i++) {
		__u32 taken = claim_snat(packet, packet->backend, backend->epoch);
		__u32 found = find_snat(packet, SNAT_FIN_CLIENT);

		if (found != NO_BACKEND) {
			if (taken >= SNAT_BUCKET && taken != packet->snat)
				release_snat(taken);
			packet->backend = found;
			return CONTINUE;
		}
		if (taken == SNAT_FULL)
			break;
	}
	return DROP_SNAT_FULL;
}

/*
 * Whether a connection from the client to the backend is open already: one to another VIP that
 * another director has handed over. (Listening sockets have no port of a peer.)
 */
static __noinline int is_open_here(struct xdp_md *ctx, const struct flow *to)
{
	struct bpf_sock_tuple tuple = {};
	__u32 length = sizeof(tuple.ipv4);
	struct bpf_sock *socket;
	int open;

	if (!to)
		return 0;
	if (to->ipv6) {
		length = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, &to->source, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &to->destination, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = to->source_port;
		tuple.ipv6.dport = to->destination_port;
	} else {
		tuple.ipv4.saddr = ADDRESS_WORD(&to->source, 0);
		tuple.ipv4.daddr = ADDRESS_WORD(&to->destination, 0);
		tuple.ipv4.sport = to->source_port;
		tuple.ipv4.dport = to->destination_port;
	}
	socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	open = socket->state == BPF_TCP_ESTABLISHED || socket->state == BPF_TCP_CLOSE_WAIT ||
	       socket->state == BPF_TCP_NEW_SYN_RECV;
	bpf_sk_release(socket);
	return open;
}

/*
 * A backend on this host answers the client itself, so packets to it keep their
 * source, and only nat_tc_local.h sees the replies. Those need another flow in the table:
 * from the client to the backend, not to the VIP, because several VIPs may have the
 * backend. The flow's port is not used. There may be no place for it, or the client
 * has the same port open to another VIP of this backend, here or by a director that has
 * handed the connection over. (The packets could not have this director's source address
 * for the client's instead: replies to that do not leave the host, so they would not be
 * translated.)
 */
__noinline enum reason keep_local(struct xdp_md *ctx, struct packet *packet, __u32 index)
{
	const struct backend *backend = backend_at(index);
	__u32 found = NO_BACKEND, taken, snat;
	struct address vip;
	int open = 0;
	__be16 port;

	if (!packet || !backend)
		return PASS_MALFORMED;
	vip = packet->flow.destination;
	port = packet->flow.destination_port;
	snat = packet->snat;
	packet->flow.destination = backend->address;
	if (backend->port)
		packet->flow.destination_port = backend->port;
	for (int i = 0; i < SNAT_TRIES && found == NO_BACKEND && !open; i++) {
		found = find_snat(packet, SNAT_FIN_CLIENT);
		open = !i && found == NO_BACKEND && is_syn(packet) &&
		       is_open_here(ctx, &packet->flow);
		if (open || found != NO_BACKEND)
			continue;
		taken = claim_snat(packet, index, backend->epoch);
		if (taken >= SNAT_BUCKET)
			found = index;
		else if (taken == SNAT_FULL)
			break;
	}
	packet->flow.destination = vip;
	packet->flow.destination_port = port;
	packet->snat = snat;
	if (found == index)
		return CONTINUE;
	return open || found != NO_BACKEND ? DROP_SNAT_CLASH : DROP_SNAT_FULL;
}

/* The backend on this host that sends a packet in a flow that keep_local has begun. */
static __always_inline __u32 find_local(struct packet *packet)
{
	struct flow flow = packet->flow;
	__u32 found;

	packet->flow.source = flow.destination;
	packet->flow.source_port = flow.destination_port;
	packet->flow.destination = flow.source;
	packet->flow.destination_port = flow.source_port;
	found = find_snat(packet, SNAT_FIN_BACKEND);
	packet->flow = flow;
	return found;
}

/*
 * Which of this director's source addresses it is; SNAT_SOURCES_MAX: none. Not static: verified
 * once.
 */
__noinline __u32 snat_address(const struct snat_header *header, const struct address *address,
			      __u8 ipv6)
{
	__u32 first, count, i;

	if (!header || !address)
		return SNAT_SOURCES_MAX;
	first = ipv6 ? header->addresses4 : 0;
	count = ipv6 ? header->addresses6 : header->addresses4;
	for (i = 0; i < SNAT_SOURCES_MAX; i++) {
		if (i - first < count && same_address(&header->sources[i], address))
			break;
	}
	barrier_var(i); /* the verifier takes the result for any number, so may the compiler */
	return i;
}

/* Whether a packet comes from a backend's address, and the network that it is in. */
static __always_inline int snat_from(const struct snat_flow *entry, const struct backend *backend,
				     const struct flow *flow)
{
	__u32 overlay = overlay_segment_of(entry->backend);

	if (!same_address(&backend->address, &flow->source))
		return 0;
	return flow->segment == entry->segment || (overlay && flow->segment == overlay) ||
	       flow->segment == (backend->vlan ? SEGMENT_VLAN << SEGMENT_KIND_SHIFT |
							 (bpf_ntohs(backend->vlan) & VLAN_ID_MASK) :
						 SEGMENT_NONE);
}

/* Whether the flow's backend sent the packet, from the port that the flow goes to. */
static __always_inline int snat_sent(const struct snat_flow *entry, const struct backend *backend,
				     const struct packet *packet)
{
	__be16 port = packet->flow.source_port;

	return snat_from(entry, backend, &packet->flow) &&
	       (packet->flags & PACKET_FRAGMENT_LATER ||
		port == (backend->port ? backend->port : entry->vip_port));
}

/* Whether the host that took the flow sent the packet, from the port that it took it with. */
static __noinline int taker_sent(const struct snat_flow *entry, union snat_word word,
				 const struct backend *backend, const struct packet *packet)
{
	union ask_word asked = ask_read(entry);

	return asks(backend) && is_taken(word, asked) &&
	       asked.asked.port == packet->flow.source_port &&
	       snat_from(entry, backend, &packet->flow);
}

/*
 * Whether the flow is of the packet's protocol. Numbers tell TCP from others; a flow of SCTP has the
 * protocol's number where TCP has a sequence number, and one of UDP has 0.
 */
static __always_inline int snat_has_protocol(const struct snat_flow *entry, __u8 protocol)
{
	return protocol == IPPROTO_TCP ||
	       ask_read(entry).asked.sequence ==
		       (protocol == IPPROTO_SCTP ? (__u32)IPPROTO_SCTP : 0);
}

/* What a packet of the flow with this number becomes, on its way to the client. */
static __always_inline void to_client(const struct snat_flow *entry, struct packet *packet,
				      __u32 number, struct flow *to)
{
	packet->snat = number;
	packet->hash = entry->hash;
	to->source = entry->vip;
	to->source_port = entry->vip_port;
	to->destination = entry->client;
	to->destination_port = entry->client_port;
}

/*
 * The client that a packet from a backend is for. A later fragment has no ports
 * to find its flow by: that must still be the first fragment's, by its hash.
 */
__noinline __u32 snat_client(struct packet *packet, __u32 number, struct flow *to)
{
	struct snat_flow *entry = snat_entry(number);
	__u32 now = flow_clock(), index = NO_BACKEND, later;

	if (!entry || !packet || !to)
		return NO_BACKEND;
	if (!snat_has_protocol(entry, packet->flow.protocol))
		return NO_BACKEND;
	later = packet->flags & PACKET_FRAGMENT_LATER;
	for (int i = 0; i < SNAT_TRIES; i++) {
		union snat_word word = snat_read(entry);
		const struct backend *backend = snat_backend(entry, word);

		if (!backend || backend->flags & BACKEND_LOCAL || !snat_live(word, now) ||
		    (later && entry->hash != packet->hash))
			return NO_BACKEND;
		if (!snat_sent(entry, backend, packet) && !taker_sent(entry, word, backend, packet))
			return NO_BACKEND;
		index = entry->backend;
		to_client(entry, packet, number, to);
		if (later) {
			if (snat_read(entry).word == word.word)
				return index;
		} else if (snat_follow(entry, packet, word.word, SNAT_FIN_BACKEND, now)) {
			share_snat(entry, number, word, packet->flow.ipv6);
			return index;
		}
	}
	return NO_BACKEND;
}

/* The flow's number of a packet to one of this director's source addresses; 0: it has none. */
static __always_inline __u32 snat_reply_number(const struct snat_header *header,
					       const struct packet *packet)
{
	__u32 address = snat_address(header, &packet->flow.destination, packet->flow.ipv6);

	if (address == SNAT_SOURCES_MAX) {
		if (!is_to_inside_source(packet))
			return 0;
		address = packet->flow.ipv6 ? header->addresses4 : 0; /* its family has one */
	}
	return snat_number(header, address, packet->flow.protocol,
			   bpf_ntohs(packet->flow.destination_port));
}

/* The same for the address of another director. */
static __noinline __u32 shared_number(struct packet *packet)
{
	__u32 number;

	if (!packet)
		return 0;
	number = shared_end(&packet->flow);
	return number && shared_is_at(&packet->flow, number) ? number : 0;
}

/* The flow of a packet to one of this director's source addresses: its backend, and what the packet becomes. */
static __always_inline __u32 find_snat_reply(struct packet *packet, struct flow *to)
{
	struct snat_header *header = snat_header(snat_table());
	__u32 number = header && packet ? snat_reply_number(header, packet) : 0;

	if (!number)
		number = shared_number(packet);
	return number ? snat_client(packet, number, to) : NO_BACKEND;
}
