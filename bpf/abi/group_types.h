/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A group of directors, among which fragments are divided: see group.h, and probe.h. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/*
 * A director of the group other than this one: how frames get there. Like a backend's, its
 * first words change as a whole. Number 0 is this director itself, or none.
 */
#define GROUP_MAX 64

struct peer {
	__u8 mac[6];
	__u16 mtu; /* largest IP packet that fits on the link */
	__u8 source_mac[6];
	__u16 pad;
	__u32 ifindex;
	__u32 pad2;
};

/*
 * The director that a fragment belongs to, by the hash of the fields that all fragments of its
 * packet have (group.h). All directors that see the same members of the group agree on it.
 */
#define GROUP_SLOTS 256

struct group_slot {
	__u32 owner;  /* number of a peer */
	__u32 second; /* the director that has the slot without the owner */
};
EXPORT_STRUCT(group_slot);

/* In frames between directors, before the IP header (IEEE 802, local experimental EtherTypes). */
#define GROUP_MEET 0x88b5 /* to the owner of the fragment */
#define GROUP_TAKE 0x88b6 /* to the director that forwards it */

/* How directors ask for each other: GUE's control bit, a type and a word of weir's own. */
#define GUE_CONTROL 0x20
#define PROBE_TYPE 0x57
#define PROBE_MAGIC 0x77656972
