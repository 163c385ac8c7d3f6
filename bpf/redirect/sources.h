/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Source ranges on a backend's host. A director sees only the SYN of a redirected connection,
 * and clients that call the backend at its own address do not come by a director: so the
 * sources of packets to addresses and ports that connections are redirected to are checked here.
 *
 * Packets have a parser of their own here, because first fragments and IPv6 extension headers
 * must not hide a packet. Later fragments are left to the kernel, which makes nothing of them
 * without the first.
 */
#pragma once

#include "redirect/packet.h"

#define GUARDS_MAX (2 * REDIRECT_SERVICES_MAX)
#define GUARD_SOURCES_MAX (2 * REDIRECT_PREFIXES_MAX)
#define IPV4_OFFSET_MASK 0x1fff
#define IPV6_OFFSET_MASK 0xfff8
#define IPV6_EXTENSIONS_MAX 8

/*
 * None of these maps is pinned: a program uses the maps of the agent that has loaded it,
 * and the agent fills them before it attaches the program.
 */
struct guard {
	__u32 service;
	__u32 set; /* of guard_sources: a set does not change while a guard names it */
};

/* As an LPM key: the sources that may call. */
struct guard_source {
	__u32 prefix_len;
	__u32 set;
	struct address address;
};

/* By address and port; with port 0 whether any port of an address is guarded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GUARDS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host_endpoint);
	__type(value, struct guard);
} guards SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, GUARD_SOURCES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct guard_source);
	__type(value, __u8);
} guard_sources SEC(".maps");

enum ends {
	ENDS_NONE = 0, /* no TCP, or a later fragment */
	ENDS_READ,
	ENDS_HIDDEN, /* more extension headers than are followed: the port is not known */
};

static __always_inline enum ends read_ports(struct __sk_buff *skb, __u32 at,
					    struct host_endpoint *to)
{
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return ENDS_NONE;
	to->port = ports[1];
	return ENDS_READ;
}

static __always_inline enum ends read_ends4(struct __sk_buff *skb, struct address *from,
					    struct host_endpoint *to)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
	    ip.frag_off & bpf_htons(IPV4_OFFSET_MASK))
		return ENDS_NONE;
	map_address(from, ip.saddr);
	map_address(&to->address, ip.daddr);
	return read_ports(skb, ETH_HLEN + ip.ihl * 4, to);
}

static __always_inline enum ends read_ends6(struct __sk_buff *skb, struct address *from,
					    struct host_endpoint *to)
{
	struct {
		__u8 next;
		__u8 length;
		__be16 offset;
	} extension;
	__u32 at = ETH_HLEN + sizeof(struct ipv6hdr);
	struct ipv6hdr ip;
	__u8 next;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return ENDS_NONE;
	__builtin_memcpy(from, &ip.saddr, sizeof(*from));
	__builtin_memcpy(&to->address, &ip.daddr, sizeof(to->address));
	next = ip.nexthdr;
#pragma unroll
	for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
		if (next == IPPROTO_TCP)
			return read_ports(skb, at, to);
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT && next != IPPROTO_AH)
			return ENDS_NONE;
		if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return ENDS_NONE;
		if (next == IPPROTO_FRAGMENT && extension.offset & bpf_htons(IPV6_OFFSET_MASK))
			return ENDS_NONE;
		if (next == IPPROTO_FRAGMENT)
			at += 8;
		else if (next == IPPROTO_AH)
			at += (extension.length + 2) * 4;
		else
			at += (extension.length + 1) * 8;
		next = extension.next;
	}
	return next == IPPROTO_TCP ? read_ports(skb, at, to) : ENDS_HIDDEN;
}

static __noinline int is_refused(struct __sk_buff *skb)
{
	struct host_endpoint to = { .protocol = IPPROTO_TCP };
	struct guard_source key = { .prefix_len = 8 * (sizeof(key) - sizeof(key.prefix_len)) };
	struct guard *guard;
	enum ends ends;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		ends = read_ends4(skb, &key.address, &to);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		ends = read_ends6(skb, &key.address, &to);
	else
		return 0;
	if (ends == ENDS_NONE)
		return 0;
	guard = bpf_map_lookup_elem(&guards, &to);
	if (!guard)
		return 0;
	key.set = guard->set;
	if (ends == ENDS_READ && bpf_map_lookup_elem(&guard_sources, &key))
		return 0;
	note(guard->service, REDIRECT_OUTSIDE);
	return 1;
}

/* Whether a packet that comes is from a source that must not call this backend. */
static __always_inline int is_from_outside(struct __sk_buff *skb)
{
	return guarded && is_refused(skb);
}
