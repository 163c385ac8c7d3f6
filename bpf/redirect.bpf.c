/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirection on hosts of clients and of backends: the option goes into SYNs and
 * SYN-ACKs, and a redirected connection's packets get the backend's address for the
 * VIP's when they leave, and the VIP's when they come. Sockets, and netfilter, know of
 * the VIP only: both programs are below them.
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

#include "redirect_connection.h"
#include "redirect_error.h"
#include "redirect_sources.h"

const enum redirect_event *export_redirect_event __attribute__((unused));
const enum redirect_end *export_redirect_end __attribute__((unused));
const enum redirect_syn_state *export_redirect_syn_state __attribute__((unused));
const enum redirect_service_flag *export_redirect_service_flag __attribute__((unused));

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
 * What the control bytes of a packet begin with between its being sent to a backend and
 * when it leaves: the kernel runs redirect_leave once more for it then. Each time that the
 * programs are loaded it is another number, and IP and bridges clear these bytes, so nobody
 * else's packet has it: an agent behind this host, or in front of it, has a number of its own.
 */
volatile const __u32 sent_mark = 1;

static __always_inline int was_sent(struct __sk_buff *skb)
{
	if (skb->cb[0] != sent_mark)
		return 0;
	skb->cb[0] = 0;
	return 1;
}

/*
 * A packet of a connection: to the backend, by its own route, which need not be the
 * VIP's.
 */
static __always_inline int leave_redirected(struct __sk_buff *skb, const struct segment *s)
{
	struct host_flow flow = flow_of(s, 1);
	struct redirect_way *way = bpf_map_lookup_elem(&redirect_leaving, &flow);
	struct redirect_counter *counter;
	struct address peer;
	__be16 port;
	__u32 ifindex;

	if (!way)
		return TC_ACT_UNSPEC;
	note_leaving(way, s);
	counter = counter_of(way->service);
	if (counter) {
		counter->sent_packets++;
		counter->sent_bytes += skb->len - ETH_HLEN;
	}
	peer = way->peer;
	port = way->peer_port;
	ifindex = way->ifindex;
	if (!replace_end(skb, s, 0, &peer, port))
		return TC_ACT_SHOT;
	skb->cb[0] = sent_mark;
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/*
 * A SYN to no VIP. To a backend, it may meet a redirected connection of the same port,
 * which the kernel thinks is to somebody else: that one goes on, this one has to wait.
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
		return TC_ACT_UNSPEC; /* one to the VIP, on its way */
	if (in) {
		leaving = flow_to(&arriving, &in->peer, in->peer_port);
		out = bpf_map_lookup_elem(&redirect_leaving, &leaving);
		if (out && !has_ended(in, out)) {
			note(in->service, REDIRECT_CLASH);
			return TC_ACT_SHOT;
		}
		bpf_map_delete_elem(&redirect_arriving, &arriving);
		bpf_map_delete_elem(&redirect_leaving, &leaving);
	}
	bpf_map_update_elem(&redirect_directs, &key, &now, BPF_ANY);
	return TC_ACT_UNSPEC;
}

/*
 * Whether the client's port has a connection to another VIP of the same backends, which may
 * be redirected to the very one that this one would be: at a backend they would be one. One
 * that has ended counts until it is forgotten, because the backend may remember it, too.
 */
static __noinline int may_meet(const struct segment *s)
{
	struct redirect_direct key = { .client = s->source, .port = s->source_port };
	struct redirect_holder mine = { .vip = s->destination, .port = s->destination_port };
	struct redirect_holder *holder = bpf_map_lookup_elem(&redirect_holders, &key);
	struct host_flow flow = flow_of(s, 1);
	struct redirect_syn *syn;

	if (holder && (holder->port != mine.port || !same_bytes(&holder->vip, &mine.vip))) {
		flow = flow_to(&flow, &holder->vip, holder->port);
		syn = bpf_map_lookup_elem(&redirect_syns, &flow);
		if ((syn && syn->state == REDIRECT_SYN_ASKED) ||
		    bpf_map_lookup_elem(&redirect_leaving, &flow))
			return 1;
	}
	bpf_map_update_elem(&redirect_holders, &key, &mine, BPF_ANY);
	return 0;
}

/*
 * Whether a SYN may have the option; what says no, else REDIRECT_ASKED. A call of its own for
 * its room on the stack.
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
 * The first SYN of a connection to a VIP asks, the next ones do without. TC_ACT_REDIRECT: it
 * is the backend's already.
 */
static __always_inline int leave_asking(struct __sk_buff *skb, const struct segment *s, __u32 index)
{
	struct host_flow flow = flow_of(s, 1);
	struct redirect_syn asked = { .sequence = s->sequence, .state = REDIRECT_SYN_ASKED };
	struct redirect_service *service = bpf_map_lookup_elem(&redirect_services, &index);
	struct redirect_way *way = bpf_map_lookup_elem(&redirect_leaving, &flow);
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &flow);
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
	if (syn && syn->sequence == s->sequence) {
		if (__sync_val_compare_and_swap(&syn->state, REDIRECT_SYN_ASKED,
						REDIRECT_SYN_PLAIN) == REDIRECT_SYN_ASKED)
			note(index, REDIRECT_AGAIN);
		return TC_ACT_UNSPEC;
	}
	event = may_ask(skb, s, service);
	if (event == REDIRECT_ASKED && service->flags & REDIRECT_SHARED && may_meet(s))
		event = REDIRECT_MAY_CLASH;
	if (event != REDIRECT_ASKED)
		asked.state = REDIRECT_SYN_PLAIN;
	if (bpf_map_update_elem(&redirect_syns, &flow, &asked, BPF_ANY))
		event = REDIRECT_ADD_FAILED;
	else if (event == REDIRECT_ASKED && !add_option(skb, s, 0, 0))
		event = REDIRECT_ADD_FAILED;
	note(index, event);
	return TC_ACT_UNSPEC;
}

/* A call of its own, as all that opens a connection: seldom, and long. */
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
 * Whether an answer has the option already: the guest that it is of has an agent, too. A
 * second one would make it malformed.
 */
static __noinline int is_echoed(struct __sk_buff *skb, const struct segment *s)
{
	struct tcp_options options = {};

	return is_bare(s) && read_options(skb, s, &options) && redirect_place(&options);
}

/*
 * A backend's answer to a SYN that said who was called: a SYN-ACK, or the RST of a port that
 * nobody listens at. Of that a client makes nothing; a director's probe is told by it that
 * this host answers as it has to.
 */
static __noinline int leave_answer(struct __sk_buff *skb, const struct segment *s)
{
	struct host_flow flow = flow_of(s, 0);
	struct redirect_echo *echo = bpf_map_lookup_elem(&redirect_echoes, &flow);
	struct redirect_echo copy;

	if (!echo || echo->sequence + 1 != s->acknowledgement)
		return TC_ACT_UNSPEC;
	copy = *echo;
	if (is_echoed(skb, s))
		note(copy.service, REDIRECT_ECHOED);
	else if (!is_bare(s) || s->options + sizeof(struct redirect_option) > OPTIONS_MAX)
		note(copy.service, REDIRECT_UNECHOED);
	else if (!add_option(skb, s, copy.tail, copy.port))
		note(copy.service, REDIRECT_ECHO_FAILED);
	else
		note(copy.service, REDIRECT_ECHOED);
	return TC_ACT_UNSPEC;
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
	}
	return leave_redirected(skb, &s);
}

/*
 * Reads the option of a bare packet that came: 0: there is none that says something. A call
 * of its own for its room on the stack.
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
 * The service of a backend of this host whose VIP an option says; without one, any service
 * of the backend. 0: there is none. A call of its own: seldom, and its room on the stack is
 * not that of every packet.
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

/* A connection that a director hands over: the answer will say to whom it was begun. */
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
	echo.sequence = s->sequence;
	echo.tail = option.vip;
	echo.port = option.port;
	flow = flow_of(s, 1);
	bpf_map_update_elem(&redirect_echoes, &flow, &echo, BPF_ANY);
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
 * The VIP itself has answered: whatever else answers now comes too late. Why a SYN did not
 * ask, or does not any more, was counted when it left.
 */
static __always_inline int is_answered(const struct segment *s, const struct host_flow *flow)
{
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, flow);
	struct host_endpoint vip = {
		.address = s->source,
		.port = s->source_port,
		.protocol = IPPROTO_TCP,
	};
	__u32 *index;

	if (!syn)
		return 0;
	if (syn->sequence + 1 != s->acknowledgement)
		return 1;
	index = bpf_map_lookup_elem(&redirect_vips, &vip);
	if (index && syn->state == REDIRECT_SYN_ASKED)
		note(*index, REDIRECT_NOT_TAKEN);
	bpf_map_delete_elem(&redirect_syns, flow);
	return 1;
}

/*
 * Takes a connection over, if this host has asked for that: in a SYN of this client to
 * this VIP with the number that is acknowledged, of which no other one without the option
 * has left. Who has not seen that SYN would have to guess its number, and be where the
 * service has backends.
 */
static __always_inline enum redirect_event take(const struct segment *s,
						const struct host_flow *arriving, __u32 index,
						const struct redirect_service *service,
						__u32 ifindex)
{
	struct host_flow flow = flow_to(arriving, &service->vip, service->port);
	struct redirect_syn *syn = bpf_map_lookup_elem(&redirect_syns, &flow);

	if (!syn || syn->sequence + 1 != s->acknowledgement)
		return REDIRECT_NOT_ASKED_FOR;
	if (!in_prefix(index, &s->source))
		return REDIRECT_FOREIGN;
	if (meets_another(arriving, service))
		return REDIRECT_CLASH;
	if (__sync_val_compare_and_swap(&syn->state, REDIRECT_SYN_ASKED, REDIRECT_SYN_PLAIN) !=
	    REDIRECT_SYN_ASKED)
		return REDIRECT_NOT_ASKED_FOR;
	if (!remember(&flow, s, service, index, ifindex))
		return REDIRECT_FULL;
	bpf_map_delete_elem(&redirect_syns, &flow);
	return REDIRECT_TAKEN;
}

/*
 * A SYN-ACK that came: the connection that it is of, if a backend has that one. A call of its
 * own, as arrive_syn is.
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
	} else {
		flow = flow_of(&s, 0);
		way = bpf_map_lookup_elem(&redirect_arriving, &flow);
	}
	return way ? rename_source(skb, &s, way) : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
