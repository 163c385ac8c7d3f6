/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A group of directors: fragments of one packet meet at one of them, their owner, chosen by
 * their addresses, ID and protocol. Routers choose directors for first fragments also by
 * ports, which later ones do not have. A first fragment goes to its owner, which remembers the
 * director that sent it, and back: it is forwarded where it came in, where the other packets
 * of its flow come in. A later one goes to its owner, and on to that director.
 *
 * Between directors a fragment is as it was, not a byte longer, because most are as long
 * as a link allows. The EtherType says what to do with it: GROUP_MEET at its owner,
 * GROUP_TAKE where it is forwarded. A fragment with GROUP_TAKE is not sent to a director again.
 *
 * A later fragment may reach the owner before the first one, which comes by way of
 * another director. The owner then sends it to a director and back, three times at most,
 * until the first one is there. The low bits of its TTL count how often it was sent
 * between directors; that costs a fragment up to seven hops, and never adds any.
 */
#pragma once

#include "director/forward/icmp.h"
#include "director/forward/link.h"
#include "director/group/fragment.h"
#include "director/maps.h"
#include "director/pick/ring.h"
#include "director/service.h"
#include "lib/packet.h"

/* Times that a fragment is sent between directors, in the low bits of its TTL. */
#define GROUP_TRIPS_MASK 7
/* Here for the last time: out and back three times. */
#define GROUP_TRIPS_LAST 6

/* Where the EtherType of the IP header is; NULL: there is none. */
static __always_inline __be16 *ethertype_before(struct xdp_md *ctx, const struct packet *packet)
{
	__be16 *type = frame(ctx) + ((packet->l3 - sizeof(*type)) & 0x1e);

	if (packet->l3 < sizeof(struct ethhdr) || (void *)(type + 1) > frame_end(ctx))
		return NULL;
	return type;
}

/*
 * The number of the director that a frame comes from; 0: none of the group, or the frame is not
 * for this director: a switch floods frames for a director whose link is down, and no other one
 * may answer in its place.
 */
static __always_inline __u32 find_peer(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = frame(ctx);
	const struct peer *peer;
	__u32 *number;
	__u64 mac;

	if ((void *)(ethernet + 1) > frame_end(ctx))
		return 0;
	mac = mac_word(ethernet->h_source);
	number = bpf_map_lookup_elem(&peer_macs, &mac);
	if (!number)
		return 0;
	peer = bpf_map_lookup_elem(&peers, number);
	return peer && is_for(ethernet, peer->source_mac) ? *number : 0;
}

/* Marks a packet between directors: its TTL counts trips, its EtherType is weir's own. */
static __always_inline int mark(struct xdp_md *ctx, struct packet *packet, __u8 trips,
				__u16 ethertype)
{
	__be16 *type;

	if (!set_ttl(ctx, packet, (packet->ttl & ~GROUP_TRIPS_MASK) | trips))
		return 0;
	type = ethertype_before(ctx, packet);
	if (!type)
		return 0;
	*type = bpf_htons(ethertype);
	return 1;
}

/* Sends a packet to a director of the group. CONTINUE: there is none with this number. */
static __noinline enum reason send_to_peer(struct xdp_md *ctx, struct packet *packet, __u32 number,
					   __u8 trips, __u16 ethertype)
{
	const struct peer *peer = bpf_map_lookup_elem(&peers, &number);
	enum reason reason = ethertype == GROUP_TAKE ? FORWARD_FRAGMENT_MET :
			     trips                   ? FORWARD_FRAGMENT_WAITS :
						       FORWARD_FRAGMENT_OWNER;
	struct ethhdr *ethernet;

	if (!number || !peer || !peer->ifindex)
		return CONTINUE;
	if (packet->length > peer->mtu)
		return answer_too_big(ctx, packet, peer->mtu);
	if (!mark(ctx, packet, trips, ethertype))
		return PASS_MALFORMED;
	ethernet = frame(ctx);
	if ((void *)(ethernet + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	write_macs(ethernet, link_word(peer->mac), link_word(peer->source_mac));
	return leave(ctx, packet, peer->ifindex, reason);
}

/* Sends a packet back to the director that it comes from. */
static __always_inline enum reason send_back(struct xdp_md *ctx, struct packet *packet, __u8 trips,
					     __u16 ethertype)
{
	struct ethhdr *ethernet;

	if (!mark(ctx, packet, trips, ethertype))
		return PASS_MALFORMED;
	ethernet = frame(ctx);
	if ((void *)(ethernet + 1) > frame_end(ctx))
		return PASS_MALFORMED;
	swap_ethernet(ethernet);
	packet->action = XDP_TX;
	return ethertype == GROUP_TAKE ? FORWARD_FRAGMENT_MET : FORWARD_FRAGMENT_WAITS;
}

/* Waiting makes six packets of one, so the number that wait is limited: see budget.h. */
static __always_inline int may_wait(const struct packet *packet, const struct settings *settings)
{
	return may_spend(BUDGET_WAIT, &packet->flow, settings->wait_rate, settings);
}

/* The slot of a packet's fragments, by what all of them have: the same on every director. */
static __always_inline struct group_slot *group_slot(const struct packet *packet)
{
	const struct flow *flow = &packet->flow;
	__u64 hash = 0;
	__u32 number;

	if (flow->ipv6) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			hash = hash_mix(hash, address_half(&flow->source, half));
			hash = hash_mix(hash, address_half(&flow->destination, half));
		}
	} else {
		hash = hash_mix(hash, (__u64)bpf_ntohl(ADDRESS_WORD(&flow->source, 0)) << 32 |
					      bpf_ntohl(ADDRESS_WORD(&flow->destination, 0)));
	}
	hash = hash_finish(hash, (__u64)packet->fragment_id << 32 |
					 (flow->segment ^ (__u32)flow->protocol << 26));
	number = slot_of(hash, GROUP_SLOTS);
	return bpf_map_lookup_elem(&group_slots, &number);
}

/* A fragment that is forwarded here gets a TTL without trips. */
static __always_inline enum reason take(struct xdp_md *ctx, struct packet *packet)
{
	__u8 hops = packet->ttl & ~GROUP_TRIPS_MASK;

	return set_ttl(ctx, packet, hops ? hops : 1) ? CONTINUE : PASS_MALFORMED;
}

/* A later fragment from another director: this is its owner, or sends it back to its owner. */
static __always_inline enum reason meet_later(struct xdp_md *ctx, struct packet *packet,
					      const struct settings *settings)
{
	__u8 trips = packet->ttl & GROUP_TRIPS_MASK;
	enum reason reason = CONTINUE;
	struct fragment *first;

	if (trips > GROUP_TRIPS_LAST)
		return DROP_FRAGMENT_ASTRAY;
	if (trips & 1)
		return send_back(ctx, packet, trips + 1, GROUP_MEET);
	first = find_fragment(packet);
	if (!first)
		return trips < GROUP_TRIPS_LAST && may_wait(packet, settings) ?
			       send_back(ctx, packet, trips + 1, GROUP_MEET) :
			       DROP_FRAGMENT_UNKNOWN;
	if (first->path == FRAGMENT_TO_PEER)
		reason = send_to_peer(ctx, packet, first->snat, 0, GROUP_TAKE);
	return reason == CONTINUE ? take(ctx, packet) : reason;
}

/* A first fragment that another director has sent to this one, its owner. */
static __always_inline enum reason meet_first(struct xdp_md *ctx, struct packet *packet)
{
	packet->snat = find_peer(ctx);
	remember_fragment(packet, NO_BACKEND, FRAGMENT_TO_PEER);
	return send_back(ctx, packet, 0, GROUP_TAKE);
}

/* A fragment that belongs to this director, and came here by itself. */
static __always_inline enum reason meet_own(struct xdp_md *ctx, struct packet *packet,
					    const struct settings *settings, __u32 second)
{
	struct fragment *first;

	if (packet->flags & PACKET_FRAGMENT_FIRST)
		return CONTINUE;
	first = find_fragment(packet);
	if (!first)
		return may_wait(packet, settings) ?
			       send_to_peer(ctx, packet, second, 1, GROUP_MEET) :
			       CONTINUE;
	if (first->path == FRAGMENT_TO_PEER)
		return send_to_peer(ctx, packet, first->snat, 0, GROUP_TAKE);
	return CONTINUE;
}

/* CONTINUE: the fragment is to be forwarded here, or there is no group. */
__noinline enum reason meet(struct xdp_md *ctx, struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct group_slot *slot;
	__u32 owner;

	if (!packet || !settings || !(settings->flags & SETTINGS_GROUP))
		return CONTINUE;
	if (packet->request == PACKET_TAKEN)
		return take(ctx, packet);
	if (packet->request == PACKET_TO_MEET)
		return packet->flags & PACKET_FRAGMENT_LATER ? meet_later(ctx, packet, settings) :
							       meet_first(ctx, packet);
	if (!is_vip(packet->flow.segment, &packet->flow.destination, packet->flow.ipv6))
		return CONTINUE;
	slot = group_slot(packet);
	if (!slot)
		return CONTINUE;
	owner = slot->owner;
	return owner ? send_to_peer(ctx, packet, owner, 0, GROUP_MEET) :
		       meet_own(ctx, packet, settings, slot->second);
}

/*
 * A frame that is not IP: perhaps from another director. Then it becomes what it was, and
 * is parsed; only fragments come this way.
 */
__noinline enum reason parse_from_peer(struct xdp_md *ctx, struct packet *packet)
{
	const struct settings *settings = get_settings();
	enum packet_request request;
	enum reason reason;
	__u8 *version;
	__be16 *type;

	if (!packet || !settings || !(settings->flags & SETTINGS_GROUP) || !find_peer(ctx))
		return PASS_NOT_IP;
	type = ethertype_before(ctx, packet);
	version = l3_header(ctx, packet);
	if (!type || (void *)(version + 1) > frame_end(ctx) ||
	    (*type != bpf_htons(GROUP_MEET) && *type != bpf_htons(GROUP_TAKE)))
		return PASS_NOT_IP;
	request = *type == bpf_htons(GROUP_MEET) ? PACKET_TO_MEET : PACKET_TAKEN;
	*type = *version >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	packet->tags = 0;
	reason = parse(ctx, packet);
	packet->request = request;
	if (reason == CONTINUE &&
	    !(packet->flags & (PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER)))
		return DROP_FRAGMENT_ASTRAY;
	return reason;
}
