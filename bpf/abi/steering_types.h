/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flow steering: a NIC that has a rule for a flow puts its packets into a receive queue of the flow's
 * service, where the director finds the flow's backend at once. See director/pick/steered.h.
 */
#pragma once

#include "abi/types.h"

/* Queues of one interface: packets of those above take the usual way. */
#define STEERED_QUEUES 256
/* Interfaces have their queues in a place each, which a factor chooses: see steered_place. */
#define STEERED_INTERFACES_BITS 4

/*
 * Of which service the flows of a receive queue are. The VIP and port are compared with the packet's,
 * because a packet without a rule may come to any queue. Packets only count in it. An entry that has an
 * interface, and no service, keeps a queue for later flows.
 */
#define STEERED_NO_SERVICE (~0ULL) /* key of no service */

struct steered_queue {
	__u64 address[2]; /* the VIP, as in struct front */
	__u64 key;        /* of the service, as in struct front, or STEERED_NO_SERVICE */
	__u32 interface;  /* index of the NIC; 0: the queue is not for steered flows */
	__u32 service;    /* its index */
	__u8 affinity;    /* enum affinity of the ring, as its salt */
	__u8 l2dsr;       /* 1: of all its backends */
	__u16 shortest;   /* IP packet that has all headers of a flow */
	__u32 pad;
	/*
	 * All packets of the queue and their bytes. Those that went to backends in l2dsr without the
	 * usual way, and only these, are counted nowhere else but for their backend. Written by the CPU
	 * that has the queue.
	 */
	__u64 packets;
	__u64 bytes;
	/* The others of them. */
	__u64 usual;
	__u64 usual_bytes;
	__u64 followed; /* of the usual ones: in other modes, to the backend that the table has */
	__u64 salt;     /* of its ring: for the entropy of outer headers */
	__u64 pad2[4];
};

/*
 * A flow that has a rule has one of two places, by its hash. What the usual way has last said of it is
 * one word, which changes as a whole: part of its hash, when that was, its backend's epoch,
 * STEERED_PLACE, STEERED_ENDED, and its backend's index, 0 if that is not known. A word of 0 is free.
 * Words are all that most packets read, so they are apart from the flows.
 */
#define STEERED_PLACES 2
#define STEERED_HASH_SHIFT 40
#define STEERED_TICK_SHIFT 32 /* 8 bits of a tick */
#define STEERED_EPOCH_SHIFT 24
#define STEERED_PLACE (1 << 23)
/* The client has ended the connection: packets take the usual way until it begins another one. */
#define STEERED_ENDED (1 << 22)
#define STEERED_BACKEND (STEERED_ENDED - 1)
/* A tick is that many jiffies, from 0.26 to 2.6 s: what a word says holds for the tick. */
#define STEERED_TICK_BITS 8

struct steered_words {
	__u64 word[STEERED_PLACES];
};

/* The flow of a word. */
struct steered_flow {
	__u64 address[2]; /* the client's, as in struct front */
	__be16 port;      /* the client's */
	__u16 pad;
	__u32 service; /* its index */
	__u64 pad2;
};

/*
 * A sample of flows, by CPU: those that have many packets. A new flow takes the place of the one
 * with the fewest of its line, and its count, as in the algorithm Space-Saving (Metwally et al., 2005).
 */
#define HEAVY_FLOWS_PER_LINE 4
/* One packet in 64 is counted, and of flows that have rules one in 256, for four. */
#define HEAVY_SAMPLE_BITS 6
#define STEERED_SAMPLE_BITS 8

struct heavy_flow {
	__u32 segment;
	__be16 source_port;
	__be16 destination_port;
	struct address source;
	struct address destination;
	__u8 protocol;
	__u8 ipv6;
	__u16 pad;
	__u32 backend; /* of the last sample; NO_BACKEND: the place is free */
	__u32 packets; /* samples */
	__u32 taken;   /* samples of other flows among them */
	__u32 by_rule; /* samples that came by a queue of their service */
	__u32 pad2;
	__u64 bytes; /* of the flow's own samples */
};

struct heavy_line {
	struct heavy_flow at[HEAVY_FLOWS_PER_LINE];
};
