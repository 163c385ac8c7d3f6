package inside

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/lab/netlab"
)

// The runs of an agent's program are counted while the clock is on, and found by its pinned link.
func TestAgentRuns(t *testing.T) {
	host := netlab.ForTest(t).Host("host")
	pin := host.BPFFS()
	if _, err := AgentRuns(pin); !errors.Is(err, errNoLinks) {
		t.Errorf("without links: %v, want %v", err, errNoLinks)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "counted", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	links := filepath.Join(pin, "agent", "links")
	err = host.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: 1, Flags: link.XDPGenericMode})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		return errors.Join(os.MkdirAll(links, 0o700), l.Pin(filepath.Join(links, "xdp-1")))
	})
	if err != nil {
		t.Fatal(err)
	}
	clock, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	before, err := AgentRuns(pin)
	if err != nil {
		t.Fatal(err)
	}
	const times = 1000
	if _, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: times}); err != nil {
		t.Fatal(err)
	}
	after, err := AgentRuns(pin)
	if err := errors.Join(err, clock.Close()); err != nil {
		t.Fatal(err)
	}
	// Packets that the host itself sends on its loopback are counted, too.
	if got := after["counted"].Since(before["counted"]); got.Count < times || got.Time <= 0 || clock.Overhead <= 0 {
		t.Errorf("after %d runs %+v were counted, and the clock takes %v", times, got, clock.Overhead)
	}
}
