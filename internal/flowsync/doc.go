// Package flowsync makes the directors of a group share what they remember of
// flows, so that it outlives each of them.
//
// Each director dials every other one, and the dialed director shares with the dialing one: first
// all that it remembers, then what it learns, some milliseconds later. The connections are
// TCP under TLS 1.3. Both ends show the certificate that they have made when they started
// and whose fingerprint they have written under their address where only directors can
// write ([Identities]): a stranger that could share flows could send them anywhere.
//
// The application protocol that TLS agrees on is "weir-flows/3": the number changes with the
// format. A director also speaks "weir-flows/2", without full NAT's flows, and "weir-flows/1" with
// one that knows no other. Flows that are
// fresh (model.FlowClass) are shared within a budget, because they may be of a flood, and their
// receiver takes them for fresh ones, too. "weir-flows/1" does not say the class: what is heard
// by it is fresh. The dialing director sends nothing. The other one sends frames: the length of
// what follows, 4 bytes; a kind, 1 byte; and, in frames of flows, one flow after the other.
// Numbers are in network order.
//
//	kind 1  flows
//	kind 2  all that was remembered has been shared, for the first time or again
//	kind 3  nothing, so that it is known that somebody is there
//	kind 4  not in weir-flows/1: how many fresh flows of each service were reset in the last
//	        minute; in place of kind 3, and of what kind 4 said before
//	kind 5  not in weir-flows/1 and /2: flows of full NAT, which are proved or, if the backend has
//	        answered, fresh
//
// A flow has these bytes, where addresses are 4 or 16:
//
//	1       bit 0: the client's and the VIP's address are IPv6; bit 1: the backend's is;
//	        bits 2 and 3: model.RememberedState; bits 4 and 5, not in weir-flows/1:
//	        model.FlowClass; others 0
//	1       protocol of IP: 6 or 17
//	2       age: since its last packet, in units of 2^30 ns
//	4       segment: kind << 24 | id
//	2, 2    the service's first and last port; 0, 0: all
//	2       the port of the flow's packets
//	2       the client's port
//	2       the backend's port, 0: the packet's own
//	4       not in weir-flows/1: TCP: the sequence number that the client goes on with, 0:
//	        not known
//	        the VIP, the client, the backend
//
// A flow of full NAT has these bytes behind them:
//
//	1       bit 0: the numbers are known; bit 1: its director announces the address; bits 2 and
//	        3: the client, the backend has sent a FIN; bit 4: its own director tells of it; others 0
//	2       the port that the flow has at its director
//	2       TCP: the port of the host that has taken the connection over, 0: none has
//	4, 4    TCP: the sequence numbers that the client and the backend go on with; of a proved
//	        flow the lower halves are 0
//	        the address that the flow has at its director, of the VIP's family
//
// A count of resets has these bytes:
//
//	1       bit 0: the VIP is IPv6; others 0
//	1       protocol of IP: 6
//	4       segment, as above
//	2, 2    the service's first and last port; 0, 0: all
//	4       flows
//	        the VIP
package flowsync
