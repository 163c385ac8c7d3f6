package netlab

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// JoinVLAN puts the port into a VLAN, with programs because a kernel may lack VLAN devices: outgoing
// frames get the tag, none with ID 0, and incoming ones lose it. A strict port accepts no frames of
// other VLANs. It lasts until the returned function is called.
func (p *Port) JoinVLAN(id uint16, strict bool) (leave func(), err error) {
	return p.tag(id, strict, ebpf.AttachTCXEgress, ebpf.AttachTCXIngress)
}

// Access makes the port, of a switch, an access port of a VLAN: what comes in gets the tag, and only frames of the
// VLAN go out, without it. Frames that an XDP program of the host sends are in the VLAN, too. It lasts until the
// returned function is called.
func (p *Port) Access(id uint16) (leave func(), err error) {
	return p.tag(id, true, ebpf.AttachTCXIngress, ebpf.AttachTCXEgress)
}

// tag has frames get the tag one way, and lose it the other.
func (p *Port) tag(id uint16, strict bool, get, lose ebpf.AttachType) (leave func(), err error) {
	const (
		presentField, tagField = 20, 24 // of struct __sk_buff (include/uapi/linux/bpf.h)
		pass, drop             = 0, 2   // enum tcx_action_base
		tpid                   = 0x0081 // 0x8100 in network order
	)
	push := asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()}
	if id != 0 {
		push = asm.Instructions{asm.Mov.Imm(asm.R2, tpid), asm.Mov.Imm(asm.R3, int32(id)),
			asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, pass), asm.Return()}
	}
	pop := asm.Instructions{asm.LoadMem(asm.R2, asm.R1, tagField, asm.Word), asm.And.Imm(asm.R2, 0xfff)}
	if strict {
		pop = append(pop, asm.JEq.Imm(asm.R2, int32(id), "member"), asm.Mov.Imm(asm.R0, drop), asm.Return())
	}
	pop = append(pop, asm.LoadMem(asm.R2, asm.R1, presentField, asm.Word).WithSymbol("member"), asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.FnSkbVlanPop.Call(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"), asm.Return())
	var links []link.Link
	leave = func() {
		for _, l := range links {
			_ = l.Close() // its interface may be gone
		}
	}
	for attach, instructions := range map[ebpf.AttachType]asm.Instructions{get: push, lose: pop} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: instructions})
		if err != nil {
			leave()
			return nil, fmt.Errorf("load a VLAN program: %w", err)
		}
		defer program.Close()
		err = p.Host.Do(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: p.Index, Program: program, Attach: attach})
			if err == nil {
				links = append(links, l)
			}
			return err
		})
		if err != nil {
			leave()
			return nil, fmt.Errorf("attach a VLAN program to %s of %s: %w", p.Name, p.Host.Name, err)
		}
	}
	return leave, nil
}
