package agent

import (
	"log/slog"
	"testing"

	"weir.io/weir/internal/model"
)

// TestFlowsOutliveAgents: what one process has noted, the next one knows, also if it has
// room for more or fewer, and a version with other maps. Without room nothing is left.
func TestFlowsOutliveAgents(t *testing.T) {
	s := newStreet(t, true)
	w := s.wire(t)
	open := func(flows uint32) (a *Agent) {
		t.Helper()
		do(t, s.host, "start agent", func() (err error) {
			if a, err = Open(Options{Pin: s.host.BPFFS(), UDPFlows: flows, Log: slog.New(slog.DiscardHandler)}); err != nil {
				return err
			}
			return a.Set(testConfig())
		})
		return a
	}
	remembers := func(a *Agent, f talk) bool {
		h := testHost{bpfObjects: a.objects}
		return h.remembered(f) > 0
	}
	var flows []talk
	note := func(a *Agent) {
		t.Helper()
		o, f := outers()[0], (&second{wire: w}).talk(vip4)
		waitFor(t, "the agent to note a flow", func() bool {
			w.write(o.wrap(o.from, o.to, nil, f.datagram()))
			return remembers(a, f)
		})
		flows = append(flows, f)
	}
	for i, size := range []uint32{4096, 4096, 8192, 2048} {
		a := open(size)
		for n, f := range flows {
			if !remembers(a, f) {
				t.Errorf("process %d, for %d flows, has forgotten flow %d", i, size, n)
			}
		}
		note(a)
		if got := a.flows.MaxEntries(); got != size {
			t.Errorf("process %d has room for %d flows, want %d", i, got, size)
		}
		if i == 1 {
			a.version = "another" // its maps go, as those of a version before
			do(t, s.host, "refresh", func() error { return a.Set(testConfig()) })
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a := open(0)
	defer s.detach(t, a)
	for n, f := range flows {
		if remembers(a, f) {
			t.Errorf("flow %d is remembered, where none is to be", n)
		}
	}
	o, f := outers()[0], (&second{wire: w}).talk(vip4)
	before := decapped(s.status(t, a))
	waitFor(t, "a datagram to stay", func() bool {
		w.write(o.wrap(o.from, o.to, walked{hops: o.hops}.private(), f.datagram()))
		return decapped(s.status(t, a)) > before
	})
	if remembers(a, f) {
		t.Error("a flow was noted, where none is to be")
	}
}

func decapped(status model.AgentStatus) uint64 {
	for _, c := range status.Reasons {
		if c.Name == "decap_gue" {
			return c.Packets
		}
	}
	return 0
}
