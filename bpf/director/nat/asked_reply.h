/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The echo of what ask.h has asked for: which answers are taken, which host has the
 * connection then, and what the client sees of it.
 */
#pragma once

#include "director/nat/ask.h"

/* Whether a packet answers a SYN. */
static __always_inline int is_syn_ack(const struct packet *packet)
{
	return packet->flow.protocol == IPPROTO_TCP && is_whole(packet) &&
	       (packet->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

/*
 * Where in the frame of a SYN-ACK the option is that says which backend was asked; 0: it
 * has no such option. Not static: verified once.
 */
__noinline __u32 find_echo(struct xdp_md *ctx, const struct packet *packet)
{
	const struct redirect_option *option;
	struct tcp_options options = {};
	int length;

	if (!packet)
		return 0;
	length = options_length(ctx, packet);
	if (length < REDIRECT_LENGTH || !read_options(ctx, packet, length, &options))
		return 0;
	option = option_in(ctx, packet, &options);
	if (!option || !(option->vip || option->port))
		return 0;
	return packet->l4 + sizeof(struct tcphdr) + options.found - 1;
}

/* A backend that may answer for another one. */
static __always_inline __u32 answers_for(const struct backend *asked, const struct snat_flow *entry,
					 const struct packet *packet)
{
	struct ask_backend key = { .service = asked->service, .address = packet->flow.source };
	__u32 *index = bpf_map_lookup_elem(&ask_backends, &key);
	const struct backend *backend = index ? backend_at(*index) : NULL;

	if (!backend || !asks(backend) || !alive(backend) ||
	    !snat_from(entry, backend, &packet->flow))
		return NO_BACKEND;
	return *index;
}

/*
 * Gives the connection to the host that answered. No CPU reads the flow meanwhile. ask_swap
 * fails if a SYN has left without the option.
 */
static __always_inline int ask_take(struct snat_flow *entry, union snat_word word,
				    union ask_word asked, __u32 index, __be16 port)
{
	union snat_word claimed = { .seen = word.seen, .state = SNAT_CLAIMED };
	const struct backend *backend = backend_at(index);
	union ask_word taken = asked;

	taken.asked.state = ASKED_TAKEN;
	taken.asked.port = port;
	if (!backend || !snat_swap(entry, word, claimed))
		return 0;
	if (ask_swap(entry, asked, taken)) {
		entry->backend = index;
		word.epoch = backend->epoch;
		word.seen = flow_clock();
		word.state = SNAT_ANSWERED;
	} else {
		index = NO_BACKEND;
	}
	__sync_lock_test_and_set((__u64 *)entry, word.word);
	return index != NO_BACKEND;
}

/*
 * Takes an echo, if the flow has asked for it: it acknowledges the flow's SYN, after which
 * no other SYN has left, names the backend that was asked, and comes from the address of
 * another backend of the service. A host that has not seen that SYN would have to guess its
 * number.
 */
static __always_inline enum ask_event ask_check(struct xdp_md *ctx, const struct packet *packet,
						struct snat_flow *entry, __u32 echo)
{
	struct redirect_option *option = l4_at(ctx, echo);
	struct tcphdr *tcp = l4_header(ctx, packet);
	union snat_word word = snat_read(entry);
	union ask_word asked = ask_read(entry);
	const struct backend *backend = snat_backend(entry, word);
	__u32 index;

	if ((void *)option + REDIRECT_LENGTH > frame_end(ctx) || (void *)(tcp + 1) > frame_end(ctx))
		return ASK_MALFORMED;
	if (!backend || !asks(backend) || word.state != SNAT_SYN ||
	    !snat_live(word, flow_clock()) || asked.asked.state != ASKED_OPEN ||
	    bpf_ntohl(tcp->ack_seq) != asked.asked.sequence + 1)
		return ASK_NOT_ASKED_FOR;
	if (option->vip != ADDRESS_WORD(&backend->address, packet->flow.ipv6 ? 3 : 0) ||
	    option->port != (backend->port ? backend->port : entry->vip_port))
		return ASK_MISNAMED;
	index = answers_for(backend, entry, packet);
	if (index == NO_BACKEND)
		return ASK_FOREIGN;
	return ask_take(entry, word, asked, index, packet->flow.source_port) ? ASK_TAKEN :
									       ASK_NOT_ASKED_FOR;
}

/*
 * A SYN-ACK to one of this director's source addresses that is not from the flow's backend.
 * Returns the flow's new backend, as find_snat_reply does.
 */
__noinline __u32 take_echo(struct xdp_md *ctx, struct packet *packet, struct flow *to)
{
	void *table = snat_table();
	struct snat_header *header = snat_header(table);
	enum ask_event event = ASK_NOT_ASKED_FOR;
	struct snat_flow *entry;
	__u32 number, echo;

	if (!header || !packet || !to || !is_syn_ack(packet))
		return NO_BACKEND;
	/* Other packets to this host, such as answers to its probes, are not looked into. */
	number = snat_reply_number(header, packet);
	echo = number ? find_echo(ctx, packet) : 0;
	if (!echo)
		return NO_BACKEND;
	entry = snat_flow(table, number);
	if (entry)
		event = ask_check(ctx, packet, entry, echo);
	note_ask(event);
	if (event != ASK_TAKEN || !entry)
		return NO_BACKEND;
	to_client(entry, packet, number, to);
	return entry->backend;
}

/* The client's host has not asked, and must not see the option, which becomes NOPs. */
static __always_inline void take_out(struct xdp_md *ctx, const struct packet *packet, __u32 echo)
{
	__be16 *words = l4_at(ctx, echo);
	struct tcphdr *tcp = l4_header(ctx, packet);
	const __be16 nops = bpf_htons(TCP_NOP << 8 | TCP_NOP);
	__u64 was = 0;

	if ((void *)words + REDIRECT_LENGTH > frame_end(ctx) || (void *)(tcp + 1) > frame_end(ctx))
		return;
#pragma unroll
	for (int i = 0; i < REDIRECT_LENGTH / 2; i++) {
		was += words[i];
		words[i] = nops;
	}
	tcp->check = checksum_update(tcp->check, was, (__u64)nops * (REDIRECT_LENGTH / 2));
}

/*
 * Nothing is asked for any more, so the number that the client has to acknowledge has a place.
 * A backend that keeps no state may send another SYN-ACK, with another number.
 */
static __always_inline void keep_answer(struct snat_flow *entry, union ask_word was, __u32 answer)
{
	union snat_word word = snat_read(entry), next = word;
	union ask_word is = was;

	is.answer = answer;
	next.proof |= SNAT_ANSWER | SNAT_KNOWS_BACKEND;
	if (word.state == SNAT_ANSWERED && ask_swap(entry, was, is))
		snat_swap(entry, word, next);
}

/* The backend that was asked has answered itself. */
static __always_inline void answer_plainly(const struct packet *packet, struct snat_flow *entry)
{
	union ask_word was = ask_read(entry), is = was;

	if (packet->acknowledgement != was.asked.sequence + 1)
		return;
	is.asked.state = ASKED_PLAIN;
	if (was.asked.state == ASKED_OPEN && ask_swap(entry, was, is)) {
		note_ask(ASK_NOT_TAKEN);
		was = is;
	}
	if (was.asked.state == ASKED_PLAIN)
		keep_answer(entry, was, packet->sequence + 1);
}

/* A SYN-ACK of a flow's backend, on its way to the client. Not static: verified once. */
__noinline int answer_asked(struct xdp_md *ctx, const struct packet *packet)
{
	struct snat_flow *entry;
	__u32 echo;

	if (!packet || !is_syn_ack(packet))
		return 0;
	entry = snat_entry(packet->snat);
	if (!entry)
		return 0;
	if (!(snat_read(entry).proof & (SNAT_ANSWER | SNAT_HALVES)))
		answer_plainly(packet, entry);
	echo = find_echo(ctx, packet);
	if (echo)
		take_out(ctx, packet, echo);
	return 1;
}
