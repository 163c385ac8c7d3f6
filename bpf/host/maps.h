/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The agent's maps, and the one way to count. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi/host_types.h"

/* Addresses of this host at which tunnels end, and the interface that has each; 0: lo. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HOST_ENDPOINTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} tunnel_ends SEC(".maps");

/* Values are enum host_source_flag. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, HOST_PEERS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_source);
	__type(value, __u32);
} sources SEC(".maps");

/* Values are indexes into services: the memory of hash maps is reused at once, an index rests. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HOST_SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_endpoint);
	__type(value, __u32);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, HOST_RANGES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_range);
	__type(value, __u32);
} ranges SEC(".maps");

/* Values are enum host_peer_flag. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HOST_PEERS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_peer);
	__type(value, __u32);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct host_service);
} services SEC(".maps");

/* The numbers that this namespace has for others, plus 1; 0 ends the list. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOST_NAMESPACES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} namespaces SEC(".maps");

/*
 * When a datagram of a flow was last kept here. Flows begin in udp_fresh and move to udp_flows
 * once they are sustained (proof.h): so a flood of datagrams pushes out no flow that goes on. The
 * loader sets how many are remembered.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct host_flow);
	__type(value, struct host_fresh);
} udp_fresh SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct host_flow);
	__type(value, __u64);
} udp_flows SEC(".maps");

/* Of udp_flows, by the service's index; 0: of all of them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct host_quota);
} udp_quotas SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HOST_COOKIES_MAX);
	__type(key, struct host_flow);
	__type(value, struct host_cookie);
} cookies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HOST_QUESTIONS_MAX);
	__type(key, struct address);
	__type(value, struct host_question);
} questions SEC(".maps");

/* Unwrapped packets of each service, without their outer headers. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} service_packets SEC(".maps");

/* Connections to each service that this host has refused. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} service_refusals SEC(".maps");

/*
 * Packets of each service whose flow would have stayed, but found no place within the service's
 * quota, in udp_flows or among the flows of pods.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HOST_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct counter);
} service_no_place SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTERS_ROOM);
	__type(key, __u32);
	__type(value, struct counter);
} reasons SEC(".maps");

_Static_assert(HOST_REASON_COUNT <= COUNTERS_ROOM, "more reasons than there is room for");

static __always_inline void count(struct counter *counter, __u32 bytes)
{
	if (!counter)
		return;
	counter->packets++;
	counter->bytes += bytes;
}

static __always_inline void count_reason(enum host_reason reason, __u32 bytes)
{
	__u32 index = reason;

	count(bpf_map_lookup_elem(&reasons, &index), bytes);
}

/* What a host is to a service: enum host_peer_flag; NULL: none of its backends. */
static __always_inline __u32 *find_peer(__u32 service, const struct address *host)
{
	struct host_peer peer = { .service = service, .address = *host };

	return bpf_map_lookup_elem(&peers, &peer);
}

/* The index of the service at an address, port and protocol; 0 is none. */
static __always_inline __u32 find_service(const struct host_endpoint *endpoint)
{
	__u32 *index = bpf_map_lookup_elem(&endpoints, endpoint);
	struct host_range range = {};

	if (index)
		return *index;
	range.prefix_len = 8 * (sizeof(range) - sizeof(range.prefix_len));
	range.address = endpoint->address;
	range.protocol = endpoint->protocol;
	range.port = endpoint->port;
	index = bpf_map_lookup_elem(&ranges, &range);
	return index ? *index : 0;
}
