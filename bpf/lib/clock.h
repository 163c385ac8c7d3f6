/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ages of what an agent remembers, by the kernel's coarse clock. */
#pragma once

#include <linux/types.h>

#define SECOND 1000000000ULL
#define NEVER (~0ULL)

/* How long ago something was. Another CPU may have written it after this one has read the clock. */
static __always_inline __u64 since(__u64 when, __u64 now)
{
	return when < now ? now - when : 0;
}

/* The same in whole seconds. */
static __always_inline __u32 seconds_since(__u32 when, __u32 now)
{
	return when < now ? now - when : 0;
}

/* How long ago something was; NEVER if its time was not written down. */
static __always_inline __u64 age_of(const __u64 *when, __u64 now)
{
	return when ? since(*when, now) : NEVER;
}
