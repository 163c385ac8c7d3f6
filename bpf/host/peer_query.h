/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A host that a director sees down may still be up: another host asks it about datagrams
 * that no other host has. Whether it answers these questions shows whether it is there.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "host/maps.h"
#include "lib/clock.h"

/* A host that does not answer for so long is dead ... */
#define QUESTION_PATIENCE (SECOND / 2)
/* ... and gets one more datagram after this time. */
#define QUESTION_AGAIN (300 * SECOND)
/* A host that directors see down for so long loses its flows, even if it says it has them, ... */
#define QUESTION_LONGEST (30 * SECOND)
/* ... where "so long" means without a pause of this length between two questions. */
#define QUESTION_PAUSE (5 * SECOND)

/*
 * Whether a host may be asked; if so, this counts as a question. A host that does not answer, or
 * that directors see down for too long, is not asked.
 */
static __noinline int may_ask(struct address *host, __u64 now)
{
	struct host_question *question = bpf_map_lookup_elem(&questions, host);
	struct host_question first = { .since = now, .last = now, .open = now };

	if (!question) {
		bpf_map_update_elem(&questions, host, &first, BPF_ANY);
		return 1;
	}
	if (since(question->last, now) > QUESTION_PAUSE)
		question->since = now;
	question->last = now;
	if (question->open && since(question->open, now) > QUESTION_PATIENCE) {
		if (since(question->open, now) < QUESTION_AGAIN)
			return 0;
		question->open = now - QUESTION_PATIENCE;
		return 1;
	}
	if (since(question->since, now) > QUESTION_LONGEST)
		return 0;
	if (!question->open)
		question->open = now;
	return 1;
}

/* A host that sends a row on is alive. */
static __always_inline void heard_from(struct address *host)
{
	struct host_question *question = bpf_map_lookup_elem(&questions, host);

	if (question)
		question->open = 0;
}
