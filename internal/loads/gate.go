package loads

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// gate is two sockets at one address: one gets datagrams from addresses whose agents have been
// believed, if they also have the director's number where a report has it, and the other one gets
// all others. The kernel tells them apart before it queues a datagram, so that a flood fills the
// second queue only. A forger can send from an agent's address, but has to see an agent's reports to
// know the number.
type gate struct {
	known, others *net.UDPConn

	mu      sync.Mutex // guards the following fields
	number  uint64     // the director's
	sources map[uint32]time.Time
}

// How many sources a gate knows, and how long a silent one keeps its place when another one wants
// it. A program of the classic BPF has at most 4,096 instructions.
const (
	sourcesMost = 1024
	sourceRests = time.Minute
)

// The sockets' order in their group, which is what the program returns. The program ends
// with 0 if it reads past the end of a short datagram.
const (
	toOthers = 0
	toKnown  = 1
)

func openGate(at netip.AddrPort, number uint64) (*gate, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		return errors.Join(c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }), failed)
	}}
	g := &gate{number: number, sources: map[uint32]time.Time{}}
	for _, conn := range []**net.UDPConn{&g.others, &g.known} {
		opened, err := config.ListenPacket(context.Background(), "udp", at.String())
		if err != nil {
			g.close()
			return nil, err
		}
		*conn = opened.(*net.UDPConn)
	}
	if err := g.attach(at.Addr().Is6()); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gate) close() {
	for _, conn := range []*net.UDPConn{g.known, g.others} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// believe notes that an agent at that address has been believed, and which number the director has
// now.
func (g *gate) believe(from netip.Addr, number uint64, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	from = from.Unmap()
	tag := tagOf(from)
	_, is := g.sources[tag]
	same := g.number == number
	g.number = number
	if !is && len(g.sources) >= sourcesMost {
		for other, heard := range g.sources {
			if now.Sub(heard) > sourceRests {
				delete(g.sources, other)
			}
		}
		if len(g.sources) >= sourcesMost {
			return nil // its datagrams stay among the others
		}
	}
	g.sources[tag] = now
	if is && same {
		return nil
	}
	return g.attach(from.Is6())
}

// tagOf is an IPv4 address, or the exclusive or of the words of an IPv6 address. Another address
// with the same tag is taken for it, but no message is believed for that.
func tagOf(a netip.Addr) (tag uint32) {
	for b := a.AsSlice(); len(b) >= 4; b = b[4:] {
		tag ^= binary.BigEndian.Uint32(b)
	}
	return tag
}

// attach gives the sockets a program that looks for the director's number, and for a datagram's
// source among the known ones. The lock is held, or the gate is not shared yet.
func (g *gate) attach(six bool) error {
	program := append(ofNumber(g.number), sourceTag(six)...)
	for tag := range g.sources {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: tag, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: toKnown})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: toOthers})
	raw, err := g.others.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("tell agents that are known from others: %w", err)
	}
	return nil
}

// ofNumber ends with toOthers unless a datagram has this number where reports have the director's.
func ofNumber(number uint64) []unix.SockFilter {
	var program []unix.SockFilter
	for i, word := range []uint32{uint32(number >> 32), uint32(number)} {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(directorAt + 4*i)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: word, Jt: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: toOthers})
	}
	return program
}

// sourceTag loads the tag of a datagram's source.
func sourceTag(six bool) []unix.SockFilter {
	const (
		network  = uint32(0xfff00000) // SKF_NET_OFF (include/uapi/linux/filter.h)
		load     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		source4  = network + 12
		source6  = network + 8
		lastWord = 12
	)
	if !six {
		return []unix.SockFilter{{Code: load, K: source4}}
	}
	program := []unix.SockFilter{{Code: load, K: source6}}
	for at := uint32(4); at <= lastWord; at += 4 {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX},
			unix.SockFilter{Code: load, K: source6 + at},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_XOR | unix.BPF_X})
	}
	return program
}
