/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that would come back, or make others that do: see "What comes back" in
 * docs/internals/datapath.md. A host that answers a packet whose source is a VIP sends its answer to
 * the director again. A backend, at the port where it serves, answers what another backend
 * has answered. No host has a loopback or multicast address. The kernel, which does not
 * have a VIP, forwards packets that no service takes to a router that sends them back.
 *
 * Few sources have to be looked up: a filter of one bit for each hash of an address says which.
 */
#pragma once

#include "director/maps.h"
#include "director/nat/nat.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "director/socket.h"
#include "director/source.h"
#include "lib/packet.h"

/* BPF shifts by the lower six bits, but C leaves open what a shift by more than 63 is. */
static __always_inline __u64 shift_right(__u64 word, __u64 bits)
{
	asm("%0 >>= %1" : "+r"(word) : "r"(bits));
	return word;
}

/* Whether an address may be a VIP or a backend's. As sourceBit in internal/datapath. */
static __always_inline int in_source_filter(const struct address *address, __u8 ipv6)
{
	__u32 word = ADDRESS_WORD(address, 0), bit;

	if (ipv6)
		word ^= ADDRESS_WORD(address, 1) ^ ADDRESS_WORD(address, 2) ^
			ADDRESS_WORD(address, 3);
	bit = word * SOURCE_FILTER_FACTOR >> (32 - SOURCE_FILTER_BITS);
	return shift_right(source_filter[bit >> 6], bit) & 1;
}

/*
 * The test that each packet of a service pays for: few go on to refuse(). Odd sources are those
 * that may be addresses that no host has. IPv6: ff00::/8, and what begins with a zero; IPv4:
 * 224.0.0.0 and on, 127.0.0.0/8 and 0.0.0.0/8.
 */
static __always_inline int may_be_refused(const struct flow *flow, int ipv6)
{
	/* The first byte as the highest: what is around it needs no mask then. */
	__u32 first = ADDRESS_WORD(&flow->source, 0) << 24;

	if (ipv6)
		return first + (1U << 24) <= 1U << 24 || in_source_filter(&flow->source, 1);
	return first + (32U << 24) <= 32U << 24 || first == 127U << 24 ||
	       in_source_filter(&flow->source, 0);
}

static __always_inline int is_nobodys(const struct flow *flow)
{
	return flow->ipv6 ? is_nobodys6(&flow->source) :
			    is_nobodys4(ADDRESS_WORD(&flow->source, 0));
}

/* Whether a backend of the service serves at the source's port; port 0: at the packet's own. */
static __always_inline int serves(const struct flow *flow, __u32 service)
{
	struct backend_source key = {
		.service = service,
		.address = flow->source,
		.port = flow->source_port,
	};

	if (bpf_map_lookup_elem(&backend_sources, &key))
		return 1;
	if (flow->source_port != flow->destination_port)
		return 0;
	key.port = 0;
	return bpf_map_lookup_elem(&backend_sources, &key) != NULL;
}

/* What the kernel would do with a packet to the flow's destination; BPF_FIB_LKUP_RET_... */
static __always_inline int kernels_way(struct xdp_md *ctx, const struct flow *flow)
{
	struct bpf_fib_lookup route = {};

	ask_route(flow, ctx->ingress_ifindex, &route);
	return bpf_fib_lookup(ctx, &route, sizeof(route), 0);
}

/* Whether this host has the VIP itself, as hosts do whose own addresses are VIPs, too. */
static __always_inline int is_own_vip(struct xdp_md *ctx, const struct flow *flow)
{
	return !entered_segment() && kernels_way(ctx, flow) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Whether the packet's source is a service, so that the answer would call that service. */
static __noinline int comes_from_service(const struct flow *flow)
{
	const struct settings *settings = get_settings();
	struct flow back = {
		.segment = flow->segment,
		.destination = flow->source,
		.destination_port = flow->source_port,
		.protocol = flow->protocol,
		.ipv6 = flow->ipv6,
	};

	return find_exact(&back) ||
	       (settings && settings->flags & SETTINGS_RANGES && find_range(&back, 0));
}

/* Whether the service leaves packets from the packet's source to the kernel. */
static __always_inline int is_kernels(const struct packet *packet, __u32 service)
{
	__u64 *first = bpf_map_lookup_elem(&rings, &service);
	const struct ring_header *header = first ? ring_line_at(*(volatile __u64 *)first) : NULL;

	return header && header->flags & RING_KERNEL_SOURCES &&
	       is_in_source_ranges(packet, KERNEL_SOURCES_SET - !!packet->flow.ipv6);
}

/*
 * Drops packets whose source must not call a service or, with NO_SERVICE, a VIP. CONTINUE: it may.
 * Hosts whose own addresses are VIPs (NodePort) call each other: from any port but a service's.
 */
__noinline enum reason refuse(struct xdp_md *ctx, const struct packet *packet, __u32 service)
{
	const struct flow *flow;

	if (!packet)
		return CONTINUE;
	flow = &packet->flow;
	if (service == NO_SERVICE && !is_vip(flow->segment, &flow->destination, flow->ipv6))
		return CONTINUE;
	if (is_nobodys(flow))
		return DROP_SOURCE_INVALID;
	if (is_vip(flow->segment, &flow->source, flow->ipv6)) {
		if (service != NO_SERVICE && is_kernels(packet, service))
			return CONTINUE;
		if (!is_own_vip(ctx, flow) || (service != NO_SERVICE && comes_from_service(flow)))
			return DROP_SOURCE_VIP;
	}
	return service != NO_SERVICE && serves(flow, service) ? DROP_SOURCE_BACKEND : CONTINUE;
}

/* Whether the kernel has a socket that waits for the packet, or may open one for it. */
static __always_inline int is_awaited(struct xdp_md *ctx, const struct packet *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 length;
	int awaited;

	length = socket_tuple(&packet->flow, &tuple);
	if (packet->flow.protocol == IPPROTO_UDP) {
		socket = bpf_sk_lookup_udp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
		awaited = socket != NULL;
	} else {
		socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
		awaited = socket && (socket->state != BPF_TCP_LISTEN || is_syn(packet));
	}
	if (socket)
		bpf_sk_release(socket);
	return awaited;
}

/*
 * An answer of a VIP to this host whose connection is over: mostly that of a health check. The
 * kernel would answer with an RST or an ICMP error to the VIP, which goes the way of clients'
 * packets.
 */
static __always_inline int is_late(struct xdp_md *ctx, const struct packet *packet)
{
	const struct flow *flow = &packet->flow;

	if ((flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP) ||
	    packet->flags & (PACKET_FRAGMENT_LATER | PACKET_ICMP_ERROR) ||
	    !in_source_filter(&flow->source, flow->ipv6) ||
	    !is_vip(flow->segment, &flow->source, flow->ipv6))
		return 0;
	return kernels_way(ctx, flow) == BPF_FIB_LKUP_RET_NOT_FWDED && !is_own_flow(ctx, packet) &&
	       !is_awaited(ctx, packet);
}

/*
 * Drops packets that are left to the kernel and that it must not get: those that it would send to
 * a router because it does not have the VIP, and late answers. If the kernel has the VIP, it may
 * serve the packet itself.
 */
__noinline enum reason keep_from_kernel(struct xdp_md *ctx, const struct packet *packet,
					enum reason reason)
{
	const struct flow *flow;
	int way;

	if (!packet)
		return reason;
	flow = &packet->flow;
	if (in_source_filter(&flow->destination, flow->ipv6) &&
	    is_vip(flow->segment, &flow->destination, flow->ipv6)) {
		way = kernels_way(ctx, flow);
		return way == BPF_FIB_LKUP_RET_SUCCESS || way == BPF_FIB_LKUP_RET_NO_NEIGH ?
			       DROP_NO_SERVICE :
			       reason;
	}
	return reason == PASS_NO_SERVICE && is_late(ctx, packet) ? DROP_ANSWER_LATE : reason;
}
