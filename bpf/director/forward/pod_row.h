/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pods: the private data of GUE say which pod of the host a packet is for, and which pods
 * of other hosts may have its connection (see ROW_KIND_PODS). Every packet to a pod has
 * such a row, so all of them go through the buffer.
 */
#pragma once

#include "director/forward/row.h"

#define ROW_PODS6_MAX (ROW_HOPS6_MAX + 1) /* as many candidates as in rows without pods */

static __always_inline void add_pod(struct row_list *row, const struct backend *backend,
				    __u32 flags)
{
	__u32 size = hop_size(flags) + sizeof(__be32);
	__u32 offset = sizeof(struct row_header) + row->hops * size;
	__u8 *to = &row->bytes[offset & ROW_OFFSET_MASK];

	if (row->hops >= (flags & BACKEND_IPV6 ? ROW_PODS6_MAX : ROW_PODS_MAX))
		return;
	if (flags & BACKEND_IPV6)
		*(struct address *)to = backend->address;
	else
		*(__be32 *)to = ADDRESS_WORD(&backend->address, 0);
	*(__be32 *)(to + hop_size(flags)) = ADDRESS_WORD(&backend->vip, 0);
	row->hops++;
}

/* Adds the noted candidates that are alive here, or those that are not. */
static __always_inline void add_noted(struct row_list *row, __u32 sent, __u32 flags, int are_alive)
{
	const struct backend *backend;

	for (__u32 i = 0; i < RING_CANDIDATES_MAX && i < row->both; i++) {
		backend = backend_at(row->candidates[i]);
		if (row->candidates[i] != sent && may_be_named(backend, flags) &&
		    !!alive(backend) == are_alive)
			add_pod(row, backend, flags);
	}
}

/*
 * Writes the pod that the packet is sent to and those that were noted, as add_hops does,
 * and returns the length. Not static: the verifier looks at it once.
 */
__noinline int write_pods(__u32 sent, __u32 flags)
{
	const struct backend *backend = backend_at(sent);
	struct row_list *row;
	__u32 zero = 0;

	row = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!row || !backend)
		return 0;
	row->hops = 0;
	add_pod(row, backend, flags);
	add_noted(row, sent, flags, 1);
	add_noted(row, sent, flags, 0);
	*(__be32 *)row->bytes = bpf_htonl(ROW_KIND_PODS << 24 | row->hops << 16 | 1 << 8);
	row->length = sizeof(struct row_header) + row->hops * (hop_size(flags) + sizeof(__be32));
	row->sum = sum_words(row);
	return row->length;
}

/* No other pod may have a packet that opens a connection, or goes to a slot's only candidate. */
static __always_inline struct row find_pods(const struct packet *packet, __u32 sent, __u32 flags)
{
	struct row_list *list;
	struct row row = {};
	__u32 zero = 0;

	list = bpf_map_lookup_elem(&row_buffer, &zero);
	if (!list)
		return row;
	list->both = 0;
	if (carries_row(packet, sent) &&
	    !(packet->slot.next & (SLOT_LIST | SLOT_SETTLING) && note_both(packet)))
		note_row(packet->ring, slot_word(&packet->slot));
	row.length = write_pods(sent, flags);
	row.list = list;
	return row;
}
