// Package agent is weir on a backend's host. It puts bpf/host/host.bpf.c into the kernel,
// which unwraps what directors send, passes on what has no connection here, and
// clamps the MSS of what VIPs offer, holds VIPs on the loopback interface, and sets
// what Linux must be told so that the host neither answers nor announces them. It
// outlives its process: what is pinned keeps working, and Open adopts it.
//
// Known limits:
//
//   - A process on this host that connects to one of its VIPs reaches this host:
//     the VIP is on lo.
//   - A host is in one segment: services that differ in their segment only are one
//     service to it.
//   - Sockets in other network namespaces are seen in those that are named, and found
//     by the VIP only: see model.Agent.
//   - Outer packets in fragments or with IP options are left to the kernel.
package agent
