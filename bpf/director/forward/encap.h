/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tunnels: a packet gets outer headers (outer.h), and in GUE a row. The inner packet is
 * not changed: its TTL is decremented where it is routed, not where it is tunneled.
 */
#pragma once

#include "director/forward/link.h"
#include "director/forward/pod_row.h"
#include "director/forward/row.h"
#include "director/maps.h"
#include "director/service.h"
#include "lib/outer.h"
#include "lib/packet.h"

/* Between the GUE header and the packet there may be a row: NULL is none. */
static __always_inline enum reason forward_encap4(struct xdp_md *ctx, struct packet *packet,
						  const struct backend *backend,
						  const struct settings *settings, int gue,
						  const struct row *row)
{
	__u32 outer = sizeof(struct iphdr) + (gue ? sizeof(struct gue_outer) : 0);
	__u32 private = row ? row->length : 0;
	struct iphdr *ip = reframe(ctx, packet, backend, bpf_htons(ETH_P_IP), outer, private);

	if (!ip)
		return DROP_NO_HEADROOM;
	write_ipv4(ip, packet, backend, settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   outer + private + packet->length);
	if (gue)
		write_gue((struct gue_outer *)(ip + 1), packet,
			  sizeof(struct gue_outer) + private + packet->length, private);
	if (private && !put_row(ctx, row, (void *)ip + outer, 0))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, gue ? FORWARD_GUE : FORWARD_IPIP);
}

static __always_inline enum reason forward_encap6(struct xdp_md *ctx, struct packet *packet,
						  const struct backend *backend,
						  const struct settings *settings, int gue,
						  const struct row *row)
{
	__u32 outer = sizeof(struct ipv6hdr) + (gue ? sizeof(struct gue_outer) : 0);
	__u32 private = row ? row->length : 0;
	__u32 payload = outer - sizeof(struct ipv6hdr) + private + packet->length;
	struct ipv6hdr *ip = reframe(ctx, packet, backend, bpf_htons(ETH_P_IPV6), outer, private);

	if (!ip)
		return DROP_NO_HEADROOM;
	write_ipv6(ip, packet, backend, settings, gue ? IPPROTO_UDP : inner_protocol(packet),
		   payload);
	if (gue) {
		struct gue_outer *inner = (struct gue_outer *)(ip + 1);
		__u64 sum = write_gue(inner, packet, payload, private);

		sum += private ? row_sum6(row) : 0;
		inner->udp.check = checksum_gue6(packet, ip, payload, sum);
	}
	if (private && !put_row(ctx, row, (void *)ip + outer, 1))
		return DROP_NO_HEADROOM;
	return leave(ctx, packet, backend->ifindex, gue ? FORWARD_GUE : FORWARD_IPIP);
}

/*
 * Not inlined and not static: the verifier looks at it once, and it has a stack of its
 * own. Common packets do not come here, because a call is not free where processors have
 * return thunks.
 */
__noinline enum reason forward_with_row(struct xdp_md *ctx, struct packet *packet,
					const struct backend *backend, __u32 index)
{
	const struct settings *settings = get_settings();
	struct row row;

	if (!packet || !backend || !settings)
		return DROP_NO_BACKEND;
	row = backend->flags & BACKEND_POD ? find_pods(packet, index, backend->flags) :
					     find_row(packet, index, backend->flags);
	return backend->flags & BACKEND_IPV6 ?
		       forward_encap6(ctx, packet, backend, settings, 1, &row) :
		       forward_encap4(ctx, packet, backend, settings, 1, &row);
}

/* Most packets of open connections: over IPv4, and of a slot without a list. */
static __always_inline int names_backup(const struct packet *packet, const struct backend *backend)
{
	return packet->flow.protocol == IPPROTO_TCP &&
	       !(packet->slot.next & (SLOT_LIST | SLOT_SETTLING)) &&
	       !(backend->flags & (BACKEND_IPV6 | BACKEND_POD));
}

static __always_inline enum reason forward_gue(struct xdp_md *ctx, struct packet *packet,
					       const struct backend *backend, __u32 index,
					       const struct settings *settings)
{
	struct row row;

	if (carries_row(packet, index)) {
		if (unlikely(!names_backup(packet, backend)))
			return forward_with_row(ctx, packet, backend, index);
		row = row_of_two(packet, index, 0);
		/* Apart from those below: here the compiler knows the row's length. */
		if (likely(row.length))
			return forward_encap4(ctx, packet, backend, settings, 1, &row);
	}
	/* One test for both: backends over IPv4 that are no pods pay for neither. */
	if (likely(!(backend->flags & (BACKEND_IPV6 | BACKEND_POD))))
		return forward_encap4(ctx, packet, backend, settings, 1, NULL);
	if (backend->flags & BACKEND_POD)
		return forward_with_row(ctx, packet, backend, index);
	return forward_encap6(ctx, packet, backend, settings, 1, NULL);
}

static __always_inline enum reason forward_encap(struct xdp_md *ctx, struct packet *packet,
						 const struct backend *backend, __u32 index)
{
	const struct settings *settings = get_settings();

	if (!settings)
		return DROP_NO_BACKEND;
	if (backend->mode == MODE_GUE)
		return forward_gue(ctx, packet, backend, index, settings);
	return backend->flags & BACKEND_IPV6 ?
		       forward_encap6(ctx, packet, backend, settings, 0, NULL) :
		       forward_encap4(ctx, packet, backend, settings, 0, NULL);
}
