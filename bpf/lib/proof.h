/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How well the packets that were seen of a flow show that it is real. Anybody can send packets with
 * a client's address, so every table that remembers flows goes by these classes:
 *
 *   proved     both sides have sent what only they could: the client has acknowledged the
 *              number of the backend's SYN-ACK, or the backend has acknowledged the client's
 *              data; UDP: datagrams both ways for a while; or an agent has said so.
 *   sustained  only one side is seen, as in DSR: it has sent in sequence for a while.
 *   fresh      all other flows.
 *
 * A fresh flow lives for a short time and gives way to any other one; other directors are told of
 * few, and take them for fresh ones. The others keep their timeouts, no fresh one takes their
 * places, and directors tell each other of them. A flow without a place goes where the ring says,
 * and is not remembered.
 *
 * How a table uses this: it keeps the numbers that it has room for, and its own state, which
 * tells it the class. With each packet it
 *   1. fills in a struct proof_segment, and the numbers that it knows in struct proof_numbers,
 *   2. asks proof_signs what the segment says, which is 0 if the segment may be forged,
 *   3. derives its next state from the signs: PROOF_PROVES makes a fresh flow proved;
 *      PROOF_GOES_ON makes one sustained if it began PROOF_LASTS ago and the table sees one
 *      side only; PROOF_FINISHES and PROOF_RESETS end it. A segment without a sign still goes
 *      to the backend, but does not change a fresh flow: it does not even prolong its life.
 *   4. writes the numbers that the segment teaches: proof_next is the sender's next number.
 *      Where both sides are seen, a side's number is what the other one has acknowledged
 *      last (SYN and SYN-ACK say it, too), because an outsider cannot forge that.
 * Numbers may be written late, by PROOF_LATE bytes and a segment: a cache line that is only read
 * stays in the caches of many CPUs.
 *
 * Pure: nothing here reads a map, a packet or a clock.
 */
#pragma once

#include <linux/types.h>

enum proof_class {
	PROOF_FRESH = 0,
	PROOF_SUSTAINED = 1,
	PROOF_PROVED = 2,
};

/* How long a flow has to be seen before it is sustained, and one of UDP before it is proved. */
#define PROOF_LASTS 2 /* seconds, as nf_conntrack has it of UDP */

enum proof_side {
	PROOF_CLIENT = 1 << 0,
	PROOF_BACKEND = 1 << 1,
};

/* As in the 14th byte of TCP's header. */
enum proof_flag {
	PROOF_FIN = 0x01,
	PROOF_SYN = 0x02,
	PROOF_RST = 0x04,
	PROOF_ACK = 0x10,
};

/* A segment, in host order. */
struct proof_segment {
	__u32 sequence;
	__u32 acknowledgement;
	__u32 length; /* of its data */
	__u8 flags;   /* as in the header */
	__u8 from;    /* enum proof_side */
};

/* The next number of each side; one or both may be unknown. */
struct proof_numbers {
	__u32 client;
	__u32 backend;
	__u8 known; /* enum proof_side: whose number is known */
};

/* What a segment says; 0: nothing that can be believed. */
enum proof_sign {
	PROOF_OPENS = 1 << 0,    /* SYN of the client's */
	PROOF_ANSWERS = 1 << 1,  /* SYN-ACK of the backend's, to the client's SYN */
	PROOF_GOES_ON = 1 << 2,  /* it is in sequence */
	PROOF_PROVES = 1 << 3,   /* both sides have now sent what only they can */
	PROOF_FINISHES = 1 << 4, /* FIN, in sequence */
	PROOF_RESETS = 1 << 5,   /* RST, in sequence */
	PROOF_ANEW = 1 << 6,     /* PROOF_OPENS with another number than the SYN before */
};

/*
 * How far a segment may be from the expected number: one that is farther off is only a guess
 * (RFC 5961). Data that is sent again is before that number, and data that the other side has not
 * acknowledged yet is after it.
 */
#define PROOF_BEFORE (1 << 16)
#define PROOF_AFTER (1 << 20)
/* How much a number may have moved before it is written. */
#define PROOF_LATE (1 << 16)
/* How much data under way one segment may acknowledge: the largest window (RFC 7323, 2.3). */
#define PROOF_WINDOW (1 << 30)
/* A SYN may have data (RFC 7413), which the SYN-ACK acknowledges. */
#define PROOF_SYN_DATA (1 << 14)

static __always_inline int proof_near(__u32 number, __u32 expected)
{
	return number + PROOF_BEFORE - expected <= PROOF_BEFORE + PROOF_AFTER;
}

/* Whether a number has moved so far that it should be written. */
static __always_inline int proof_late(__u32 number, __u32 written)
{
	return number - written >= PROOF_LATE && number - written <= PROOF_AFTER;
}

/* The sender's next number. */
static __always_inline __u32 proof_next(const struct proof_segment *segment)
{
	return segment->sequence + segment->length + !!(segment->flags & PROOF_SYN) +
	       !!(segment->flags & PROOF_FIN);
}

/* The signs of a SYN or SYN-ACK. A backend sends no SYN, and a client sends no SYN-ACK. */
static __always_inline __u32 proof_syn_signs(const struct proof_numbers *numbers,
					     const struct proof_segment *segment)
{
	int client = segment->from == PROOF_CLIENT;

	if (!(segment->flags & PROOF_ACK)) {
		if (!client)
			return 0;
		return numbers->known & PROOF_CLIENT && segment->sequence + 1 != numbers->client ?
			       PROOF_OPENS | PROOF_ANEW :
			       PROOF_OPENS;
	}
	if (client || (numbers->known & PROOF_CLIENT &&
		       segment->acknowledgement - numbers->client > PROOF_SYN_DATA))
		return 0;
	return PROOF_ANSWERS;
}

/*
 * Whether a segment proves a connection whose SYN-ACK has been seen. A client's segment has to
 * acknowledge that exactly. A backend's has to have data and to acknowledge something near what
 * the client has sent, or to acknowledge data: a listener that waits for the last step of the
 * handshake answers other segments with a bare ACK of the SYN.
 */
static __always_inline int proof_proves(const struct proof_numbers *numbers,
					const struct proof_segment *segment)
{
	__u32 acknowledged = segment->acknowledgement;

	if (!(numbers->known & (segment->from ^ (PROOF_CLIENT | PROOF_BACKEND))))
		return 0;
	if (segment->from == PROOF_CLIENT)
		return acknowledged == numbers->backend;
	if (segment->length)
		return proof_near(acknowledged, numbers->client);
	return acknowledged != numbers->client && acknowledged - numbers->client <= PROOF_AFTER;
}

/*
 * What a segment of a flow says. Segments after the SYNs acknowledge something (RFC 9293,
 * 3.10.7.4): one without ACK is dropped, so it says nothing. A side whose number is unknown is
 * believed where that ends nothing that has been proved by numbers.
 */
static __always_inline __u32 proof_signs(const struct proof_numbers *numbers,
					 const struct proof_segment *segment)
{
	__u32 own = segment->from == PROOF_CLIENT ? numbers->client : numbers->backend;
	int in_sequence = !(numbers->known & segment->from) || proof_near(segment->sequence, own);
	__u32 signs = PROOF_GOES_ON;

	if (segment->flags & PROOF_RST)
		return in_sequence ? PROOF_RESETS : 0;
	if (segment->flags & PROOF_SYN)
		return proof_syn_signs(numbers, segment);
	if (!(segment->flags & PROOF_ACK) || !in_sequence)
		return 0;
	if (segment->flags & PROOF_FIN)
		signs |= PROOF_FINISHES;
	if (proof_proves(numbers, segment))
		signs |= PROOF_PROVES;
	return signs;
}

/* The next class of a flow, by a segment's signs; one_sided: only one of its sides is seen. */
static __always_inline enum proof_class proof_class_of(enum proof_class before, __u32 signs,
						       int one_sided, int lasted)
{
	if (signs & PROOF_PROVES)
		return PROOF_PROVED;
	if (before == PROOF_FRESH && one_sided && lasted && signs & PROOF_GOES_ON)
		return PROOF_SUSTAINED;
	return before;
}
