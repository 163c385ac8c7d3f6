/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the director made of one packet: a part of the ABI, as types.h. */
#pragma once

#include "lib/packet.h"

/* The packet as the program left it, with all that it found out. */
struct observation {
	struct packet packet;
	__u32 reason; /* enum reason */
	__s32 action; /* XDP's */
};
