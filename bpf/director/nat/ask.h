/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Full NAT in front of directors that redirect: this one asks in the place of clients
 * whose hosts have no agents, and takes the echo.
 *
 *   client        this director           backend: a director       a host behind it
 *   SYN  -------->  flow, option  ------->  picks, fills it in --->  remembers it
 *        <--------  checks, takes out  <--------------------------  SYN-ACK, the option
 *        <------------------------------------------------------->  (by the flow)
 *
 * Then the flow's backend is the host that answered, one of the same service, whose entry has
 * the way there; the port that it answers from is kept with the flow. A SYN that is sent
 * again does not ask, so a host that cannot be redirected to costs only the time until then.
 */
#pragma once

#include "director/nat/snat.h"
#include "lib/checksum.h"
#include "lib/packet.h"
#include "lib/redirect_option.h"

static __always_inline void note_ask(enum ask_event event)
{
	__u32 index = event;
	__u64 *count = bpf_map_lookup_elem(&ask_events, &index);

	if (count)
		(*count)++;
}

/* A segment that is not in pieces. */
static __always_inline int is_whole(const struct packet *packet)
{
	return !(packet->flags &
		 (PACKET_ICMP_ERROR | PACKET_FRAGMENT_FIRST | PACKET_FRAGMENT_LATER));
}

/* Bytes of TCP options of a packet with no data. Negative: the event that says what is wrong. */
static __always_inline int options_length(struct xdp_md *ctx, const struct packet *packet)
{
	__u32 left = packet->l3 + packet->length - packet->l4, length;
	struct tcphdr *tcp = l4_header(ctx, packet);

	if ((void *)(tcp + 1) > frame_end(ctx))
		return -ASK_MALFORMED;
	length = tcp->doff * 4;
	if (length < sizeof(*tcp) || length > left)
		return -ASK_MALFORMED;
	return length == left ? (int)(length - sizeof(*tcp)) : -ASK_HAS_DATA;
}

/* Reads `length` bytes of options. */
static __always_inline int read_options(struct xdp_md *ctx, const struct packet *packet,
					__u32 length, struct tcp_options *options)
{
	options->length = length;
	if (length) {
		length = bounded_options(length);
		if (bpf_xdp_load_bytes(ctx, (packet->l4 & 0x3fff) + sizeof(struct tcphdr),
				       options->bytes, length))
			return 0;
	}
	walk_options(options);
	return 1;
}

/* The redirect option of a segment, or NULL. */
static __always_inline struct redirect_option *
option_in(struct xdp_md *ctx, const struct packet *packet, const struct tcp_options *options)
{
	__u32 place = redirect_place(options);
	struct redirect_option *option;

	if (!place)
		return NULL;
	option = l4_at(ctx, packet->l4 + sizeof(struct tcphdr) + place - 1);
	return (void *)option + REDIRECT_LENGTH > frame_end(ctx) ? NULL : option;
}

/* ASK_ASKED if a SYN may have the option, else the reason why not. Not static: verified once. */
__noinline __u32 may_ask(struct xdp_md *ctx, const struct packet *packet)
{
	const struct redirect_option *option;
	struct tcp_options options = {};
	int length;

	if (!packet)
		return ASK_MALFORMED;
	length = options_length(ctx, packet);
	if (length < 0)
		return -length;
	if (!read_options(ctx, packet, length, &options) || options.flags & OPTIONS_MALFORMED)
		return ASK_MALFORMED;
	if (options.flags & OPTIONS_FORBID)
		return ASK_FORBIDDEN;
	if (options.found) {
		option = option_in(ctx, packet, &options);
		return option && !option->vip && !option->port ? ASK_ASKS_ALREADY : ASK_MALFORMED;
	}
	return has_room(&options) ? ASK_ASKED : ASK_NO_ROOM;
}

/* Makes the IP packet longer by the option. */
static __always_inline int lengthen(void *ip, void *end, __u8 ipv6)
{
	const __be16 more = bpf_htons(sizeof(struct redirect_option));
	struct ipv6hdr *six = ip;
	struct iphdr *four = ip;
	__be16 *length;

	if (ip + sizeof(*four) > end)
		return 0;
	if (ipv6) {
		if ((void *)(six + 1) > end)
			return 0;
		length = &six->payload_len;
	} else {
		length = &four->tot_len;
		/* The length does not overflow its 16 bits, so the sum changes by as much. */
		four->check = checksum_update(four->check, 0, more);
	}
	*length = bpf_htons(bpf_ntohs(*length) + sizeof(struct redirect_option));
	return 1;
}

/*
 * Adds the option behind the others, which is behind the packet, where a short frame may
 * have padding. TCP's sum changes by the option, by the header's own length and by the
 * packet's length in the pseudo header. Returns 0, and has changed nothing that counts, if
 * the driver leaves no room.
 */
static __always_inline int add_option(struct xdp_md *ctx, const struct packet *packet)
{
	const struct redirect_option added = REDIRECT_OPTION(0, 0);
	const __be32 *words = (const __be32 *)&added;
	const __be16 offset = bpf_htons((sizeof(added) / 4) << 12);
	__u32 end = packet->l3 + packet->length, size = ctx->data_end - ctx->data;
	int more = (int)(end + sizeof(added)) - (int)size;
	struct redirect_option *option;
	struct tcphdr *tcp;

	if (size != bpf_xdp_get_buff_len(ctx) || (more > 0 && bpf_xdp_adjust_tail(ctx, more)))
		return 0;
	option = l4_at(ctx, end);
	tcp = l4_header(ctx, packet);
	if ((void *)(option + 1) > frame_end(ctx) || (void *)(tcp + 1) > frame_end(ctx) ||
	    !lengthen(l3_header(ctx, packet), frame_end(ctx), packet->flow.ipv6))
		return 0;
	*option = added;
	((__be16 *)tcp)[6] += offset;
	tcp->check = checksum_update(tcp->check, 0,
				     (__u64)words[0] + words[1] + words[2] + offset +
					     bpf_htons(sizeof(added)));
	return 1;
}

/* Changes what a flow asks for, by a client's SYN. */
static __always_inline void ask_once(struct xdp_md *ctx, struct packet *packet,
				     struct snat_flow *entry, __u32 sequence)
{
	union ask_word was = ask_read(entry), is = {};
	__u32 event;

	is.asked.sequence = sequence;
	is.asked.state = ASKED_PLAIN;
	if (was.asked.state != ASKED_NOTHING && was.asked.sequence == sequence) {
		if (was.asked.state == ASKED_OPEN && ask_swap(entry, was, is))
			note_ask(ASK_AGAIN);
		return;
	}
	event = may_ask(ctx, packet);
	if (event == ASK_ASKED || event == ASK_ASKS_ALREADY)
		is.asked.state = ASKED_OPEN;
	if (!ask_swap(entry, was, is))
		return; /* another CPU has the same SYN */
	if (event == ASK_ASKED && !add_option(ctx, packet)) {
		was = is;
		is.asked.state = ASKED_PLAIN;
		ask_swap(entry, was, is);
		event = ASK_ADD_FAILED;
	}
	note_ask(event);
}

/*
 * The port at which the backend has the packet's flow. The first SYN of a connection asks,
 * while its client has sent nothing else: a SYN that an attacker sends in an open connection
 * could redirect that connection. Not static: verified once.
 */
__noinline __u32 asked_port(struct xdp_md *ctx, struct packet *packet, __u32 port)
{
	struct snat_flow *entry;
	union ask_word asked;

	if (!packet)
		return port;
	entry = snat_entry(packet->snat);
	if (!entry)
		return port;
	if (is_syn(packet) && is_whole(packet) && snat_read(entry).state == SNAT_SYN) {
		struct tcphdr *tcp = l4_header(ctx, packet);

		if ((void *)(tcp + 1) > frame_end(ctx))
			return port;
		ask_once(ctx, packet, entry, bpf_ntohl(tcp->seq));
	}
	asked = ask_read(entry);
	return is_taken(snat_read(entry), asked) ? asked.asked.port : port;
}
