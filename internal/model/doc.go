// Package model is weir's vocabulary: services, backends, segments and what the datapath must
// forward. Configuration, API and Kubernetes produce it, the engine reads it, the sinks receive it.
// It imports the standard library only.
//
// # Glossary
//
//   - Service: a VIP, protocol and port (or port range, or all ports) in a
//     segment, with its backends.
//   - Backend: a real server: name, address, weight, state.
//   - Director: a host that receives the VIP's traffic and forwards it.
//   - Group: the directors that announce the same VIPs and share one desired state.
//   - Mode: how a packet reaches the backend.
//   - Policy: how a new connection is placed.
//   - Segment: a tenant's network; the same VIP may exist in several.
//   - Ring: a service's Maglev lookup table; a slot of it has an owner and
//     further candidates, together its row.
//   - Agent: weir on a backend's host.
//   - Check: how directors find out whether a service's backends are well; a probe
//     is one question of it to one backend.
//   - Load: what a director knows about how busy a backend is.
//   - Generation: a version of a service's membership and weights.
//   - Log: the generations that some connection may still need.
package model
