package netlab

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
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
	// It supports fragments: others forbid jumbo frames and segmentation offload.
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load a program that passes everything: %w", err)
	}
	defer pass.Close()
	link, err := p.Host.nl.LinkByName(p.Name)
	if err != nil {
		return err
	}
	return p.Host.Do(func() error { return netlink.LinkSetXdpFdWithFlags(link, pass.FD(), unix.XDP_FLAGS_DRV_MODE) })
}

const xdpPass = 2 // enum xdp_action of linux/bpf.h
