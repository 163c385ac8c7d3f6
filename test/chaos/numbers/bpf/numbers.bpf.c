/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes the sequence numbers of one host of a lab differ from those of the others. Hosts of a lab
 * are namespaces of one kernel, which makes all their SYN cookies with one secret, so each would
 * take another host's cookie for its own. On the way out of a host every sequence number of its
 * own becomes larger by its offset, and on the way in what acknowledges them becomes smaller: to
 * the others it is a host with a secret of its own.
 *
 *	from_host: what the host sends: its segments, and clients' that it passes on in tunnels
 *	to_host:   what it gets, in tunnels or without
 *
 * IPv4 only. Both attach to tc of the other end of the host's cable.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define GUE_PORT 6080          /* IANA */
#define GUE_LENGTH 0x1f        /* of its private data, in words: draft-ietf-intarea-gue-09 3.1 */
#define OPTIONS_MAX 40         /* of TCP: RFC 9293 3.1 */
#define OPTION_SACK 5          /* RFC 2018 */
#define FRAGMENT_OFFSET 0x1fff /* of iphdr.frag_off */

const volatile __u32 offset; /* of this host */

/* The offset of the IP header inside a tunnel; 0: the packet at this place is no tunnel's. */
static __always_inline __u32 inside(struct __sk_buff *skb, __u32 at, const struct iphdr *ip)
{
	__u32 payload = at + ip->ihl * 4;
	struct udphdr udp;
	__u8 gue;

	if (ip->frag_off & bpf_htons(FRAGMENT_OFFSET))
		return 0;
	if (ip->protocol == IPPROTO_IPIP)
		return payload;
	if (ip->protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, payload, &udp, sizeof(udp)) ||
	    udp.dest != bpf_htons(GUE_PORT))
		return 0;
	payload += sizeof(udp);
	if (bpf_skb_load_bytes(skb, payload, &gue, sizeof(gue)))
		return 0;
	return payload + 4 + (gue & GUE_LENGTH) * 4;
}

/* Adds to a number of a TCP header. */
static __noinline int add(struct __sk_buff *skb, __u32 tcp, __u32 at, __u32 value)
{
	__be32 old, new;

	if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
		return 1;
	new = bpf_htonl(bpf_ntohl(old) + value);
	bpf_l4_csum_replace(skb, tcp + offsetof(struct tcphdr, check), old, new, sizeof(new));
	return bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0);
}

struct options {
	struct __sk_buff *skb;
	__u32 tcp;    /* where the header is */
	__u32 length; /* of the header */
	__u32 at;     /* in the header */
	__u32 value;
};

/* Looks at one option of TCP, and ends behind the one that is looked for. */
static long add_option(__u32 number __attribute__((unused)), struct options *o)
{
	__u8 option[2]; /* kind and length */

	if (o->at + sizeof(option) > o->length ||
	    bpf_skb_load_bytes(o->skb, o->tcp + o->at, option, sizeof(option)) || !option[0])
		return 1;
	if (option[0] == 1) { /* no operation */
		o->at++;
		return 0;
	}
	if (option[0] == OPTION_SACK) {
		for (__u32 edge = 0; edge < 8 && 2 + edge * 4 + 4 <= option[1]; edge++)
			add(o->skb, o->tcp, o->tcp + o->at + 2 + edge * 4, o->value);
		return 1;
	}
	o->at += option[1] < 2 ? 2 : option[1];
	return 0;
}

/* Adds to those of the host's numbers that another host acknowledges selectively. */
static __always_inline void add_selective(struct __sk_buff *skb, __u32 tcp, __u32 length,
					  __u32 value)
{
	struct options options = {
		.skb = skb,
		.tcp = tcp,
		.length = length,
		.at = sizeof(struct tcphdr),
		.value = value,
	};

	bpf_loop(OPTIONS_MAX, add_option, &options, 0);
}

static __always_inline int translate(struct __sk_buff *skb, int from_host)
{
	__u32 at = ETH_HLEN, inner;
	struct tcphdr tcp;
	struct iphdr ip;
	int own = from_host; /* the segment is of the host's own numbers */

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return TC_ACT_UNSPEC;
	inner = inside(skb, at, &ip);
	if (inner) {
		at = inner;
		own = 0;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return TC_ACT_UNSPEC;
	}
	if (ip.version != 4 || ip.protocol != IPPROTO_TCP ||
	    ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return TC_ACT_UNSPEC;
	at += ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return TC_ACT_UNSPEC;
	if (own) {
		add(skb, at, at + offsetof(struct tcphdr, seq), offset);
	} else if (tcp.ack) {
		__u32 value = from_host ? offset : -offset;

		add(skb, at, at + offsetof(struct tcphdr, ack_seq), value);
		add_selective(skb, at, tcp.doff * 4, value);
	}
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int from_host(struct __sk_buff *skb)
{
	return translate(skb, 1);
}

SEC("tcx/egress")
int to_host(struct __sk_buff *skb)
{
	return translate(skb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
