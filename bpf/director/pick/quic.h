/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * QUIC: the backend that a connection ID names, as in draft-ietf-quic-load-balancers-21;
 * quiclb is the same in Go. The client may have another address than before.
 * The first connection ID of a client is its own and random: the ring places it.
 */
#pragma once

#include "abi/quic_types.h"
#include "director/pick/aes.h"
#include "director/pick/ring.h"
#include "lib/packet.h"

/* RFC 8999: a long header says how long its destination connection ID is. */
#define QUIC_LONG_HEADER 0x80
#define QUIC_LONG_ID_LENGTH 5
#define QUIC_LONG_ID 6
#define QUIC_SHORT_ID 1
#define QUIC_CONFIG_SHIFT 5
#define QUIC_RIGHT_AT_MAX 9

struct quic_half {
	__u64 words[2];
};

/* The halves of a connection ID, left first: each is also a block. */
struct quic_text {
	struct quic_half halves[2];
};

/* One round: what one half encrypts to changes the other. */
static __noinline int quic_pass(const struct quic_config *config, __u32 keys,
				struct quic_text *text, __u32 pass)
{
	int from = !(pass & 1);
	struct quic_half *to = &text->halves[!from];
	const __u64 *mask = from ? config->left : config->right;
	struct quic_half block = text->halves[from];

	block.words[1] |= (__u64)config->length << 48 | (__u64)pass << 56;
	if (!aes_encrypt(keys, (struct aes_block *)&block))
		return 0;
	to->words[0] ^= block.words[0] & mask[0];
	to->words[1] ^= block.words[1] & mask[1];
	return 1;
}

/* Four rounds; the halves are then put together where the server ID needs both. */
static __always_inline int quic_four_pass(const struct quic_config *config, __u32 keys,
					  struct quic_text *text)
{
	struct quic_half *left = &text->halves[0], *right = &text->halves[1];
	__u32 shift = config->right_at * 8;

	for (__u32 pass = 4; pass >= 2; pass--)
		if (!quic_pass(config, keys, text, pass))
			return 0;
	if (config->last_pass == 2)
		return 1;
	if (!quic_pass(config, keys, text, 1))
		return 0;
	if (shift < 64) {
		left->words[0] |= right->words[0] << shift;
		left->words[1] |= right->words[0] >> (64 - shift) | right->words[1] << shift;
	} else {
		left->words[1] |= right->words[0] << (shift - 64);
	}
	return 1;
}

/* The plaintext is then in the left half, as far as the server ID goes. */
static __always_inline int quic_decrypt(const struct quic_config *config, __u32 keys,
					struct quic_text *text)
{
	if (config->algorithm == QUIC_SINGLE_PASS)
		return aes_decrypt(keys, (struct aes_block *)&text->halves[0]);
	if (config->algorithm == QUIC_FOUR_PASS)
		return quic_four_pass(config, keys, text);
	return config->algorithm == QUIC_PLAINTEXT;
}

/* The backend that has the server ID in this configuration, or NO_BACKEND. */
static __always_inline __u32 quic_server(__u32 ring, const struct ring_header *header, __u64 first,
					 __u64 second)
{
	__u32 bucket = hash_finish(hash_mix(header->salt, first), second) >> 32;
	__u32 servers = ring + header->quic + QUIC_CONFIGS * QUIC_CONFIG_LINES;

	for (__u32 probe = 0; probe < QUIC_PROBES; probe++) {
		struct quic_servers *line =
			ring_line_at(servers + (bucket + probe & header->quic_buckets - 1));

		if (!line)
			return NO_BACKEND;
		for (int i = 0; i < QUIC_SERVERS_PER_LINE; i++)
			if (line->keys[i][0] == first && line->keys[i][1] == second)
				return line->backends[i];
	}
	return NO_BACKEND;
}

/*
 * Where the connection ID begins, in the frame, and how much of the packet is left
 * for it; 0: the header is cut short.
 */
static __always_inline __u32 quic_id(struct xdp_md *ctx, const struct packet *packet, __u32 *left)
{
	__u32 at = packet->l4 + sizeof(struct udphdr), end = packet->l3 + packet->length;
	__u8 *quic = l4_at(ctx, at);

	if ((void *)(quic + QUIC_LONG_ID) > frame_end(ctx) || at + QUIC_LONG_ID > end)
		return 0;
	if (quic[0] & QUIC_LONG_HEADER) {
		at += QUIC_LONG_ID;
		*left = quic[QUIC_LONG_ID_LENGTH];
		return at + *left > end ? 0 : at;
	}
	at += QUIC_SHORT_ID;
	*left = end - at;
	return at;
}

/* Reads the halves of the connection ID whose second byte is at this offset. */
static __always_inline int quic_read(struct xdp_md *ctx, __u32 at, const struct quic_config *config,
				     struct quic_text *text)
{
	__u32 right_at = config->right_at;
	__u64 *words = l4_at(ctx, at);

	if ((void *)(words + 2) > frame_end(ctx))
		return 0;
	text->halves[0].words[0] = words[0] & config->left[0];
	text->halves[0].words[1] = words[1] & config->left[1];
	if (right_at > QUIC_RIGHT_AT_MAX)
		return 0;
	words = l4_at(ctx, at + right_at);
	if ((void *)(words + 2) > frame_end(ctx))
		return 0;
	text->halves[1].words[0] = words[0] & config->right[0];
	text->halves[1].words[1] = words[1] & config->right[1];
	return 1;
}

/* Looks up the packet's connection ID; QUIC_FOUND and QUIC_DOWN set the backend's index. */
static __always_inline enum quic_event ask_quic(struct xdp_md *ctx, const struct packet *packet,
						__u32 ring, const struct ring_header *header,
						__u32 *index)
{
	struct quic_config *config;
	struct quic_text text;
	struct backend *backend;
	__u32 at, left, line, number;
	__u8 *id;

	at = quic_id(ctx, packet, &left);
	id = l4_at(ctx, at);
	if (!at || (void *)(id + 1) > frame_end(ctx))
		return QUIC_OTHER;
	number = *id >> QUIC_CONFIG_SHIFT;
	if (number >= QUIC_CONFIGS)
		return QUIC_OTHER;
	line = ring + header->quic + number * QUIC_CONFIG_LINES;
	config = ring_line_at(line);
	if (!config || left < 1 + config->length || !quic_read(ctx, at + 1, config, &text) ||
	    !quic_decrypt(config, line + 1, &text))
		return QUIC_OTHER;
	*index = quic_server(ring, header, text.halves[0].words[0] & config->server_id[0],
			     (text.halves[0].words[1] & config->server_id[1]) | (__u64)(number + 1)
											<< 56);
	if (*index == NO_BACKEND)
		return QUIC_UNKNOWN;
	backend = backend_at(*index);
	return backend && keeps(backend) ? QUIC_FOUND : QUIC_DOWN;
}

/*
 * The backend that the packet's connection ID names, if it is alive, or NO_BACKEND. If it
 * is down here the packet is marked, and a second call returns the backend.
 */
static __noinline __u32 find_quic(struct xdp_md *ctx, struct packet *packet, __u32 ring,
				  const struct ring_header *header)
{
	__u32 event, index = NO_BACKEND;
	__u64 *counter;

	/* The connection ID inside of an error is the client's. */
	if (packet->flow.protocol != IPPROTO_UDP || packet->flags & PACKET_ICMP_ERROR)
		return NO_BACKEND;
	event = ask_quic(ctx, packet, ring, header, &index);
	if (packet->flags & PACKET_RELAYED)
		return index;
	counter = bpf_map_lookup_elem(&quic_events, &event);
	if (counter)
		(*counter)++;
	if (event == QUIC_DOWN)
		packet->flags |= PACKET_RELAYED;
	return event == QUIC_FOUND ? index : NO_BACKEND;
}

/*
 * This director cannot reach the packet's backend, but the host that gets the packet may: so the
 * row still names the host that keeps the packet, as the owner of a slot of its own.
 */
static __always_inline void name_quic(struct xdp_md *ctx, struct packet *packet, __u32 ring,
				      const struct ring_header *header)
{
	packet->slot.owner = find_quic(ctx, packet, ring, header);
	packet->slot.next = SLOT_SETTLING; /* no list, and not 0 */
}
