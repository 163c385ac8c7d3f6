package utilization

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Softirqs by number (include/linux/interrupt.h).
const (
	timerSoftirq = 1
	netRX        = 3
)

// detached is a meter whose programs only run when a test runs them.
func detached(t *testing.T) *Meter {
	t.Helper()
	m, err := load()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// fire runs a program as its tracepoint would, on CPU 0.
func fire(t *testing.T, p *ebpf.Program, args ...uint64) {
	t.Helper()
	const onCPU = 1 // BPF_F_TEST_RUN_ON_CPU
	if _, err := p.Run(&ebpf.RunOptions{Context: append(args, make([]uint64, 3-len(args))...), Flags: onCPU}); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *Meter) Reading {
	t.Helper()
	r, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Two instances on a CPU: every poll counts for the one that it is of, and only what
// happens in packet work counts.
func TestPolls(t *testing.T) {
	m := detached(t)
	const a, b = 0xa000, 0xb000
	poll := func(napi, packets uint64) { fire(t, m.kernel.NapiPoll, napi, packets, 64) }

	poll(a, 7) // of a process that polls its own socket
	fire(t, m.kernel.SoftirqExit, netRX)
	if r := read(t, m); len(r.instances) != 0 || r.overhead[0] != 0 {
		t.Errorf("outside of packet work it counted %+v", r)
	}
	fire(t, m.kernel.SoftirqEntry, timerSoftirq)
	poll(a, 7)
	fire(t, m.kernel.SoftirqExit, timerSoftirq)
	if r := read(t, m); len(r.instances) != 0 || r.overhead[0] != 0 {
		t.Errorf("in another softirq it counted %+v", r)
	}

	began := time.Now()
	fire(t, m.kernel.SoftirqEntry, netRX)
	poll(a, 10)
	poll(b, 64)
	poll(a, 64)
	poll(a, 1)
	poll(b, 0) // found nothing
	fire(t, m.kernel.SoftirqExit, timerSoftirq)
	poll(b, 3)
	fire(t, m.kernel.SoftirqExit, netRX)
	elapsed := time.Since(began)
	poll(a, 7)

	r := read(t, m)
	want := map[instance]polls{
		{0, a}: {count: 3, packets: 75, budget: 192, fullPackets: 64},
		{0, b}: {count: 2, packets: 67, budget: 128, fullPackets: 64},
	}
	untimed := cmp.Options{cmp.AllowUnexported(instance{}, polls{}), cmpopts.IgnoreFields(polls{}, "time", "fullTime")}
	if diff := cmp.Diff(want, r.instances, untimed); diff != "" {
		t.Errorf("polls (-want +got):\n%s", diff)
	}
	pa, pb := r.instances[instance{0, a}], r.instances[instance{0, b}]
	if pa.time <= pa.fullTime || pb.time <= pb.fullTime || pa.fullTime <= 0 || pb.fullTime <= 0 || r.overhead[0] <= 0 {
		t.Errorf("something took no time: %+v, %+v, overhead %v", pa, pb, r.overhead[0])
	}
	if sum := pa.time + pb.time + r.overhead[0]; sum > elapsed {
		t.Errorf("packet work took %v in %v", sum, elapsed)
	}
}

// More instances than there is room for push each other out, and what a new one
// counts is its own.
func TestInstancesAreBounded(t *testing.T) {
	m := detached(t)
	fire(t, m.kernel.SoftirqEntry, netRX)
	const room, instances = 32, 1000
	for n := range uint64(instances) {
		fire(t, m.kernel.NapiPoll, 0xffff888000000000+n<<9, 1, 64)
		r := read(t, m)
		if len(r.instances) > room {
			t.Fatalf("%d instances, want at most %d", len(r.instances), room)
		}
		if last := r.instances[instance{0, 0xffff888000000000 + n<<9}]; last.count != 1 || last.packets != 1 {
			t.Fatalf("the last of %d instances counted %+v, want one poll", n+1, last)
		}
	}
	if n := len(read(t, m).instances); n < room/2 {
		t.Errorf("of %d instances it knows only %d, with room for %d", instances, n, room)
	}
}

// A meter that is closed leaves nothing in the kernel: its programs go with it.
func TestCloseLeavesNothing(t *testing.T) {
	m, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.kernel.NapiPoll.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the kernel frees it after a grace period
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return
		}
		p.Close()
		if time.Now().After(deadline) {
			t.Fatal("its program is still loaded")
		}
	}
}
