package netlab

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ReceiveXDP prepares a port for frames that an XDP program at the other end sends
// back (XDP_TX), by a program that passes everything. GRO is enough for frames
// that XDP redirects, but those that it sends back wait in the port's ring until
// something else wakes it (veth_xdp_flush in drivers/net/veth.c looks for a
// program only). Ports of switches on links for XDP have it already.
func (p *Port) ReceiveXDP() {
	p.Host.lab.try(p.passAll, "%s of %s: receive from XDP", p.Name, p.Host.Name)
}

func (p *Port) passAll() error {
	fd, err := loadPass()
	if err != nil {
		return fmt.Errorf("load a program that passes everything: %w", err)
	}
	defer unix.Close(fd)
	link, err := p.Host.nl.LinkByName(p.Name)
	if err != nil {
		return err
	}
	return p.Host.Do(func() error { return netlink.LinkSetXdpFdWithFlags(link, fd, unix.XDP_FLAGS_DRV_MODE) })
}

// loadPass loads an XDP program that returns XDP_PASS. It supports fragments:
// others forbid jumbo frames and segmentation offload.
func loadPass() (fd int, err error) {
	// struct bpf_insn: operation, registers, offset, immediate.
	instructions := [...]struct {
		code, registers uint8
		offset          int16
		immediate       int32
	}{
		{code: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, immediate: 2}, // r0 = XDP_PASS
		{code: unix.BPF_JMP | unix.BPF_EXIT},
	}
	license := [...]byte{'G', 'P', 'L', 0}
	// The beginning of union bpf_attr for BPF_PROG_LOAD (include/uapi/linux/bpf.h).
	attr := struct {
		kind, count           uint32
		instructions, license unsafe.Pointer
		logLevel, logSize     uint32
		log                   unsafe.Pointer
		kernel, flags         uint32
	}{
		kind: unix.BPF_PROG_TYPE_XDP, count: uint32(len(instructions)),
		instructions: unsafe.Pointer(&instructions), license: unsafe.Pointer(&license), flags: unix.BPF_F_XDP_HAS_FRAGS,
	}
	var r uintptr
	errno := unix.EAGAIN // the verifier was interrupted by a signal, which the Go runtime sends
	for errno == unix.EAGAIN {
		r, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(&attr)
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}
