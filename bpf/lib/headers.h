/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Headers that the kernel's own include files do not have without a C library. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi/types.h"

struct vlan_tag {
	__be16 tci;
	__be16 protocol; /* of what follows */
};

/* Of IPv6: each is at least 8 bytes long. */
struct extension_header {
	__u8 next;
	__u8 length; /* AH: in 4 bytes minus 2 (RFC 4302); others: in 8 bytes minus 1 (RFC 8200) */
	union {
		__be16 fragment_offset;
		struct {
			__u8 routing_type;
			__u8 segments_left;
		};
	};
	__be32 fragment_id;
};

struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	union {
		__be32 rest;
		struct {
			__be16 unused;
			__be16 mtu4; /* RFC 1191 */
		};
		__be32 mtu6; /* RFC 4443, 3.2 */
	};
};

/* SCTP's common header (RFC 9260, 3.1). Its CRC32c is of no address. */
struct sctp_header {
	__be16 source;
	__be16 destination;
	__be32 tag; /* 0: INIT */
	__le32 checksum;
};

enum {
	ICMP_ECHO_REPLY = 0,
	ICMP_UNREACHABLE = 3,
	ICMP_FRAGMENTATION_NEEDED = 4, /* code */
	ICMP_ECHO_REQUEST = 8,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER_PROBLEM = 12,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_TOO_BIG = 2,
	ICMPV6_PARAMETER_PROBLEM = 4,
	ICMPV6_ECHO_REQUEST = 128,
	ICMPV6_ECHO_REPLY = 129,
};

/* Whether an ICMP or ICMPv6 message is an error about a packet. */
static __always_inline int is_error(__u8 type, __u8 ipv6)
{
	if (ipv6)
		return type >= ICMPV6_UNREACHABLE && type <= ICMPV6_PARAMETER_PROBLEM;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED ||
	       type == ICMP_PARAMETER_PROBLEM;
}

/* ::ffff:a.b.c.d */
static __always_inline void map_address(struct address *to, __be32 address)
{
	__u32 *words = (__u32 *)to->bytes;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = address;
}

/* Whether no host has an address: unspecified, loopback, multicast, broadcast (RFC 1122, 3.2.1.3). */
static __always_inline int is_nobodys4(__be32 address)
{
	__u8 first = *(const __u8 *)&address;

	return !first || first == 127 || (first >= 224 && first < 240) || address == 0xffffffff;
}

/* The same of IPv6 (RFC 4291, 2.5 and 2.7), and mapped addresses. */
static __always_inline int is_nobodys6(const struct address *address)
{
	const __be32 *words = (const __be32 *)address->bytes;

	if (address->bytes[0] == 0xff)
		return 1;
	if (words[0] | words[1])
		return 0;
	return words[2] == bpf_htonl(0xffff) || (!words[2] && bpf_ntohl(words[3]) <= 1);
}
