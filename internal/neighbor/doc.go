// Package neighbor answers for VIPs on links where no router is told of them: hosts on the link ask
// by ARP (RFC 826) and NDP (RFC 4861) for a VIP, and get this director's address; hosts that have
// another director's are told without asking.
//
// The VIPs are on no interface: packets for them are the datapath's. So the kernel does not answer,
// and packet sockets behind XDP read the questions.
//
// In a group one director answers for each VIP; the group's [Registry] says which, until the
// director's lease ends. A director looks at its own clock before every frame: one that cannot
// prolong its lease is silent before it ends, and before another one can have the VIP. Which
// director should have which VIP is a pure function of the registry ([plan]).
package neighbor
