package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/test/chaos/traffic"
)

// Which packets of a port a socket sees.
const (
	incoming = unix.PACKET_HOST
	outgoing = unix.PACKET_OUTGOING
)

// nobody stands for the unknown sender of resets.
const nobody = -1

// watchAnswers tells the tracker of every TCP reset and SYN-ACK of a backend that a port sends or
// gets, until the context ends. Clients see sequence numbers that are larger by the offset than on
// that port.
func watchAnswers(ctx context.Context, port *netlab.Port, direction uint32, backend int, offset uint32, tracker *traffic.Tracker) error {
	var fd int
	err := port.Host.Do(func() (err error) {
		fd, err = openAnswers(port.Index, direction)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch %s of %s: %w", port.Name, port.Host.Name, err)
	}
	go func() {
		defer unix.Close(fd)
		packet := make([]byte, 128)
		for ctx.Err() == nil {
			n, _, err := unix.Recvfrom(fd, packet, 0)
			from, client, flags, seq, ok := answer(packet[:max(n, 0)])
			switch {
			case err != nil || !ok:
			case flags&rst != 0:
				tracker.ResetBy(backend, client, seq+offset)
			case backend != nobody:
				tracker.AnsweredBy(backend, from, client, seq+offset)
			}
		}
	}()
	return nil
}

// openAnswers makes a socket of the calling thread's host that gets the resets and SYN-ACKs
// that the interface sends or gets.
func openAnswers(ifindex int, direction uint32) (fd int, err error) {
	// Bind sets the protocol: before that, the socket must not see other ports.
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	const all = unix.ETH_P_ALL << 8 // network order
	for _, step := range []func() error{
		func() error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, answerFilter(direction))
		},
		// Reads time out, so that the context's end is noticed.
		func() error {
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
		},
		func() error { return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex}) },
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// The TCP flags that the filter tests.
const (
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// answerFilter passes IPv4 packets with a TCP reset or SYN-ACK that go one way. The socket's packets
// begin with the IP header.
func answerFilter(direction uint32) *unix.SockFprog {
	const (
		protocol = uint32(0xfffff000) // SKF_AD_OFF + SKF_AD_PROTOCOL (include/uapi/linux/filter.h)
		kind     = protocol + 4       // SKF_AD_OFF + SKF_AD_PKTTYPE
	)
	equal := func(value uint32, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: otherwise}
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: protocol},
		equal(unix.ETH_P_IP, 10),
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: kind},
		equal(direction, 8),
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		equal(unix.IPPROTO_TCP, 6),
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: rst, Jt: 2},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		equal(syn|ack, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: 128},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
}

// answer returns the sender and the receiver of an IPv4 TCP packet, its flags and its sequence
// number.
func answer(packet []byte) (from netip.Addr, client netip.AddrPort, flags byte, seq uint32, ok bool) {
	const least = 20
	if len(packet) < least {
		return from, client, 0, 0, false
	}
	header := int(packet[0]&15) * 4
	if len(packet) < header+least {
		return from, client, 0, 0, false
	}
	tcp := packet[header:]
	client = netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[16:20])), binary.BigEndian.Uint16(tcp[2:]))
	return netip.AddrFrom4([4]byte(packet[12:16])), client, tcp[13], binary.BigEndian.Uint32(tcp[4:]), true
}
