/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What arrives at the sink: every packet is counted at the backend it was sent
 * to, and one of CHECK_EVERY per backend is taken apart.
 */
#pragma once

#include "traffic.h"

#define CHECK_EVERY 64
#define EVIDENCE_LENGTH 128
#define EVIDENCE_SHORT 60

/* How the balancer sends a packet on, and so where its backend is written. */
enum arrival_shape {
	ARRIVAL_BARE = 0,  /* as it was sent: there is one backend */
	ARRIVAL_L2DSR = 1, /* destination MAC */
	ARRIVAL_IPIP = 2,  /* outer destination */
	ARRIVAL_GUE = 3,
	ARRIVAL_NAT = 4, /* destination */
};

enum arrival_problem {
	ARRIVAL_NO_BACKEND = 0,    /* sent to no backend */
	ARRIVAL_MALFORMED = 1,     /* not the headers that it must have */
	ARRIVAL_WRONG_FLOW = 2,    /* addresses or ports that no source sends */
	ARRIVAL_WRONG_VIP = 3,     /* backend of another VIP */
	ARRIVAL_WRONG_BACKEND = 4, /* of this VIP, but not that of the flow */
	ARRIVAL_BAD_CHECKSUM = 5,
	ARRIVAL_NOT_HANDED_OVER = 6, /* the option does not say which VIP was called */
	ARRIVAL_WRONG_VNI = 7,       /* in a network of no tenant */
	ARRIVAL_WRONG_VTEP = 8,      /* at a VTEP that does not have its backend */
	ARRIVAL_FOREIGN = 9,         /* in another tenant's network, or at a VTEP of it */
	ARRIVAL_PROBLEMS,
};
#define ARRIVAL_FINE ARRIVAL_PROBLEMS

/* Set by the loader, as what is in traffic.h. */
const volatile enum arrival_shape shape;
const volatile __u8 outer6;
const volatile __u8 source_rewritten;      /* full NAT: the flow's number is gone */
const volatile __u8 handed_over;           /* the option of a SYN says its VIP; IPv4 */
const volatile __u16 backend_port;         /* NAT; 0: the service's */
const volatile __u32 backends_per_vip = 1; /* the last VIP also has what is left */
const volatile __u32 backend4;
const volatile __u32 backend6[4];

/* Several CPUs run the sink at a time: what they would all write costs each of them more than a packet. */
const volatile __u8 on_several_cpus;
const volatile __u8 only_counts; /* packets are not looked at */
const volatile __u8 checks_all;

/*
 * Backends of a tunnel: where backend n of tenant t is at home, VTEP_TENANT * t + n after the first, and where
 * it may have moved to.
 */
#define VTEP_TENANT 0x10000
#define VTEP_MOVED 0x8000
const volatile __u32 vtep4;
const volatile __u32 vtep6[4];
const volatile __u8 backends_move;

/* All packets, for programs that watch, where one CPU at a time runs the sink. */
__u64 arrived;

struct arrival {
	__u64 packets;
	__u64 bytes; /* of frames */
	__u64 checked;
	__u64 moved; /* packets that came to where the backend has moved to */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

/* By flow: two backends that it may go to, each plus 1; 0: any of its VIP's. */
struct expectation {
	__u16 before;
	__u16 after;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct expectation);
} expected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ARRIVAL_PROBLEMS);
	__type(key, __u32);
	__type(value, __u64);
} problems SEC(".maps");

/* The last packet that was wrong. */
struct evidence {
	enum arrival_problem problem;
	__u32 length;
	__u8 bytes[EVIDENCE_LENGTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evidence);
} wrong_packet SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

static __always_inline void *at(struct xdp_md *ctx, __u32 offset)
{
	return (void *)(long)ctx->data + offset;
}

static __always_inline int within(struct xdp_md *ctx, void *end)
{
	return end <= (void *)(long)ctx->data_end;
}

/* The number in an address's low half. MAC addresses have the IPv4 address's. */
static __always_inline __u32 backend_at(struct xdp_md *ctx, __u32 offset, __u32 base)
{
	__be16 *low = at(ctx, offset);

	if (!within(ctx, low + 1))
		return ~0U;
	return (__u16)(bpf_ntohs(*low) - base);
}

static __always_inline __u32 arrived_at(struct xdp_md *ctx)
{
	int six = shape == ARRIVAL_NAT ? ipv6 : outer6;

	if (shape == ARRIVAL_BARE)
		return 0;
	if (shape == ARRIVAL_L2DSR)
		return backend_at(ctx, overlay_length() + 4, backend4);
	if (six)
		return backend_at(ctx, overlay_length() + l2_length() + sizeof(struct ipv6hdr) - 2,
				  backend6[3]);
	return backend_at(ctx, overlay_length() + l2_length() + sizeof(struct iphdr) - 2, backend4);
}

/* GUE's own header counts the private data that follows it. */
static __always_inline __u32 gue_length(struct xdp_md *ctx, __u32 offset)
{
	__u8 *gue = at(ctx, offset + sizeof(struct udphdr));

	if (!within(ctx, gue + 1))
		return 0;
	return sizeof(struct udphdr) + 4 + (*gue & 0x1f) * 4;
}

static __always_inline __u32 inner_offset(struct xdp_md *ctx)
{
	__u32 offset = overlay_length() + l2_length();

	if (shape == ARRIVAL_IPIP || shape == ARRIVAL_GUE)
		offset += outer6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (shape == ARRIVAL_GUE)
		offset += gue_length(ctx, offset);
	return offset;
}

static __always_inline __u32 vip_of_backend(__u32 backend)
{
	__u32 vip = backend / backends_per_vip;

	return vip < vips ? vip : vips - 1;
}

/* The last word of the address that a tunnel's frame was sent to, from the first VTEP's on. */
static __always_inline __u32 vtep_at(struct xdp_md *ctx)
{
	__u32 before = overlay_length() - sizeof(struct udphdr) - sizeof(struct overlay_words);
	__be32 *low = at(ctx, before - sizeof(*low));

	if (!within(ctx, low + 1))
		return ~0U;
	return bpf_ntohl(*low) - (overlay6 ? vtep6[3] : vtep4);
}

/* The tenant whose network the frame came in. */
static __always_inline __u32 tenant_at(struct xdp_md *ctx)
{
	struct overlay_words *words = at(ctx, overlay_length() - sizeof(*words));

	if (!overlay_port)
		return 0;
	if (!within(ctx, words + 1) || bpf_ntohl(words->vni) & 0xff)
		return ~0U;
	return (bpf_ntohl(words->vni) >> 8) - overlay_vni;
}

/* Whether outer headers are such as tunnels have, with an Ethernet frame of the right kind inside. */
static __always_inline int has_outer(struct xdp_md *ctx)
{
	struct overlay_words *words = at(ctx, overlay_length() - sizeof(*words));
	struct ethhdr *outer = at(ctx, 0), *inside = (struct ethhdr *)(words + 1);
	struct udphdr *udp = (struct udphdr *)words - 1;
	struct ipv6hdr *ip6 = (struct ipv6hdr *)(outer + 1);
	struct iphdr *ip4 = (struct iphdr *)(outer + 1);
	__u32 l4 = overlay_length() - sizeof(*words) - sizeof(*udp), sum = 0;
	__u32 length = ctx->data_end - ctx->data - l4;

	if (!within(ctx, inside + 1) || udp->dest != bpf_htons(overlay_port) ||
	    words->first != bpf_htonl(overlay_first) || udp->len != bpf_htons(length) ||
	    bpf_ntohs(udp->source) < OVERLAY_PORT_FIRST ||
	    inside->h_proto != (ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP)))
		return 0;
	if (overlay6) /* Linux drops packets without a checksum; the source itself sends such */
		return outer->h_proto == bpf_htons(ETH_P_IPV6) && *(__u8 *)ip6 >> 4 == 6 &&
		       ip6->nexthdr == IPPROTO_UDP && ip6->payload_len == udp->len &&
		       (shape == ARRIVAL_BARE || udp->check);
#pragma unroll
	for (int i = 0; i < (int)sizeof(*ip4) / 2; i++)
		sum += bpf_ntohs(((__be16 *)ip4)[i]);
	return outer->h_proto == bpf_htons(ETH_P_IP) && *(__u8 *)ip4 == 0x45 && !udp->check &&
	       ip4->protocol == IPPROTO_UDP && !fold_sum(sum) &&
	       ip4->tot_len == bpf_htons(length + sizeof(*ip4));
}

/* Checks what is before the frame inside, and to which host it is: the backend is its number. */
static __always_inline enum arrival_problem check_outer(struct xdp_md *ctx, __u32 backend)
{
	__u32 tenant = tenant_at(ctx), vtep = vtep_at(ctx);

	if (!has_outer(ctx))
		return ARRIVAL_MALFORMED;
	if (tenant >= tenants)
		return ARRIVAL_WRONG_VNI;
	if (shape == ARRIVAL_BARE)
		return ARRIVAL_FINE;
	if (vtep / VTEP_TENANT != tenant)
		return vtep / VTEP_TENANT < tenants ? ARRIVAL_FOREIGN : ARRIVAL_WRONG_VTEP;
	vtep %= VTEP_TENANT;
	if (backends_move)
		vtep &= ~VTEP_MOVED;
	if (vtep != backend || backend_at(ctx, overlay_length() + 4, backend4) != backend)
		return ARRIVAL_WRONG_VTEP;
	return ARRIVAL_FINE;
}

/* The flow's number says whose it is where addresses do not. */
static __always_inline __u32 flow_of(__u32 offset, __u16 from_port, __u32 tenant)
{
	__u32 flow = offset | (__u32)(from_port - SOURCE_PORT_FIRST) << SOURCE_BITS;

	return tenants > 1 ? flow * tenants + tenant : flow;
}

/* Checks the flow that the ports and addresses name, as far as they do. */
static __always_inline enum arrival_problem check_flow(__u32 offset, __u16 from_port, __u32 backend,
						       __u32 tenant)
{
	__u32 flow = flow_of(offset, from_port, tenant);
	struct expectation *want;

	if (source_rewritten)
		return ARRIVAL_FINE;
	if (offset >> SOURCE_BITS || from_port < SOURCE_PORT_FIRST || flow >= flows)
		return ARRIVAL_WRONG_FLOW;
	if (shape == ARRIVAL_BARE)
		return ARRIVAL_FINE;
	if (vips > 1 && vip_of_backend(backend) != flow / tenants % vips)
		return ARRIVAL_WRONG_VIP;
	want = bpf_map_lookup_elem(&expected, &flow);
	if (want && want->before && want->before != backend + 1 && want->after != backend + 1)
		return ARRIVAL_WRONG_BACKEND;
	return ARRIVAL_FINE;
}

/* The VIP that the flow was sent to, or NAT's backend. */
static __always_inline __u32 destination_offset(__u32 offset, __u16 from_port, __u32 backend)
{
	if (shape == ARRIVAL_NAT)
		return backend;
	return vip_of(offset | (__u32)(from_port - SOURCE_PORT_FIRST) << SOURCE_BITS);
}

/* Adds up what asks to be redirected; a connection that was handed over says its VIP. */
static __always_inline enum arrival_problem check_options(void *l4, void *end, __u32 *sum)
{
	struct syn_options *options = l4 + sizeof(struct tcphdr);
	__u16 *words = (void *)options;

	if ((void *)(options + 1) > end)
		return ARRIVAL_MALFORMED;
	if (handed_over && (bpf_ntohl(options->redirect.vip) - vip4 >= vips ||
			    options->redirect.port != bpf_htons(service_port)))
		return ARRIVAL_NOT_HANDED_OVER;
#pragma unroll
	for (int i = 0; i < (int)sizeof(*options) / 2; i++)
		*sum += bpf_ntohs(words[i]);
	return ARRIVAL_FINE;
}

/* Whether what the tenant sent came in another one's network. */
static __always_inline int is_foreign(struct xdp_md *ctx, void *l4, __u32 tenant)
{
	__be32 *words = l4;

	return tenants > 1 && within(ctx, words + 3) && words[2] != bpf_htonl(tenant);
}

/* Over 20 bytes: those after UDP's 8 are zeros, as in the rest of the payload. */
static __always_inline enum arrival_problem check_l4(void *l4, void *end, __u32 sum)
{
	enum arrival_problem problem;
	__u16 *words = l4;

	if ((void *)(words + 10) > end)
		return ARRIVAL_MALFORMED;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += bpf_ntohs(words[i]);
	if (asks_redirect) {
		problem = check_options(l4, end, &sum);
		if (problem != ARRIVAL_FINE)
			return problem;
	}
	return fold_sum(sum + protocol) ? ARRIVAL_BAD_CHECKSUM : ARRIVAL_FINE;
}

static __always_inline __u16 destination_port(void)
{
	return shape == ARRIVAL_NAT && backend_port ? backend_port : service_port;
}

/* Whether Ethernet's header has the tag and the type that it must have. */
static __always_inline int has_l2(struct xdp_md *ctx)
{
	int tunnel = shape == ARRIVAL_IPIP || shape == ARRIVAL_GUE, six = tunnel ? outer6 : ipv6;
	__be16 type = six ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	__be16 *tag = at(ctx, offsetof(struct ethhdr, h_proto));

	if (overlay_port)
		return 1; /* see has_outer */
	if (!within(ctx, tag + 3))
		return 0;
	if (!vlan)
		return tag[0] == type;
	return tag[0] == bpf_htons(ETH_P_8021Q) && tag[1] == bpf_htons(vlan) && tag[2] == type;
}

static __always_inline enum arrival_problem check_ipv4(struct xdp_md *ctx, __u32 backend,
						       __u32 tenant)
{
	struct iphdr *ip = at(ctx, inner_offset(ctx));
	struct udphdr *l4 = (void *)(ip + 1); /* TCP's ports are at the same place */
	__u16 *words = (void *)ip;
	enum arrival_problem problem;
	__u32 sum = 0, addresses, from;

	if (!within(ctx, l4 + 1) || !has_l2(ctx) || *(__u8 *)ip != 0x45 || ip->protocol != protocol)
		return ARRIVAL_MALFORMED;
	from = bpf_ntohl(ip->saddr) - source4;
	if (is_foreign(ctx, l4, tenant))
		return ARRIVAL_FOREIGN;
	problem = check_flow(from, bpf_ntohs(l4->source), backend, tenant);
	if (problem != ARRIVAL_FINE)
		return problem;
	if (l4->dest != bpf_htons(destination_port()) ||
	    (!source_rewritten &&
	     ip->daddr != bpf_htonl((shape == ARRIVAL_NAT ? backend4 : vip4) +
				    destination_offset(from, bpf_ntohs(l4->source), backend))))
		return ARRIVAL_WRONG_FLOW;
#pragma unroll
	for (int i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += bpf_ntohs(words[i]);
	if (fold_sum(sum))
		return ARRIVAL_BAD_CHECKSUM;
	addresses = halves(bpf_ntohl(ip->saddr)) + halves(bpf_ntohl(ip->daddr));
	return check_l4(l4, (void *)(long)ctx->data_end,
			addresses + bpf_ntohs(ip->tot_len) - sizeof(*ip));
}

static __always_inline enum arrival_problem check_ipv6(struct xdp_md *ctx, __u32 backend,
						       __u32 tenant)
{
	struct ipv6hdr *ip = at(ctx, inner_offset(ctx));
	struct udphdr *l4 = (void *)(ip + 1);
	__u16 *words = (void *)&ip->saddr;
	enum arrival_problem problem;
	__u32 sum = 0, from, to;

	if (!within(ctx, l4 + 1) || !has_l2(ctx) || *(__u8 *)ip >> 4 != 6 ||
	    ip->nexthdr != protocol)
		return ARRIVAL_MALFORMED;
	from = bpf_ntohl(((__be32 *)&ip->saddr)[3]) - source6[3];
	to = bpf_ntohl(((__be32 *)&ip->daddr)[3]) - (shape == ARRIVAL_NAT ? backend6[3] : vip6[3]);
	if (is_foreign(ctx, l4, tenant))
		return ARRIVAL_FOREIGN;
	problem = check_flow(from, bpf_ntohs(l4->source), backend, tenant);
	if (problem != ARRIVAL_FINE)
		return problem;
	if (l4->dest != bpf_htons(destination_port()) ||
	    (!source_rewritten && to != destination_offset(from, bpf_ntohs(l4->source), backend)))
		return ARRIVAL_WRONG_FLOW;
#pragma unroll
	for (int i = 0; i < 16; i++)
		sum += bpf_ntohs(words[i]);
	return check_l4(l4, (void *)(long)ctx->data_end, sum + bpf_ntohs(ip->payload_len));
}

static __noinline int report(struct xdp_md *ctx, enum arrival_problem problem)
{
	__u32 index = problem, zero = 0;
	__u64 *count = bpf_map_lookup_elem(&problems, &index);
	struct evidence *packet = bpf_map_lookup_elem(&wrong_packet, &zero);

	if (count)
		++*count;
	if (!packet)
		return XDP_DROP;
	packet->problem = problem;
	packet->length = bpf_xdp_get_buff_len(ctx);
	/* All of it or, of a short frame, the bytes that every frame has. */
	if (bpf_xdp_load_bytes(ctx, 0, packet->bytes, EVIDENCE_LENGTH))
		bpf_xdp_load_bytes(ctx, 0, packet->bytes, EVIDENCE_SHORT);
	return XDP_DROP;
}

/* Packets between the hosts of the lab themselves are no traffic. */
static __always_inline int is_housekeeping(struct xdp_md *ctx)
{
	struct ethhdr *ethernet = at(ctx, 0);

	return within(ctx, ethernet + 1) &&
	       (ethernet->h_dest[0] & 1 || ethernet->h_proto == bpf_htons(ETH_P_ARP));
}

static __always_inline int arrive(struct xdp_md *ctx)
{
	__u32 backend = arrived_at(ctx);
	struct arrival *arrival = bpf_map_lookup_elem(&arrivals, &backend);
	enum arrival_problem problem;
	__u32 tenant;

	if (is_housekeeping(ctx))
		return XDP_PASS;
	if (!arrival)
		return report(ctx, ARRIVAL_NO_BACKEND);
	if (!on_several_cpus)
		arrived++;
	arrival->bytes += ctx->data_end - ctx->data;
	if (backends_move && vtep_at(ctx) & VTEP_MOVED)
		arrival->moved++;
	if (arrival->packets++ % CHECK_EVERY && !checks_all)
		return XDP_DROP;
	arrival->checked++;
	problem = overlay_port ? check_outer(ctx, backend) : ARRIVAL_FINE;
	if (problem != ARRIVAL_FINE)
		return report(ctx, problem);
	tenant = tenant_at(ctx);
	problem = ipv6 ? check_ipv6(ctx, backend, tenant) : check_ipv4(ctx, backend, tenant);
	return problem == ARRIVAL_FINE ? XDP_DROP : report(ctx, problem);
}
