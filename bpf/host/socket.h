/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Is the connection that a packet belongs to here? The kernel's table of sockets
 * says so, and nothing has to be remembered. A listening socket alone says nothing:
 * every host of a VIP has one.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "host/cookie.h"
#include "host/maps.h"
#include "host/tunnel.h"

/* What is read of the kernel's sockets; the loader puts in this kernel's offsets. */
struct sock_common {
	__u32 skc_tw_rcv_nxt;
} __attribute__((preserve_access_index));

struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_rcv_wnd;
} __attribute__((preserve_access_index));

struct tcp_request_sock {
	__u32 rcv_isn;
	__u32 snt_isn;
} __attribute__((preserve_access_index));

/* The first eight bytes of TCP are all that an ICMP error need quote. */
struct tcp_beginning {
	__be16 source;
	__be16 destination;
	__be32 sequence;
};

/* What second chance looks at. Offsets are from the start of the frame. */
struct chance {
	__u32 row;     /* of GUE's private data */
	__u32 ip;      /* of the inner packet */
	__u32 l4;      /* 0: none, or not all of it: a fragment */
	__u32 tcp_end; /* of the inner packet */
	__u32 ports;   /* also of a first fragment; 0: it has none */
	__u32 service;
	__u8 private; /* bytes of private data */
	__u8 outer6;
	__u8 ipv6;
	__u8 protocol;
	/* The result: the next host, and what the row says then. */
	struct address hop;
	__u8 next;
	__u8 claim;
	__u8 as_first; /* with this host's own address as the row's first */
	__u8 gue;
};

/* Where the packet is, for either kind of program. */
struct view {
	void *ctx;
	void *data;
	void *end;
};

/* What a socket says of a segment. */
enum presence {
	ELSEWHERE = 0,
	HERE,
	HERE_BY_COOKIE, /* there will be a socket, once the kernel has seen it */
};

/* The socket that is looked for: the client is the tuple's source. */
struct question {
	struct bpf_sock_tuple tuple;
	__u32 size;
	__u32 quoted_sequence;
};

/* More than the offset of any header that is looked at, for the verifier. */
#define OFFSET_MASK 0x3ff

/* The kernel says where its sockets' fields are, and lets programs read them. */
const volatile __u8 reads_sockets = 1;

static __always_inline void *at(const struct view *view, __u32 offset)
{
	/* The compiler must not leave the mask out where it knows the bounds by itself. */
	asm volatile("" : "+r"(offset));
	return view->data + (offset & OFFSET_MASK);
}

/*
 * A field of the kernel's socket. bpf_skc_to_tcp_request_sock and the like would
 * type the pointer, but not that of a socket whose listener speaks MPTCP, as every
 * Go server's does. The verifier allows no arithmetic with the address of a socket: that
 * has to be read like any other word.
 */
static __always_inline int read_socket(struct bpf_sock *sk, __u32 offset, __u32 *field)
{
	__u64 address;

	return bpf_probe_read_kernel(&address, sizeof(address), &sk) ||
	       bpf_probe_read_kernel(field, sizeof(*field), (void *)(address + offset));
}

#define READ_SOCKET(sk, type, member, to)                                                          \
	read_socket(sk, __builtin_preserve_field_info(((struct type *)0)->member, 0), to)

/* a is before b, in sequence numbers (RFC 9293 section 3.4). */
static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

/*
 * A connection that is still being opened: another host may have, or have had, one
 * with the same addresses, so the packet must be about this connection's SYN-ACK.
 */
static __always_inline int of_request(struct bpf_sock *sk, const struct tcphdr *tcp)
{
	__u32 sent, received;

	if (READ_SOCKET(sk, tcp_request_sock, snt_isn, &sent) ||
	    READ_SOCKET(sk, tcp_request_sock, rcv_isn, &received))
		return 0;
	return tcp->ack ? bpf_ntohl(tcp->ack_seq) == sent + 1 : bpf_ntohl(tcp->seq) == received + 1;
}

/*
 * A connection that has ended here. The client's late segments are in its window,
 * or end one byte before it: a FIN that was not acknowledged, a keepalive.
 */
static __always_inline int of_time_wait(struct bpf_sock *sk, const struct tcphdr *tcp,
					__u32 tcp_length)
{
	__u32 first = bpf_ntohl(tcp->seq);
	__u32 after = first + tcp_length - tcp->doff * 4 + tcp->fin;
	__u32 expected, window;

	if (READ_SOCKET(sk, tcp_timewait_sock, tw_sk.__tw_common.skc_tw_rcv_nxt, &expected) ||
	    READ_SOCKET(sk, tcp_timewait_sock, tw_rcv_wnd, &window))
		return 0;
	return !before(after, expected - 1) && !before(expected + window, first);
}

/* Whether a segment acknowledges a SYN cookie of this host, which makes a connection of it. */
static __always_inline int of_cookie(struct bpf_sock *sk, const struct view *view,
				     const struct chance *chance, struct tcphdr *tcp)
{
	void *ip = at(view, chance->ip);

	if (chance->ipv6)
		return ip + sizeof(struct ipv6hdr) <= view->end &&
		       !bpf_tcp_check_syncookie(sk, ip, sizeof(struct ipv6hdr), tcp, sizeof(*tcp));
	return ip + sizeof(struct iphdr) <= view->end &&
	       !bpf_tcp_check_syncookie(sk, ip, sizeof(struct iphdr), tcp, sizeof(*tcp));
}

static __always_inline enum presence of_socket(struct bpf_sock *sk, const struct view *view,
					       const struct chance *chance, struct tcphdr *tcp)
{
	switch (sk->state) {
	case BPF_TCP_NEW_SYN_RECV:
		return of_request(sk, tcp) ? HERE : ELSEWHERE;
	case BPF_TCP_TIME_WAIT:
		return of_time_wait(sk, tcp, chance->tcp_end - chance->l4) ? HERE : ELSEWHERE;
	case BPF_TCP_LISTEN:
		return of_cookie(sk, view, chance, tcp) ? HERE_BY_COOKIE : ELSEWHERE;
	}
	return HERE;
}

/*
 * An error about a packet that this host sent: about a SYN-ACK only if it is this one. A connection
 * that has ended takes no errors, and another host may have a later one with the same addresses.
 */
static __always_inline int quotes_socket(struct bpf_sock *sk, __u32 sequence)
{
	__u32 sent = 0;

	if (sk->state == BPF_TCP_LISTEN || sk->state == BPF_TCP_TIME_WAIT)
		return 0;
	if (sk->state != BPF_TCP_NEW_SYN_RECV)
		return 1;
	return !READ_SOCKET(sk, tcp_request_sock, snt_isn, &sent) && sent == sequence;
}

static __always_inline void ask4(struct question *question, __be32 client, __be32 vip,
				 __be16 client_port, __be16 vip_port)
{
	question->tuple.ipv4.saddr = client;
	question->tuple.ipv4.daddr = vip;
	question->tuple.ipv4.sport = client_port;
	question->tuple.ipv4.dport = vip_port;
	question->size = sizeof(question->tuple.ipv4);
}

static __always_inline void ask6(struct question *question, const struct in6_addr *client,
				 const struct in6_addr *vip, __be16 client_port, __be16 vip_port)
{
	__builtin_memcpy(question->tuple.ipv6.saddr, client, sizeof(*client));
	__builtin_memcpy(question->tuple.ipv6.daddr, vip, sizeof(*vip));
	question->tuple.ipv6.sport = client_port;
	question->tuple.ipv6.dport = vip_port;
	question->size = sizeof(question->tuple.ipv6);
}

static __always_inline struct bpf_sock *find_socket(void *ctx, struct question *question,
						    __s64 namespace)
{
	if (question->size == sizeof(question->tuple.ipv4))
		return bpf_skc_lookup_tcp(ctx, &question->tuple, sizeof(question->tuple.ipv4),
					  namespace, 0);
	return bpf_skc_lookup_tcp(ctx, &question->tuple, sizeof(question->tuple.ipv6), namespace,
				  0);
}

/* This host's own namespace comes first; then others, from 0 on; -1: there are no more. */
static __always_inline __s64 namespace_at(__u32 i)
{
	__u32 *next = bpf_map_lookup_elem(&namespaces, &i);

	return next ? (__s64)*next - 1 : -1;
}

/* For the other namespaces: bpf_loop's body is walked once by the verifier (Linux 5.17). */
struct search {
	const struct view *view;
	const struct chance *chance;
	struct question question;
	enum presence here;
};

static __always_inline enum presence segment_in(const struct view *view,
						const struct chance *chance,
						struct question *question, __s64 namespace)
{
	struct tcphdr *tcp = at(view, chance->l4);
	enum presence here;
	struct bpf_sock *sk;

	if ((void *)(tcp + 1) > view->end)
		return HERE;
	sk = find_socket(view->ctx, question, namespace);
	if (!sk)
		return ELSEWHERE;
	here = of_socket(sk, view, chance, tcp);
	bpf_sk_release(sk);
	return here;
}

static long segment_elsewhere(__u32 i, struct search *search)
{
	__s64 namespace = namespace_at(i);

	if (namespace < 0)
		return 1;
	search->here = segment_in(search->view, search->chance, &search->question, namespace);
	return search->here != ELSEWHERE;
}

/*
 * The first segment that acknowledges a cookie vouches for those that come before the
 * kernel has made a socket of it. Not inlined: the stack has no room for all at once.
 */
static __noinline int by_cookie(const struct question *question, const struct tcphdr *tcp,
				enum presence here)
{
	struct host_flow flow = {};

	if (question->size == sizeof(question->tuple.ipv4)) {
		map_address(&flow.client, question->tuple.ipv4.saddr);
		map_address(&flow.vip, question->tuple.ipv4.daddr);
	} else {
		__builtin_memcpy(&flow.client, question->tuple.ipv6.saddr, sizeof(flow.client));
		__builtin_memcpy(&flow.vip, question->tuple.ipv6.daddr, sizeof(flow.vip));
	}
	flow.client_port = tcp->source;
	flow.vip_port = tcp->dest;
	if (here == ELSEWHERE)
		return follows_cookie(&flow, tcp);
	note_cookie(&flow, tcp);
	return 1;
}

/*
 * A SYN opens a connection here, wherever another one was. If not all headers can be
 * seen, the packet stays.
 */
static __always_inline int has_segment(const struct view *view, const struct chance *chance)
{
	struct search search = { .view = view, .chance = chance };
	struct ipv6hdr *ip6 = at(view, chance->ip);
	struct iphdr *ip4 = at(view, chance->ip);
	struct tcphdr *tcp = at(view, chance->l4);

	if ((void *)(tcp + 1) > view->end || tcp->syn)
		return 1;
	if (chance->ipv6) {
		if ((void *)(ip6 + 1) > view->end)
			return 1;
		ask6(&search.question, &ip6->saddr, &ip6->daddr, tcp->source, tcp->dest);
	} else {
		if ((void *)(ip4 + 1) > view->end)
			return 1;
		ask4(&search.question, ip4->saddr, ip4->daddr, tcp->source, tcp->dest);
	}
	search.here = segment_in(view, chance, &search.question, BPF_F_CURRENT_NETNS);
	if (search.here == ELSEWHERE)
		bpf_loop(HOST_NAMESPACES_MAX, segment_elsewhere, &search, 0);
	if (search.here == HERE)
		return 1;
	return by_cookie(&search.question, tcp, search.here);
}

/* Whether what an error quotes is of the protocol, or of SCTP, where UDP will do. */
static __always_inline int quotes(__u8 *protocol, __u8 quoted)
{
	if (*protocol == IPPROTO_UDP && quoted == IPPROTO_SCTP)
		*protocol = quoted;
	return *protocol == quoted;
}

/*
 * Reads the packet that an error quotes, which the VIP sent; 0: none of the protocol's.
 * UDP and SCTP have their ports where TCP has them.
 */
static __always_inline int ask_quoted(struct question *question, struct icmp_header *icmp,
				      __u8 ipv6, __u8 *protocol, void *end)
{
	struct ipv6hdr *ip6 = (void *)(icmp + 1);
	struct iphdr *ip4 = (void *)(icmp + 1);
	struct tcp_beginning *tcp;

	if (ipv6) {
		tcp = (void *)(ip6 + 1);
		if ((void *)(tcp + 1) > end || !quotes(protocol, ip6->nexthdr))
			return 0;
		ask6(question, &ip6->daddr, &ip6->saddr, tcp->destination, tcp->source);
	} else {
		/* What a VIP sends by itself has no options. */
		tcp = (void *)(ip4 + 1);
		if ((void *)(tcp + 1) > end || ip4->ihl != 5 || !quotes(protocol, ip4->protocol))
			return 0;
		ask4(question, ip4->daddr, ip4->saddr, tcp->destination, tcp->source);
	}
	question->quoted_sequence = bpf_ntohl(tcp->sequence);
	return 1;
}

static __always_inline int quoted_in(const struct view *view, struct question *question,
				     __s64 namespace)
{
	struct bpf_sock *sk = find_socket(view->ctx, question, namespace);
	int here;

	if (!sk)
		return 0;
	here = quotes_socket(sk, question->quoted_sequence);
	bpf_sk_release(sk);
	return here;
}

static long quoted_elsewhere(__u32 i, struct search *search)
{
	__s64 namespace = namespace_at(i);

	if (namespace < 0)
		return 1;
	search->here = quoted_in(search->view, &search->question, namespace);
	return search->here;
}

static __always_inline int has_quoted(const struct view *view, const struct chance *chance)
{
	struct search search = { .view = view, .chance = chance };
	struct icmp_header *icmp = at(view, chance->l4);
	__u8 protocol = IPPROTO_TCP;

	if ((void *)(icmp + 1) > view->end || !is_error(icmp->type, chance->ipv6) ||
	    !ask_quoted(&search.question, icmp, chance->ipv6, &protocol, view->end))
		return 1;
	if (quoted_in(view, &search.question, BPF_F_CURRENT_NETNS))
		return 1;
	bpf_loop(HOST_NAMESPACES_MAX, quoted_elsewhere, &search, 0);
	return search.here;
}

/*
 * Only TCP's connections can be told by sockets: UDP sockets mostly serve all clients, and
 * fragments would have to go where their first one went.
 */
static __always_inline int is_here(const struct view *view, const struct chance *chance)
{
	if (!chance->l4 || chance->l4 > OFFSET_MASK)
		return 1;
	if (chance->protocol == IPPROTO_TCP)
		return has_segment(view, chance);
	if (chance->protocol == (chance->ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return has_quoted(view, chance);
	return 1;
}
