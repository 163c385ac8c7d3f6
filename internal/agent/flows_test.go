package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

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
			if a, err = Open(Deps{Pin: s.host.BPFFS(), UDPFlows: flows, Log: slog.New(slog.DiscardHandler)}); err != nil {
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
		goesOn := (&second{wire: w}).talk(vip6)
		h := testHost{bpfObjects: a.objects}
		h.remember(t, goesOn, time.Minute)
		flows = append(flows, f, goesOn)
	}
	for i, size := range []uint32{4096, 4096, 8192, 2048} {
		a := open(size)
		for n, f := range flows {
			if !remembers(a, f) {
				t.Errorf("process %d, for %d flows, has forgotten flow %d", i, size, n)
			}
		}
		note(a)
		if got := a.memory.flows.sustained.MaxEntries(); got != size {
			t.Errorf("process %d has room for %d flows, want %d", i, got, size)
		}
		if got, want := a.memory.flows.begun.MaxEntries(), freshFlows(size); got != want {
			t.Errorf("process %d has room for %d flows that have just begun, want %d", i, got, want)
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

// TestFlowsAreReported: the flows that are not too old, with both ends as directors hash
// them, however many there are.
func TestFlowsAreReported(t *testing.T) {
	s := newStreet(t, true)
	w := &second{wire: s.wire(t)}
	var a *Agent
	open := func(flows uint32) {
		do(t, s.host, "start agent", func() (err error) {
			if a, err = Open(Deps{Pin: s.host.BPFFS(), UDPFlows: flows, Log: slog.New(slog.DiscardHandler)}); err != nil {
				return err
			}
			return a.Set(testConfig())
		})
	}
	services := func() (all []model.ReportedService) {
		reports, err := a.connections()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reports {
			for _, s := range r.Services {
				if s.Protocol == model.UDP {
					all = append(all, s)
				}
			}
		}
		return all
	}
	open(3 * entriesAtOnce)
	h := testHost{bpfObjects: a.objects}
	young, old, six := w.talk(vip4), w.talk(vip4), w.talk(vip6)
	h.remember(t, young, time.Duration(flowTimeout)-time.Minute)
	h.remember(t, old, time.Duration(flowTimeout)+time.Minute)
	h.rememberBegun(t, six, 0)
	talks := map[netip.Addr]talk{vip4: young, vip6: six}
	reported := services()
	if len(reported) != 4*len(model.UsualAffinities) {
		t.Fatalf("there are reports of %d services over UDP, want two of each address of the host by each affinity", len(reported))
	}
	for _, s := range reported {
		f := talks[s.VIP]
		hash := model.Flow{Source: f.client, SourcePort: f.port, Destination: f.vip, DestinationPort: talkPort, Protocol: uint8(model.UDP)}.Hash(s.Salt(), s.Affinity)
		if slot := uint32(hash >> 32 * 1021 >> 32); s.Used.Count() != 1 || !s.UsedIn(slot, 1021) {
			t.Errorf("of %s there are %d flows reported, want the one in slot %d", s.VIP, s.Used.Count(), slot)
		}
	}
	for port := range uint16(entriesAtOnce + entriesAtOnce/2) {
		h.remember(t, talk{vip: vip4, client: young.client, port: 1024 + port}, 0)
	}
	flows := 0
	do(t, s.host, "read flows", func() error {
		return a.memory.flows.alive(func(_ model.Protocol, local, _ netip.AddrPort) {
			if local == netip.AddrPortFrom(vip4, talkPort) {
				flows++
			}
		})
	})
	if least := entriesAtOnce + entriesAtOnce/2; flows < least {
		t.Errorf("%d flows are found, want at least %d", flows, least)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	open(0)
	defer s.detach(t, a)
	if got := services(); len(got) != 0 {
		t.Errorf("where no flows are remembered there are reports of %d services over UDP", len(got))
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

// A memory of another size that cannot be opened does not keep the others from being copied.
func TestFlowsAreCopiedBesideWhatCannotBeOpened(t *testing.T) {
	s := newStreet(t, true)
	var a *Agent
	do(t, s.host, "start agent", func() (err error) {
		a, err = Open(Deps{Pin: s.host.BPFFS(), UDPFlows: 4096, Log: slog.New(slog.DiscardHandler)})
		return err
	})
	defer s.detach(t, a)
	h := testHost{bpfObjects: a.objects}
	h.remember(t, (&second{wire: s.wire(t)}).talk(vip6), time.Minute)
	from := a.memory.flows.sustained
	of := strings.TrimSuffix(from.path, "4096")
	if err := os.Mkdir(of+"1", 0o700); err != nil { // is found first, and is no map
		t.Fatal(err)
	}
	defer os.Remove(of + "1")
	larger, err := ebpf.NewMap(&ebpf.MapSpec{Type: from.Type(), KeySize: from.KeySize(), ValueSize: from.ValueSize(), MaxEntries: 8192, Flags: from.Flags()})
	if err != nil {
		t.Fatal(err)
	}
	defer larger.Close()
	if err := (sharedMap{Map: larger, path: of + "8192"}).copyOthers(); err == nil || !strings.Contains(err.Error(), of+"1") {
		t.Errorf("what cannot be opened is told as %v", err)
	}
	if err := larger.NextKey(nil, new(bpfHostFlow)); err != nil {
		t.Errorf("the flows of the other memory are not copied: %v", err)
	}
}
