/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is remembered of flows, and how directors tell each other of it. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/*
 * Flow memory: the backends of flows whose slot may have connections of several. It is one table
 * for all CPUs, an array of buckets. A flow's hash gives it one cache line in each of some buckets,
 * its own lines, and a new flow takes a free place in the first one; other places of its buckets only
 * if there is none. So what is remembered of most flows is in the first cache line that is read.
 */
#define FLOW_WAYS 16

/*
 * What was seen of a flow, and so its class: see proof.h. Versions before the classes have no
 * states above FLOW_RESET, and treat flows in those as if they had just begun.
 */
enum flow_state {
	FLOW_FREE = 0,
	FLOW_CLAIMED = 1,     /* being written */
	FLOW_SYN = 2,         /* fresh. TCP: only SYNs */
	FLOW_LEARNED = 3,     /* fresh. TCP: of a connection that began elsewhere */
	FLOW_ONCE = 4,        /* fresh. UDP: one packet */
	FLOW_ESTABLISHED = 5, /* sustained. TCP */
	FLOW_ACTIVE = 6,      /* sustained. UDP */
	FLOW_CLOSING = 7,     /* was sustained or proved: the client has sent a FIN */
	FLOW_RESET = 8,       /* was sustained or proved: the client has sent a RST */
	FLOW_BEGUN = 9,       /* fresh. TCP: more than SYNs, for less than PROOF_LASTS */
	FLOW_TWICE = 10,      /* fresh. UDP: several packets, for less than PROOF_LASTS */
	FLOW_ANSWERED = 11,   /* fresh. TCP in nat: the backend's SYN-ACK has come back here */
	FLOW_PROVED = 12,     /* proved. TCP: the client has acknowledged it */
	FLOW_PARTED = 13,     /* fresh. TCP: the client has sent a FIN */
	FLOW_CUT = 14,        /* fresh. TCP: the client has sent a RST */
	FLOW_TOLD = 15, /* fresh. TCP: it has gone on at another director, with no packet here */
	FLOW_TOLD_UDP = 16, /* the same of UDP */
	FLOW_REST =
		17, /* no flow: the second half of one of IPv6, whose first half is the place before */
};
EXPORT_ENUM(flow_state);

/* How long a flow lives without packets, in seconds; for the sources see snat_state.h. */
enum flow_timeout {
	FLOW_TIMEOUT_SYN = 60, /* and after a RST */
	FLOW_TIMEOUT_ESTABLISHED = 7440,
	FLOW_TIMEOUT_CLOSING = 240,
	FLOW_TIMEOUT_UDP = 300,
	/*
	 * TCP, as long as no other flow needs its place: a client that has sent its request and
	 * waits may send nothing for long, and in DSR that is all that is ever seen of it.
	 */
	FLOW_TIMEOUT_BEGUN = 1800,
	/*
	 * In units of seen: how late a packet of an open flow that is sustained or proved writes
	 * its time. Such flows live so much longer.
	 */
	FLOW_SEEN_LATE = 8,
};
EXPORT_ENUM(flow_timeout);

/*
 * A place. The first word changes as a whole: it tells a reader whether the flow has changed
 * meanwhile. A flow of IPv6 takes two places, an even one and the next, which are one cache line.
 * The second has the state FLOW_REST, no service, and the first two words of the flow's source in
 * place of a source and ports.
 */
struct flow_place {
	__u32 seen; /* last packet, in units of 2^30 ns (1.07 s) of CLOCK_MONOTONIC */
	__u8 state; /* enum flow_state */
	__u8 epoch; /* of the backend */
	__u8 turn;  /* counts the flows that have had this place */
	__u8 since; /* of a fresh flow: when it began to be in sequence, the lowest bits of seen */
	__be32 source; /* IPv6: the last word of it */
	__be16 source_port;
	__be16 destination_port;
	__u32 backend;
	__u32 service; /* index: address, protocol and segment of the VIP */
	/*
	 * TCP: the client's next sequence number; of FLOW_ANSWERED the number that the client
	 * has to acknowledge. 0: not known.
	 */
	__u32 next;
	__be32 more; /* IPv6: the last word but one of the source */
};

struct flow_bucket {
	struct flow_place places[FLOW_WAYS];
} __attribute__((aligned(64)));

/* A flow as directors tell each other of it, and as versions before 0.2 have it in their table. */
struct flow_entry {
	__u32 seen; /* these as in struct flow_place */
	__u8 state;
	__u8 epoch;
	__u8 turn;
	__u8 since;
	__u32 backend;
	__u32 service;
	struct address source;
	__be16 source_port;
	__be16 destination_port;
	__u32 next;
};

/*
 * The table of versions before 0.2, which is kept up to date for a while: see former_table.h. Each
 * CPU has buckets of its own, and each place a tag, a byte of its flow's hash.
 */
#define FORMER_WAYS 8

struct former_bucket {
	struct flow_entry entries[FORMER_WAYS];
};

/* Values of the tags of a former bucket. A flow's own tag is larger. */
enum flow_tag {
	FLOW_TAG_NONE = 0,
	FLOW_TAG_ANY = 1, /* it is not known which flow has the place */
};
EXPORT_ENUM(flow_tag);

enum flow_event {
	FLOW_INSERTED = 0,
	FLOW_REFUSED, /* every place of its buckets is taken, or its service has its share of them */
	FLOW_MOVED,   /* taken from the table of versions before 0.2 */
	FLOW_UNTOLD,  /* no room to tell the group of it: all flows are told again */
	FLOW_EVENT_COUNT,
};
EXPORT_ENUM(flow_event);

/*
 * How many fresh flows a director tells the group in a second, shared evenly among its CPUs, and
 * a 64th of a CPU's share for each source that finds the share used up. 16,384 flows of IPv4 are
 * 560 kB for each other director.
 */
#define FRESH_FLOWS_TOLD 16384

/*
 * A flow that another director of the group remembers, on its way into this director's
 * memory: the entry as it should be there, with this host's clock and indexes.
 */
#define TELLINGS_MAX 512

struct telling {
	struct flow_entry entry;
	__u32 outcome; /* enum told_outcome; TOLD_WAITS: the program has not looked */
	__u8 ipv6;
	__u8 pad[3];
};

enum told_outcome {
	TOLD_WAITS = 0, /* its service or backend is not known here: maybe not yet */
	TOLD_NEW,       /* is remembered now */
	TOLD_AGAIN,     /* was remembered with the same backend */
	TOLD_OLDER,     /* than what is remembered here */
	TOLD_REFUSED,   /* there is no place for it, as FLOW_REFUSED */
	TOLD_GONE,      /* its backend has left meanwhile */
	TOLD_UNUSED,    /* its service remembers no flows here */
	TOLD_UNKNOWN,   /* its service or backend has not come */
	TOLD_OUTCOME_COUNT,
};
EXPORT_ENUM(told_outcome);

/* The context of take_tellings. */
struct tellings {
	__u32 count;
};
EXPORT_STRUCT(tellings);
