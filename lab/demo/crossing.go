package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// crossings counts the TCP and UDP packets on the directors' cables from a VIP to a client: replies
// that crossed a director. (Backends' answers to health checks come from a VIP, too, but go to a
// director.) Both directions are counted, at the far ends, because a director's own kernel never
// sees what XDP sends on.
type crossings struct {
	counts  *ebpf.Map // of packets, by VIP
	program *ebpf.Program
	sockets []int
}

// countCrossings watches those ports for those VIPs' packets to those clients.
func countCrossings(ports []*netlab.Port, rows []*row, clients []netip.Addr) (_ *crossings, err error) {
	c := &crossings{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	c.counts, err = ebpf.NewMap(&ebpf.MapSpec{Name: "crossings", Type: ebpf.Hash,
		KeySize: 16, ValueSize: 8, MaxEntries: uint32(len(rows))})
	if err != nil {
		return nil, fmt.Errorf("make map of crossings: %w", err)
	}
	for _, r := range rows {
		if err := c.counts.Put(r.vip.As16(), uint64(0)); err != nil {
			return nil, fmt.Errorf("add %s to crossings: %w", r.vip, err)
		}
	}
	c.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "crossings", Type: ebpf.SocketFilter,
		License: "Dual BSD/GPL", Instructions: crossingProgram(c.counts, clients)})
	if err != nil {
		return nil, fmt.Errorf("load counter of crossings: %w", err)
	}
	for _, port := range ports {
		if err := port.Host.Do(func() error { return c.watch(port.Index) }); err != nil {
			return nil, fmt.Errorf("watch %s of %s: %w", port.Name, port.Host.Name, err)
		}
	}
	return c, nil
}

func (c *crossings) watch(ifindex int) error {
	// The socket gets its protocol only when it is bound: it must not see packets of other ports.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.sockets = append(c.sockets, fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, c.program.FD()); err != nil {
		return err
	}
	const all = unix.ETH_P_ALL << 8 // network order
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex})
}

// crossingProgram counts a packet under its source address, or each segment that GRO merged into
// it, and passes nothing of it to the socket.
func crossingProgram(counts *ebpf.Map, clients []netip.Addr) asm.Instructions {
	const (
		etherType = 12
		network   = 14
		key       = -16 // 16 bytes on the stack
		gsoSegs   = 164 // in struct __sk_buff (include/uapi/linux/bpf.h)
	)
	load := func(offset, to, length int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, offset),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, to), asm.Mov.Imm(asm.R4, length),
			asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, "out"),
		}
	}
	transportOnly := asm.Instructions{ // the protocol is in R0
		asm.JEq.Imm(asm.R0, unix.IPPROTO_TCP, "count"), asm.JEq.Imm(asm.R0, unix.IPPROTO_UDP, "count"), asm.Ja.Label("out"),
	}
	var p asm.Instructions
	p = append(p, asm.Mov.Reg(asm.R6, asm.R1), asm.LoadAbs(etherType, asm.Half),
		asm.JEq.Imm(asm.R0, unix.ETH_P_IPV6, "ipv6"), asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "out"))
	// IPv4 addresses are mapped into IPv6, as netip.Addr.As16 does.
	p = append(p, asm.StoreImm(asm.RFP, key, 0, asm.Word), asm.StoreImm(asm.RFP, key+4, 0, asm.Word),
		asm.StoreImm(asm.RFP, key+8, 0, asm.Half), asm.StoreImm(asm.RFP, key+10, 0xffff, asm.Half))
	p = append(p, load(network+12, key+12, 4)...)
	p = append(p, onlyTo(clients, false, network+16)...)
	p = append(p, asm.LoadAbs(network+9, asm.Byte))
	p = append(p, transportOnly...)
	ipv6 := load(network+8, key, 16)
	ipv6[0] = ipv6[0].WithSymbol("ipv6")
	p = append(p, ipv6...)
	p = append(p, onlyTo(clients, true, network+24)...)
	p = append(p, asm.LoadAbs(network+6, asm.Byte))
	p = append(p, transportOnly...)
	return append(p,
		asm.LoadMapPtr(asm.R1, counts.FD()).WithSymbol("count"), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.R6, gsoSegs, asm.Word), asm.JNE.Imm(asm.R1, 0, "add"), asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord).WithSymbol("add"),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
}

// onlyTo passes only packets to the family's client.
func onlyTo(clients []netip.Addr, six bool, destination int32) (p asm.Instructions) {
	for _, client := range clients {
		if client.Is6() != six {
			continue
		}
		for i, bytes := 0, client.AsSlice(); i < len(bytes); i += 4 {
			p = append(p, asm.LoadAbs(destination+int32(i), asm.Word),
				asm.LoadImm(asm.R1, int64(binary.BigEndian.Uint32(bytes[i:])), asm.DWord), asm.JNE.Reg(asm.R0, asm.R1, "out"))
		}
	}
	return p
}

// of returns how many replies of a VIP crossed a director.
func (c *crossings) of(vip netip.Addr) (uint64, error) {
	var n uint64
	if err := c.counts.Lookup(vip.As16(), &n); err != nil {
		return 0, fmt.Errorf("read crossings of %s: %w", vip, err)
	}
	return n, nil
}

func (c *crossings) close() error {
	var errs []error
	for _, fd := range c.sockets {
		errs = append(errs, unix.Close(fd))
	}
	if c.program != nil {
		errs = append(errs, c.program.Close())
	}
	if c.counts != nil {
		errs = append(errs, c.counts.Close())
	}
	return errors.Join(errs...)
}
