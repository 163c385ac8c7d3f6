package agent

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/upkeep"
)

// behind says which program of another owner sees packets before one of the agent's does, at a hook
// of tcx; nil: none does. It may keep packets, or let them go on to the kernel without the agent:
// that cannot be told. It has its place by right, so it is reported and left there.
func (a *Agent) behind(at attachment, w wanted) (*upkeep.Difference, error) {
	if w.via != viaTCX {
		return nil, nil
	}
	attach := ebpf.AttachTCXIngress
	if leaves(w.hook) {
		attach = ebpf.AttachTCXEgress
	}
	list, err := link.QueryPrograms(link.QueryOptions{Target: at.index, Attach: attach})
	if err != nil {
		return nil, fmt.Errorf("list programs of %s: %w", at.name, err)
	}
	own, known := programID(w.program)
	var others []ebpf.ProgramID
	for _, p := range list.Programs {
		if p.ID == own {
			break
		}
		others = append(others, p.ID)
	}
	if !known || len(others) == 0 {
		return nil, nil
	}
	ours, err := a.ownPrograms()
	if err != nil {
		return nil, err
	}
	for _, id := range others {
		if !ours[id] {
			return &upkeep.Difference{What: w.hook + " of " + at.name, Found: "is behind " + describeProgram(id) + ": what that one keeps never comes to the agent"}, nil
		}
	}
	return nil, nil
}

// ownPrograms are the programs of this agent, and of a director on the same host.
func (a *Agent) ownPrograms() (map[ebpf.ProgramID]bool, error) {
	ours := map[ebpf.ProgramID]bool{}
	programs := []*ebpf.Program{a.objects.HostXdp, a.objects.HostIngress, a.objects.HostAfterXdp, a.objects.HostEgress}
	if a.redirector != nil {
		programs = append(programs, a.redirector.RedirectArrive, a.redirector.RedirectLeave)
	}
	for _, p := range programs {
		if id, known := programID(p); known {
			ours[id] = true
		}
	}
	pins, err := filepath.Glob(filepath.Join(filepath.Dir(a.pins.root), "programs-*", "*"))
	if err != nil {
		return nil, fmt.Errorf("find a director's programs: %w", err)
	}
	for _, pin := range pins {
		p, err := ebpf.LoadPinnedProgram(pin, nil)
		if err != nil {
			continue // it is not a program, or is gone meanwhile
		}
		if id, known := programID(p); known {
			ours[id] = true
		}
		if err := p.Close(); err != nil {
			return nil, errors.Join(fmt.Errorf("close %s", pin), err)
		}
	}
	return ours, nil
}
