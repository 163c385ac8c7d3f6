package neighbor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Packets are read behind XDP, which passes on packets of no service: packet sockets see what the
// program left, before the kernel handles it.

// kinds are the frames that a director listens to, each with its own socket.
var kinds = []struct {
	name      string
	etherType uint16
	only      []unix.SockFilter // of the frames of that type
}{
	{"ARP", etherTypeARP, nil},
	{"NDP", etherTypeIPv6, append(append(
		only(unix.BPF_B, ethernetLength+6, protocolICMPv6),
		only(unix.BPF_B, ethernetLength+7, hopLimit)...),
		load(unix.BPF_B, ethernetLength+ipv6Length),
		jump(unix.BPF_JEQ, neighborSolicitation, 1, 0),
		jump(unix.BPF_JEQ, neighborAdvert, 0, jumpToDrop))},
}

// jumpToDrop stands for the distance to the instruction before the last.
const jumpToDrop = 255

// The kernel's metadata of a packet (linux/filter.h).
const (
	aboutType  = 0xfffff000 + 4
	aboutIndex = 0xfffff000 + 8
	aboutVLAN  = 0xfffff000 + 44
)

func load(size uint16, at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
}

func jump(test uint16, value uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: value}
}

// only drops packets that have another value there.
func only(size uint16, at, value uint32) []unix.SockFilter {
	return []unix.SockFilter{load(size, at), jump(unix.BPF_JEQ, value, 0, jumpToDrop)}
}

// filter takes frames for this interface. Sockets also see frames of a VLAN interface on top of it
// (with another index), of VLANs without an interface, for other hosts, and those that this host
// sends.
func filter(index int, etherType uint16, more []unix.SockFilter) []unix.SockFilter {
	code := []unix.SockFilter{load(unix.BPF_B, aboutType), jump(unix.BPF_JGE, unix.PACKET_OTHERHOST, jumpToDrop, 0)}
	code = append(code, only(unix.BPF_W, aboutIndex, uint32(index))...)
	code = append(code, load(unix.BPF_W, aboutVLAN), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xfff},
		jump(unix.BPF_JEQ, 0, 0, jumpToDrop))
	code = append(code, only(unix.BPF_H, 12, uint32(etherType))...)
	code = append(code, more...)
	const take, drop = 0xffff, 0
	code = append(code, unix.SockFilter{Code: unix.BPF_RET, K: take}, unix.SockFilter{Code: unix.BPF_RET, K: drop})
	for i := range code {
		far := uint8(len(code) - 1 - (i + 1))
		if code[i].Jt == jumpToDrop {
			code[i].Jt = far
		}
		if code[i].Jf == jumpToDrop {
			code[i].Jf = far
		}
	}
	return code
}

// openSocket returns a socket for frames of one type on an interface, both ways.
func openSocket(index int, etherType uint16, more []unix.SockFilter) (*os.File, error) {
	// Without a protocol it gets no frames before its filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	code := filter(index, etherType, more)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType>>8 | etherType<<8, Ifindex: index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up packet socket: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "neighbor"), nil
}
