/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The row of a packet, as it is on the wire: between directors and agents of all versions. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/*
 * Second chance. The private data of a GUE header may name the other backends that
 * may have the packet's connection, in the order in which they are to be tried: this
 * header, then `count` addresses of the outer header's family. A host that does not
 * have the connection sends the packet to the backend that `next` says, or to a later
 * one, never to an earlier one. Another kind is not weir's, and is skipped.
 */
#define ROW_KIND 0x57
#define ROW_HOPS_MAX (RING_CANDIDATES_MAX - 1)

struct row_header {
	__u8 kind;  /* ROW_KIND, ROW_KIND_UDP or ROW_KIND_PODS */
	__u8 count; /* of addresses, 1 to ROW_HOPS_MAX; of pods, 1 to ROW_PODS_MAX */
	__u8 next;  /* of them, the one to try next; count: none is left */
	__u8 claim; /* of ROW_KIND_UDP; 0 */
};
EXPORT_STRUCT(row_header);

/*
 * The row of a datagram, which hosts walk as datagram.h says. A host has the flows that it
 * has seen, so hosts have to agree which of them has a flow: the first host that sends the
 * datagram on puts its own address at the first place, which is not needed any more, and so
 * does a host that has seen the flow later than the host that is named there. `claim` says
 * when that was. `next` is one more than `count` for the host that has to keep the datagram.
 * A host of an earlier version skips this kind, and keeps the datagram.
 */
#define ROW_KIND_UDP 0x55
#define ROW_COUNT_MASK 0x0f
#define ROW_DOWN_SHIFT 4  /* of count: how many of the last ones are down for the director */
#define ROW_RETURNED 0x80 /* of next: it is on its way back to the first host */
#define ROW_RELAY 0xff /* of claim: the first host sends it to the only one named, which keeps it */

/*
 * The row of a packet whose backend is a pod: `count` entries of a host's address and of
 * that host's name for the pod (model.PodName). The first entry is the one that the packet
 * was sent to, so `next` is 1 at first, and the packet is at the entry before it. If a host
 * does not know the connection, the packet goes on to the next other host.
 */
#define ROW_KIND_PODS 0x50
#define ROW_PODS_MAX RING_CANDIDATES_MAX
