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

// Two instances on a CPU: every poll counts for its own instance, and only polls during packet work
// count.
func TestPolls(t *testing.T) {
	m := detached(t)
	const a, b = 0xa000, 0xb000
	poll := func(napi, packets uint64) { fire(t, m.kernel.NapiPoll, napi, packets, 64) }

	poll(a, 7) // by a process that polls its own socket
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

// A host with many devices has more instances than there are places: those that are
// polled all the time keep theirs.
func TestBusyInstancesKeepTheirPlaces(t *testing.T) {
	m := detached(t)
	const busy, rounds = 60, 100
	fire(t, m.kernel.SoftirqEntry, netRX)
	poll := func(napi uint64) { fire(t, m.kernel.NapiPoll, napi, 1, 64) }
	gone := uint64(1 << 20)
	for range rounds {
		for i := range uint64(busy) {
			poll(0xffff888100000000 + i*0x2c0) // as far apart as real ones are in memory
			if i%8 == 0 {
				gone += 0x2c0
				poll(0xffff888200000000 + gone) // once
			}
		}
	}
	r := read(t, m)
	for i := range uint64(busy) {
		napi := 0xffff888100000000 + i*0x2c0
		if got := r.instances[instance{0, napi}].packets; got != rounds {
			t.Errorf("instance %d of %d had %d packets, and %d are counted", i, busy, rounds, got)
		}
	}
}

// The state of a CPU when counting paused is not its state afterwards, and the pause counts for no
// instance.
func TestPausesAreNotCounted(t *testing.T) {
	for name, enter := range map[string]func(*Meter){
		"softirq": func(m *Meter) { fire(t, m.kernel.SoftirqEntry, netRX) },
		"none":    func(*Meter) {},
	} {
		t.Run(name, func(t *testing.T) {
			m := detached(t)
			enter(m)
			fire(t, m.kernel.NapiPoll, 0xa000, 10, 64)
			before := read(t, m)
			if err := m.restart(); err != nil {
				t.Fatal(err)
			}
			fire(t, m.kernel.NapiPoll, 0xa000, 10, 64)
			fire(t, m.kernel.SoftirqExit, netRX)
			if after := read(t, m); after.instances[instance{0, 0xa000}] != before.instances[instance{0, 0xa000}] {
				t.Errorf("a poll that began before counting did is counted: %+v, before %+v", after, before)
			}
			began := time.Now()
			fire(t, m.kernel.SoftirqEntry, netRX)
			fire(t, m.kernel.NapiPoll, 0xa000, 10, 64)
			elapsed := time.Since(began)
			p := read(t, m).instances[instance{0, 0xa000}].since(before.instances[instance{0, 0xa000}])
			if p.count != 1 || p.packets != 10 || p.time <= 0 || p.time > elapsed {
				t.Errorf("a poll of 10 packets within %v counted as %+v", elapsed, p)
			}
		})
	}
}

// Stop ends the counting, Start goes on where it ended.
func TestStopAndStart(t *testing.T) {
	m := open(t)
	f := newFlood(t, false)
	sendUntilCounted := func() {
		before, deadline := read(t, m), time.Now().Add(10*time.Second)
		for f.send(64); len(counted(before, read(t, m))) == 0; f.send(64) {
			if time.Now().After(deadline) {
				t.Fatal("it does not count what was sent")
			}
		}
	}
	for range 3 {
		sendUntilCounted()
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		stopped := read(t, m)
		f.send(64)
		paused := read(t, m)
		if paused.counted != stopped.counted || !paused.at.After(stopped.at) {
			t.Errorf("%v counted until it was stopped, %v later", stopped.counted, paused.counted)
		}
		if diff := cmp.Diff(stopped.instances, paused.instances, cmp.AllowUnexported(instance{}, polls{})); diff != "" {
			t.Errorf("it counts although it was stopped (-then +later):\n%s", diff)
		}
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

// If there are more instances than places, they push each other out, and a new one counts only its
// own polls.
func TestInstancesAreBounded(t *testing.T) {
	m := detached(t)
	fire(t, m.kernel.SoftirqEntry, netRX)
	const room, instances = 256, 1000
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
