/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where a flow of full NAT is in the table, by its hash or by its number. The
 * number says which address, protocol and port the flow has.
 */
#pragma once

#include "director/maps.h"
#include "director/nat/snat_share.h"
#include "director/nat/snat_state.h"
#include "director/pick/ring.h"
#include "lib/packet.h"

#define SNAT_CHOICES 2
#define SNAT_TRIES 3

static __always_inline void *snat_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&snat_tables, &zero);
}

static __always_inline struct snat_header *snat_header(void *table)
{
	__u32 zero = 0;

	return table ? bpf_map_lookup_elem(table, &zero) : NULL;
}

static __always_inline struct snat_bucket *snat_bucket(void *table, __u32 number)
{
	__u32 index = number / SNAT_BUCKET;

	return index ? bpf_map_lookup_elem(table, &index) : NULL;
}

static __always_inline struct snat_flow *snat_flow(void *table, __u32 number)
{
	struct snat_bucket *bucket = snat_bucket(table, number);

	if (!bucket)
		return NULL;
	barrier_var(bucket); /* the verifier wants no arithmetic before the test */
	return &bucket->flows[number % SNAT_BUCKET];
}

/* The flow of this director with a number. */
static __always_inline struct snat_flow *snat_at(__u32 number)
{
	void *table = snat_table();

	return table ? snat_flow(table, number) : NULL;
}

/* The flow with a number, of this director or of another one. */
static __always_inline struct snat_flow *snat_entry(__u32 number)
{
	struct snat_shared *shared;

	if (likely(!(number & SNAT_SHARED)))
		return snat_at(number);
	shared = shared_at(number);
	return shared ? &shared->flow : NULL;
}

/*
 * From (address, protocol, port) to the number of a flow; 0: the port is none of ours. UDP and SCTP
 * have their ports together: their flows do not have the same at the same time.
 */
static __always_inline __u32 snat_number(const struct snat_header *header, __u32 address,
					 __u8 protocol, __u16 port)
{
	__u32 offset = port - header->ports_first;

	if (offset >= header->ports)
		return 0;
	return SNAT_BUCKET + (address * 2 + (protocol != IPPROTO_TCP)) * header->ports + offset;
}

/* And back. Returns 0 if there is no such flow. */
static __always_inline int snat_source(__u32 number, struct flow *to)
{
	struct snat_header *header;
	__u32 address, offset;

	if (unlikely(number & SNAT_SHARED)) {
		const struct snat_shared *shared = shared_at(number);

		if (!shared)
			return 0;
		to->source = shared->source;
		to->source_port = shared->source_port;
		return 1;
	}
	header = snat_header(snat_table());
	if (!header || !header->ports || number < SNAT_BUCKET)
		return 0;
	address = (number - SNAT_BUCKET) / header->ports / 2;
	offset = (number - SNAT_BUCKET) % header->ports;
	if (address >= SNAT_SOURCES_MAX)
		return 0;
	to->source = header->sources[address];
	to->source_port = bpf_htons(header->ports_first + offset);
	return 1;
}

/* The flow's 64 bits of hash: each half chooses one of its buckets. */
static __always_inline __u64 snat_hash(const struct snat_header *header, const struct flow *flow)
{
	return hash_by(flow, header->salt, 1);
}

/* The number of the first flow in the bucket that is the flow's first or second choice; 0: there is none. */
static __always_inline __u32 snat_choose(const struct snat_header *header, const struct flow *flow,
					 __u64 hash, int choice)
{
	__u32 buckets = header->ports / SNAT_BUCKET;
	__u32 addresses = flow->ipv6 ? header->addresses6 : header->addresses4;
	__u32 chosen = slot_of(choice ? hash << 32 : hash, addresses * buckets);
	__u32 address;

	if (!buckets || !addresses)
		return 0;
	address = (flow->ipv6 ? header->addresses4 : 0) + chosen / buckets;
	return snat_number(header, address, flow->protocol,
			   header->ports_first + chosen % buckets * SNAT_BUCKET);
}

/* A flow's segment and ports, as one word: they lie in the same way in both structs. */
typedef __u64 segment_and_ports __attribute__((may_alias));
#define SEGMENT_AND_PORTS(flow) (*(const segment_and_ports *)&(flow)->segment)
_Static_assert(offsetof(struct flow, source_port) == offsetof(struct flow, segment) + 4 &&
		       offsetof(struct flow, destination_port) ==
			       offsetof(struct flow, segment) + 6,
	       "a flow's ports follow its segment");
_Static_assert(offsetof(struct snat_flow, client_port) == offsetof(struct snat_flow, segment) + 4 &&
		       offsetof(struct snat_flow, vip_port) ==
			       offsetof(struct snat_flow, segment) + 6,
	       "the client's port and the VIP's follow the segment");
_Static_assert(offsetof(struct flow, segment) % 8 == 0 &&
		       offsetof(struct snat_flow, segment) % 8 == 0 &&
		       offsetof(struct snat_flow, client) % 8 == 0 &&
		       offsetof(struct snat_flow, vip) % 8 == 0,
	       "words are aligned");

static __always_inline int snat_matches(const struct snat_flow *entry, const struct flow *flow,
					__u32 hash)
{
	return entry->hash == hash && SEGMENT_AND_PORTS(entry) == SEGMENT_AND_PORTS(flow) &&
	       ADDRESS_HALF(&entry->client, 0) == ADDRESS_HALF(&flow->source, 0) &&
	       ADDRESS_HALF(&entry->client, 1) == ADDRESS_HALF(&flow->source, 1) &&
	       ADDRESS_HALF(&entry->vip, 0) == ADDRESS_HALF(&flow->destination, 0) &&
	       ADDRESS_HALF(&entry->vip, 1) == ADDRESS_HALF(&flow->destination, 1);
}

/*
 * A flow's own place in its buckets, where it is if that was free. Not the bits of the hash that
 * choose the buckets: those are the highest of each half.
 */
static __always_inline __u32 snat_own(__u64 hash)
{
	return hash >> 32;
}

/*
 * Where in the bucket the flow is, live or not; SNAT_BUCKET: nowhere. Begins at its own place, so
 * that most flows are found in the first cache line. Not static: verified once.
 */
__noinline __u32 snat_search(const struct snat_bucket *bucket, const struct flow *flow, __u64 hash)
{
	__u32 at = snat_own(hash) % SNAT_BUCKET * sizeof(struct snat_flow);

	if (!bucket || !flow)
		return SNAT_BUCKET;
	for (int i = 0; i < SNAT_BUCKET; i++) {
		const struct snat_flow *entry = (const void *)bucket + at;

		if (snat_matches(entry, flow, hash) && snat_read(entry).state != SNAT_FREE)
			return at / sizeof(struct snat_flow);
		at = (at + sizeof(struct snat_flow)) % sizeof(struct snat_bucket);
	}
	return SNAT_BUCKET;
}

/* The flow's backend, if it is still the one that the flow began with. */
static __always_inline const struct backend *snat_backend(const struct snat_flow *entry,
							  union snat_word word)
{
	const struct backend *backend = backend_at(entry->backend);

	if (!backend || backend->epoch != word.epoch || backend->state == BACKEND_FREE)
		return NULL;
	return backend;
}

static __always_inline int asks(const struct backend *backend)
{
	return (backend->flags & (BACKEND_ASKS | BACKEND_LOCAL)) == BACKEND_ASKS;
}

/*
 * Whether a SYN may go on with a flow. One on a flow that is over begins a new connection, which a
 * draining backend does not get; see flow_usable. If another host than the picked backend has taken
 * the flow (asked_reply.h), the picked one is not kept, so a new connection needs a new pick: the
 * host may be no director any more, and then its kernel refuses the SYN. Not inlined: other packets
 * do not need it.
 */
static __noinline int snat_keeps_syn(const struct snat_flow *entry, __u64 read,
				     const struct packet *packet, __u32 now)
{
	const struct backend *backend = backend_at(entry->backend);
	union snat_word word = { .word = read };
	union ask_word asked = ask_read(entry);
	int over = snat_over(word.state);

	if (!backend || (over && backend->state != BACKEND_ACTIVE))
		return 0;
	if (!asks(backend) || !is_taken(word, asked))
		return 1;
	return !over && (word.state != SNAT_ANSWERED || asked.asked.sequence == packet->sequence ||
			 snat_age(word, now) < FLOW_QUIET);
}

/* Whether a client's packet may go on with this flow. */
static __always_inline int snat_usable(const struct snat_flow *entry, union snat_word word,
				       const struct packet *packet, __u32 now)
{
	const struct backend *backend;

	if (!snat_live(word, now))
		return 0;
	backend = snat_backend(entry, word);
	if (!backend || !keeps(backend))
		return 0;
	if (backend->state == BACKEND_SUSPECT)
		return !is_syn(packet) && word.state != SNAT_ONE_WAY;
	if (backend->state == BACKEND_ACTIVE && likely(!asks(backend)))
		return 1;
	return !is_syn(packet) || snat_keeps_syn(entry, word.word, packet, now);
}

/*
 * Notes a packet of the flow with this number. Returns its backend; NO_BACKEND: the flow does not
 * go on.
 */
static __always_inline __u32 snat_keep(struct snat_flow *entry, __u32 number,
				       const struct packet *packet, __u32 hash, __u8 fin)
{
	__u32 now = flow_clock(), backend = NO_BACKEND;

	for (int i = 0; i < SNAT_TRIES; i++) {
		union snat_word word = snat_read(entry);

		if (!snat_matches(entry, &packet->flow, hash) ||
		    !snat_usable(entry, word, packet, now))
			return NO_BACKEND;
		backend = entry->backend;
		if (snat_follow(entry, packet, word.word, fin, now)) {
			share_snat(entry, number, word, packet->flow.ipv6);
			break;
		}
	}
	return backend;
}

/*
 * The backend of the flow whose client the packet->flow is from; its number goes
 * into packet->snat. fin says which side has sent the packet.
 */
__noinline __u32 find_snat(struct packet *packet, __u8 fin)
{
	void *table = snat_table();
	struct snat_header *header = snat_header(table);
	__u64 hash;

	if (!header || !packet)
		return NO_BACKEND;
	hash = snat_hash(header, &packet->flow);
	for (int choice = 0; choice < SNAT_CHOICES; choice++) {
		__u32 number = snat_choose(header, &packet->flow, hash, choice);
		struct snat_bucket *bucket = snat_bucket(table, number);
		__u32 position, backend;

		if (!bucket)
			return NO_BACKEND;
		position = snat_search(bucket, &packet->flow, hash);
		if (position >= SNAT_BUCKET)
			continue;
		/* The verifier knows no range of it, and forgets what was compared on the stack. */
		barrier_var(position);
		position %= SNAT_BUCKET;
		backend = snat_keep(&bucket->flows[position], number + position, packet, hash, fin);
		if (backend != NO_BACKEND) {
			packet->snat = number + position;
			return backend;
		}
	}
	return NO_BACKEND;
}

/*
 * Whether a SYN goes on with a flow: with one that is open, as in find_snat, so that a forged SYN
 * does not part the client from its connection; and with one that is fresh if the flow has begun
 * with this SYN.
 */
static __always_inline int snat_takes_syn(const struct snat_flow *entry,
					  const struct packet *packet)
{
	__u8 state = snat_read(entry).state;

	if (state == SNAT_ANSWERED)
		return ask_read(entry).asked.sequence == packet->sequence;
	return !snat_over(state);
}

/*
 * As find_snat, of a flow that another director has told of. A SYN that does not go on with it
 * begins a flow of this director's own.
 */
__noinline __u32 find_shared(struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct snat_flow *entry;
	__u32 number, backend;
	__u64 hash;

	if (!packet || !settings)
		return NO_BACKEND;
	hash = hash_by(&packet->flow, settings->flow_salt, 1);
	number = shared_client(&packet->flow, hash);
	entry = number ? snat_entry(number) : NULL;
	if (!entry || (is_syn(packet) && !snat_takes_syn(entry, packet)))
		return NO_BACKEND;
	backend = snat_keep(entry, number, packet, hash, SNAT_FIN_CLIENT);
	if (backend != NO_BACKEND)
		packet->snat = number;
	return backend;
}
