package neighbor

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Packets are read behind XDP, which passes on packets of no service: packet sockets see what the
// program left, before the kernel handles it.

// kinds are the frames that a director listens to, each with its own socket.
var kinds = []struct {
	name      string
	etherType uint16
	only      func(l3 uint32) []unix.SockFilter // of the frames of that type
}{
	{"ARP", etherTypeARP, func(uint32) []unix.SockFilter { return nil }},
	{"NDP", etherTypeIPv6, func(l3 uint32) []unix.SockFilter {
		return slices.Concat(only(unix.BPF_B, l3+6, protocolICMPv6), only(unix.BPF_B, l3+7, hopLimit), []unix.SockFilter{
			load(unix.BPF_B, l3+ipv6Length), jump(unix.BPF_JEQ, neighborSolicitation, 1, 0), jump(unix.BPF_JEQ, neighborAdvert, 0, jumpToDrop)})
	}},
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

// filter takes frames for this interface with these tags, and no others. Sockets also see frames of a
// VLAN interface on top of it (with another index), of other VLANs, for other hosts, and those that
// this host sends. The kernel keeps the outer tag aside.
func filter(index int, tags []uint16, etherType uint16, more func(l3 uint32) []unix.SockFilter) []unix.SockFilter {
	code := []unix.SockFilter{load(unix.BPF_B, aboutType), jump(unix.BPF_JGE, unix.PACKET_OTHERHOST, jumpToDrop, 0)}
	code = append(code, only(unix.BPF_W, aboutIndex, uint32(index))...)
	id := unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: vlanID}
	outer, at := uint32(0), uint32(typeAt)
	if len(tags) > 0 {
		outer = uint32(tags[0])
	}
	code = append(code, load(unix.BPF_W, aboutVLAN), id, jump(unix.BPF_JEQ, outer, 0, jumpToDrop))
	if len(tags) > 1 {
		code = append(code, load(unix.BPF_H, typeAt), jump(unix.BPF_JEQ, etherTypeTag, 1, 0), jump(unix.BPF_JEQ, etherTypeServiceTag, 0, jumpToDrop),
			load(unix.BPF_H, typeAt+2), id, jump(unix.BPF_JEQ, uint32(tags[1]), 0, jumpToDrop))
		at += tagLength
	}
	code = append(code, only(unix.BPF_H, at, uint32(etherType))...)
	code = append(code, more(at+2)...)
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

// openSocket returns a socket for frames of one type with these tags on an interface, both ways. A
// tag is seen only where all frames are, before the kernel looks for a VLAN interface: without one it
// removes the tag. So each of these sockets costs a look at every packet that XDP leaves to the kernel
// there. Each segment has its own: a tenant's flood does not fill the queue of another one's.
func openSocket(index int, tags []uint16, etherType uint16, more func(l3 uint32) []unix.SockFilter) (*os.File, error) {
	// Without a protocol it gets no frames before its filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	protocol := etherType
	if len(tags) > 0 {
		protocol = unix.ETH_P_ALL
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1), unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("set up packet socket: %w", err), unix.Close(fd))
		}
	}
	code := filter(index, tags, etherType, more)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol>>8 | protocol<<8, Ifindex: index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up packet socket: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "neighbor"), nil
}
