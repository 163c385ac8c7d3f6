/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a ring has for QUIC connection IDs: a part of the ABI of types.h. */
#pragma once

#include <linux/types.h>

#include "abi/export.h"

/*
 * A configuration of QUIC connection IDs, with the three lines of its round keys
 * behind it; a ring with RING_QUIC has one for each number that it may have. Words
 * are as in memory. A connection ID without its first byte is two halves, which
 * share the middle byte if its length is odd: masks say which bits are in which half.
 * Without encryption all of it is in the left half.
 */
#define QUIC_CONFIGS 7
#define QUIC_CONFIG_LINES 4
#define QUIC_SERVERS_PER_LINE 3
#define QUIC_PROBES 4

enum quic_algorithm {
	QUIC_NONE = 0, /* no such configuration */
	QUIC_PLAINTEXT = 1,
	QUIC_SINGLE_PASS = 2,
	QUIC_FOUR_PASS = 3,
};
EXPORT_ENUM(quic_algorithm);

struct quic_config {
	__u64 left[2];
	__u64 right[2];
	__u64 server_id[2]; /* which bits of the plaintext it is */
	__u8 algorithm;     /* enum quic_algorithm */
	__u8 length;        /* of server ID and nonce, bytes */
	__u8 right_at;      /* byte that the right half begins with */
	__u8 last_pass;     /* 1 or 2: the server ID may be known before the last */
	__u32 pad[3];
};
EXPORT_STRUCT(quic_config);

/* What a packet's connection ID said, in a service with QUIC: index of its counter. */
enum quic_event {
	QUIC_FOUND = 0, /* its backend takes the packet */
	QUIC_UNKNOWN,   /* of a configuration, but no backend has the server ID */
	QUIC_DOWN,      /* the backend with the server ID is not alive */
	QUIC_OTHER,     /* of no configuration, or too short for it */
	QUIC_EVENT_COUNT,
};
EXPORT_ENUM(quic_event);

/*
 * A line of the hash table from (server ID, configuration) to backend: a key is in
 * its bucket or one of the QUIC_PROBES - 1 lines after it. Its last byte is the
 * configuration's number + 1, and zero where the place is free.
 */
struct quic_servers {
	__u64 keys[QUIC_SERVERS_PER_LINE][2];
	__u32 backends[QUIC_SERVERS_PER_LINE];
	__u32 pad;
};
EXPORT_STRUCT(quic_servers);
