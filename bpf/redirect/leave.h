/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Leaving packets that open a connection: SYNs of this host's clients, which ask to be
 * redirected or must not meet a redirected connection, and the answers of its backends, which
 * say which VIP was called. All of these are rare, so their functions are not inlined.
 */
#pragma once

#include <linux/pkt_cls.h>

#include "redirect/connection.h"

static __always_inline int in_prefix(__u32 service, const struct address *address)
{
	struct redirect_prefix key = {
		.prefix_len = 8 * (sizeof(key) - sizeof(key.prefix_len)),
		.service = service,
		.address = *address,
	};

	return bpf_map_lookup_elem(&redirect_prefixes, &key) != NULL;
}

/*
 * A SYN that is not to a VIP. To a backend, it may meet a redirected connection of the same port,
 * which the kernel thinks is to a VIP: that connection goes on, this one has to wait.
 */
static __noinline int leave_directly(const struct segment *s)
{
	struct redirect_direct key = { .client = s->source, .port = s->source_port };
	struct host_flow arriving = flow_of(s, 1), leaving;
	struct redirect_way *in, *out;
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!in_prefix(0, &s->destination))
		return TC_ACT_UNSPEC;
	in = bpf_map_lookup_elem(&redirect_arriving, &arriving);
	if (in && in->sequence == s->sequence)
		return TC_ACT_UNSPEC; /* a SYN to the VIP, on its way */
	if (in) {
		leaving = flow_to(&arriving, &in->peer, in->peer_port);
		out = bpf_map_lookup_elem(&redirect_leaving, &leaving);
		if (out && !has_ended(in, out)) {
			note(in->service, REDIRECT_CLASH);
			return TC_ACT_SHOT;
		}
		stop_leaving(&leaving, in->service);
		bpf_map_delete_elem(&redirect_arriving, &arriving);
	}
	bpf_map_update_elem(&redirect_directs, &key, &now, BPF_ANY);
	return TC_ACT_UNSPEC;
}

/*
 * Whether the client's port has a connection to another VIP of the same backends, which may
 * be redirected to the same backend as this one: there they would be one connection. One
 * that has ended counts until it is forgotten, because the backend may remember it, too.
 */
static __noinline int may_meet(const struct segment *s)
{
	struct redirect_direct key = { .client = s->source, .port = s->source_port };
	struct redirect_holder mine = { .vip = s->destination, .port = s->destination_port };
	struct redirect_holder *holder = bpf_map_lookup_elem(&redirect_holders, &key);
	struct host_flow flow = flow_of(s, 1);

	if (holder && (holder->port != mine.port || !same_bytes(&holder->vip, &mine.vip))) {
		flow = flow_to(&flow, &holder->vip, holder->port);
		if (is_asking(&flow) || bpf_map_lookup_elem(&redirect_leaving, &flow))
			return 1;
	}
	bpf_map_update_elem(&redirect_holders, &key, &mine, BPF_ANY);
	return 0;
}

/*
 * REDIRECT_ASKED if a SYN may have the option, else the event that says why not. Not inlined,
 * for its room on the stack.
 */
static __noinline enum redirect_event may_ask(struct __sk_buff *skb, const struct segment *s,
					      const struct redirect_service *service)
{
	struct redirect_direct direct = { .client = s->source, .port = s->source_port };
	struct tcp_options options = {};

	if (service->flags & REDIRECT_NOT_ASKED)
		return REDIRECT_AMBIGUOUS;
	if (bpf_map_lookup_elem(&redirect_directs, &direct))
		return REDIRECT_MAY_CLASH;
	if (!is_bare(s))
		return REDIRECT_HAS_DATA;
	if (!read_options(skb, s, &options) || options.flags & OPTIONS_MALFORMED)
		return REDIRECT_MALFORMED;
	if (options.flags & OPTIONS_FORBID)
		return REDIRECT_FORBIDDEN;
	if (options.found)
		return REDIRECT_ASKS_ALREADY;
	if (!has_room(&options))
		return REDIRECT_NO_ROOM;
	return REDIRECT_ASKED;
}

/*
 * The first SYN of a connection to a VIP asks, the next ones do not. TC_ACT_REDIRECT: the
 * connection is the backend's already.
 */
static __always_inline int leave_asking(struct __sk_buff *skb, const struct segment *s, __u32 index)
{
	struct host_flow flow = flow_of(s, 1);
	struct redirect_service *service = bpf_map_lookup_elem(&redirect_services, &index);
	struct redirect_way *way = bpf_map_lookup_elem(&redirect_leaving, &flow);
	enum redirect_syn_state state;
	enum redirect_event event;

	if (!service)
		return TC_ACT_UNSPEC;
	if (way && way->sequence == s->sequence) {
		/* Its answer was lost behind this program, or is on its way up. */
		note(index, REDIRECT_EARLY);
		return TC_ACT_REDIRECT;
	}
	if (way)
		forget(&flow, way);
	state = exchange_syn(&flow, s->sequence, REDIRECT_SYN_PLAIN);
	if (state == REDIRECT_SYN_ASKED)
		note(index, REDIRECT_AGAIN);
	if (state == REDIRECT_SYN_ASKED || state == REDIRECT_SYN_PLAIN)
		return TC_ACT_UNSPEC;
	event = has_place(index) ? may_ask(skb, s, service) : REDIRECT_QUOTA;
	if (event == REDIRECT_ASKED && service->flags & REDIRECT_SHARED && may_meet(s))
		event = REDIRECT_MAY_CLASH;
	state = event == REDIRECT_ASKED ? REDIRECT_SYN_ASKED : REDIRECT_SYN_PLAIN;
	if (!keep_syn(&flow, s->sequence, state) && event == REDIRECT_ASKED)
		event = REDIRECT_NO_PLACE;
	if (event == REDIRECT_ASKED && !add_option(skb, s, 0, 0)) {
		event = REDIRECT_ADD_FAILED;
		exchange_syn(&flow, s->sequence, REDIRECT_SYN_PLAIN); /* so it leaves without */
	}
	note(index, event);
	return TC_ACT_UNSPEC;
}

/* Not inlined, like all that opens a connection: few packets need it, and it is long. */
static __noinline int leave_syn(struct __sk_buff *skb, const struct segment *s)
{
	struct host_endpoint vip = {
		.address = s->destination,
		.port = s->destination_port,
		.protocol = IPPROTO_TCP,
	};
	__u32 *index = bpf_map_lookup_elem(&redirect_vips, &vip);

	return index ? leave_asking(skb, s, *index) : leave_directly(s);
}

/*
 * Whether an answer has the option already, because the guest that sent it has an agent, too. A
 * second option would make it malformed.
 */
static __noinline int is_echoed(struct __sk_buff *skb, const struct segment *s)
{
	struct tcp_options options = {};

	return is_bare(s) && read_options(skb, s, &options) && redirect_place(&options);
}

/*
 * A backend's answer to a SYN that said which VIP was called: a SYN-ACK, or the RST of a port
 * without a listener. A client makes nothing of an RST's option; it tells a director's probe
 * that this host answers as it has to.
 */
static __noinline int leave_answer(struct __sk_buff *skb, const struct segment *s)
{
	struct host_flow flow = flow_of(s, 0);
	struct redirect_echo echo = {};

	if (!find_echo(&flow, s->acknowledgement - 1, &echo))
		return TC_ACT_UNSPEC;
	if (is_echoed(skb, s))
		note(echo.service, REDIRECT_ECHOED);
	else if (!is_bare(s) || s->options + sizeof(struct redirect_option) > OPTIONS_MAX)
		note(echo.service, REDIRECT_UNECHOED);
	else if (!add_option(skb, s, echo.tail, echo.port))
		note(echo.service, REDIRECT_ECHO_FAILED);
	else
		note(echo.service, REDIRECT_ECHOED);
	return TC_ACT_UNSPEC;
}
