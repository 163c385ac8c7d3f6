/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A client whose handshake's acknowledgement is lost, or comes with data right behind it,
 * has several segments on their way before the kernel has made a socket of a SYN cookie.
 * Programs see a whole round of NAPI before the kernel sees the first of it, and only the
 * first segment proves the cookie: it has the client's number. So this host remembers for
 * a moment the flows whose cookies were acknowledged here. Only a client that was told a
 * cookie gets in.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "host/maps.h"
#include "lib/clock.h"

/* Longer than any packet waits for the kernel. */
#define COOKIE_MOMENT SECOND
/* How much a client may send before it gets an answer: a SYN-ACK's window is not scaled. */
#define COOKIE_WINDOW 0xffff

static __always_inline void note_cookie(struct host_flow *flow, const struct tcphdr *tcp)
{
	struct host_cookie *known = bpf_map_lookup_elem(&cookies, flow);
	struct host_cookie cookie = {
		.seen = bpf_ktime_get_coarse_ns(),
		.sequence = bpf_ntohl(tcp->seq),
		.acknowledgement = bpf_ntohl(tcp->ack_seq),
	};

	if (known)
		*known = cookie;
	else
		bpf_map_update_elem(&cookies, flow, &cookie, BPF_ANY);
}

/* Only the SYN-ACK can have been acknowledged yet. A RST need not acknowledge it. */
static __always_inline int follows_cookie(struct host_flow *flow, const struct tcphdr *tcp)
{
	const struct host_cookie *cookie = bpf_map_lookup_elem(&cookies, flow);

	if (!cookie || age_of(&cookie->seen, bpf_ktime_get_coarse_ns()) >= COOKIE_MOMENT)
		return 0;
	if (tcp->ack && bpf_ntohl(tcp->ack_seq) != cookie->acknowledgement)
		return 0;
	return bpf_ntohl(tcp->seq) - cookie->sequence <= COOKIE_WINDOW;
}
