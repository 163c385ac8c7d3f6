/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a packet changes a remembered flow, and how long the flow lives: the first word
 * of struct flow_place, which only changes as a whole, and the client's next sequence
 * number. The director sees only what the client sends and, in nat, perhaps the
 * SYN-ACK.
 */
#pragma once

#include "abi/flow_types.h"
#include "director/flow_clock.h"
#include "director/segment.h"
#include "lib/packet.h"

/* A flow that has ended may give way to another after this: Linux's TIME_WAIT, 60 s. */
#define FLOW_ENDED FLOW_SECONDS(60)

/* PROOF_LASTS, in units of seen. */
#define FLOW_LASTS (FLOW_SECONDS(PROOF_LASTS) + 1)

/* States as a set. */
#define FLOW_STATE(state) (1U << (state))
#define FLOW_STATES_KEPT                                                                           \
	(FLOW_STATE(FLOW_ESTABLISHED) | FLOW_STATE(FLOW_ACTIVE) | FLOW_STATE(FLOW_PROVED) |        \
	 FLOW_STATE(FLOW_CLOSING) | FLOW_STATE(FLOW_RESET))
#define FLOW_STATES_OVER                                                                           \
	(FLOW_STATE(FLOW_CLOSING) | FLOW_STATE(FLOW_RESET) | FLOW_STATE(FLOW_PARTED) |             \
	 FLOW_STATE(FLOW_CUT))

/* Fresh flows that are more than attempts. (Of a guess it is not known yet.) */
#define FLOW_STATES_OPEN                                                                           \
	(FLOW_STATE(FLOW_BEGUN) | FLOW_STATE(FLOW_LEARNED) | FLOW_STATE(FLOW_TWICE) |              \
	 FLOW_STATE(FLOW_TOLD) | FLOW_STATE(FLOW_TOLD_UDP))

/* The first word of struct flow_place, and of struct flow_entry. */
union flow_word {
	struct {
		__u32 seen;
		__u8 state;
		__u8 epoch;
		__u8 turn;
		__u8 since;
	};
	__u64 word;
};

static __always_inline union flow_word flow_read(const void *place)
{
	union flow_word now = { .word = *(const volatile __u64 *)place };

	return now;
}

static __always_inline int flow_swap(void *place, union flow_word from, union flow_word to)
{
	return __sync_val_compare_and_swap((__u64 *)place, from.word, to.word) == from.word;
}

static __always_inline __u32 flow_timeout(__u8 state)
{
	if (state == FLOW_ESTABLISHED || state == FLOW_PROVED)
		return FLOW_SECONDS(FLOW_TIMEOUT_ESTABLISHED) + FLOW_SEEN_LATE;
	if (state == FLOW_BEGUN || state == FLOW_LEARNED || state == FLOW_TOLD)
		return FLOW_SECONDS(FLOW_TIMEOUT_BEGUN);
	if (state == FLOW_ACTIVE)
		return FLOW_SECONDS(FLOW_TIMEOUT_UDP) + FLOW_SEEN_LATE;
	if (state == FLOW_CLOSING)
		return FLOW_SECONDS(FLOW_TIMEOUT_CLOSING);
	return FLOW_SECONDS(FLOW_TIMEOUT_SYN);
}

/* Whether it is sustained or proved, or was until it ended. */
static __always_inline int flow_kept(__u8 state)
{
	return FLOW_STATES_KEPT >> (state & 31) & 1;
}

/* The client has ended it: a SYN begins another connection. */
static __always_inline int flow_over(__u8 state)
{
	return FLOW_STATES_OVER >> (state & 31) & 1;
}

/*
 * A flow that goes on is news again once in 2^this units of seen (18 min, 69 s, 34 s), so
 * that directors that do not get its packets hear of it four times in its timeout.
 */
static __always_inline __u32 flow_news_shift(__u8 state)
{
	if (state == FLOW_ACTIVE)
		return 6;
	return state == FLOW_CLOSING ? 5 : 10;
}

/*
 * Whether the other directors of the group should know how a packet has changed a flow that is
 * sustained or proved, or was. An end is news if the flow was told as such. When a flow is news
 * again depends on its hash, so that not all flows are at the same moment.
 */
static __always_inline int flow_is_news(union flow_word before, union flow_word now, __u64 hash)
{
	__u32 phase = hash;

	if (!flow_kept(now.state))
		return 0;
	if (now.state != before.state)
		return flow_kept(before.state) || !flow_over(now.state);
	return ((before.seen + phase) ^ (now.seen + phase)) >> flow_news_shift(now.state) != 0;
}

/*
 * The same of a fresh flow, which may be of a flood: that it goes on, and that its client has ended
 * it. A connection is fresh for 2 s at least, and for as long as its client sends nothing more.
 * Another director that did not know it would guess its backend. Resets are counted (flowsync).
 * That a flow goes on here is no news if the group knows it from the director that had it before.
 */
static __always_inline int flow_is_fresh_news(union flow_word before, union flow_word now)
{
	const __u32 told = FLOW_STATE(FLOW_BEGUN) | FLOW_STATE(FLOW_TWICE) |
			   FLOW_STATE(FLOW_PARTED);

	if (before.state == FLOW_TOLD || before.state == FLOW_TOLD_UDP)
		return now.state == FLOW_PARTED;
	return now.state != before.state && told >> (now.state & 31) & 1;
}

/* Whether a packet is the second of a TCP connection whose first one was a guess. */
static __always_inline int flow_goes_on(union flow_word before, union flow_word now)
{
	return before.state == FLOW_LEARNED &&
	       (now.state == FLOW_BEGUN || now.state == FLOW_ESTABLISHED);
}

static __always_inline __u32 flow_age(union flow_word word, __u32 now)
{
	/* Another CPU's clock may be a little ahead: see flow_clock. */
	return (__s32)(now - word.seen) < 0 ? 0 : now - word.seen;
}

static __always_inline int flow_live(union flow_word word, __u32 now)
{
	return word.state > FLOW_CLAIMED && word.state != FLOW_REST &&
	       flow_age(word, now) <= flow_timeout(word.state);
}

static __always_inline int flow_lasted(union flow_word word, __u32 now)
{
	return flow_lasts(word.since, now, FLOW_LASTS);
}

/* The state after the first packet that was seen; FLOW_FREE: the packet begins no flow. */
static __always_inline __u8 flow_first(const struct packet *packet)
{
	if (packet->flow.protocol != IPPROTO_TCP)
		return FLOW_ONCE;
	if (is_syn(packet))
		return FLOW_SYN;
	if ((packet->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return FLOW_FREE;
	return packet->tcp_flags & TCP_FIN ? FLOW_PARTED : FLOW_LEARNED;
}

/* A number as it is kept: 0 says that it is not known. */
static __always_inline __u32 flow_number(__u32 number)
{
	return number ? number : 1;
}

static __always_inline __u32 flow_next_number(const struct packet *packet)
{
	struct proof_segment segment = segment_from(packet, PROOF_CLIENT);

	return packet->flow.protocol == IPPROTO_TCP ? flow_number(proof_next(&segment)) : 0;
}

/* Whether a segment is near the client's next number, or that is not known. */
static __always_inline int flow_in_sequence(__u32 next, const struct packet *packet)
{
	return !next || proof_near(packet->sequence, next);
}

/*
 * What a segment says, by the one number that is kept. A fresh flow has nothing to lose: a
 * segment out of its sequence begins another flow. Not static: see snat_signs.
 */
__noinline __u32 flow_signs(const struct packet *packet, __u32 state, __u32 next)
{
	struct proof_numbers numbers = { .client = next, .known = next ? PROOF_CLIENT : 0 };
	struct proof_segment segment;

	if (!packet)
		return 0;
	segment = segment_from(packet, PROOF_CLIENT);
	if (state == FLOW_ANSWERED) {
		numbers.backend = next;
		numbers.known = PROOF_BACKEND;
	} else if (!flow_kept(state) && !(segment.flags & (TCP_FIN | TCP_RST))) {
		numbers.known = 0;
	}
	return proof_signs(&numbers, &segment);
}

/* What a segment in sequence makes of a fresh flow. */
static __always_inline __u8 flow_goes_to(union flow_word word, __u32 signs, __u32 now)
{
	enum proof_class class = proof_class_of(PROOF_FRESH, signs, 1, flow_lasted(word, now));

	if (flow_over(word.state))
		return word.state;
	if (signs & PROOF_FINISHES && class != PROOF_PROVED)
		return FLOW_PARTED;
	if (class == PROOF_PROVED)
		return signs & PROOF_FINISHES ? FLOW_CLOSING : FLOW_PROVED;
	if (word.state == FLOW_SYN || word.state == FLOW_ANSWERED)
		return FLOW_BEGUN;
	return class == PROOF_SUSTAINED ? FLOW_ESTABLISHED : FLOW_BEGUN;
}

/* A client's SYN. The state of a flow that is kept and not over stays as it is. */
static __always_inline union flow_word flow_opens(union flow_word word, __u32 now)
{
	word.seen = now;
	if (flow_kept(word.state) && !flow_over(word.state))
		return word;
	if (word.state != FLOW_ANSWERED) {
		word.state = FLOW_SYN;
		word.since = now;
	}
	return word;
}

/*
 * How a segment changes its TCP flow. After a RST, packets that were under way
 * must not bring the flow back; one that comes a while later does, because then
 * the RST was not real. A segment that says nothing credible leaves a fresh flow alone,
 * and keeps any other flow alive: this director may not have seen what came before it.
 */
static __always_inline union flow_word flow_next_tcp(union flow_word word, __u32 signs, __u8 flags,
						     __u32 now)
{
	if (signs & PROOF_OPENS)
		return flow_opens(word, now);
	if (word.state == FLOW_RESET && !(signs & PROOF_RESETS) &&
	    (!signs || flow_age(word, now) < FLOW_QUIET))
		return word;
	if (!signs) {
		if (flow_kept(word.state) && !(flags & (TCP_FIN | TCP_RST | TCP_SYN)))
			word.seen = now;
		return word;
	}
	word.seen = now;
	if (signs & PROOF_RESETS)
		word.state = flow_kept(word.state) ? FLOW_RESET : FLOW_CUT;
	else if (!flow_kept(word.state))
		word.state = flow_goes_to(word, signs, now);
	else if (signs & PROOF_FINISHES)
		word.state = FLOW_CLOSING;
	else if (word.state == FLOW_RESET)
		word.state = FLOW_ESTABLISHED;
	return word;
}

static __always_inline union flow_word flow_next_udp(union flow_word word, __u32 now)
{
	word.seen = now;
	if (word.state == FLOW_ONCE)
		word.state = FLOW_TWICE;
	else if (word.state == FLOW_TWICE || word.state == FLOW_TOLD_UDP)
		word.state = flow_lasted(word, now) ? FLOW_ACTIVE : FLOW_TWICE;
	return word;
}

/* A flow and its number after a packet. */
struct flow_step {
	union flow_word word;
	__u32 next;
};

/* The number to keep: if nothing else is written, it may be a little late. */
static __always_inline __u32 flow_keep_number(union flow_word before, union flow_word after,
					      __u32 next, __u32 signs, const struct packet *packet)
{
	__u32 number = flow_next_number(packet);
	int fresh = !flow_kept(before.state) && !flow_over(before.state);

	if (after.state == FLOW_ANSWERED || !(signs & (PROOF_OPENS | PROOF_GOES_ON)))
		return next;
	if (signs & PROOF_OPENS)
		return after.state == FLOW_SYN ? number : next;
	if (before.state == FLOW_ANSWERED || !next || (fresh && !flow_in_sequence(next, packet)))
		return number;
	if ((__s32)(number - next) <= 0)
		return next;
	return before.word != after.word || proof_late(number, next) ? number : next;
}

/* Whether a packet may change nothing of its flow: it opens and ends none. */
static __always_inline int flow_may_stay(const struct packet *packet)
{
	return !(packet->flags & PACKET_ICMP_ERROR) &&
	       !(packet->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* Whether a segment of a flow whose next number is known leaves that as it is. */
static __always_inline int flow_keeps_number(__u32 next, const struct packet *packet,
					     __u32 sequence)
{
	return packet->flow.protocol != IPPROTO_TCP || (next && !proof_late(sequence, next));
}

/*
 * Whether such a packet changes no more than its flow's time, by a few tests: so with many flows most
 * packets only read their flow's line. The flow is sustained or proved and open.
 */
static __always_inline int flow_stays(union flow_word word, __u32 next, const struct packet *packet,
				      __u32 sequence)
{
	const __u32 open = FLOW_STATES_KEPT & ~FLOW_STATES_OVER;

	return open >> (word.state & 31) & 1 && flow_keeps_number(next, packet, sequence);
}

/*
 * The same of a fresh flow that has gone on, which changes not even that. A segment out of its sequence
 * would begin another flow.
 */
static __always_inline int flow_stays_fresh(union flow_word word, __u32 next,
					    const struct packet *packet, __u32 sequence, __u32 now)
{
	return (word.state == FLOW_BEGUN || word.state == FLOW_TWICE) && word.seen == now &&
	       !flow_lasted(word, now) && flow_keeps_number(next, packet, sequence) &&
	       (packet->flow.protocol != IPPROTO_TCP || proof_near(sequence, next));
}

/*
 * How a packet changes its flow: the first word, and the client's next number. An ICMP error
 * proves nothing (RFC 5508). Not static: verified once.
 */
__noinline __u64 flow_follow(__u64 read, __u32 *next, const struct packet *packet, __u32 now)
{
	union flow_word before = { .word = read }, word = before;
	__u32 signs;

	if (!next || !packet || packet->flags & PACKET_ICMP_ERROR)
		return read;
	if (packet->flow.protocol != IPPROTO_TCP)
		return flow_next_udp(word, now).word;
	signs = flow_signs(packet, word.state, *next);
	/* A segment out of a fresh flow's sequence begins another flow, without any age. */
	if (!flow_kept(word.state) && word.state != FLOW_ANSWERED && signs & PROOF_GOES_ON &&
	    !flow_in_sequence(*next, packet))
		word.since = now;
	word = flow_next_tcp(word, signs, packet->tcp_flags, now);
	*next = flow_keep_number(before, word, *next, signs, packet);
	return word.word;
}
