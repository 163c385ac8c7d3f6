// Package neighbor answers for VIPs on links where no router is told of them: hosts on the
// link ask by ARP (RFC 826) and NDP (RFC 4861) whose a VIP is, and get this director's
// address; who has another one's is told without asking.
//
// The VIPs are on no interface: packets for them are the datapath's. So the kernel does not
// answer, and what asks is read by packet sockets behind XDP.
//
// In a group each VIP is answered for by one director, which is written in the group's
// [Registry] and ends with the director's lease. A director looks at its own clock before
// every frame: who cannot prolong its lease is silent before it ends, and before anybody
// else can have the VIP. Which director should have which VIP is a pure function of what is
// written there ([plan]).
package neighbor
