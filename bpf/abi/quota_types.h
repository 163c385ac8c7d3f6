/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What one segment may have of the datapath: a part of the ABI, as types.h. */
#pragma once

#include <linux/types.h>

#include "abi/export.h"

enum quota_size {
	QUOTAS_MAX = 4096, /* segments that have one, and 0: none */
	QUOTA_WINDOW = 26, /* packets are counted in windows of 2^26 ns (67 ms) */
};
EXPORT_ENUM(quota_size);

struct quota {
	__u32 packets; /* in a window; 0: no bound */
	__u32 batch;   /* packets that a CPU takes of them at once */
	__u32 flows;   /* places in a bucket of each table, in parts of 65,536; 0: no bound */
	__u32 pad;
};

/* A CPU's part of it. */
struct quota_share {
	__u32 window;  /* number of the last window that was looked at */
	__u32 left;    /* packets that this CPU has taken and not spent */
	__u64 over;    /* number of the last window that had no more, plus 1 */
	__u64 packets; /* dropped */
	__u64 bytes;
	__u64 flows; /* that found no place */
};
