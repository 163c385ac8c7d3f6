/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Replies of NAT backends to clients in a tenant's network. */
#pragma once

#include "director/forward/icmp.h"
#include "director/nat/translate.h"
#include "director/vtep/maps.h"
#include "lib/outer.h"
#include "lib/packet.h"

/* The host of an address in a segment, or of the router there that knows the way to it. */
static __noinline struct vtep_host *find_host(__u32 segment, const struct address *address,
					      __u8 ipv6)
{
	struct vtep_address key = { .segment = segment, .ipv6 = !!ipv6 };
	struct vtep_host *host;

	key.address = *address;
	host = bpf_map_lookup_elem(&vtep_hosts, &key);
	if (host)
		return host;
	__builtin_memset(&key.address, 0, sizeof(key.address));
	return bpf_map_lookup_elem(&vtep_hosts, &key);
}

/* Makes what is before the IP header an Ethernet header for a host. */
static __always_inline int address_host(struct xdp_md *ctx, const struct packet *packet,
					const struct vtep_host *host)
{
	int tags = (int)packet->l3 - (int)sizeof(struct ethhdr);
	struct ethhdr *ethernet;

	if (tags > 0 && bpf_xdp_adjust_head(ctx, tags))
		return 0;
	ethernet = frame(ctx);
	if ((void *)(ethernet + 1) > frame_end(ctx))
		return 0;
	__builtin_memcpy(ethernet->h_dest, host->mac, MAC_LENGTH);
	__builtin_memcpy(ethernet->h_source, host->source_mac, MAC_LENGTH);
	ethernet->h_proto = packet->flow.ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return 1;
}

/* Full NAT's source for a backend in a network where this director has an address for that. */
static __always_inline void set_inside_source(__u32 backend, struct flow *to)
{
	const struct vtep_backend *in = vtep_backend_at(backend);

	if (in && in->uses == VTEP_SOURCE_SNAT)
		to->source = in->source;
}

/* Whether a packet is to such an address. */
static __always_inline int is_to_inside_source(const struct packet *packet)
{
	const struct vtep_own *own = own_at(packet->flow.segment, &packet->flow.destination,
					    packet->flow.ipv6);

	return own && own->flags & VTEP_OWN_SNAT;
}

/*
 * Sends a reply whose client is in a tenant's network to that client's host; leave_rarely writes the outer
 * headers. CONTINUE: the client is in none, and the host's routes lead to it. `sent` is the reason of a
 * reply that leaves.
 */
static __always_inline enum reason reply_to_host(struct xdp_md *ctx, struct packet *packet,
						 struct translation *t, enum reason sent)
{
	const struct vtep_backend *backend = vtep_backend_at(packet->backend);
	struct vtep_entry *entry = this_entry();
	struct vtep_host *host;

	if (!entry || !backend)
		return CONTINUE;
	entry->direction = VTEP_OUT;
	if (backend->service_segment >> SEGMENT_KIND_SHIFT < SEGMENT_VXLAN)
		return CONTINUE;
	host = find_host(backend->service_segment, &t->to.destination, t->to.ipv6);
	if (!host)
		return DROP_OVERLAY_HOST;
	if (packet->ttl <= 1)
		return PASS_TTL_EXPIRED;
	if (packet->length > host->mtu)
		return answer_too_big(ctx, packet, host->mtu);
	t->hops = 1;
	if (!translate_packet(ctx, packet, t))
		return untranslated(packet);
	if (!address_host(ctx, packet, host))
		return PASS_MALFORMED;
	entry->direction = VTEP_TO_HOST;
	entry->place = host->place;
	packet->action = XDP_TX;
	return sent;
}
