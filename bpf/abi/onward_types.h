/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What onward.bpf.c and its loader share. */
#pragma once

#include <linux/types.h>

#include "abi/export.h"

/* Destination MAC of a frame that the kernel is to send: two bytes, and the interface's index. */
enum onward_mac {
	ONWARD_PREFIX =
		0x0257, /* locally administered (the second bit of the first byte), and a W */
};
EXPORT_ENUM(onward_mac);

struct onward_destination {
	__be16 prefix;
	__be32 ifindex;
} __attribute__((packed));
