// Package model is weir's vocabulary: services, backends, segments and what the datapath must
// forward. Configuration, API and Kubernetes produce it, the engine reads it, the sinks receive it.
// It imports the standard library only.
//
// # Glossary
//
// What is balanced:
//
//   - Service: a VIP, protocol and port (or port range, or all ports) in a segment, with its backends.
//   - VIP: the address that clients send to.
//   - Backend: a real server of a service: name, address, weight, state.
//   - Tier: of backends: the next tier gets new connections while fewer than min-healthy backends of the tiers above it are healthy, and gives them back.
//   - Segment: a tenant's network; the same VIP may exist in several.
//   - VTEP: where tunnels of tenants' networks in VXLAN and Geneve begin and end: a hypervisor, a leaf switch or a director, by its address.
//   - VNI: the number of a tenant's network in the headers of these tunnels.
//   - Peer: a VTEP from which a director takes packets.
//   - Host: of a segment: a machine in it, a backend or a client, with its address, MAC address and VTEP.
//   - Mode: how a packet reaches the backend: l2dsr, ipip, gue, nat or redirect.
//   - Fallback: the mode for connections of a redirect service that cannot be redirected.
//   - Policy: how a backend is chosen for a new connection: maglev, random, round-robin, p2c or least-conn.
//   - Pod: a backend in a network namespace of another host, which its host's agent reaches.
//
// Where it runs:
//
//   - Director: a host that receives the VIP's traffic and forwards it.
//   - Agent: weir on a backend's host, or on a client's host for redirect.
//   - Group: the directors that announce the same VIPs and share one desired state.
//   - Set: the services of one owner in a director's store, beside those of its file.
//   - Owner: of a set: the client of the API that may change it. Of a slot: the backend that gets its new flows.
//   - Problem: something that was asked for and does not run; it is listed until it does.
//   - Part: something of the host that weir owns and repairs, such as an address or a sysctl.
//
// How a backend is found:
//
//   - Flow: protocol, addresses and ports of a connection, or of datagrams.
//   - Ring: a service's lookup table, by weighted Maglev: a header, slots, and lists of candidates.
//   - Slot: an entry of a ring; a flow's hash chooses it.
//   - Row: the candidates of a slot, in order: the owner, its backup, and backends that may have older flows. In a GUE packet: the other hosts that may have the packet's flow.
//   - Candidate: a backend of a row. The first candidate that is up gets the packet.
//   - Backup: the candidate that takes over a slot when its owner is down.
//   - Settling: a slot whose remembered flows may still be of another backend than its owner; its packets go on asking flow memory.
//   - Generation: a version of a service's membership and weights.
//   - Log: the generations that some connection may still need.
//   - Flow memory: what a director remembers of flows whose backend the ring alone does not say.
//   - Rule: an entry of a NIC's flow table (an ntuple filter), which leads the packets of one flow to a receive queue.
//   - Steering: rules for the flows with the most packets, so that the director needs fewer lookups for their packets.
//   - Fan-out: the CPUs of a NIC's receive queues give packets of expensive services to other CPUs.
//   - Usual way: the lookups that a packet needs which no rule leads.
//   - Fresh, sustained, proved: how much of a flow has been seen: less than 2 s of it; 2 s in sequence, from one side; both sides with the right numbers.
//   - Share, import: a director shares a flow with the others of its group, and they import it. Programs, maps and counters call this tell and told.
//   - Second chance: an agent without a packet's connection sends the packet to the next host of its row.
//   - Reason: what became of a packet; each packet counts once, under one.
//
// How backends are judged:
//
//   - Check: how directors find out whether a service's backends are well.
//   - Probe: one question of a check to one backend.
//   - Load: what a director knows about how busy a backend is.
//   - Report: what an agent tells directors: load, or which backends still have connections of which generation.
//   - Slow start: a backend that comes gets its share step by step.
//
// How something ends:
//
//   - Draining: a backend's state: it keeps its connections and gets no new ones.
//   - Drain: weir drain makes a backend draining beside the file, until weir undrain.
//   - Retention: how long a generation that was replaced stays in the log, because flows may need it: services[].retention.
//   - Grace period: how long a director that is told to end goes on forwarding after it has withdrawn its VIPs: weir run --grace-period.
package model
