/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The director's maps. A size of one element here stands for none yet: the
 * loader sets them from the configured limits before it creates a map.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi/flow_types.h"
#include "abi/group_types.h"
#include "abi/load_types.h"
#include "abi/quic_types.h"
#include "abi/quota_types.h"
#include "abi/snat_types.h"
#include "abi/steering_types.h"
#include "abi/types.h"

/* Values are indexes into rings: the memory of hash maps is reused at once, an index rests. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint4);
	__type(value, __u32);
} services4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint6);
	__type(value, __u32);
} services6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << FRONT_BITS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct front);
} fronts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct range4);
	__type(value, __u32);
} ranges4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct range6);
	__type(value, __u32);
} ranges6 SEC(".maps");

/* By service: the number of its segment's quota; 0: it has none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} service_quotas SEC(".maps");

/* By segment: the number of its quota. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUOTAS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} segment_quotas SEC(".maps");

/* By quota: what it is, ... */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUOTAS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct quota);
} quotas SEC(".maps");

/* ... what all CPUs have spent, and what each has. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUOTAS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} quota_spent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUOTAS_MAX);
	__type(key, __u32);
	__type(value, struct quota_share);
} quota_shares SEC(".maps");

/* The prefixes of clients, for services that are not for all: only the keys matter. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range);
	__type(value, __u8);
} source_ranges SEC(".maps");

/* Where backends serve: only the keys matter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct backend_source);
	__type(value, __u8);
} backend_sources SEC(".maps");

/* The sources that have to be looked up: see refuse.h. A map, too, but read without a lookup. */
__u64 source_filter[1 << (SOURCE_FILTER_BITS - 6)] SEC(".data.sources");

/*
 * By service: the line that its ring begins with, 0 for none. A store here, and one in the service's
 * place of fronts, switch the ring. (Elements of an array take eight bytes at least.)
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} rings SEC(".maps");

/* All rings, one after the other: the kernel inlines lookups in a plain array only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct ring_line);
} ring_lines SEC(".maps");

/* Mapped memory begins on a page, which puts each backend on one cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* By backend, as above: apart from it, because only some policies write it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct load);
} loads SEC(".maps");

/* By service: apart from all else, because every new connection writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct turn);
} next_turns SEC(".maps");

/* By interface and receive queue: see steered_place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct steered_queue);
} steered_queues SEC(".maps");

/* By a flow's hash; steered_flows has STEERED_PLACES entries for each of its entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct steered_words);
} steered_words SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct steered_flow);
} steered_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct heavy_line);
} heavy_flows SEC(".maps");

/* Chosen so that each interface whose packets are steered has a place of its own. */
__u32 steered_factor SEC(".data.steering");
/* How many entries steered_words has, minus one: a power of two, minus one. */
__u32 steered_mask SEC(".data.steering");
/* The same of heavy_flows. */
__u32 heavy_mask SEC(".data.steering");
/* Of the hash: random and odd, or a client could choose an address whose flow has another one's hash. */
__u64 steered_keys[2] SEC(".data.steering");

/* NAT: from a backend's address and port to its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint4);
	__type(value, __u32);
} replies4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint6);
	__type(value, __u32);
} replies6 SEC(".maps");

/* Full NAT: one table, made aside and switched in; its size is in its header. */
struct snat_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct snat_bucket);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct snat_table);
} snat_tables SEC(".maps");

/* The flows that other directors have told of, made when there are some: see snat_share.h. */
struct shared_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct snat_shared);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct shared_table);
} shared_tables SEC(".maps");

/* Their numbers by the hash of the flow as its client sees it, ... */
struct shared_clients_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct shared_clients_table);
} shared_clients SEC(".maps");

/* ... and by the address and port that it has. */
struct shared_ends_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct snat_end);
	__type(value, __u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct shared_ends_table);
} shared_ends SEC(".maps");

/* Flow memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_bucket);
} flow_table SEC(".maps");

/*
 * That of versions before 0.2, where it is kept up to date: the buckets of one CPU after those of
 * another.
 */
struct former_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct former_bucket);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct former_table);
} former_flows SEC(".maps");

/* A byte for each place of such a bucket. Those of one bucket on all CPUs lie side by side. */
struct former_tags {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct former_tags);
} former_flow_tags SEC(".maps");

/* By service: when a guess was last found right, as seen in struct flow_entry: see inferred_owner.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} guesses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTERS_ROOM);
	__type(key, __u32);
	__type(value, __u64);
} flow_events SEC(".maps");

/*
 * What other directors of the group should know: struct flow_entry as it has become, or struct
 * told_snat. It has room for 5,400 of them in the few milliseconds between two looks.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} told_flows SEC(".maps");

/* What other directors have told: see flow_import.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TELLINGS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct telling);
} flow_tellings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTERS_ROOM);
	__type(key, __u32);
	__type(value, __u64);
} quic_events SEC(".maps");

/* Backends that may answer for one of their service that was asked to hand a connection over. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ask_backend);
	__type(value, __u32);
} ask_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTERS_ROOM);
	__type(key, __u32);
	__type(value, __u64);
} ask_events SEC(".maps");

/* Shared by all CPUs: a NIC spreads later fragments by addresses alone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} this_director SEC(".maps");

static __always_inline const struct settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&this_director, &zero);
}

/* Interfaces that packets may leave by: index to itself. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} egress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * COUNTERS_ROOM);
	__type(key, __u32);
	__type(value, struct counter);
} reasons SEC(".maps");

/* Forwarded, by backend of a service: a service's count is their sum. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} backend_counters SEC(".maps");

/*
 * TCP connections that clients have opened, by backend of a service: SYNs that were
 * forwarded. Apart from the counters, as most packets write nothing here.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} backend_opened SEC(".maps");

/* Dropped, by service. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} service_drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUDGETS_ALL);
	__type(key, __u32);
	__type(value, struct budget);
} budgets SEC(".maps");

/*
 * The MAC addresses of this host, in the first six bytes of a word: only the keys matter. All of
 * them are here if SETTINGS_OWN_MACS is set.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_MACS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} own_macs SEC(".maps");

/* The group: its other directors, by number, ... */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUP_MAX);
	__type(key, __u32);
	__type(value, struct peer);
} peers SEC(".maps");

/* ... the MAC addresses that they send from, in the first six bytes of a word, ... */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * GROUP_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} peer_macs SEC(".maps");

/* ... and the fragments that are theirs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GROUP_SLOTS);
	__type(key, __u32);
	__type(value, struct group_slot);
} group_slots SEC(".maps");

_Static_assert(REASON_COUNT <= COUNTERS_ROOM && ASK_EVENT_COUNT <= COUNTERS_ROOM,
	       "more than there is room for");
_Static_assert(FLOW_EVENT_COUNT <= COUNTERS_ROOM && QUIC_EVENT_COUNT <= COUNTERS_ROOM,
	       "more than there is room for");
