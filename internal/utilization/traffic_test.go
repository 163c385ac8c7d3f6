package utilization

import (
	"testing"
	"time"
)

func open(t *testing.T) *Meter {
	t.Helper()
	m, err := Open()
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

// counted returns what each instance that counted anything counted on all CPUs from one reading to
// another.
func counted(from, to Reading) map[uint64]polls {
	byNAPI := map[uint64]polls{}
	for i, p := range to.instances {
		if p := p.since(from.instances[i]); p.count > 0 {
			byNAPI[i.napi] = plus(byNAPI[i.napi], p)
		}
	}
	return byNAPI
}

// napi sends frames until an instance has counted exactly these, and returns its name and what it
// counted. The machine's other traffic has other instances.
func (f *flood) napi(m *Meter) (uint64, polls) {
	f.t.Helper()
	const rounds, frames = 21, 64 // no more at once than a veth holds
	before := read(f.t, m)
	deadline := time.Now().Add(time.Minute)
	for round := range uint64(rounds) {
		f.send(frames)
		// A thread may have to wait for the CPU, and frames that are sent meanwhile would be lost.
		through := func() (most uint64) {
			for _, p := range counted(before, read(f.t, m)) {
				most = max(most, p.packets)
			}
			return most
		}
		for through() < (round+1)*frames && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond) // between two looks
		}
	}
	for {
		for napi, p := range counted(before, read(f.t, m)) {
			if p.packets == rounds*frames {
				return napi, p
			}
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("no instance has counted exactly %d packets: %+v", rounds*frames, counted(before, read(f.t, m)))
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

// Every packet counts once, whether the softirq handles it or a thread.
func TestEveryPacketCounts(t *testing.T) {
	for name, threaded := range map[string]bool{"softirq": false, "thread": true} {
		t.Run(name, func(t *testing.T) {
			f, m := newFlood(t, threaded), open(t)
			if _, p := f.napi(m); p.count < p.packets/64 || p.budget != 64*p.count || p.time <= 0 {
				t.Errorf("counted %+v", p)
			}
		})
	}
}

// only returns the part of a reading about one instance.
func only(r Reading, napi uint64) Reading {
	one := r
	one.overhead, one.instances = nil, map[instance]polls{}
	for i, p := range r.instances {
		if i.napi == napi {
			one.instances[i] = p
		}
	}
	return one
}

// busiest is the busiest CPU's utilization by one instance while work is done.
func busiest(t *testing.T, m *Meter, napi uint64, work func(until time.Time)) float64 {
	t.Helper()
	before := read(t, m)
	work(time.Now().Add(300 * time.Millisecond))
	after := read(t, m)
	top := 0.0
	for _, c := range Between(only(before, napi), only(after, napi)) {
		top = max(top, c.Utilization)
	}
	for _, c := range Between(before, after) {
		for _, share := range []float64{c.Utilization, c.Busy, c.Fullness} {
			if share < 0 || share > 1 || c.Utilization > c.Busy+1e-9 {
				t.Errorf("CPU %d: shares %+v", c.Number, c)
			}
		}
	}
	return top
}

// Utilization grows with the load. How much is sent does not matter, only that each step sends more
// than the one before.
func TestMoreLoadIsMoreUtilization(t *testing.T) {
	for name, threaded := range map[string]bool{"softirq": false, "thread": true} {
		t.Run(name, func(t *testing.T) {
			f, m := newFlood(t, threaded), open(t)
			napi, _ := f.napi(m)
			idle := busiest(t, m, napi, func(until time.Time) {
				time.Sleep(time.Until(until)) // the load: none
			})
			some := busiest(t, m, napi, func(until time.Time) {
				for time.Now().Before(until) {
					f.send(2000)
					time.Sleep(10 * time.Millisecond) // the load: pauses between bursts
				}
			})
			full := busiest(t, m, napi, func(until time.Time) {
				for time.Now().Before(until) {
					f.send(1 << 20)
				}
			})
			t.Logf("idle %.4f, some %.4f, full %.4f", idle, some, full)
			if idle >= some || some >= full {
				t.Errorf("utilization does not grow with the load: idle %.4f, some %.4f, full %.4f", idle, some, full)
			}
			if idle > full/4 {
				t.Errorf("utilization is %.4f without load, near that of full load, %.4f", idle, full)
			}
		})
	}
}
