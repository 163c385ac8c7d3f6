/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What an agent knows of pods: to the same rules as host_types.h. */
#pragma once

#include "abi/export.h"
#include "abi/types.h"

/* A pod of this host, by the name that directors use. */
struct pod_name {
	__u32 service;
	__be32 name;
};

/* The same by its address, which is where tunnels of ipip end. Service 0: of any. */
struct pod_end {
	struct address address;
	__u32 service;
};

struct pod {
	struct address address;
	__be16 port; /* 0: the packet's own */
	__u16 pad;
	__be32 name;
};

/*
 * A flow between a client and a pod, once as the client's packets have it (`local` is the
 * VIP) and once as the pod's answers have it, the other way round (`local` is the pod).
 */
struct pod_flow {
	struct address client;
	struct address local;
	__be16 client_port;
	__be16 local_port;
	__u8 protocol;
	__u8 pad[3];
};

enum pod_way_kind {
	POD_ARRIVING = 0, /* from the client */
	POD_LEAVING = 1,
};
EXPORT_ENUM(pod_way_kind);

/* What has been seen of a flow, noted in the way of its arriving packets. */
enum pod_sign {
	POD_FIN_CLIENT = 1 << 0,
	POD_FIN_POD = 1 << 1,
	POD_RESET = 1 << 2,
	/* TCP: the pod has sent what only the connection's pod can; UDP: since the last turn. */
	POD_ANSWERED = 1 << 3,
	POD_SYN = 1 << 4,    /* TCP: it has begun with a SYN that came here */
	POD_NUMBER = 1 << 5, /* TCP: of either way: the number is known, also if it is 0 */
	POD_TURN = 1 << 6,   /* UDP: this and the next bit count the turns of client and pod */
};
EXPORT_ENUM(pod_sign);

/* How many turns a flow of UDP takes to be one that stays, besides PROOF_LASTS. */
#define POD_TURNS 3

struct pod_way {
	struct address address; /* in local's place: of the pod, or the VIP */
	__be16 port;
	__u8 signs; /* enum pod_sign */
	__u8 kind;  /* enum pod_way_kind */
	__u32 seen; /* last packet this way, s of CLOCK_MONOTONIC */
	/*
	 * TCP: of what arrives, the number with which the client completes the handshake and,
	 * once the pod has sent a FIN, the FIN's number; of what leaves, the pod's last one, or
	 * what follows the client's SYN. 0 without POD_NUMBER: not known. UDP: of what arrives,
	 * when the flow began.
	 */
	__u32 acknowledgement;
	__be32 name; /* of the pod */
};

/* A fragmented answer under way: what its later fragments need. */
struct pod_fragment {
	struct address pod;
	struct address client;
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

/* Limits of a host: each flow has two entries. */
#define POD_NAMES_MAX 16384
#define POD_OPENING_MAX 32768
#define POD_FLOWS_MAX 262144
#define POD_DATAGRAMS_MAX 65536
#define POD_FRAGMENTS_MAX 4096
