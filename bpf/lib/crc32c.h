/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * CRC32c, SCTP's checksum (RFC 9260, Appendix A), where a few bytes of a packet change. It is linear
 * over GF(2): what changes is the checksum of the difference, and that is a product of polynomials, of
 * the difference and of a power of x that depends on how far the packet's end is. Polynomials are
 * reflected: the highest bit is x^0.
 */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define CRC32C_POLYNOMIAL 0x82f63b78

/* Not static, as crc32c_change: verified once each. */
__noinline __u32 crc32c_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

#pragma nounroll
	for (int i = 0; i < 32; i++) {
		product ^= -(a >> 31) & b;
		a <<= 1;
		b = b >> 1 ^ (-(b & 1) & CRC32C_POLYNOMIAL);
	}
	return product;
}

/* Goes on by 2^bit bytes, if the length has this bit. The power is x^(8 * 2^bit). */
static __always_inline __u32 crc32c_pass(__u32 difference, __u32 length, int bit, __u32 power)
{
	return length >> bit & 1 ? crc32c_multiply(difference, power) : difference;
}

/*
 * By how much the checksum of so many bytes, fewer than 65,536, changes if their first four do; both
 * are words as a little-endian machine reads them. No table: the programs in tc have no constants in
 * maps.
 */
__noinline __u32 crc32c_change(__u32 difference, __u32 length)
{
	difference = crc32c_pass(difference, length, 0, 0x00800000);
	difference = crc32c_pass(difference, length, 1, 0x00008000);
	difference = crc32c_pass(difference, length, 2, 0x82f63b78);
	difference = crc32c_pass(difference, length, 3, 0x6ea2d55c);
	difference = crc32c_pass(difference, length, 4, 0x18b8ea18);
	difference = crc32c_pass(difference, length, 5, 0x510ac59a);
	difference = crc32c_pass(difference, length, 6, 0xb82be955);
	difference = crc32c_pass(difference, length, 7, 0xb8fdb1e7);
	difference = crc32c_pass(difference, length, 8, 0x88e56f72);
	difference = crc32c_pass(difference, length, 9, 0x74c360a4);
	difference = crc32c_pass(difference, length, 10, 0xe4172b16);
	difference = crc32c_pass(difference, length, 11, 0x0d65762a);
	difference = crc32c_pass(difference, length, 12, 0x35d73a62);
	difference = crc32c_pass(difference, length, 13, 0x28461564);
	difference = crc32c_pass(difference, length, 14, 0xbf455269);
	difference = crc32c_pass(difference, length, 15, 0xe2ea32dc);
	return difference;
}
