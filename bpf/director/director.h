/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the director's programs do with a packet: it is parsed, refused or admitted, given to a service's
 * backend, and counted once, under one reason: bpf/README.md lists the main calls. Packets that do not
 * concern a VIP pass to the kernel untouched.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi/types.h"
#include "director/maps.h"
#include "lib/packet.h"
#include "director/count.h"
#include "director/service.h"
#include "director/source.h"
#include "director/pick/choose.h"
#include "director/pick/steered.h"
#include "director/pick/quic.h"
#include "director/forward/link.h"
#include "director/forward/encap.h"
#include "director/forward/icmp.h"
#include "director/group/fragment.h"
#include "director/group/group.h"
#include "director/group/probe.h"
#include "director/nat/ask.h"
#include "director/nat/asked_reply.h"
#include "director/nat/nat.h"
#include "director/quota.h"
#include "director/forward/redirect.h"
#include "director/forward/steered.h"
#include "director/refuse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* This host is the backend: the packet goes up its own stack. */
static __always_inline enum reason deliver(struct packet *packet)
{
	packet->action = XDP_PASS;
	return PASS_LOCAL;
}

/*
 * The backend is a pod of this host: the packet is wrapped as for another host, but goes up
 * the stack, where the host's agent takes it. So the frame keeps this host's own address.
 */
static __noinline enum reason forward_to_own_pod(struct xdp_md *ctx, struct packet *packet,
						 const struct backend *backend, __u32 index)
{
	__u8 macs[2 * MAC_LENGTH];
	enum reason reason;

	if (!packet || !backend)
		return DROP_NO_BACKEND;
	if (bpf_xdp_load_bytes(ctx, 0, macs, sizeof(macs)))
		return PASS_MALFORMED;
	reason = backend->mode == MODE_GUE ? forward_with_row(ctx, packet, backend, index) :
					     forward_encap(ctx, packet, backend, index);
	if (packet->action == XDP_PASS && bpf_xdp_store_bytes(ctx, 0, macs, sizeof(macs)))
		return DROP_NO_HEADROOM;
	return reason;
}

/* NAT for a backend that is this host. In full NAT its flow is kept before the translation. */
static __always_inline enum reason forward_nat_here(struct xdp_md *ctx, struct packet *packet,
						    const struct backend *backend, __u32 index)
{
	enum reason kept = CONTINUE;

	if (packet->snat && !(packet->flags & (PACKET_ICMP_ERROR | PACKET_FRAGMENT_LATER)))
		kept = keep_local(ctx, packet, index);
	return kept == CONTINUE ? forward_nat(ctx, packet, backend) : kept;
}

/* Backends that some packets do not reach by their mode. CONTINUE: this packet does. */
static __always_inline enum reason forward_otherwise(struct xdp_md *ctx, struct packet *packet,
						     const struct backend *backend, __u32 index)
{
	if (backend->flags & BACKEND_LOCAL && backend->flags & BACKEND_POD)
		return forward_to_own_pod(ctx, packet, backend, index);
	if (backend->flags & BACKEND_LOCAL)
		return backend->mode == MODE_NAT ? forward_nat_here(ctx, packet, backend, index) :
						   deliver(packet);
	if (backend->flags & BACKEND_ASKS)
		return forward_asking(ctx, packet, backend);
	if (takes_over(backend))
		return forward_redirect(ctx, packet, backend);
	return backend->flags & BACKEND_TWO_TAGS ? forward_nat_tagged(ctx, packet, backend) :
						   CONTINUE;
}

/* `data` is where the frame begins: its Ethernet header is there. */
static __always_inline enum reason forward_by_mode(struct xdp_md *ctx, struct packet *packet,
						   void *data, const struct backend *backend)
{
	enum reason reason;

	if (unlikely(backend->flags & BACKEND_ODD)) {
		reason = forward_otherwise(ctx, packet, backend, packet->backend);
		if (reason != CONTINUE)
			return reason;
		data = frame(ctx);
		if (data + sizeof(struct ethhdr) > frame_end(ctx))
			return PASS_MALFORMED;
	}
	if (unlikely(packet->length > backend->mtu))
		return answer_too_big(ctx, packet, backend->mtu);
	if (likely(backend->mode == MODE_L2DSR))
		return forward_l2dsr(ctx, packet, data, backend);
	if (backend->mode == MODE_NAT)
		return forward_nat(ctx, packet, backend);
	return forward_encap(ctx, packet, backend, packet->backend);
}

/* What a packet with SYN, an ICMP error or a later fragment is counted as. */
static __always_inline enum reason forwarded_rare(const struct packet *packet, enum reason reason)
{
	if (is_syn(packet))
		count_opened(packet->backend);
	if (reason == PASS_LOCAL || packet->flags & PACKET_TCP_SYN)
		return reason;
	return packet->flags & PACKET_ICMP_ERROR ? FORWARD_ICMP_ERROR : FORWARD_FRAGMENT;
}

/* A packet that does not leave. The kernel must not get some that are left to it: see refuse.h. */
static __always_inline enum reason stay(struct xdp_md *ctx, const struct packet *packet,
					enum reason reason)
{
	return is_left_alone(reason) ? keep_from_kernel(ctx, packet, reason) : reason;
}

/* Counts a packet that was sent to its backend, or was not. */
static __always_inline enum reason end_forward(struct xdp_md *ctx, struct packet *packet,
					       const struct backend *backend, enum reason reason)
{
	if (unlikely(!is_forwarded(reason))) {
		if (is_dropped(reason))
			count_drop(backend->service, packet);
		return stay(ctx, packet, reason);
	}
	if (unlikely(reason == PASS_SENT_ALREADY))
		return reason;
	count_forwarded(packet);
	/* One test for all rare cases: every test here costs every packet time. */
	if (unlikely(packet->flags & (PACKET_TCP_SYN | PACKET_ICMP_ERROR | PACKET_FRAGMENT_LATER)))
		return forwarded_rare(packet, reason);
	return reason;
}

static __always_inline enum reason forward(struct xdp_md *ctx, struct packet *packet, void *data,
					   struct backend *backend)
{
	enum reason reason = CONTINUE;

	if (!backend) { /* one that pick has looked up may have the packet */
		backend = backend_at(packet->backend);
		if (unlikely(!backend || backend->state == BACKEND_FREE))
			return DROP_NO_BACKEND;
		/* A fragment's backend may have died since its first fragment. */
		if (unlikely(!keeps(backend)))
			reason = DROP_NO_BACKEND;
	}
	if (likely(reason == CONTINUE))
		reason = forward_by_mode(ctx, packet, data, backend);
	return end_forward(ctx, packet, backend, reason);
}

/* Whether the connection is handed over to the backend: then full NAT, too, has no flow of it. */
static __noinline int is_handed_over(struct xdp_md *ctx, struct packet *packet)
{
	const struct backend *backend;

	if (!packet)
		return 0;
	backend = backend_at(packet->backend);
	return backend && hands_over(ctx, packet, backend);
}

/* Later fragments of a packet that the kernel gets must not be dropped as unknown. */
static __always_inline enum reason leave_to_kernel(const struct packet *packet)
{
	if (packet->flags & PACKET_FRAGMENT_FIRST &&
	    is_vip(packet->flow.segment, &packet->flow.destination, packet->flow.ipv6))
		remember_fragment(packet, NO_BACKEND, FRAGMENT_TO_KERNEL);
	return PASS_NO_SERVICE;
}

/* What a service's clients may be, and how much they may send. CONTINUE: this packet may come. */
static __always_inline enum reason admit_client(const struct packet *packet,
						const struct ring_header *header, __u32 service)
{
	enum reason reason = CONTINUE;

	if (header->flags & RING_KERNEL_SOURCES &&
	    is_in_source_ranges(packet, KERNEL_SOURCES_SET - !!packet->flow.ipv6)) {
		leave_to_kernel(packet);
		return PASS_KERNEL_SOURCE;
	}
	if (header->flags & RING_SOURCES && !is_in_source_ranges(packet, header->sources))
		reason = DROP_SOURCE_RANGE;
	else if (header->flags & RING_QUOTA && !spend_quota(packet, quota_of(service)))
		reason = DROP_SEGMENT_LIMIT;
	if (reason != CONTINUE)
		count_drop(service, packet);
	return reason;
}

/*
 * Chooses the backend of any packet: of a ring that asks for more than its slots, of a first
 * fragment. Not inlined: other packets pay one test for all of this.
 */
__noinline enum reason choose_rarely(struct xdp_md *ctx, struct packet *packet)
{
	enum reason reason = CONTINUE;
	struct ring_header *header;
	struct backend *backend;
	__u32 service;
	__u64 hash;

	if (!packet)
		return DROP_NO_BACKEND;
	header = ring_line_at(packet->ring);
	if (!header)
		return DROP_NO_BACKEND;
	service = packet->service - 1;
	if (header->flags & (RING_KERNEL_SOURCES | RING_SOURCES | RING_QUOTA)) {
		reason = admit_client(packet, header, service);
		if (reason != CONTINUE)
			return reason;
	}
	if (header->flags & RING_SNAT) {
		note_numbers(ctx, packet);
		packet->backend = find_snat(packet, SNAT_FIN_CLIENT);
		if (packet->backend == NO_BACKEND)
			packet->backend = find_shared(packet);
	}
	if (header->flags & RING_QUIC)
		packet->backend = find_quic(ctx, packet, packet->ring, header);
	/* Full NAT's SYN may come again: then its backend is known. */
	if (header->flags & RING_REDIRECTED && is_syn(packet) && packet->backend == NO_BACKEND) {
		packet->backend = choose_redirected(ctx, packet);
		if (packet->backend != NO_BACKEND)
			return CONTINUE; /* it is handed over as it is */
	}
	hash = hash_flow(&packet->flow, header);
	packet->hash = hash;
	if (packet->backend == NO_BACKEND && header->size)
		packet->backend = pick(ctx, packet, header, header->policy, hash, &backend);
	if (packet->flags & PACKET_RELAYED)
		name_quic(ctx, packet, packet->ring, header);
	if (packet->backend == NO_BACKEND)
		reason = DROP_NO_BACKEND;
	else if (header->flags & RING_SNAT && !packet->snat && !is_handed_over(ctx, packet))
		reason = start_snat(packet);
	if (reason == CONTINUE && packet->flags & PACKET_FRAGMENT_FIRST)
		remember_fragment(packet, packet->backend, FRAGMENT_TO_BACKEND);
	if (reason != CONTINUE)
		count_drop(service, packet);
	return reason;
}

/*
 * Policy, affinity and flags of a ring, as one word: most rings are plain, by maglev and by flow,
 * and ask for no more than flow memory.
 */
typedef __u32 ring_kind __attribute__((may_alias));
#define RING_KIND(header) (*(const ring_kind *)&(header)->policy)
#define RING_KIND_PLAIN (RING_MEMORY << 16)
/* A plain ring whose slots most packets need not read. */
#define RING_KIND_OWNERS ((RING_MEMORY | RING_OWNERS) << 16)
#define RING_KIND_POLICY 0xff /* which places connections: other packets are as in a plain ring */
_Static_assert(POLICY_MAGLEV == 0 && AFFINITY_FLOW == 0, "a plain ring has zeros for both");
_Static_assert(offsetof(struct ring_header, policy) % 4 == 0, "the word is aligned");
_Static_assert(offsetof(struct ring_header, flags) == offsetof(struct ring_header, policy) + 2,
	       "the flags are the word's third byte");

/*
 * A packet of a service: from here on it is weir's. Chooses its backend; if that is in `backend`,
 * it may have the packet.
 */
static __always_inline enum reason choose_backend(struct xdp_md *ctx, struct packet *packet,
						  struct backend **backend)
{
	struct ring_header *header = bpf_map_lookup_elem(&ring_lines, &packet->ring);
	__u64 hash;

	if (unlikely(!header))
		return DROP_NO_BACKEND;
	if (unlikely(RING_KIND(header) & ~RING_KIND_PLAIN)) {
		if (likely(RING_KIND(header) == RING_KIND_OWNERS)) {
			*backend = find_owner(packet, header);
			if (likely(*backend))
				return CONTINUE;
		} else if (RING_KIND(header) & ~(RING_KIND_PLAIN | RING_KIND_POLICY) ||
			   is_syn(packet)) {
			return choose_rarely(ctx, packet);
		}
	}
	hash = hash_by(&packet->flow, header->salt, 1);
	packet->hash = hash;
	if (likely(header->size)) {
		packet->backend = pick(ctx, packet, header, POLICY_MAGLEV, hash, backend);
		if (likely(*backend || packet->backend != NO_BACKEND))
			return CONTINUE;
	}
	count_drop(packet->service - 1, packet);
	return DROP_NO_BACKEND;
}

/*
 * Each fragment is one of the packets that its segment may have in a second: else one first fragment
 * would let any number of later ones pass. Not inlined: it would take registers from other packets.
 */
static __noinline enum reason admit_fragment(const struct packet *packet)
{
	const struct backend *backend = backend_at(packet->backend);
	__u32 service, quota;

	if (!backend)
		return CONTINUE;
	service = backend->service;
	quota = quota_of(service);
	if (likely(!quota) || spend_quota(packet, quota))
		return CONTINUE;
	count_drop(service, packet);
	return DROP_SEGMENT_LIMIT;
}

/* A later fragment has no ports: it goes where the first one went. */
static __always_inline enum reason follow_fragment(struct xdp_md *ctx, struct packet *packet)
{
	struct fragment *first = find_fragment(packet);

	if (!first || first->path == FRAGMENT_TO_PEER)
		return is_vip(packet->flow.segment, &packet->flow.destination, packet->flow.ipv6) ?
			       DROP_FRAGMENT_UNKNOWN :
			       PASS_NO_SERVICE;
	if (first->path == FRAGMENT_TO_KERNEL)
		return PASS_NO_SERVICE;
	if (first->path == FRAGMENT_ECHO)
		return may_answer(packet) ? send_echo(ctx, packet) : DROP_SEGMENT_LIMIT;
	packet->hash = first->hash;
	packet->snat = first->snat;
	packet->backend = first->backend;
	if (first->path == FRAGMENT_TO_CLIENT)
		return follow_reply(ctx, packet, first->backend);
	return admit_fragment(packet);
}

/* No service has exactly this port: a range may have it. As find_exact. */
static __always_inline __u32 find_other(const struct packet *packet)
{
	const struct settings *settings = get_settings();
	__u32 *service;

	if (!settings || !(settings->flags & SETTINGS_RANGES))
		return 0;
	service = find_range(&packet->flow, 0);
	return service ? *service + 1 : 0;
}

/* A probe of another director, a reply of a NAT backend, or a packet that is not weir's. */
static __always_inline enum reason no_service(struct xdp_md *ctx, struct packet *packet)
{
	const struct settings *settings = get_settings();
	enum reason reason = CONTINUE;

	if (settings && settings->flags & SETTINGS_GROUP &&
	    packet->flow.destination_port == bpf_htons(GUE_PORT))
		reason = answer_probe(ctx, packet);
	if (reason == CONTINUE)
		reason = take_answer(ctx, packet);
	if (reason == CONTINUE && settings && settings->flags & SETTINGS_REPLIES)
		reason = reply(ctx, packet);
	return reason == CONTINUE ? leave_to_kernel(packet) : reason;
}

/* Prepares a fragment or an ICMP packet before its service is looked up. */
static __always_inline enum reason prepare(struct xdp_md *ctx, struct packet *packet)
{
	enum reason reason = CONTINUE;

	if (may_be_refused(&packet->flow, packet->flow.ipv6))
		reason = refuse(ctx, packet, NO_SERVICE);
	/* Pings have no ports: all fragments of one come to the same director, and are answered. */
	/* All fragments of a packet in a tunnel come to the same VTEP. */
	if (reason == CONTINUE && packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER) &&
	    (packet->request || !is_icmp(&packet->flow)) && !entered_segment())
		reason = meet(ctx, packet);
	if (reason != CONTINUE || !(packet->flags & PACKET_ICMP))
		return reason;
	reason = parse_icmp(ctx, packet);
	return reason == PASS_NO_SERVICE ? leave_to_kernel(packet) : reason;
}

/* Drops a packet to a service whose source must not call it. */
static __always_inline enum reason refuse_client(struct xdp_md *ctx, const struct packet *packet,
						 __u32 service)
{
	enum reason reason = refuse(ctx, packet, service);

	if (reason != CONTINUE)
		count_drop(service, packet);
	return reason;
}

/* The same of a frame that has come in a tunnel, after its outer headers. */
static __always_inline enum reason parse_inside(struct xdp_md *ctx, struct packet *packet,
						enum reason reason)
{
	if (reason == CONTINUE && packet->tags)
		return PASS_UNSUPPORTED; /* networks inside of a tenant's network (RFC 7348, 6.1) */
	packet->flow.segment = entered_segment();
	if (reason == CONTINUE &&
	    packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP))
		reason = prepare(ctx, packet);
	return reason == PASS_NOT_IP || reason == PASS_NO_SERVICE ?
		       answer_inside(ctx, packet, reason) :
		       reason;
}

/*
 * A packet that is not plain. CONTINUE: it is one of a flow, or a later fragment. Not inlined, for
 * its room on the stack.
 */
__noinline enum reason parse_rare(struct xdp_md *ctx, struct packet *packet)
{
	enum reason reason;

	if (!packet)
		return PASS_MALFORMED;
	reason = parse(ctx, packet);
	if (entered_segment())
		return parse_inside(ctx, packet, reason);
	if (reason == PASS_NOT_IP)
		reason = parse_from_peer(ctx, packet);
	if (reason == CONTINUE &&
	    packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER | PACKET_ICMP))
		reason = prepare(ctx, packet);
	return reason == PASS_NOT_IP || reason == PASS_NO_SERVICE ?
		       answer_inside(ctx, packet, reason) :
		       reason;
}

/* Notes the service and its ring. Returns whether the packet has to be admitted. */
static __always_inline int find_service(struct packet *packet, int ipv6)
{
	__u64 found = find_front(&packet->flow, ipv6);

	*(service_word *)&packet->service = found;
	return unlikely(!found) || may_be_refused(&packet->flow, ipv6);
}

/* A packet whose service was not in the front. CONTINUE: it is in the packet now. */
static __always_inline enum reason find_otherwise(struct xdp_md *ctx, struct packet *packet)
{
	__u32 service;
	__u64 *ring;

	packet->service = find_behind(&packet->flow);
	if (!packet->service)
		packet->service = find_other(packet);
	if (!packet->service)
		return no_service(ctx, packet);
	service = packet->service - 1;
	ring = bpf_map_lookup_elem(&rings, &service);
	packet->ring = ring ? *(volatile __u64 *)ring : 0; /* line 0 is the ring of no service */
	return CONTINUE;
}

/*
 * A packet that is not plain, whose service was not in the front, or whose source may have to be
 * refused. CONTINUE: it is to be forwarded.
 */
static __always_inline enum reason admit(struct xdp_md *ctx, struct packet *packet, int plain)
{
	enum reason reason = CONTINUE;

	if (!plain) {
		*packet = (struct packet){ .action = XDP_PASS };
		reason = parse_rare(ctx, packet);
		if (reason != CONTINUE)
			return reason;
		if (packet->flags & PACKET_FRAGMENT_LATER)
			return follow_fragment(ctx, packet);
		if (packet->flow.ipv6)
			find_service(packet, 1);
		else
			find_service(packet, 0);
	}
	if (!packet->service)
		reason = find_otherwise(ctx, packet);
	if (reason == CONTINUE && may_be_refused(&packet->flow, packet->flow.ipv6))
		reason = refuse_client(ctx, packet, packet->service - 1);
	return reason == CONTINUE ? choose_rarely(ctx, packet) : reason;
}

/* What find_tagged returns for a packet that is not plain. */
#define NOT_PLAIN 2

/* Parses a frame that may have tags, and finds its service. Not inlined: most frames have none, or one. */
static __noinline int find_tagged(struct xdp_md *ctx, struct packet *packet)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	struct tags tags;

	if (!packet || data + sizeof(struct ethhdr) > end)
		return NOT_PLAIN;
	tags = parse_tags(data, end);
	if (tags.protocol == bpf_htons(ETH_P_IP) &&
	    parse_plain_ipv4(ctx, packet, data, end, tags.l3)) {
		note_tags(packet, &tags);
		return find_service(packet, 0);
	}
	if (tags.protocol == bpf_htons(ETH_P_IPV6) &&
	    parse_plain_ipv6(ctx, packet, data, end, tags.l3)) {
		note_tags(packet, &tags);
		return find_service(packet, 1);
	}
	return NOT_PLAIN;
}

/*
 * Parses a packet behind one tag, as most frames have that have any. Returns whether it is plain. Inlined: to
 * call a function can take as long as all else that such a frame takes more (8 ns where the CPU has a
 * mitigation for returns, as AMD's Safe RET).
 */
static __always_inline int parse_once_tagged(struct xdp_md *ctx, struct packet *packet, void *data,
					     void *end)
{
	const __u32 l3 = sizeof(struct ethhdr) + VLAN_TAG_LENGTH;
	const struct vlan_tag *tag = data + sizeof(struct ethhdr);

	if (data + l3 + sizeof(struct iphdr) > end)
		return 0;
	if (tag->protocol == bpf_htons(ETH_P_IP) ?
		    !parse_plain_ipv4(ctx, packet, data, end, l3) :
		    tag->protocol != bpf_htons(ETH_P_IPV6) ||
			    !parse_plain_ipv6(ctx, packet, data, end, l3))
		return 0;
	packet->flow.segment = segment_of_tag(tag);
	packet->tags = 1;
	return 1;
}

/* Notes the service of a plain packet, unless it goes to the backend of a flow that has a rule. */
static __always_inline int find_rule_or_service(struct packet *packet, int ipv6,
						struct steered *steered,
						struct steered_queue *queue)
{
	if (steered && queue) {
		find_steered(steered, queue, ipv6);
		if (steered->follow)
			return 0;
	}
	return find_service(packet, ipv6);
}

/* After the usual way of a packet: what the table of steered flows has to say from now on. */
static __always_inline void note_way(const struct steered *steered)
{
	const struct packet *packet = &steered->packet;

	if (steered->place)
		note_usual(packet, steered->place, steered->word);
	else if (unlikely(packet->flags & PACKET_TCP_SYN) && packet->service)
		note_begun(packet);
}

/*
 * `steered` is NULL where no NIC steers flows, as a constant. Else it has the packet, and `queue` is that of
 * flows that have rules, or NULL.
 */
static __always_inline enum reason decide(struct xdp_md *ctx, struct packet *packet,
					  struct steered *steered, struct steered_queue *queue)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	struct backend *backend = NULL;
	__be16 protocol = 0;
	enum reason reason;
	int rare;

	if (likely(data + sizeof(struct ethhdr) + sizeof(struct iphdr) <= end))
		protocol = *ethertype_of(data);
	if (likely(protocol == bpf_htons(ETH_P_IP) &&
		   parse_plain_ipv4(ctx, packet, data, end, sizeof(struct ethhdr))))
		rare = find_rule_or_service(packet, 0, steered, queue);
	else if (likely(protocol == bpf_htons(ETH_P_IPV6) &&
			parse_plain_ipv6(ctx, packet, data, end, sizeof(struct ethhdr))))
		rare = find_rule_or_service(packet, 1, steered, queue);
	else if (protocol == bpf_htons(ETH_P_8021Q) && parse_once_tagged(ctx, packet, data, end))
		rare = packet->flow.ipv6 ? find_service(packet, 1) : find_service(packet, 0);
	else
		rare = find_tagged(ctx, packet);
	if (unlikely(rare)) {
		reason = admit(ctx, packet, rare != NOT_PLAIN);
		data = frame(ctx);
		if (data + sizeof(struct ethhdr) > frame_end(ctx))
			return reason == CONTINUE ? PASS_MALFORMED : reason;
	} else if (steered && steered->follow) {
		reason = CONTINUE;
	} else {
		reason = choose_backend(ctx, packet, &backend);
	}
	if (steered && !steered->follow)
		note_way(steered);
	if (likely(reason == CONTINUE))
		return forward(ctx, packet, data, backend);
	return stay(ctx, packet, reason);
}
