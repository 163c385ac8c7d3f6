/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pods of this host, and the flows between them and clients.
 *
 * Flows begin in pod_opening, where the least used ones give way, and move to pod_flows once
 * both ends are known to have them (proof.h): so floods of SYNs, of segments that pretend to be
 * of a connection, and of datagrams do not push out established flows. pod_datagrams has flows
 * of UDP that an earlier version has begun, and gets no more.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "host/maps.h"
#include "lib/ending.h"
#include "lib/quota.h"

/* Whether there are pods here: with 0, packets that leave are not looked up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pods_here SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POD_NAMES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pod_name);
	__type(value, struct pod);
} pod_names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * POD_NAMES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pod_end);
	__type(value, struct pod);
} pod_ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, POD_OPENING_MAX);
	__type(key, struct pod_flow);
	__type(value, struct pod_way);
} pod_opening SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POD_FLOWS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pod_flow);
	__type(value, struct pod_way);
} pod_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, POD_DATAGRAMS_MAX);
	__type(key, struct pod_flow);
	__type(value, struct pod_way);
} pod_datagrams SEC(".maps");

/* By the service's index; 0: of all of them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct host_quota);
} pod_quotas SEC(".maps");

/* Values are VIPs. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, POD_FRAGMENTS_MAX);
	__type(key, struct pod_fragment);
	__type(value, struct address);
} pod_fragments SEC(".maps");

/* An ICMP error, and what it quotes: offsets are from the start of the frame. */
struct pod_error {
	__u32 checksum; /* of the error; 0: it is none */
	__u32 ip;
	__u32 ports;
	__u8 protocol;
	__u8 pad[3];
};

/* The first bytes of TCP, of which the first four are UDP's, too. */
struct pod_l4 {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 offset;
	__u8 flags;
	__u16 pad;
};

#define POD_ROW_MAX 128

/* The working state of one packet; the stack has no room for it. */
struct pod_visit {
	struct pod_flow flow; /* as the client's packets have it */
	struct pod_flow back;
	struct pod_way way;   /* of flow */
	struct pod_way reply; /* of back */
	struct ending from;   /* what is replaced */
	struct ending to;
	struct pod picked;
	struct pod_l4 l4;
	struct pod_error error;
	__u32 ports; /* offset; 0: it has none */
	__u32 data;  /* bytes of data in a pod's segment */
	__u32 now;   /* s of CLOCK_MONOTONIC */
	__u8 protocol;
	__u8 ipv6;
	__u8 pad[2];
	__u8 row[POD_ROW_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pod_visit);
} pod_visits SEC(".maps");

static __always_inline struct pod_visit *pod_visit(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pod_visits, &zero);
}

static __always_inline int has_pods(void)
{
	__u32 zero = 0, *here = bpf_map_lookup_elem(&pods_here, &zero);

	return here && *here;
}
