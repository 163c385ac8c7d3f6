package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/model"
)

// If somebody removes the pins and starts a second agent in another network namespace, the first
// agent leaves the second one's pins alone, and says so: else the second agent would take the first
// one's links for its own.
func TestTwoAgentsDoNotFight(t *testing.T) {
	k := newKept(t, false, testConfig())
	must(t, os.RemoveAll(k.a.pins.root))
	var second *Agent
	do(t, k.client, "start a second agent", func() (err error) {
		if second, err = Open(Options{Pin: k.host.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		return second.Set(testConfig())
	})
	t.Cleanup(func() { _ = second.Close() })
	if wrong := k.attached(t, hookXDP, "host_xdp"); wrong == "" {
		t.Fatal("the second agent has XDP, too: then this test shows nothing")
	}
	for range 3 {
		for _, told := range k.look(t) {
			if strings.Contains(told, string(model.UpkeepRepaired)) {
				t.Errorf("in the second one's directory it tells %q", told)
			}
		}
		k.now = k.now.Add(time.Second)
	}
	if problems := k.problems(); len(problems) == 0 || !strings.Contains(problems[0].Error, ErrRunning.Error()) {
		t.Errorf("status shows %+v", problems)
	}
	if wrong := k.attached(t, hookXDP, "host_xdp"); wrong == "" {
		t.Error("the first one's link is pinned in the second one's directory")
	}
}

// A second agent of a network namespace does not start, also where it has pins of its own, and is told
// which process is there. What an agent has left elsewhere can be removed meanwhile, and the VIPs stay
// with the agent that runs.
func TestOneAgentOfANamespace(t *testing.T) {
	k := newKept(t, false, testConfig())
	elsewhere := Options{Pin: k.client.BPFFS(), UDPFlows: testFlows, Log: slog.New(slog.DiscardHandler)}
	do(t, k.client, "leave pins elsewhere", func() error {
		a, err := Open(elsewhere)
		if err != nil {
			return err
		}
		return a.Close()
	})
	do(t, k.host, "start a second agent", func() error {
		second, err := Open(elsewhere)
		if err == nil {
			defer second.Close()
			return second.Set(model.Config{})
		}
		if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
			t.Errorf("it does not start: %v", err)
		}
		return Detach(elsewhere.Pin)
	})
	if _, err := os.Stat(filepath.Join(elsewhere.Pin, "agent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what an agent has left elsewhere is not removed: %v", err)
	}
	if wrong := k.holdsAddress(t, vip4.String()); wrong != "" {
		t.Error(wrong)
	}
}

// A program of somebody else's before the agent's is said, and left where it is; one behind it is not
// said. Where it lets packets go on, the agent does its work.
func TestProgramBeforeTheAgents(t *testing.T) {
	if !hasTCX() {
		t.Skip("this kernel is older than 6.6 and has no tcx")
	}
	k := newKept(t, false, testConfig())
	if told := k.look(t); len(told) > 0 {
		t.Fatalf("without any other program it tells %q", told)
	}
	attach := func(anchor link.Anchor) link.Link {
		t.Helper()
		other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
		must(t, err)
		t.Cleanup(func() { _ = other.Close() })
		var l link.Link
		do(t, k.host, "attach another program", func() (err error) {
			l, err = link.AttachTCX(link.TCXOptions{Interface: k.link.B.Index, Program: other, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
			return err
		})
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	attach(link.Tail())
	if told := k.look(t); len(told) > 0 {
		t.Errorf("of a program behind its own it tells %q", told)
	}
	before := attach(link.Head())
	if told := k.look(t); !slices.Equal(told, []string{"programs waiting: " + hookIngress + " of eth0"}) {
		t.Errorf("of a program before its own it tells %q", told)
	}
	if problems := k.problems(); len(problems) != 1 || !strings.Contains(problems[0].Found, "somebody") {
		t.Errorf("status shows %+v", problems)
	}
	must(t, before.Close())
	if told := k.look(t); !slices.Equal(told, []string{"programs holds: " + hookIngress + " of eth0"}) {
		t.Errorf("when the other program is gone it tells %q", told)
	}
}
