/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which segments may have only so much of the datapath: see struct quota. */
#pragma once

#include "director/maps.h"

/* The number of a service's quota; 0: it has none. */
static __always_inline __u32 quota_of(__u32 service)
{
	__u64 *number = bpf_map_lookup_elem(&service_quotas, &service);

	return number ? *(volatile __u64 *)number : 0;
}
