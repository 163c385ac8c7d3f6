package model

import (
	"maps"
	"slices"
)

// reasons say in words what the labels of enum reason in bpf/abi/types.h mean.
var reasons = map[string]string{
	"pass_not_ip":            "neither IPv4 nor IPv6: the kernel gets it",
	"pass_no_service":        "not for any service: the kernel gets it",
	"pass_malformed":         "a header is cut short or contradicts itself: the kernel gets it",
	"pass_unsupported":       "an IPv6 header chain that weir does not follow: the kernel gets it",
	"pass_ttl_expired":       "its TTL has expired: the kernel answers",
	"pass_local":             "the backend is this host",
	"pass_reply_unrouted":    "a reply of a nat backend, translated: the kernel routes it",
	"pass_sent_already":      "another director has sent it: the frame is for another host, because a switch floods it, or two directors have sent it back and forth",
	"pass_kernel_source":     "the service leaves packets from there to the kernel (kernel-sources)",
	"forward_l2dsr":          "sent to the backend's MAC address",
	"forward_ipip":           "sent to the backend in IPIP",
	"forward_gue":            "sent to the backend in GUE",
	"forward_nat":            "sent to the backend's address",
	"forward_redirect":       "sent to the backend's address, with what lets both hosts go on without the director",
	"forward_reply":          "a reply of a nat backend, sent to the client",
	"forward_icmp_error":     "sent to whom the flow belongs that it is about",
	"forward_fragment":       "sent where its packet's first fragment went",
	"forward_fragment_owner": "sent to the director of the group where its packet's fragments meet",
	"forward_fragment_waits": "sent between directors of the group until the first fragment has been there",
	"forward_fragment_met":   "sent to the director of the group that the first fragment came to",
	"answer_echo":            "a ping of a VIP, answered",
	"answer_too_big":         "does not fit on the way to the backend: answered with an ICMP error that says what would",
	"answer_probe":           "a probe of another director of the group, answered",
	"drop_no_backend":        "no candidate is up",
	"drop_too_big_limited":   "does not fit on the way to the backend, and the budget for ICMP errors is spent",
	"drop_super_frame":       "longer than the MTU of the director's links: some sender's segmentation offload reached XDP",
	"drop_fragment_unknown":  "its packet's first fragment was not seen here",
	"drop_fragment_astray":   "from a director of the group, as none would send it",
	"drop_snat_full":         "every source port that the flow may have is taken, or its service or segment has its part of them",
	"drop_snat_clash":        "the client's port has a connection to this backend by another VIP",
	"drop_snat_unknown":      "full NAT knows no such flow, and it does not begin one",
	"drop_no_headroom":       "the driver leaves no room for the outer header",
	"drop_redirect_failed":   "the interface that leads to the backend does not take XDP frames",
	"drop_source_range":      "the client is in none of the service's source-ranges",
	"drop_source_vip":        "it comes from a VIP: whoever answers it sends to the directors again",
	"drop_source_backend":    "it comes from the very address and port where a backend of the service serves",
	"drop_source_invalid":    "it comes from an unspecified, loopback, multicast or broadcast address: nobody's",
	"drop_no_service":        "to a VIP, at a port or of a kind that no service has: the kernel would send it back to a router",
	"drop_answer_late":       "from a VIP to a connection of this host that is over, a health check's: the kernel would reset it, to the VIP",
	"pass_overlay_vni":       "in a tunnel whose VNI is of no segment: the kernel gets it",
	"pass_overlay_astray":    "in a tunnel, and the frame inside is for another host: the kernel gets it",
	"answer_neighbor":        "a question by ARP or NDP in a tunnel, answered",
	"drop_overlay_peer":      "in a tunnel from a host that is no VTEP of the segment",
	"drop_overlay_malformed": "in a tunnel whose headers are cut short or contradict themselves",
	"drop_overlay_option":    "in a tunnel of Geneve with a critical option that weir does not know",
	"drop_overlay_congested": "in a tunnel that a router has marked as congested, and it cannot be marked itself",
	"drop_overlay_host":      "a reply of a nat backend, and nothing says where in the segment its client is",
	"drop_fragment_ports":    "the first fragment of a packet of SCTP whose ports nat would change: its checksum is of the whole packet, and cannot be mended",
	"drop_segment_limit":     "its segment has had all packets that it may have in a second (limits.packets-per-second)",
}

// Reasons are the labels of all reasons, sorted.
func Reasons() []string { return slices.Sorted(maps.Keys(reasons)) }

// ReasonText says in words what a reason means; empty: there is no such reason.
func ReasonText(reason string) string { return reasons[reason] }
