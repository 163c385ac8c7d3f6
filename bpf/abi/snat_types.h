/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Full NAT's flows, and what is asked for in place of clients. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/*
 * Full NAT: the flows that have a source address and port of this director's
 * own. A table is an array of buckets of SNAT_BUCKET flows. The first bucket is
 * the header. After it, a flow's number says which address, protocol and port it has:
 *
 *   SNAT_BUCKET + (address * 2 + is UDP) * ports + (port - ports_first)
 *
 * so no two flows can have the same ones, a reply finds its flow by arithmetic, and
 * nothing has to be cleaned up: a flow past its timeout is free where it is.
 */
#define SNAT_BUCKET 16
#define SNAT_SOURCES_MAX 62

/* Versions before proof.h do not have the states above SNAT_TWO_WAY. */
enum snat_state {
	SNAT_FREE = 0,
	SNAT_CLAIMED = 1,     /* being written */
	SNAT_SYN = 2,         /* fresh. TCP: the client has sent only SYNs */
	SNAT_ESTABLISHED = 3, /* proved. TCP */
	SNAT_CLOSING = 4,     /* was proved: one side has sent a FIN */
	SNAT_CLOSED = 5,      /* was proved: both have */
	SNAT_RESET = 6,       /* either side has sent a RST */
	SNAT_ONE_WAY = 7,     /* fresh. UDP: the backend has not answered */
	SNAT_TWO_WAY = 8,     /* proved. UDP */
	SNAT_ANSWERED = 9,    /* fresh. TCP: the backend has sent a SYN-ACK */
	SNAT_TRIED = 10,      /* fresh. UDP: the backend has answered, less than PROOF_LASTS ago */
};
EXPORT_ENUM(snat_state);

enum snat_fin {
	SNAT_FIN_CLIENT = 1 << 0,
	SNAT_FIN_BACKEND = 1 << 1,
};
EXPORT_ENUM(snat_fin);

enum asked_state {
	ASKED_NOTHING = 0, /* no SYN has been looked at */
	ASKED_PLAIN = 1,   /* no answer to the SYN redirects */
	ASKED_OPEN = 2,    /* the SYN left with the option, and no other SYN has left */
	ASKED_TAKEN = 3,   /* the host that answered is the flow's backend, at a port */
};
EXPORT_ENUM(asked_state);

/* TCP: which of a flow's numbers are known. For UDP the field says when the flow began. */
enum snat_proof {
	SNAT_KNOWS_CLIENT = 1 << 0,  /* PROOF_CLIENT */
	SNAT_KNOWS_BACKEND = 1 << 1, /* PROOF_BACKEND */
	SNAT_HALVES = 1 << 2,        /* snat_asked has the numbers of a proved flow */
	SNAT_ANSWER = 1 << 3,        /* snat_asked has the backend's number in the port's place */
	SNAT_KNOWS_ALL = SNAT_KNOWS_CLIENT | SNAT_KNOWS_BACKEND | SNAT_HALVES,
};
EXPORT_ENUM(snat_proof);

/*
 * What was asked for in the place of a flow's client: see ask.h. The flow's numbers are there,
 * too: see union ask_word.
 */
struct snat_asked {
	__u32 sequence; /* of the SYN */
	__be16 port;    /* ASKED_TAKEN: of the host that has the connection */
	__u8 state;     /* enum asked_state */
	__u8 pad;
} __attribute__((aligned(8)));

/*
 * The first word changes as a whole: the CPU that changes it first has the flow. Versions before
 * proof.h have the same format: where they leave 0, numbers are not known.
 */
struct snat_flow {
	__u32 seen; /* last packet, in units of 2^30 ns (1.07 s) of CLOCK_MONOTONIC */
	__u8 state; /* enum snat_state */
	__u8 fins;  /* enum snat_fin */
	__u8 epoch; /* of the backend, when the flow began */
	__u8 proof; /* TCP: enum snat_proof; UDP: the lowest bits of seen when the flow began */
	__u32 hash; /* of the flow as the client sees it */
	__u32 backend;
	struct address client;
	struct address vip;
	__u32 segment; /* of the client */
	__be16 client_port;
	__be16 vip_port;
	struct snat_asked
		asked; /* of services that ask to be redirected; changes as a whole, too */
};

struct snat_bucket {
	struct snat_flow flows[SNAT_BUCKET];
};
EXPORT_STRUCT(snat_bucket);

struct snat_header {
	__u64 salt; /* keys the hash that chooses buckets, against chosen collisions */
	__u32 ports_first;
	__u32 ports;      /* per address and protocol, a multiple of SNAT_BUCKET */
	__u32 addresses4; /* how many of the sources are IPv4 (first) ... */
	__u32 addresses6; /* ... and IPv6 (after them) */
	__u32 pad[2];
	struct address sources[SNAT_SOURCES_MAX];
};
EXPORT_STRUCT(snat_header);

/*
 * A flow of another director of the group, with the address and port that it has there. Its hash is
 * keyed by flow_salt of this director's settings. Its number is its place and this bit.
 */
#define SNAT_SHARED (1U << 31)

struct snat_shared {
	struct snat_flow flow;
	struct address source;
	__be16 source_port;
	__u8 protocol;
	__u8 ipv6;
	__u8 announced; /* its director announces the address */
	__u8 pad[3];
};
EXPORT_STRUCT(snat_shared);

/* The address and port that a flow has at its director. */
struct snat_end {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 ipv6;
};
EXPORT_STRUCT(snat_end);

/* What the other directors should know: a flow as it has become, by its number. */
struct told_snat {
	__u32 number;
	__u32 pad;
	struct snat_flow flow;
};
EXPORT_STRUCT(told_snat);

/* A backend of a service that asks to be redirected, by its address: it may answer for others. */
struct ask_backend {
	__u32 service;
	struct address address;
};

/* What happens to SYNs of services that ask, and to SYN-ACKs that say which backend was asked. */
enum ask_event {
	ASK_ASKED = 0,     /* a first SYN left with the option */
	ASK_AGAIN,         /* then a second one without, because the first was not answered */
	ASK_ASKS_ALREADY,  /* the client's host has added the option: it left as it came */
	ASK_NO_ROOM,       /* its options, or the answer's, have no place for one more */
	ASK_HAS_DATA,      /* it has data, or is in fragments */
	ASK_FORBIDDEN,     /* it has an option that excludes this one */
	ASK_MALFORMED,     /* its options contradict themselves */
	ASK_ADD_FAILED,    /* the driver leaves no room behind the packet */
	ASK_TAKEN,         /* the host that answered has the connection */
	ASK_NOT_TAKEN,     /* the backend that was asked has answered itself */
	ASK_NOT_ASKED_FOR, /* no such SYN has left, or another one has since */
	ASK_MISNAMED,      /* the answer names another backend than was asked */
	ASK_FOREIGN,       /* its source is no backend of the service */
	ASK_EVENT_COUNT,
};
EXPORT_ENUM(ask_event);
