package agent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// wanted is one program that an attachment has.
type wanted struct {
	hook, via string
	program   *ebpf.Program
}

// wanted returns the programs that an attachment has.
func (a *attacher) wanted(at attachment) (list []wanted) {
	if at.ingress == viaXDP {
		// Packets that come in by XDP go through tc, too. Its ingress program is attached
		// in the same way as its egress program.
		list = append(list, wanted{hookXDP, viaXDP, a.objects.HostXdp}, wanted{hookIngress, at.egress, a.objects.HostAfterXdp})
	} else if at.ingress != "" {
		list = append(list, wanted{hookIngress, at.ingress, a.objects.HostIngress})
	}
	if at.egress != "" {
		list = append(list, wanted{hookEgress, at.egress, a.objects.HostEgress})
	}
	if at.redirect != "" && a.redirector != nil {
		list = append(list, wanted{hookArrive, at.redirect, a.redirector.RedirectArrive}, wanted{hookLeave, at.redirect, a.redirector.RedirectLeave})
	}
	return list
}

// wrong returns the fault of a program that should be attached; empty: it has none.
func (a *attacher) wrong(u uplink, w wanted) (string, error) {
	if w.via != viaClsact {
		return a.links.holds(w.hook, u.index, w.program)
	}
	return filterWrong(u, w.hook, w.program)
}

// filterWrong says what is wrong with a filter that should hold a program.
func filterWrong(u uplink, hook string, program *ebpf.Program) (string, error) {
	filters, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: u.index}}, filterParent(hook))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return "has no program: there is no clsact", nil
	}
	if err != nil {
		return "", fmt.Errorf("list filters of %s: %w", u.name, err)
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok || !isNamed(bpf.Name, hook) {
			continue
		}
		if id, known := programID(program); known && int(id) != bpf.Id {
			return "has " + describeProgram(ebpf.ProgramID(bpf.Id)), nil
		}
		return "", nil
	}
	return "has no program: the filter was removed", nil
}
