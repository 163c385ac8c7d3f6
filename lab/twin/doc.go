// Package twin is second chance written a second time, from docs/internals/consistency.md and
// docs/internals/datapath.md: to which host a director sends a packet in gue and which others it names,
// whether a host keeps it, and where it goes from there; and what the options of a TCP header say
// about redirection. It is pure: it works on addresses and numbers, never on the bytes of a frame
// (except options), and gets the sockets of a host as a list. Tests compare it with the programs,
// and play histories with it that would take too many hosts. Nothing else imports it.
package twin
