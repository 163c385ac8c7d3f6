/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of redirection on hosts. Those of connections outlive every version that reads them. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi/redirect_types.h"
#include "lib/quota.h"

/* VIPs that this host may be redirected from. Values are indexes into redirect_services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECT_SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_endpoint);
	__type(value, __u32);
} redirect_vips SEC(".maps");

/* The same, by what an option says. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECT_SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct redirect_name);
	__type(value, __u32);
} redirect_names SEC(".maps");

/* Addresses and ports of this host to which connections are redirected, by VIP: the service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * REDIRECT_SERVICES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct redirect_place);
	__type(value, __u32);
} redirect_here SEC(".maps");

/* Index 0 is no service. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REDIRECT_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct redirect_service);
} redirect_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, REDIRECT_PREFIXES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct redirect_prefix);
	__type(value, __u32);
} redirect_prefixes SEC(".maps");

/*
 * The bridges of interfaces that are ports of one. Routes and neighbors are the bridge's, so
 * what is to be sent by the port has to be sent by the bridge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECT_PORTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} redirect_ports SEC(".maps");

/*
 * What all programs that share the maps of connections have to know about these connections,
 * by enum redirect_number.
 *
 * Hosts without redirected clients remember no connection, and need not look for one. A program
 * counts each connection that it has remembered, when it is in the maps; the agent reads that
 * count, looks whether the maps are empty, and then writes the same number. A connection that is
 * remembered meanwhile makes the count larger.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REDIRECT_MEMORY_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} redirect_memory SEC(".maps");

static __always_inline __u64 *memory_of(__u32 what)
{
	return bpf_map_lookup_elem(&redirect_memory, &what);
}

static __always_inline int remembers_nothing(void)
{
	volatile __u64 *remembered = memory_of(REDIRECT_REMEMBERED);
	volatile __u64 *found_empty = memory_of(REDIRECT_FOUND_EMPTY);

	return remembered && found_empty && *remembered == *found_empty;
}

/* Whether there are source ranges: sources.h. */
volatile __u32 guarded;

/* Places of flows between clients and VIPs: slots.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REDIRECT_SLOTS);
	__type(key, __u32);
	__type(value, struct redirect_syn);
} redirect_syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REDIRECT_DIRECT_MAX);
	__type(key, struct redirect_direct);
	__type(value, __u64);
} redirect_directs SEC(".maps");

/* Ports of clients that have called a VIP whose backends are another one's, too. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REDIRECT_DIRECT_MAX);
	__type(key, struct redirect_direct);
	__type(value, struct redirect_holder);
} redirect_holders SEC(".maps");

/* Places of flows between clients and backends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REDIRECT_SLOTS);
	__type(key, __u32);
	__type(value, struct redirect_echo_slot);
} redirect_echoes SEC(".maps");

/*
 * Connections, by client and VIP, and by client and backend. No connection is pushed out:
 * when there is no place, or the service has its quota, the next one falls back. The
 * agent removes connections that have ended.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECT_CONNECTIONS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_flow);
	__type(value, struct redirect_way);
} redirect_leaving SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REDIRECT_CONNECTIONS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_flow);
	__type(value, struct redirect_way);
} redirect_arriving SEC(".maps");

/* By the service's index; 0: of all of them. Each program has its own map, and its agent counts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REDIRECT_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct host_quota);
} redirect_quotas SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REDIRECT_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct redirect_counter);
} redirect_counters SEC(".maps");

/* Index: service * 32 + enum redirect_event. */
#define REDIRECT_EVENTS_SHIFT 5
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REDIRECT_SERVICES_MAX << REDIRECT_EVENTS_SHIFT);
	__type(key, __u32);
	__type(value, __u64);
} redirect_events SEC(".maps");

_Static_assert(REDIRECT_EVENT_COUNT <= 1 << REDIRECT_EVENTS_SHIFT, "more events than places");

/* Service 0: none that is known. */
static __always_inline void note(__u32 service, enum redirect_event event)
{
	__u32 index = service << REDIRECT_EVENTS_SHIFT | event;
	__u64 *counter = bpf_map_lookup_elem(&redirect_events, &index);

	if (counter)
		(*counter)++;
}
