/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is remembered of flows, and how directors tell each other of it. */
#pragma once

#include "types.h"

/*
 * Flow memory: the backends of flows whose slot may have connections of several.
 * Each CPU has buckets of its own and is the only one that fills them; another one
 * does no more than free an entry, when the flow has moved to it.
 */
#define FLOW_WAYS 8

enum flow_state {
	FLOW_FREE = 0,
	FLOW_CLAIMED = 1, /* being written */
	FLOW_SYN = 2,     /* TCP: nothing but SYNs was seen */
	FLOW_LEARNED = 3, /* TCP: one packet of a connection that began elsewhere */
	FLOW_ONCE = 4,    /* UDP: one packet */
	FLOW_ESTABLISHED = 5,
	FLOW_ACTIVE = 6,  /* UDP */
	FLOW_CLOSING = 7, /* the client has sent a FIN */
	FLOW_RESET = 8,   /* the client has sent a RST */
};

/* How long a flow lives without packets, in seconds; where from: see snat_state.h. */
enum flow_timeout {
	FLOW_TIMEOUT_SYN = 60, /* and after a RST */
	FLOW_TIMEOUT_ESTABLISHED = 7440,
	FLOW_TIMEOUT_CLOSING = 240,
	FLOW_TIMEOUT_UDP = 300,
};

/* The first word changes as a whole: a flow that is read while it changes is known by it. */
struct flow_entry {
	__u32 seen; /* last packet, in units of 2^30 ns (1.07 s) of CLOCK_MONOTONIC */
	__u8 state; /* enum flow_state */
	__u8 epoch; /* of the backend */
	__u16 turn; /* counts who has had this place */
	__u32 backend;
	__u32 service; /* index: address, protocol and segment of the VIP */
	struct address source;
	__be16 source_port;
	__be16 destination_port;
	__u32 pad;
};

struct flow_bucket {
	struct flow_entry entries[FLOW_WAYS];
};

/* In the tags of a bucket. A flow's own is larger. */
enum flow_tag {
	FLOW_TAG_NONE = 0,
	FLOW_TAG_ANY = 1, /* nobody knows of which flow the place is */
};

enum flow_event {
	FLOW_INSERTED = 0,
	FLOW_REFUSED, /* every place of its bucket is an established flow's */
	FLOW_MOVED,   /* from the CPU that had it: RSS sends it to another one now */
	FLOW_UNTOLD,  /* what the group should know of it found no room: all is told anew */
	FLOW_EVENT_COUNT,
};

/*
 * What another director of the group remembers of a flow, on its way into this one's
 * memory: the entry as it should be there, in this host's clock and indexes.
 */
#define TELLINGS_MAX 512

struct telling {
	struct flow_entry entry;
	__u64 hash;    /* of the flow, keyed by flow_salt */
	__u32 outcome; /* enum told_outcome; TOLD_WAITS: the program has not looked */
	__u32 pad;
};

enum told_outcome {
	TOLD_WAITS = 0, /* its service or backend is not known here: maybe not yet */
	TOLD_NEW,       /* is remembered now */
	TOLD_AGAIN,     /* was remembered with the same backend */
	TOLD_OLDER,     /* than what is remembered here */
	TOLD_REFUSED,   /* every place of its bucket is an established flow's */
	TOLD_GONE,      /* its backend has left meanwhile */
	TOLD_UNUSED,    /* its service remembers no flows here */
	TOLD_UNKNOWN,   /* its service or backend has not come */
	TOLD_OUTCOME_COUNT,
};

/* The context of take_tellings. */
struct tellings {
	__u32 count;
};
