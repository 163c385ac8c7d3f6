/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments: only the first has ports, so it leaves an entry that the others
 * follow. An entry lives as long as a receiver may wait for the last fragment.
 */
#pragma once

#include "director/maps.h"
#include "director/pick/ring.h"
#include "lib/packet.h"

/* net.ipv4.ipfrag_time and net.ipv6.ip6frag_time: 30 s (60 s in RFC 8200). */
#define FRAGMENT_LIFETIME_NS (30ULL * 1000000000)

static __always_inline struct fragment_key fragment_key(const struct packet *packet)
{
	struct fragment_key key = {
		.segment = packet->flow.segment,
		.id = packet->fragment_id,
		.source = packet->flow.source,
		.destination = packet->flow.destination,
		.protocol = packet->flow.protocol,
		.ipv6 = packet->flow.ipv6,
	};

	return key;
}

/* Also for index 0, which is no backend. */
static __always_inline __u8 epoch_at(__u32 index)
{
	const struct backend *backend = backend_at(index);

	return backend ? backend->epoch : 0;
}

static __noinline int remember_fragment(const struct packet *packet, __u32 backend,
					enum fragment_path path)
{
	struct fragment_key key = fragment_key(packet);
	struct fragment fragment = {
		.expires = bpf_ktime_get_ns() + FRAGMENT_LIFETIME_NS,
		.backend = backend,
		.hash = packet->hash,
		.path = path,
		.epoch = epoch_at(backend),
		.snat = packet->snat,
	};

	return bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

static __noinline struct fragment *find_fragment(const struct packet *packet)
{
	struct fragment_key key = fragment_key(packet);
	struct fragment *fragment = bpf_map_lookup_elem(&fragments, &key);

	if (!fragment || fragment->expires < bpf_ktime_get_ns() ||
	    fragment->epoch != epoch_at(fragment->backend))
		return NULL;
	return fragment;
}
