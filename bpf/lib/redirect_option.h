/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The redirect option, in SYNs and SYN-ACKs: an experimental option (RFC 6994) that
 * says which VIP a connection was begun to. A client's host puts it into a SYN with
 * zeroes; the director that hands the connection over fills it in, in place; the
 * backend's host repeats it in the SYN-ACK. It is added at the end of the header, with
 * two NOPs, so that all options keep their alignment.
 *
 * lab/twin reads options the same way; a change here is a change there.
 */
#pragma once

#include <stddef.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REDIRECT_EXID 0x5752
#define FAST_OPEN_EXID 0xf989 /* RFC 7413 appendix A.3: how Fast Open began */

enum tcp_option_kind {
	TCP_END = 0,
	TCP_NOP = 1,
	TCP_MSS = 2,
	TCP_MD5 = 19,
	TCP_AO = 29,
	TCP_MPTCP = 30,
	TCP_FAST_OPEN = 34,
	TCP_EXPERIMENT1 = 253,
	TCP_EXPERIMENT2 = 254,
};

/* As it is added. Its own length does not count the NOPs. */
struct redirect_option {
	__u8 kind;
	__u8 length;
	__be16 exid;
	__be32 vip; /* last 4 bytes of the address; 0, and port 0: to be filled in */
	__be16 port;
	__u8 nops[2];
};

#define REDIRECT_LENGTH 10

/* The option for a VIP, whose last 4 bytes are the tail. */
#define REDIRECT_OPTION(tail, its_port)                                                            \
	{                                                                                          \
		.kind = TCP_EXPERIMENT2,                                                           \
		.length = REDIRECT_LENGTH,                                                         \
		.exid = bpf_htons(REDIRECT_EXID),                                                  \
		.vip = (tail),                                                                     \
		.port = (its_port),                                                                \
		.nops = { TCP_NOP, TCP_NOP },                                                      \
	}

#define OPTIONS_MAX 40 /* bytes that a TCP header has room for (RFC 9293: offset of 15 words) */
#define OPTIONS_MASK 0x3c
#define OPTIONS_BUFFER (OPTIONS_MASK + 4) /* as much as a masked length can be */

enum options_flag {
	OPTIONS_MALFORMED = 1 << 0, /* an option is cut short, or ours is not as it has to be */
	OPTIONS_FORBID = 1 << 1,    /* one that does not survive another address, or carries data */
	OPTIONS_MSS = 1 << 2,
	OPTIONS_END = 1 << 3, /* options after it are not read */
};

/* What the options of one header say. */
struct tcp_options {
	__u8 bytes[OPTIONS_BUFFER];
	__u32 length; /* of those that are there */
	__u32 at;     /* where the walk stands */
	__u32 found;  /* offset of the redirect option, plus 1; 0: there is none */
	__u32 flags;  /* enum options_flag */
};

static __always_inline __u16 option_exid(const struct tcp_options *o, __u32 at)
{
	return o->bytes[at + 2] << 8 | o->bytes[at + 3];
}

/* Options with addresses and numbers of a connection, or with data. */
static __always_inline int is_forbidding(__u8 kind)
{
	return kind == TCP_MD5 || kind == TCP_AO || kind == TCP_MPTCP || kind == TCP_FAST_OPEN;
}

/* An experimental option: ours, Fast Open's, or another one, which does not matter. */
static __always_inline void read_experiment(struct tcp_options *o, __u32 at, __u8 kind, __u8 size)
{
	__u16 exid = option_exid(o, at);

	if (exid == FAST_OPEN_EXID)
		o->flags |= OPTIONS_FORBID;
	if (kind != TCP_EXPERIMENT2 || exid != REDIRECT_EXID)
		return;
	/* At an odd place a checksum would need its bytes the other way round. */
	if (size != REDIRECT_LENGTH || at & 1 || o->found)
		o->flags |= OPTIONS_MALFORMED;
	else
		o->found = at + 1;
}

/* Looks at one option; 1: the walk ends. */
static long walk_option(__u32 index, struct tcp_options *o)
{
	__u32 at = o->at;
	__u8 kind, size;

	(void)index;
	if (at >= OPTIONS_MAX || at >= o->length)
		return 1;
	kind = o->bytes[at];
	if (kind == TCP_END) {
		o->flags |= OPTIONS_END;
		return 1;
	}
	if (kind == TCP_NOP) {
		o->at = at + 1;
		return 0;
	}
	size = o->bytes[at + 1];
	if (at + 1 >= o->length || size < 2 || at + size > o->length) {
		o->flags |= OPTIONS_MALFORMED;
		return 1;
	}
	if (kind == TCP_MSS)
		o->flags |= OPTIONS_MSS;
	if (is_forbidding(kind))
		o->flags |= OPTIONS_FORBID;
	if ((kind == TCP_EXPERIMENT1 || kind == TCP_EXPERIMENT2) && size >= 4)
		read_experiment(o, at, kind, size);
	o->at = at + size;
	return 0;
}

/*
 * Reads all options, whose bytes and length are there. A loop that the verifier sees
 * once (bpf_loop, Linux 5.17): unrolled it takes half a second to load.
 */
static __always_inline void walk_options(struct tcp_options *o)
{
	bpf_loop(OPTIONS_MAX, walk_option, o, 0);
}

/*
 * A length of options that verifiers know the bounds of: they do not follow comparisons that were
 * merged.
 */
static __always_inline __u32 bounded_options(__u32 length)
{
	length -= 4;
	barrier_var(length);
	return (length & OPTIONS_MASK) + 4;
}

/* Offset of the redirect option among the others, plus 1; 0: there is none that counts. */
static __always_inline __u32 redirect_place(const struct tcp_options *o)
{
	return o->flags & (OPTIONS_MALFORMED | OPTIONS_FORBID) ? 0 : o->found;
}

/*
 * Whether the option may be added, and will have room in the answer: the answer
 * repeats the options that it was offered, and has an MSS of its own.
 */
static __always_inline int has_room(const struct tcp_options *o)
{
	__u32 answer = o->flags & OPTIONS_MSS ? 0 : 4;

	return !(o->flags & OPTIONS_END) &&
	       o->length + answer + sizeof(struct redirect_option) <= OPTIONS_MAX;
}
