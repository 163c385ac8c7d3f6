/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a packet changes a flow of full NAT, and how long the flow lives: the first
 * word of struct snat_flow, which only changes as a whole, and the numbers of both
 * sides, whose packets all pass here.
 */
#pragma once

#include "abi/snat_types.h"
#include "director/flow_clock.h"
#include "director/segment.h"
#include "lib/packet.h"

/* The first word of struct snat_flow. */
union snat_word {
	struct {
		__u32 seen;
		__u8 state;
		__u8 fins;
		__u8 epoch;
		__u8 proof;
	};
	__u64 word;
};

/*
 * What a flow asks for, and its numbers, as one word. While the flow begins they are the number
 * of the client's SYN, and what acknowledges the backend's SYN-ACK; the latter has its place
 * when nothing is asked for any more. When the flow is proved, the upper halves of each side's
 * next number, within 64 KiB, are enough: the cache line is rarely written then.
 */
union ask_word {
	struct snat_asked asked;
	struct {
		__u16 client;
		__u16 backend;
		__u32 answer;
	};
	__u64 word;
};

static __always_inline union snat_word snat_read(const struct snat_flow *flow)
{
	union snat_word now = { .word = *(const volatile __u64 *)flow };

	return now;
}

static __always_inline int snat_swap(struct snat_flow *flow, union snat_word from,
				     union snat_word to)
{
	return __sync_val_compare_and_swap((__u64 *)flow, from.word, to.word) == from.word;
}

static __always_inline union ask_word ask_read(const struct snat_flow *flow)
{
	union ask_word now = { .word = *(const volatile __u64 *)&flow->asked };

	return now;
}

static __always_inline int ask_swap(struct snat_flow *flow, union ask_word from, union ask_word to)
{
	return __sync_val_compare_and_swap((__u64 *)&flow->asked, from.word, to.word) == from.word;
}

/* Whether the host that answered has the connection; else the port's place has a number. */
static __always_inline int is_taken(union snat_word word, union ask_word asked)
{
	return asked.asked.state == ASKED_TAKEN && !(word.proof & SNAT_ANSWER);
}

/* PROOF_LASTS, in units of seen. */
#define SNAT_LASTS (FLOW_SECONDS(PROOF_LASTS) + 1)

/* States as a set. */
#define SNAT_STATE(state) (1U << (state))
#define SNAT_STATES_FRESH                                                                          \
	(SNAT_STATE(SNAT_SYN) | SNAT_STATE(SNAT_ANSWERED) | SNAT_STATE(SNAT_ONE_WAY) |             \
	 SNAT_STATE(SNAT_TRIED))
#define SNAT_STATES_OVER (SNAT_STATE(SNAT_CLOSED) | SNAT_STATE(SNAT_RESET))

/* How long a flow lives without packets. */
static __always_inline __u32 snat_timeout(__u8 state)
{
	if (state == SNAT_ESTABLISHED)
		return FLOW_SECONDS(7440); /* RFC 5382, REQ-5: not less than 2 h 4 min */
	if (state == SNAT_TWO_WAY)
		return FLOW_SECONDS(300); /* RFC 4787, REQ-5: 5 min recommended */
	if (state == SNAT_CLOSING)
		return FLOW_SECONDS(240); /* RFC 5382, REQ-5: transitory, 4 min */
	if (state == SNAT_ONE_WAY || state == SNAT_TRIED)
		return FLOW_SECONDS(30); /* nf_conntrack_udp_timeout */
	/* SYN: nf_conntrack_tcp_timeout_syn_recv. CLOSED, RESET: Linux's TIME_WAIT at a backend. */
	return FLOW_SECONDS(60);
}

static __always_inline __u32 snat_age(union snat_word word, __u32 now)
{
	/* Another CPU's clock may be a little ahead. */
	return (__s32)(now - word.seen) < 0 ? 0 : now - word.seen;
}

static __always_inline int snat_live(union snat_word word, __u32 now)
{
	return word.state > SNAT_CLAIMED && snat_age(word, now) <= snat_timeout(word.state);
}

static __always_inline int snat_over(__u8 state)
{
	return state == SNAT_CLOSED || state == SNAT_RESET;
}

static __always_inline int snat_fresh(__u8 state)
{
	return SNAT_STATES_FRESH >> (state & 31) & 1;
}

/* The numbers that are known of a flow. */
static __always_inline struct proof_numbers snat_numbers(union snat_word word, union ask_word asked)
{
	struct proof_numbers numbers = {
		.known = word.proof & (PROOF_CLIENT | PROOF_BACKEND),
	};

	if (word.proof & SNAT_HALVES) {
		numbers.client = (__u32)asked.client << 16;
		numbers.backend = (__u32)asked.backend << 16;
	} else {
		numbers.client = asked.asked.sequence + 1;
		numbers.backend = asked.answer;
	}
	return numbers;
}

/*
 * What a segment says (enum proof_sign) to a flow that has been read. Not static: verified once,
 * and its callers have little stack left.
 */
__noinline __u32 snat_signs(const struct packet *packet, __u64 read, __u64 asked, __u32 side)
{
	struct proof_numbers numbers;
	struct proof_segment segment;

	if (!packet)
		return 0;
	numbers = snat_numbers((union snat_word){ .word = read },
			       (union ask_word){ .word = asked });
	segment = segment_from(packet, side);
	return proof_signs(&numbers, &segment);
}

/*
 * A client's SYN begins a connection if there is none, or one that is over. A SYN with another
 * number begins a connection anew that was answered and has gone no further for a while: a
 * backend that answers with SYN cookies has forgotten the first SYN. It does not do so at once,
 * because anybody could then keep a connection from being proved.
 */
static __always_inline union snat_word snat_opens(union snat_word word, __u32 signs, __u32 now)
{
	int anew = word.state == SNAT_ANSWERED && signs & PROOF_ANEW &&
		   snat_age(word, now) >= FLOW_QUIET;

	word.seen = now;
	if (anew || snat_over(word.state)) {
		word.state = SNAT_SYN;
		word.fins = 0;
		word.proof = SNAT_KNOWS_CLIENT;
	}
	return word;
}

/* A segment that says nothing credible: a flow that is not fresh lives on. */
static __always_inline union snat_word snat_unsaid(union snat_word word, __u8 flags, __u32 now)
{
	if (!snat_fresh(word.state) && word.state != SNAT_RESET &&
	    !(flags & (TCP_FIN | TCP_RST | TCP_SYN)))
		word.seen = now;
	return word;
}

/* The SYN-ACK. If the flow asks, its number is kept when the asking is over: see answer_asked. */
static __always_inline union snat_word snat_answers(union snat_word word, union ask_word asked,
						    __u32 now)
{
	if (!snat_fresh(word.state))
		return word;
	word.seen = now;
	word.state = SNAT_ANSWERED;
	if (asked.asked.state == ASKED_NOTHING || word.proof & SNAT_ANSWER)
		word.proof |= SNAT_ANSWER | SNAT_KNOWS_BACKEND;
	return word;
}

/* Notes that the numbers that a segment in sequence teaches are known. */
static __always_inline union snat_word snat_learns(union snat_word word, __u8 side)
{
	word.proof |= SNAT_HALVES | (side ^ (PROOF_CLIENT | PROOF_BACKEND));
	return word;
}

/*
 * How a packet changes its TCP flow. After a RST, packets that were under way
 * must not bring the flow back; one that the client sends a while later does,
 * because then the RST was not real.
 */
static __always_inline union snat_word snat_next_tcp(union snat_word word, union ask_word asked,
						     __u32 signs, __u8 flags, __u8 side, __u32 now)
{

	if (signs & PROOF_OPENS)
		return snat_opens(word, signs, now);
	if (word.state == SNAT_RESET && !(signs & PROOF_RESETS) &&
	    !(signs & PROOF_GOES_ON && side == PROOF_CLIENT && word.proof & SNAT_HALVES &&
	      snat_age(word, now) >= FLOW_QUIET))
		return word;
	if (!signs)
		return snat_unsaid(word, flags, now);
	if (signs & PROOF_ANSWERS)
		return snat_answers(word, asked, now);
	if (signs & PROOF_RESETS) {
		word.seen = now;
		word.state = SNAT_RESET;
		return word;
	}
	/* proof is 0 if a version that knew no numbers has seen the flow begin. */
	if (snat_fresh(word.state) && word.proof) {
		if (word.state != SNAT_ANSWERED || !(signs & PROOF_PROVES))
			return word;
		word.proof |= SNAT_KNOWS_CLIENT | SNAT_KNOWS_BACKEND;
	}
	word.seen = now;
	word = snat_learns(word, side);
	if (signs & PROOF_FINISHES)
		word.fins |= side;
	if (word.fins == (SNAT_FIN_CLIENT | SNAT_FIN_BACKEND))
		word.state = SNAT_CLOSED;
	else if (word.fins)
		word.state = SNAT_CLOSING;
	else
		word.state = SNAT_ESTABLISHED;
	return word;
}

/* UDP: assured by datagrams both ways that go on for a while, as nf_conntrack's streams. */
static __always_inline union snat_word snat_next_udp(union snat_word word, __u8 side, __u32 now)
{
	word.seen = now;
	if (side == PROOF_BACKEND) {
		if (word.state == SNAT_ONE_WAY)
			word.state = SNAT_TRIED;
	} else if (word.state == SNAT_TRIED && flow_lasts(word.proof, now, SNAT_LASTS)) {
		word.state = SNAT_TWO_WAY;
	}
	return word;
}

typedef __u16 snat_half __attribute__((may_alias));
typedef __u32 snat_number_word __attribute__((may_alias));

static __always_inline void snat_put_half(struct snat_flow *flow, int backend, __u16 half)
{
	((volatile snat_half *)&flow->asked)[backend] = half;
}

/*
 * Writes both numbers of a flow that a segment has just proved. The backend's whole number is not
 * needed any more, and a version that knew no numbers reads the state of what was asked for there.
 */
static __always_inline void snat_put_halves(struct snat_flow *flow, union snat_word after,
					    const struct packet *packet, int client)
{
	const union ask_word plain = { .asked.state = ASKED_PLAIN };

	if (after.proof & SNAT_ANSWER)
		((volatile snat_number_word *)&flow->asked)[1] = plain.answer;
	snat_put_half(flow, !client, packet->sequence >> 16);
	snat_put_half(flow, client, packet->acknowledgement >> 16);
}

/*
 * A side's next number is what the other side has acknowledged, in sequence. Once it is known it
 * only moves forward: when a gap is filled, by all that was under way.
 */
static __always_inline void snat_put_acknowledged(struct snat_flow *flow, union snat_word before,
						  union ask_word asked, __u32 acknowledged,
						  int client)
{
	__u16 half = acknowledged >> 16, was = client ? asked.backend : asked.client;

	if (half == was && before.proof & SNAT_HALVES)
		return;
	if (before.proof & SNAT_HALVES &&
	    before.proof & (client ? SNAT_KNOWS_BACKEND : SNAT_KNOWS_CLIENT) &&
	    (__u16)(half - was) > PROOF_WINDOW >> 16)
		return;
	snat_put_half(flow, client, half);
}

/* The numbers of a connection that begins. ask.h writes what a SYN asks for, and its number. */
static __always_inline void snat_begin(struct snat_flow *flow, union snat_word before,
				       union snat_word after, union ask_word asked,
				       const struct packet *packet, __u32 signs)
{
	volatile snat_number_word *words = (volatile snat_number_word *)&flow->asked;
	union ask_word fresh = { .asked.sequence = packet->sequence };

	if (signs & PROOF_ANSWERS && after.proof & SNAT_ANSWER)
		words[1] = packet->sequence + 1;
	if (!(signs & PROOF_OPENS) || after.state != SNAT_SYN)
		return;
	if (before.state != SNAT_SYN)
		ask_swap(flow, asked, fresh);
	else if (asked.asked.state == ASKED_NOTHING && asked.asked.sequence != packet->sequence)
		words[0] = packet->sequence;
}

/* A segment of the client's: beside its signs. */
#define SNAT_FROM_CLIENT (1U << 31)

/* Keeps the numbers that a segment teaches, once its flow's word has changed. */
static __always_inline int snat_teach(struct snat_flow *flow, const struct packet *packet,
				      __u64 was, __u64 is, __u32 signs)
{
	union snat_word before = { .word = was }, after = { .word = is };
	union ask_word asked = ask_read(flow);
	int client = !!(signs & SNAT_FROM_CLIENT);

	if (!(after.proof & SNAT_HALVES))
		snat_begin(flow, before, after, asked, packet, signs);
	else if (!(before.proof & SNAT_HALVES) && before.state == SNAT_ANSWERED)
		snat_put_halves(flow, after, packet, client);
	else if (signs & PROOF_GOES_ON)
		snat_put_acknowledged(flow, before, asked, packet->acknowledgement, client);
	return 1;
}

/* Replaces a flow's word. Returns whether it was still the word that was read. */
static __always_inline int snat_change(struct snat_flow *flow, union snat_word word,
				       union snat_word next)
{
	if (next.word == word.word)
		return snat_read(flow).word == word.word;
	return snat_swap(flow, word, next);
}

/*
 * Whether a packet of the flow changes nothing, as nearly all do: the flow is proved, it has been
 * seen in this unit of time, and the other side's number stays within its 64 KiB. Whether the
 * packet is in sequence makes no difference then.
 */
static __always_inline int snat_stays(union snat_word word, union ask_word asked,
				      const struct packet *packet, __u32 side, __u32 now)
{
	__u16 other = side == PROOF_CLIENT ? asked.backend : asked.client;

	return word.state == SNAT_ESTABLISHED && word.seen == now &&
	       (word.proof & SNAT_KNOWS_ALL) == SNAT_KNOWS_ALL &&
	       !(packet->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST)) &&
	       packet->acknowledgement >> 16 == other;
}

/*
 * Follows a packet of the flow, which has been read: side says which side sent it (enum snat_fin
 * is enum proof_side). Returns whether the flow was still what was read. An ICMP error proves
 * nothing (RFC 5508). Not static: verified once, and its callers have little stack left.
 */
__noinline int snat_follow(struct snat_flow *flow, const struct packet *packet, __u64 read,
			   __u32 side, __u32 now)
{
	union snat_word word = { .word = read }, next;
	union ask_word asked;
	__u32 signs;

	if (!flow || !packet)
		return 0;
	if (packet->flags & PACKET_ICMP_ERROR)
		return snat_change(flow, word, word);
	if (packet->flow.protocol != IPPROTO_TCP)
		return snat_change(flow, word, snat_next_udp(word, side, now));
	asked = ask_read(flow);
	if (snat_stays(word, asked, packet, side, now))
		return snat_change(flow, word, word);
	signs = snat_signs(packet, read, asked.word, side);
	next = snat_next_tcp(word, asked, signs, packet->tcp_flags, side, now);
	if (!snat_change(flow, word, next))
		return 0;
	if (side == PROOF_CLIENT)
		signs |= SNAT_FROM_CLIENT;
	return snat_teach(flow, packet, word.word, next.word, signs);
}
