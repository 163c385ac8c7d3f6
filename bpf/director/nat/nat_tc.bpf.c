/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * NAT's packets that XDP does not see, or not as they leave:
 *
 *   undo_nat                      replies of a backend on this host, where they leave (nat_tc_local.h)
 *   take_reply, take_bare_reply   full NAT's replies that come in by other interfaces than the
 *                                 director's (nat_tc_reply.h)
 *
 * These programs have the maps of the director's program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "director/vtep/none.h"

#include "director/nat/nat_tc_local.h"
#include "director/nat/nat_tc_reply.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Never stops a packet: all packets go on to the next program. */
SEC("tcx/egress")
int undo_nat(struct __sk_buff *skb)
{
	const struct settings *settings = get_settings();
	struct packet packet = {};
	struct translation t = {};
	__u32 reason = FORWARD_REPLY;

	if (!settings || !(settings->flags & SETTINGS_REPLIES))
		return TC_ACT_UNSPEC;
	if (parse_skb(skb, &packet, sizeof(struct ethhdr)) && undo_what(&packet, &t.to) &&
	    translate_skb(skb, &packet, &t))
		count(bpf_map_lookup_elem(&reasons, &reason), &packet);
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int take_reply(struct __sk_buff *skb)
{
	return return_skb(skb, sizeof(struct ethhdr));
}

/* Where packets have no Ethernet header. */
SEC("tcx/ingress")
int take_bare_reply(struct __sk_buff *skb)
{
	return return_skb(skb, 0);
}
