/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Second chance, the director's part: packets of open connections carry the other
 * candidates of their row in the private data of GUE (see struct row_header).
 */
#pragma once

#include "abi/row_types.h"
#include "director/maps.h"
#include "director/pick/previous_ring.h"
#include "lib/packet.h"

#define ROW_HOPS6_MAX 5 /* room for more is not reserved in the MTU */
#define ROW_BYTES 144   /* the most that can be written, as the verifier counts it */
#define ROW_OFFSET_MASK 0x7c
#define ROW_NEVER 0x02 /* TCP's SYN */

/* Beside enum backend_flag: the row is a datagram's, or a packet's of SCTP, which has the same. */
#define ROW_DATAGRAM (1 << 8)
/* With ROW_DATAGRAM: the packet's backend is certain, and cannot be reached from here. */
#define ROW_RELAYED (1 << 9)

/* The row of a slot with a list. */
struct row_list {
	__u64 sum; /* of its words */
	__u32 length;
	__u32 hops;
	__u32 up;   /* of them */
	__u32 down; /* bits of candidates that are down: named last */
	__u32 both; /* number of candidates of two rings */
	__u32 candidates[RING_CANDIDATES_MAX];
	__u8 bytes[ROW_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row_list);
} row_buffer SEC(".maps");

/* The private data of one packet. A single candidate does not go through the buffer. */
struct row {
	const struct backend *lone; /* NULL: the candidates are in list */
	const struct row_list *list;
	__be32 header; /* struct row_header of the lone one */
	__u32 length;  /* 0: there is no candidate to name */
};

/*
 * A host that has not kept a flow's datagram lately asks the others first. If the backup is
 * dead, and that was not noticed yet, the datagram would be lost: so datagrams to the owner
 * of a slot without a list have no row.
 */
static __always_inline int stays_with_owner(const struct packet *packet, __u32 sent)
{
	return packet->flow.protocol != IPPROTO_TCP && sent == packet->slot.owner;
}

/* A SYN opens a connection where it arrives, and fragments go where their first one went. */
static __always_inline int carries_row(const struct packet *packet, __u32 sent)
{
	const struct slot *slot = &packet->slot;

	if (packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER) || !slot->next)
		return 0;
	if (packet->flow.protocol != IPPROTO_TCP)
		return slot->next & (SLOT_LIST | SLOT_SETTLING) || !stays_with_owner(packet, sent);
	return !(packet->tcp_flags & ROW_NEVER);
}

/*
 * A struct row_header as one word. A datagram's says how many hosts are down: they get
 * datagrams in another way than segments.
 */
static __always_inline __be32 header_of(__u32 hops, __u32 down, __u32 flags)
{
	if (flags & ROW_RELAYED)
		return bpf_htonl(ROW_KIND_UDP << 24 | hops << 16 | ROW_RELAY);
	if (flags & ROW_DATAGRAM)
		return bpf_htonl(ROW_KIND_UDP << 24 | (hops | down << ROW_DOWN_SHIFT) << 16);
	return bpf_htonl(ROW_KIND << 24 | hops << 16);
}

/* Whether a backend has an agent, and can be reached from the host that the packet goes to. */
static __always_inline int may_be_named(const struct backend *backend, __u32 flags)
{
	return backend && backend->state != BACKEND_FREE && backend->mode == MODE_GUE &&
	       !((backend->flags ^ flags) & (BACKEND_IPV6 | BACKEND_POD));
}

static __always_inline __u32 hop_size(__u32 flags)
{
	return flags & BACKEND_IPV6 ? sizeof(struct address) : sizeof(__be32);
}

static __always_inline void add_hop(struct row_list *row, const struct backend *backend,
				    __u32 flags)
{
	__u32 offset = sizeof(struct row_header) + row->hops * hop_size(flags);
	__u8 *to = &row->bytes[offset & ROW_OFFSET_MASK];

	if (row->hops >= (flags & BACKEND_IPV6 ? ROW_HOPS6_MAX : ROW_HOPS_MAX))
		return;
	if (flags & BACKEND_IPV6)
		*(struct address *)to = backend->address;
	else
		*(__be32 *)to = ADDRESS_WORD(&backend->address, 0);
	row->hops++;
}

/*
 * The oldest owner comes first: an unknown connection is likely to be its. Candidates that
 * are down here come last, because there may be no host that sends the packet on.
 */
static __always_inline void add_hops(struct row_list *row, __u32 ring, struct slot slot, __u32 sent,
				     __u32 flags)
{
	struct candidates *list = ring_line_at(ring + (slot.next & ~SLOT_LIST));
	const struct backend *backend;
	__u32 index;

	row->hops = row->up = row->down = 0;
	if (!list)
		return;
	for (__u32 i = 0; i < RING_CANDIDATES_MAX && i <= list->count; i++) {
		index = candidate_by_age(list, i, slot.owner);
		backend = backend_at(index);
		if (index == sent || !may_be_named(backend, flags))
			continue;
		if (alive(backend))
			add_hop(row, backend, flags);
		else
			row->down |= 1 << i;
	}
	row->up = row->hops;
	for (__u32 i = 0; row->down && i < RING_CANDIDATES_MAX; i++) {
		backend = row->down & 1 << i ? backend_at(candidate_by_age(list, i, slot.owner)) :
					       NULL;
		if (backend)
			add_hop(row, backend, flags);
	}
}

/* Notes a candidate of two rings, unless it was noted already. Not static: as note_row. */
__noinline int note_candidate(struct row_list *row, __u32 index)
{
	__u32 i;

	if (!row)
		return 0;
	for (i = 0; i < RING_CANDIDATES_MAX && i < row->both; i++)
		if (row->candidates[i] == index)
			return 0;
	if (i >= RING_CANDIDATES_MAX || index == NO_BACKEND)
		return 0;
	row->candidates[i] = index;
	row->both = i + 1;
	return 1;
}

/* Not static: the verifier looks at it once. */
__noinline int note_row(__u32 ring, __u64 word)
{
	struct slot slot = { .owner = word, .next = word >> 32 };
	struct row_list *row;
	struct candidates *list;
	__u32 zero = 0;

	row = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!row)
		return 0;
	if (!(slot.next & SLOT_LIST)) {
		note_candidate(row, slot.owner);
		note_candidate(row, slot.next & ~SLOT_SETTLING);
		return 0;
	}
	list = ring_line_at(ring + (slot.next & ~SLOT_LIST));
	for (__u32 i = 0; list && i < RING_CANDIDATES_MAX && i <= list->count; i++)
		note_candidate(row, candidate_by_age(list, i, slot.owner));
	return 0;
}

/* As add_hops, for both rings of a service whose affinity has changed. */
static __always_inline void add_both(struct row_list *row, __u32 sent, __u32 flags)
{
	const struct backend *backend;

	row->hops = row->up = row->down = 0;
	for (__u32 i = 0; i < RING_CANDIDATES_MAX && i < row->both; i++) {
		backend = backend_at(row->candidates[i]);
		if (row->candidates[i] == sent || !may_be_named(backend, flags))
			continue;
		if (alive(backend))
			add_hop(row, backend, flags);
		else
			row->down |= 1 << i;
	}
	row->up = row->hops;
	for (__u32 i = 0; row->down && i < RING_CANDIDATES_MAX; i++) {
		backend = row->down & 1 << i ? backend_at(row->candidates[i]) : NULL;
		if (backend)
			add_hop(row, backend, flags);
	}
}

static __always_inline __u64 sum_words(const struct row_list *row)
{
	const __u32 *words = (const __u32 *)row->bytes;
	__u64 sum = 0;

	for (__u32 i = 0; i < ROW_BYTES / 4 && i < row->length / 4; i++)
		sum += words[i];
	return sum;
}

/*
 * Writes the candidates except the one that the packet is sent to, and returns the length;
 * 0: there are none to name. With ring 0 they are those that were noted. Not static: the
 * verifier looks at it once.
 */
__noinline int write_list(__u32 ring, __u64 word, __u32 sent, __u32 flags)
{
	struct slot slot = { .owner = word, .next = word >> 32 };
	struct row_list *row;
	__u32 zero = 0;

	row = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!row)
		return 0;
	if (ring)
		add_hops(row, ring, slot, sent, flags);
	else
		add_both(row, sent, flags);
	if (!row->hops)
		return 0;
	*(__be32 *)row->bytes = header_of(row->hops, row->hops - row->up, flags);
	row->length = sizeof(struct row_header) + row->hops * hop_size(flags);
	row->sum = sum_words(row);
	return row->length;
}

static __always_inline __u64 slot_word(const struct slot *slot)
{
	return slot->owner | (__u64)slot->next << 32;
}

/* Notes the row of a packet whose connection may be in the ring before; 0: there is none. */
static __always_inline int note_both(const struct packet *packet)
{
	struct before before = {};
	struct row_list *row;
	__u32 zero = 0;

	if (!find_before(packet, packet->ring, &before))
		return 0;
	row = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!row)
		return 0;
	row->both = 0;
	note_row(before.ring, slot_word(&before.slot)); /* the older connections first */
	note_row(packet->ring, slot_word(&packet->slot));
	return 1;
}

/* The row of a slot without a list: the owner's backup, or the owner. */
static __always_inline struct row row_of_two(const struct packet *packet, __u32 sent, __u32 flags)
{
	const struct slot *slot = &packet->slot;
	__u32 other = sent == slot->owner ? slot->next & ~SLOT_SETTLING : slot->owner;
	const struct backend *backend = backend_at(other);
	struct row row = {};

	if (other == sent || !may_be_named(backend, flags))
		return row;
	row.lone = backend;
	row.header = header_of(1, !alive(backend), flags);
	row.length = sizeof(struct row_header) + hop_size(flags);
	return row;
}

static __always_inline struct row find_row(const struct packet *packet, __u32 sent, __u32 flags)
{
	const struct slot *slot = &packet->slot;
	struct row row = {};
	__u32 zero = 0, both = 0;

	if (packet->flow.protocol != IPPROTO_TCP)
		flags |= ROW_DATAGRAM;
	if (packet->flags & PACKET_RELAYED)
		return row_of_two(packet, sent, flags | ROW_RELAYED);
	if (slot->next & (SLOT_LIST | SLOT_SETTLING))
		both = note_both(packet);
	if (!(slot->next & SLOT_LIST) && !both)
		return stays_with_owner(packet, sent) ? row : row_of_two(packet, sent, flags);
	row.length = write_list(both ? 0 : packet->ring, slot_word(slot), sent, flags);
	row.list = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!row.list)
		row.length = 0;
	return row;
}

static __always_inline __u64 row_sum6(const struct row *row)
{
	__u64 sum = row->header;

	if (!row->lone)
		return row->list ? row->list->sum : 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += ADDRESS_WORD(&row->lone->address, i);
	return sum;
}

/*
 * Writes the row at this offset of the frame, which is where `at` is, with room
 * checked for one candidate. A row has eight bytes at least, which the verifier does
 * not know: it demands a length above 0.
 */
static __always_inline int put_row(struct xdp_md *ctx, const struct row *row, void *at, int ipv6)
{
	const __u32 least = sizeof(struct row_header);
	__u32 offset = at - frame(ctx);

	if (row->list)
		return !bpf_xdp_store_bytes(ctx, offset, (void *)row->list->bytes,
					    ((row->length - least) & ROW_OFFSET_MASK) + least);
	if (!row->lone)
		return 0;
	*(__be32 *)at = row->header;
	if (ipv6)
		__builtin_memcpy(at + least, &row->lone->address, sizeof(struct address));
	else
		*(__be32 *)(at + least) = ADDRESS_WORD(&row->lone->address, 0);
	return 1;
}
