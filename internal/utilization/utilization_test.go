package utilization

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// poll is a NAPI instance that takes this long for a poll and for each packet in it.
type poll struct{ fixed, packet time.Duration }

// polled returns count polls of n packets each, with a budget of 64.
func (p poll) polled(count, n uint64) polls {
	took := time.Duration(count) * (p.fixed + time.Duration(n)*p.packet)
	s := polls{count: count, packets: count * n, budget: count * 64, time: took}
	if n == 64 {
		s.fullPackets, s.fullTime = s.packets, took
	}
	return s
}

func plus(a, b polls) polls {
	return polls{a.count + b.count, a.packets + b.packets, a.budget + b.budget, a.time + b.time,
		a.fullPackets + b.fullPackets, a.fullTime + b.fullTime}
}

// reading is a reading of CPU 0 after that time.
func reading(after time.Duration, overhead time.Duration, instances ...polls) Reading {
	r := Reading{at: time.Unix(0, 0).Add(after), counted: after, cpus: []int{0},
		overhead: map[int]time.Duration{0: overhead}, instances: map[instance]polls{}}
	for i, p := range instances {
		r.instances[instance{napi: uint64(i)}] = p
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// Once it is known what a packet costs in a full poll, utilization is proportional to the rate,
// however few packets each poll finds.
func TestUtilizationIsInProportionToTheRate(t *testing.T) {
	napi := poll{fixed: 640 * time.Nanosecond, packet: 90 * time.Nanosecond}
	learned := napi.polled(100, 64) // 100 ns for a packet
	for _, test := range []struct {
		polls, packets uint64
		utilization    float64
		busy           float64
	}{
		{0, 1, 0, 0},
		{1_000_000, 1, 0.1, 0.73},
		{125_000, 8, 0.1, 0.17},
		{500_000, 8, 0.4, 0.68},
		{156_250, 64, 1, 1},
	} {
		from := reading(0, 0, learned)
		to := reading(time.Second, 0, plus(learned, napi.polled(test.polls, test.packets)))
		c := Between(from, to)[0]
		if !near(c.Utilization, test.utilization) || !near(c.Busy, test.busy) {
			t.Errorf("%d polls of %d packets in a second: utilization %v of busy %v, want %v of %v",
				test.polls, test.packets, c.Utilization, c.Busy, test.utilization, test.busy)
		}
		if c.Utilization > c.Busy+1e-9 {
			t.Errorf("%d polls of %d packets: utilization %v is more than all the time in packet work, %v", test.polls, test.packets, c.Utilization, c.Busy)
		}
	}
}

// Before there was a full poll it is not known what a packet costs in one.
func TestWithoutFullPollsTimeCountsAsItIs(t *testing.T) {
	c := Between(reading(0, 0), reading(time.Second, 0, poll{fixed: 500, packet: 100}.polled(1_000_000, 1)))[0]
	if !near(c.Utilization, 0.6e-3*1000) || !near(c.Busy, c.Utilization) || !near(c.Fullness, 1./64) {
		t.Errorf("got %+v", c)
	}
	if !near(c.Product(), 0.6/64) {
		t.Errorf("the paper's product is %v, want busy share by fullness, %v", c.Product(), 0.6/64)
	}
}

// Instances that share a CPU differ in what a packet costs: each counts for itself.
func TestInstancesOfOneCPU(t *testing.T) {
	cheap, dear := poll{packet: 10}, poll{packet: 400}
	from := reading(0, 0, cheap.polled(10, 64), dear.polled(10, 64))
	to := reading(time.Second, 0, plus(cheap.polled(10, 64), cheap.polled(1000, 10)), plus(dear.polled(10, 64), dear.polled(1000, 10)))
	c := Between(from, to)[0]
	if want := (10.0 + 400) * 10 * 1000 / 1e9; !near(c.Utilization, want) {
		t.Errorf("utilization is %v, want %v", c.Utilization, want)
	}
	if c.Polls != 2000 || c.Packets != 20000 {
		t.Errorf("counted %d packets in %d polls, want 20000 in 2000", c.Packets, c.Polls)
	}
}

// Empty polls come after others: if these were full, there would be fewer of both.
func TestOverhead(t *testing.T) {
	napi := poll{packet: 100}
	c := Between(reading(0, time.Second), reading(time.Second, time.Second+200*time.Millisecond, napi.polled(1000, 16)))[0]
	if want := 0.0016 + 0.2/4; !near(c.Utilization, want) || !near(c.Busy, 0.2016) {
		t.Errorf("utilization %v, busy %v; want %v, 0.2016", c.Utilization, c.Busy, want)
	}
	// Without received packets, as in polls only for sent ones, there is no fullness.
	c = Between(reading(0, 0), reading(time.Second, 200*time.Millisecond))[0]
	if diff := cmp.Diff(CPU{Utilization: 0.2, Busy: 0.2}, c); diff != "" {
		t.Errorf("overhead alone (-want +got):\n%s", diff)
	}
}

func TestIdle(t *testing.T) {
	napi := poll{packet: 100}.polled(1000, 64)
	for _, after := range []time.Duration{0, time.Second} {
		c := Between(reading(0, 5, napi), reading(after, 5, napi))[0]
		if diff := cmp.Diff(CPU{}, c); diff != "" {
			t.Errorf("idle for %v (-want +got):\n%s", after, diff)
		}
	}
}

// When a device is removed, another may get its address in memory.
func TestReplacedInstance(t *testing.T) {
	from := reading(0, 0, poll{packet: 100}.polled(1000, 64))
	c := Between(from, reading(time.Second, 0, poll{packet: 100}.polled(10, 64)))[0]
	if c.Packets != 640 || c.Polls != 10 {
		t.Errorf("counted %d packets in %d polls, want the new instance's 640 in 10", c.Packets, c.Polls)
	}
}

// Clocks that are read one after the other may show more work than time.
func TestNothingIsMoreThanAll(t *testing.T) {
	c := Between(reading(0, 0), reading(time.Millisecond, time.Millisecond, poll{packet: 100}.polled(1000, 64)))[0]
	if c.Utilization != 1 || c.Busy != 1 || c.Fullness != 1 {
		t.Errorf("got %+v, want all of it", c)
	}
}

func TestCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-1": {0, 1}, "0-2,5,8-9": {0, 1, 2, 5, 8, 9}} {
		got, err := parseCPUs(list)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("CPUs %s: %v (-want +got):\n%s", list, err, diff)
		}
	}
	for _, list := range []string{"", "a", "0-", "0,,1"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("CPUs %q are said to be %v", list, got)
		}
	}
}

// The window moves on: polls before it do not count any more.
func TestWatch(t *testing.T) {
	napi := poll{packet: 100}
	m := &scripted{}
	at := func(after time.Duration, counted uint64) { m.now = reading(after, 0, napi.polled(counted, 64)) }

	at(0, 0)
	w, err := newWatch(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after   time.Duration
		counted uint64 // polls since the beginning
		want    uint64 // packets in the window
	}{
		{2 * time.Second, 100, 6400},
		{9 * time.Second, 300, 300 * 64},
		{11 * time.Second, 300, 300 * 64}, // since 0: from 2 it would be a second short
		{13 * time.Second, 300, 200 * 64}, // since 2
		{30 * time.Second, 300, 0},        // since 13
	} {
		at(step.after, step.counted)
		w.note(m.now)
		cpus, err := w.CPUs()
		if err != nil {
			t.Fatal(err)
		}
		if got := cpus[0].Packets; got != step.want {
			t.Errorf("after %v: %d packets in the window, want %d", step.after, got, step.want)
		}
	}
}

// scripted is a meter that counts what a test says.
type scripted struct {
	now     Reading
	started time.Time // zero while it does not count
	begun   []time.Time
}

func (m *scripted) Start() error {
	m.started = time.Now()
	m.begun = append(m.begun, m.started)
	return nil
}

func (m *scripted) Stop() error {
	m.now.counted += time.Since(m.started)
	m.started = time.Time{}
	return nil
}

func (m *scripted) Read() (Reading, error) {
	m.now.at = time.Now()
	return m.now, nil
}

// A tenth of each second is counted, at varying moments, and nothing after the end.
func TestWatchCountsATenth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{}
		w, err := newWatch(m)
		if err != nil {
			t.Fatal(err)
		}
		const seconds = 100
		ctx, end := context.WithTimeout(t.Context(), seconds*time.Second)
		defer end()
		began := time.Now()
		w.Run(ctx, slog.New(slog.DiscardHandler))
		if !m.started.IsZero() {
			t.Error("it counts on after the end")
		}
		if len(m.begun) != seconds || m.now.counted != seconds*sample {
			t.Errorf("in %d s it counted %d times, %v", seconds, len(m.begun), m.now.counted)
		}
		moments := map[time.Duration]bool{}
		for n, at := range m.begun {
			moment := at.Sub(began) - time.Duration(n)*interval
			if moment < 0 || moment > interval-sample {
				t.Errorf("sample %d began %v after its second did", n, moment)
			}
			moments[moment] = true
		}
		if m.begun[0] != began || len(moments) < seconds/2 {
			t.Errorf("%d samples began at %d moments, the first after %v", seconds, len(moments), m.begun[0].Sub(began))
		}
	})
}
