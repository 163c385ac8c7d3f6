/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet makes of a remembered flow, and how long the flow lives: the first
 * word of struct flow_entry, which only changes as a whole. The director sees no
 * more than what the client sends.
 */
#pragma once

#include "flow_types.h"
#include "packet.h"
#include "snat_state.h"

/* A flow that has ended may give way to another after this: Linux's TIME_WAIT, 60 s. */
#define FLOW_ENDED SNAT_SECONDS(60)

/* The first word of struct flow_entry. */
union flow_word {
	struct {
		__u32 seen;
		__u8 state;
		__u8 epoch;
		__u16 turn;
	};
	__u64 word;
};

static __always_inline union flow_word flow_read(const struct flow_entry *entry)
{
	union flow_word now = { .word = *(const volatile __u64 *)entry };

	return now;
}

static __always_inline int flow_swap(struct flow_entry *entry, union flow_word from,
				     union flow_word to)
{
	return __sync_val_compare_and_swap((__u64 *)entry, from.word, to.word) == from.word;
}

static __always_inline __u32 flow_timeout(__u8 state)
{
	if (state == FLOW_ESTABLISHED || state == FLOW_LEARNED)
		return SNAT_SECONDS(FLOW_TIMEOUT_ESTABLISHED);
	if (state == FLOW_ONCE || state == FLOW_ACTIVE)
		return SNAT_SECONDS(FLOW_TIMEOUT_UDP);
	if (state == FLOW_CLOSING)
		return SNAT_SECONDS(FLOW_TIMEOUT_CLOSING);
	return SNAT_SECONDS(FLOW_TIMEOUT_SYN);
}

/* The client has ended it: a SYN begins another connection. */
static __always_inline int flow_over(__u8 state)
{
	return state == FLOW_CLOSING || state == FLOW_RESET;
}

/*
 * A flow that goes on is news again once in 2^this units of seen (18 min, 69 s, 34 s), so
 * that those who do not get its packets hear of it four times in its timeout.
 */
static __always_inline __u32 flow_news_shift(__u8 state)
{
	if (state == FLOW_ACTIVE)
		return 6;
	return state == FLOW_CLOSING ? 5 : 10;
}

/*
 * Whether the others of the group should know what a packet has made of its flow. Nothing
 * is said before a second packet: a flood is of flows that have one, and a guess is the
 * same on all directors. An end is news of a flow that was one. When a flow is news again
 * depends on its hash, so that not all of them are at the same moment.
 */
static __always_inline int flow_is_news(union flow_word before, union flow_word now, __u64 hash)
{
	__u32 phase = hash;

	if (now.state < FLOW_ESTABLISHED)
		return 0;
	if (now.state != before.state)
		return before.state >= FLOW_ESTABLISHED || !flow_over(now.state);
	return ((before.seen + phase) ^ (now.seen + phase)) >> flow_news_shift(now.state) != 0;
}

/* Whether a packet is the second of a TCP connection whose first one was a guess. */
static __always_inline int flow_goes_on(union flow_word before, union flow_word now)
{
	return before.state == FLOW_LEARNED && now.state == FLOW_ESTABLISHED;
}

static __always_inline __u32 flow_age(union flow_word word, __u32 now)
{
	/* Another CPU's clock may be a little ahead. */
	return (__s32)(now - word.seen) < 0 ? 0 : now - word.seen;
}

static __always_inline int flow_live(union flow_word word, __u32 now)
{
	return word.state > FLOW_CLAIMED && flow_age(word, now) <= flow_timeout(word.state);
}

/* How a flow begins with its first packet that was seen. */
static __always_inline __u8 flow_first(const struct packet *packet)
{
	if (packet->flow.protocol != IPPROTO_TCP)
		return FLOW_ONCE;
	if (is_syn(packet))
		return FLOW_SYN;
	return packet->tcp_flags & TCP_FIN ? FLOW_CLOSING : FLOW_LEARNED;
}

/*
 * What a packet makes of its TCP flow. After a RST, packets that were under way
 * must not bring the flow back; one that comes a while later does, because then
 * the RST was not for real.
 */
static __always_inline union flow_word flow_next_tcp(union flow_word word, __u8 flags, __u32 now)
{
	if (word.state == FLOW_RESET && !(flags & (TCP_RST | TCP_SYN)) &&
	    flow_age(word, now) < SNAT_QUIET)
		return word;
	word.seen = now;
	if (flags & TCP_RST) {
		word.state = FLOW_RESET;
	} else if (flags & TCP_SYN) {
		if (flow_over(word.state))
			word.state = FLOW_SYN;
	} else if (flags & TCP_FIN) {
		word.state = FLOW_CLOSING;
	} else if (word.state != FLOW_CLOSING) {
		word.state = FLOW_ESTABLISHED;
	}
	return word;
}

/* What a packet makes of its flow. An ICMP error proves nothing (RFC 5508). */
static __always_inline union flow_word flow_next(union flow_word word, const struct packet *packet,
						 __u32 now)
{
	if (packet->flags & PACKET_ICMP_ERROR)
		return word;
	if (packet->flow.protocol == IPPROTO_TCP)
		return flow_next_tcp(word, packet->tcp_flags, now);
	word.seen = now;
	word.state = FLOW_ACTIVE;
	return word;
}
