/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What check.bpf.c and its loader share. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"
#include "abi/vtep_types.h"

/* A check's way to one backend: its headers are the director's own. */
struct check_way {
	struct backend to;        /* without state, VIP and service */
	struct settings settings; /* its tunnel source; nothing else is looked at */
	/* In a tenant's network: this director's address there, ... */
	struct address own; /* zero: the socket's own */
	/* ... the backend's, where the socket has another one in its place: see struct vtep_stand_in, ... */
	struct address target; /* zero: the socket's own */
	/* ... and, in VXLAN or Geneve (place.ifindex), the tunnel. */
	struct vtep_self self;
	struct vtep_place place;
	__u32 pad;
};

/* What became of a packet on its way: the index of its counter and the label of its metric. */
enum check_verdict {
	CHECK_SENT = 0,
	CHECK_NOT_MARKED, /* from the kernel itself, no check: the device discards it */
	CHECK_NO_WAY,     /* its backend is not checked any more, or has no next hop */
	CHECK_NOT_IP,     /* or cut short */
	CHECK_NO_ROOM,    /* the kernel has none for outer headers */
	CHECK_VERDICT_COUNT,
};
EXPORT_ENUM(check_verdict);
