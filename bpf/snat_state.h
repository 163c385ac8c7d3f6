/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet makes of a flow of full NAT, and how long the flow lives: the first
 * word of struct snat_flow, which only changes as a whole.
 */
#pragma once

#include "packet.h"

/* Older than this, in units of struct snat_flow: at least one whole unit, whenever in it it was seen. */
#define SNAT_QUIET 2

/* The first word of struct snat_flow. */
union snat_word {
	struct {
		__u32 seen;
		__u8 state;
		__u8 fins;
		__u8 epoch;
		__u8 pad;
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

static __always_inline __u32 snat_clock(void)
{
	return bpf_ktime_get_ns() >> 30;
}

#define SNAT_SECONDS(s) ((__u32)(((s) * 1000000000ULL >> 30) + 1))

/* How long a flow lives without packets. */
static __always_inline __u32 snat_timeout(__u8 state)
{
	if (state == SNAT_ESTABLISHED)
		return SNAT_SECONDS(7440); /* RFC 5382, REQ-5: not less than 2 h 4 min */
	if (state == SNAT_TWO_WAY)
		return SNAT_SECONDS(300); /* RFC 4787, REQ-5: 5 min recommended */
	if (state == SNAT_CLOSING)
		return SNAT_SECONDS(240); /* RFC 5382, REQ-5: transitory, 4 min */
	if (state == SNAT_ONE_WAY)
		return SNAT_SECONDS(30); /* nf_conntrack_udp_timeout: nobody has answered */
	/* SYN: nf_conntrack_tcp_timeout_syn_recv. CLOSED, RESET: Linux's TIME_WAIT at a backend. */
	return SNAT_SECONDS(60);
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

/*
 * What a packet makes of its TCP flow. After a RST, packets that were under way
 * must not bring the flow back; one that the client sends a while later does,
 * because then the RST was not for real.
 */
static __always_inline union snat_word snat_next_tcp(union snat_word word, __u8 flags, __u8 fin,
						     __u32 now)
{
	int client = fin == SNAT_FIN_CLIENT;

	if (word.state == SNAT_RESET && !(flags & (TCP_RST | TCP_SYN)) &&
	    !(client && snat_age(word, now) >= SNAT_QUIET))
		return word;
	word.seen = now;
	if (flags & TCP_RST) {
		word.state = SNAT_RESET;
	} else if (flags & TCP_SYN) {
		if (client && snat_over(word.state)) {
			word.state = SNAT_SYN;
			word.fins = 0;
		}
	} else {
		if (flags & TCP_FIN)
			word.fins |= fin;
		if (word.fins == (SNAT_FIN_CLIENT | SNAT_FIN_BACKEND))
			word.state = SNAT_CLOSED;
		else if (word.fins)
			word.state = SNAT_CLOSING;
		else if (client)
			word.state = SNAT_ESTABLISHED;
	}
	return word;
}

/* What a packet makes of its flow; fin says who sent it. An ICMP error proves nothing (RFC 5508). */
static __always_inline union snat_word snat_next(union snat_word word, const struct packet *packet,
						 __u8 fin, __u32 now)
{
	if (packet->flags & PACKET_ICMP_ERROR)
		return word;
	if (packet->flow.protocol == IPPROTO_TCP)
		return snat_next_tcp(word, packet->tcp_flags, fin, now);
	word.seen = now;
	if (fin == SNAT_FIN_BACKEND)
		word.state = SNAT_TWO_WAY;
	return word;
}
