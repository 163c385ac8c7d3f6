/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sends where XDP cannot: into interfaces of overlays, bridges, veths whose other end is not made
 * for it. The director sends a packet that is to leave by them into one end of a veth pair, for a
 * MAC address that names the interface, and it comes in at the other end, here. The kernel finds
 * the neighbor for its destination, and sends it. Firewall, connection tracking and routing of
 * this host do not see it, as they see nothing of what XDP sends.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi/onward_types.h"

SEC("tc")
int send_onward(struct __sk_buff *skb)
{
	const struct onward_destination *to =
		(void *)(long)skb->data; /* an Ethernet header begins with it */

	if ((void *)(to + 1) > (void *)(long)skb->data_end ||
	    to->prefix != bpf_htons(ONWARD_PREFIX))
		return TC_ACT_SHOT; /* not from the director */
	return bpf_redirect_neigh(bpf_ntohl(to->ifindex), NULL, 0, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
