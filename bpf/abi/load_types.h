/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Loads of backends, for policies that go by them: a part of the ABI, as types.h. */
#pragma once

#include <linux/types.h>

#include "abi/export.h"

/*
 * What this director knows of a backend's load, for policies that ask: the connections
 * that it has opened there, in units of LOAD_CONNECTION. All loads are halved when a
 * period of 2^LOAD_PERIOD ns (34 s) ends, so that those of one period can be compared.
 * The first word changes as a whole or is added to.
 */
enum load_scale {
	LOAD_CONNECTION = 16,
	LOAD_PERIOD = 35,
	LOAD_MOST = 1 << 30, /* units; it is not counted further */
};
EXPORT_ENUM(load_scale);

struct load {
	__u32 opened; /* units, at the beginning of the period and since */
	__u32 period; /* number of the last period that was looked at */
	__u32 weight; /* 0: the backend's load is not used */
	__u32 pad;
};

/* The next turn of policy round-robin: each service has a cache line of its own. */
struct turn {
	__u64 next; /* counts connections; added to, so that no two CPUs have the same one */
	__u64 pad[7];
};
