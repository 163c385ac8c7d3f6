// Package loads carries the loads of backends from their hosts' agents to directors, some ten to a
// hundred times a second: how many connections a server has open, how many of them wait for it, and
// how busy its CPUs are. [Sender] is the agent's part, [Receiver] the director's; [Aggregator] is what a
// director makes of it.
//
// Reports are UDP, at most 1,200 bytes, so that no path has to fragment them. Each is complete: the
// next one makes up for a lost one. Numbers are in network order. Each begins and ends alike:
//
//	4   "WL", the version of the format (1), the kind
//	4   which key: the first bytes of the SHA-256 of "weir loads" and the key
//	8   the agent's number: a random one for each process, but for the last three bytes: two count
//	    the director's numbers that it has been told, and the last says to which of the addresses
//	    that it reports to
//	8   the director's number: the same; 0 in reports of an agent that has not heard it yet
//	    what follows by kind
//	16  the first bytes of the HMAC-SHA256, by the key, of all that comes before
//
// Kind 1 is a report from an agent to a director:
//
//	8   sequence: more than in all reports of this agent's number before
//	2   milliseconds to the next report, at most
//	2   how many loads follow; each is
//	    1     bit 0: the VIP is IPv6; bit 1: the backend is; others 0
//	    4     segment: kind << 24 | id
//	    2, 2  the service's first and last port; 0, 0: all. All services are TCP
//	    2     the backend's port, 0: the packet's own
//	    4     connections that are open
//	    4     of these, in an accept queue
//	    2     CPU pressure: 65,535 is all of the time
//	          the VIP, the backend: 4 or 16 bytes
//
// Kind 2, from a director to an agent, has nothing more. It answers a report that has another
// director number than its own, such as that of an earlier process, and the agent's next report has
// the right one. So nothing that was sent to an earlier process is believed, and no clocks have to
// agree; what was sent to this one is believed once, by its sequence. An answer is shorter than the
// report, and only senders that have the key get one. It has the agent's number of the report, which
// the agent changes when it takes an answer: so it takes no answer of an earlier process again.
package loads
