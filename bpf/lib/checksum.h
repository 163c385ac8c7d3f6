/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Internet checksums (RFC 1071) and their updates (RFC 1624). Sums are kept in
 * 64 bits and folded once. All words are summed in network order as they stand
 * in memory, which gives the right checksum on either kind of machine.
 */
#pragma once

#include <linux/ip.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

static __always_inline __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The same for a sum of few words of 32 bits: at most 32,768. */
static __always_inline __u16 checksum_fold_few(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* RFC 1624 equation 3: HC' = ~(~HC + ~m + m'), with sums of any number of words. */
static __always_inline __u16 checksum_update(__u16 checksum, __u64 removed, __u64 added)
{
	return ~checksum_fold((__u64)(__u16)~checksum + (__u16)~checksum_fold(removed) + added);
}

/*
 * That equation assumes that something of what is summed is not zero, or 0 may come out where the
 * checksum is 0xffff. IP headers are never all zero, and neither is what TCP, UDP and ICMPv6
 * sum with their pseudo-header. An ICMP echo reply may be all zero, and then only 0xffff is
 * right; for anything else both 0 and 0xffff are right, because they add up to the same.
 */
static __always_inline __u16 checksum_not_zero(__u16 checksum)
{
	return checksum ? checksum : 0xffff;
}

static __always_inline __u16 ipv4_header_checksum(const struct iphdr *ip)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < (int)(sizeof(*ip) / 4); i++)
		sum += words[i];
	return ~checksum_fold(sum);
}
