/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirection on hosts of clients and of backends: the option goes into SYNs and
 * SYN-ACKs, and a redirected connection's packets get the backend's address instead of the
 * VIP's when they leave, and the VIP's when they come. Sockets and netfilter know only
 * the VIP: both programs are below them.
 *
 *   client's host                        director            backend's host
 *   SYN, option with zeroes   -------->  fills it in  ---->  remembers it
 *   checks it, remembers      <----------------------------  SYN-ACK, the same option
 *   VIP to backend            ---------------------------->  (nothing)
 *   backend to VIP            <----------------------------  (nothing)
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "redirect/connection.h"
#include "redirect/error.h"
#include "redirect/leave.h"
#include "redirect/sources.h"

/*
 * The first control bytes of a packet between its being sent to a backend and its leaving: the
 * kernel runs redirect_leave once more for it then. The number is another one each time that the
 * programs are loaded, and IP and bridges clear these bytes, so no other program's packet has it:
 * an agent behind this host, or in front of it, has a number of its own.
 */
volatile const __u32 sent_mark = 1;

/*
 * Reads what the kernel has found for a packet of a connection. Not inlined: few packets need
 * it, and the others do not need its room on the stack.
 */
static __noinline void note_neighbor(struct __sk_buff *skb)
{
	struct neighbor_found found = { .when = bpf_ktime_get_coarse_ns() };
	struct neighbor_place place = { .ifindex = skb->ifindex, .mark = skb->mark };
	struct host_flow arriving, leaving;
	struct redirect_way *in, *out;
	struct segment s = {};

	if (skb->vlan_present || !read_segment(skb, &s))
		return;
	arriving = flow_of(&s, 1);
	in = bpf_map_lookup_elem(&redirect_arriving, &arriving);
	if (!in)
		return;
	leaving = flow_to(&arriving, &in->peer, in->peer_port);
	out = bpf_map_lookup_elem(&redirect_leaving, &leaving);
	if (!out || out->ifindex != skb->ifindex ||
	    bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_dest), &found.neighbor, ETH_ALEN))
		return;
	found.neighbor |= neighbor_time(found.when);
	out->neighbor = found.neighbor;
	place.client = s.source;
	place.backend = s.destination;
	bpf_map_update_elem(&neighbors, &place, &found, BPF_ANY);
}

static __always_inline int was_sent(struct __sk_buff *skb)
{
	if (skb->cb[0] != sent_mark)
		return 0;
	skb->cb[0] = 0;
	note_neighbor(skb);
	return 1;
}

/*
 * Sends a packet of a connection to the backend, by the backend's own route, which need not be
 * the VIP's.
 */
static __always_inline int leave_redirected(struct __sk_buff *skb, const struct segment *s)
{
	struct host_flow flow = flow_of(s, 1);
	struct redirect_way *way = bpf_map_lookup_elem(&redirect_leaving, &flow);
	struct redirect_counter *counter;
	__u64 now = bpf_ktime_get_coarse_ns();
	struct address peer;
	int found;
	__be16 port;
	__u32 ifindex;

	if (!way)
		return TC_ACT_UNSPEC;
	note_leaving(way, s, now);
	counter = counter_of(way->service);
	if (counter) {
		counter->sent_packets++;
		counter->sent_bytes += skb->len - ETH_HLEN;
	}
	peer = way->peer;
	port = way->peer_port;
	ifindex = way->ifindex;
	found = to_neighbor(skb, s, way, now);
	if (!replace_end(skb, s, 0, &peer, port))
		return TC_ACT_SHOT;
	if (found)
		return TC_ACT_UNSPEC;
	skb->cb[0] = sent_mark;
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

SEC("tc")
int redirect_leave(struct __sk_buff *skb)
{
	struct segment s = {};
	int action;

	if (was_sent(skb) || !read_segment(skb, &s))
		return TC_ACT_UNSPEC;
	switch (opening(&s)) {
	case SEGMENT_SYN:
		action = leave_syn(skb, &s);
		if (action != TC_ACT_REDIRECT)
			return action;
		break;
	case SEGMENT_SYN | SEGMENT_ACK:
		return leave_answer(skb, &s);
	default:
		if (refuses(&s))
			leave_answer(skb, &s);
		if (remembers_nothing())
			return TC_ACT_UNSPEC;
	}
	return leave_redirected(skb, &s);
}

/*
 * Reads the option of a bare packet that came; 0: there is none, or it is empty. Not inlined,
 * for its room on the stack.
 */
static __noinline int read_filled(struct __sk_buff *skb, const struct segment *s,
				  struct redirect_option *option)
{
	struct tcp_options options = {};
	__u32 at;

	if (s->options < REDIRECT_LENGTH || !is_bare(s) || !read_options(skb, s, &options))
		return 0;
	at = redirect_place(&options);
	if (!at || bpf_skb_load_bytes(skb, s->l4 + sizeof(struct tcphdr) + at - 1, option,
				      REDIRECT_LENGTH))
		return 0;
	return option->vip || option->port;
}

/*
 * The service of a backend of this host whose VIP an option says; without an option, any
 * service of the backend. 0: there is none. Not inlined: few packets need it, and the others
 * do not need its room on the stack.
 */
static __noinline __u32 find_here(const struct segment *s, const struct redirect_option *option)
{
	struct redirect_place place = {
		.here = {
			.address = s->destination,
			.port = s->destination_port,
			.protocol = IPPROTO_TCP,
		},
	};
	__u32 *index;

	if (option) {
		place.name.tail = option->vip;
		place.name.port = option->port;
		place.name.ipv6 = s->ipv6;
	}
	index = bpf_map_lookup_elem(&redirect_here, &place);
	return index ? *index : 0;
}

/* A connection that a director hands over: the answer will say to which VIP it was begun. */
static __noinline int arrive_syn(struct __sk_buff *skb, const struct segment *s)
{
	struct redirect_option option = {};
	struct redirect_echo echo = {};
	struct host_flow flow;
	__u32 any = find_here(s, NULL);

	if (!any || !read_filled(skb, s, &option))
		return TC_ACT_UNSPEC;
	echo.service = find_here(s, &option);
	if (!echo.service) {
		note(any, REDIRECT_MISNAMED);
		return TC_ACT_UNSPEC;
	}
	echo.tail = option.vip;
	echo.port = option.port;
	flow = flow_of(s, 1);
	keep_echo(&flow, s->sequence, &echo);
	note(echo.service, REDIRECT_RECEIVED);
	return TC_ACT_UNSPEC;
}

static __always_inline int rename_source(struct __sk_buff *skb, const struct segment *s,
					 struct redirect_way *way)
{
	struct redirect_counter *counter = counter_of(way->service);
	struct address vip = way->peer;
	__be16 port = way->peer_port;

	note_arriving(way, s);
	if (counter) {
		counter->received_packets++;
		counter->received_bytes += skb->len - ETH_HLEN;
	}
	return replace_end(skb, s, 1, &vip, port) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/*
 * If the VIP itself has answered, a backend's answer comes too late from then on, and the SYN asks
 * no more. It may leave once more before its client gets the answer. The reason why a SYN did not
 * ask was counted when it left.
 */
static __always_inline int is_answered(const struct segment *s, const struct host_flow *flow)
{
	struct host_endpoint vip = {
		.address = s->source,
		.port = s->source_port,
		.protocol = IPPROTO_TCP,
	};
	enum redirect_syn_state state = exchange_syn(flow, s->acknowledgement - 1,
						     REDIRECT_SYN_PLAIN);
	__u32 *index;

	if (state != REDIRECT_SYN_ASKED)
		return state != REDIRECT_SYN_NONE;
	index = bpf_map_lookup_elem(&redirect_vips, &vip);
	if (index)
		note(*index, REDIRECT_NOT_TAKEN);
	return 1;
}

/*
 * Takes a connection over, if this host has asked for that: in a SYN of this client to
 * this VIP with the number that is acknowledged, and not sent again without the option.
 * A forger that has not seen that SYN would have to guess its number, and send from a
 * prefix of the service's backends.
 */
static __always_inline enum redirect_event take(const struct segment *s,
						const struct host_flow *arriving, __u32 index,
						const struct redirect_service *service,
						__u32 ifindex)
{
	struct host_flow flow = flow_to(arriving, &service->vip, service->port);
	__u32 sequence = s->acknowledgement - 1;
	enum redirect_syn_state state = exchange_syn(&flow, sequence, REDIRECT_SYN_OTHER);

	if (state == REDIRECT_SYN_NONE || state == REDIRECT_SYN_OTHER)
		return REDIRECT_NOT_ASKED_FOR;
	if (!in_prefix(index, &s->source))
		return REDIRECT_FOREIGN;
	if (meets_another(arriving, service))
		return REDIRECT_CLASH;
	if (exchange_syn(&flow, sequence, REDIRECT_SYN_PLAIN) != REDIRECT_SYN_ASKED)
		return REDIRECT_NOT_ASKED_FOR;
	return remember(&flow, s, service, index, ifindex) ? REDIRECT_TAKEN : REDIRECT_FULL;
}

/*
 * The connection of a SYN-ACK that came, if a backend has it. Not inlined, as
 * arrive_syn.
 */
static __noinline struct redirect_way *arrive_answer(struct __sk_buff *skb, const struct segment *s)
{
	struct host_flow arriving = flow_of(s, 0);
	struct redirect_way *way = bpf_map_lookup_elem(&redirect_arriving, &arriving);
	struct redirect_option option = {};
	struct redirect_name name = {};
	struct redirect_service *service;
	enum redirect_event event;
	__u32 index, *found;

	if (way && way->sequence + 1 == s->acknowledgement)
		return way; /* it is sent again */
	if (is_answered(s, &arriving) || !read_filled(skb, s, &option))
		return NULL;
	name.tail = option.vip;
	name.port = option.port;
	name.ipv6 = s->ipv6;
	found = bpf_map_lookup_elem(&redirect_names, &name);
	if (!found) {
		note(0, REDIRECT_NOT_ASKED_FOR);
		return NULL;
	}
	index = *found;
	service = bpf_map_lookup_elem(&redirect_services, &index);
	if (!service)
		return NULL;
	event = take(s, &arriving, index, service, skb->ifindex);
	note(index, event);
	return event == REDIRECT_TAKEN ? bpf_map_lookup_elem(&redirect_arriving, &arriving) : NULL;
}

SEC("tc")
int redirect_arrive(struct __sk_buff *skb)
{
	struct redirect_way *way;
	struct segment s = {};
	struct host_flow flow;
	__u8 flags;

	if (is_from_outside(skb))
		return TC_ACT_SHOT;
	if (!read_segment(skb, &s))
		return arrive_error(skb);
	flags = opening(&s);
	if (flags == SEGMENT_SYN)
		return arrive_syn(skb, &s);
	if (flags == (SEGMENT_SYN | SEGMENT_ACK)) {
		way = arrive_answer(skb, &s);
	} else if (remembers_nothing()) {
		return TC_ACT_UNSPEC;
	} else {
		flow = flow_of(&s, 0);
		way = bpf_map_lookup_elem(&redirect_arriving, &flow);
	}
	return way ? rename_source(skb, &s, way) : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
