package datapath

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// record is what another director remembers of the flow from a client's port: of a
// backend, and how long ago it has seen a packet, in units of the entry.
func (s scenario) record(t testing.TB, d *testDirector, port uint16, state abi.FlowState, backend int, age uint32) abi.Telling {
	t.Helper()
	return abi.Telling{
		Entry: abi.FlowEntry{
			Seen: d.now() - age, State: uint8(state), Epoch: s.backends[backend].epoch, Backend: s.first + uint32(backend), Service: s.index,
			Source: abiAddress(s.client), SourcePort: be16(port), DestinationPort: be16(servicePort),
		},
		Ipv6: truth(s.vip.Is6()),
	}
}

// open is the state in which a flow of the service is shared while it lasts.
func (s scenario) openState() abi.FlowState {
	return flows.StateOf(&model.RememberedFlow{Service: model.ServiceID{Protocol: s.protocol}, Class: model.SustainedFlow, State: model.FlowOpen})
}

// freshState is the same of a flow that is fresh.
func (s scenario) freshState() abi.FlowState {
	return flows.StateOf(&model.RememberedFlow{Service: model.ServiceID{Protocol: s.protocol}, Class: model.FreshFlow, State: model.FlowOpen})
}

// importAll runs the program over what was shared, and returns what became of it.
func (d *testDirector) importAll(t testing.TB, records ...abi.Telling) []abi.ToldOutcome {
	t.Helper()
	for i, record := range records {
		d.put(t, "flow_tellings", uint32(i), record)
	}
	if _, err := d.Programs["take_tellings"].Run(&ebpf.RunOptions{Context: abi.Tellings{Count: uint32(len(records))}}); err != nil {
		t.Fatalf("run take_tellings: %v", err)
	}
	outcomes := make([]abi.ToldOutcome, len(records))
	for i := range records {
		var after abi.Telling
		if err := d.Maps["flow_tellings"].Lookup(uint32(i), &after); err != nil {
			t.Fatal(err)
		}
		outcomes[i] = abi.ToldOutcome(after.Outcome)
	}
	return outcomes
}

func (s scenario) wantImported(t testing.TB, d *testDirector, record abi.Telling, want abi.ToldOutcome, why string) {
	t.Helper()
	if got := d.importAll(t, record)[0]; got != want {
		t.Errorf("%s %v: outcome %d, want %d: %s", s.name, s.vip, got, want, why)
	}
}

// An imported flow counts as if its packets had come here, on any CPU.
func testFlowImported(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 5), abi.ToldOutcomeTOLD_NEW, "nobody knew the flow")
		s.want(t, d, clientPort, ackFlag, 1, "as another director has shared")
		s.want(t, d, clientPort, synFlag, 1, "also a SYN again")
		s.want(t, d, clientPort+1, ackFlag, 2, "nobody has shared anything of it")
		s.setRing(t, d, listedRing(2, 0))
		onCPU(t, 1, func() { s.want(t, d, clientPort, ackFlag, 1, "on another CPU") })
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 0), abi.ToldOutcomeTOLD_AGAIN, "of a flow on another CPU")
		if n := len(s.remembered(t, d)); n != 2 { // remembered fails if it is there twice
			t.Errorf("%d flows are remembered, want 2", n)
		}
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_DOWN)
		s.want(t, d, clientPort, ackFlag, 2, "its backend is down: the first of the row")
	})
}

// A younger flow that this director has seen itself stays, unless it is a guess or only a SYN.
func testFlowImportedOwn(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.want(t, d, clientPort, ackFlag, 2, "a guess")
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 9), abi.ToldOutcomeTOLD_NEW, "a guess is younger, and less")
		s.want(t, d, clientPort, ackFlag, 1, "as was shared")
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 0, 9), abi.ToldOutcomeTOLD_OLDER, "a packet has come since")
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 0, 0), abi.ToldOutcomeTOLD_OLDER, "a packet has come in this second, too")
		s.want(t, d, clientPort, ackFlag, 1, "as it was seen")
		s.remembered(t, d)[clientPort].Seen -= 5
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 0, 2), abi.ToldOutcomeTOLD_NEW, "another director has seen it later")
		onCPU(t, 1, func() {
			s.want(t, d, clientPort, ackFlag, 0, "as was shared")
			s.remembered(t, d)[clientPort].Seen -= 5
		})
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 2, 2), abi.ToldOutcomeTOLD_NEW, "later than on another CPU")
		if e := s.remembered(t, d)[clientPort]; e == nil || e.Backend != s.first+2 {
			t.Errorf("remembered as %+v, want backend %d alone", e, s.first+2)
		}
	})
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.want(t, d, clientPort, synFlag, 0, "the owner")
	s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 3), abi.ToldOutcomeTOLD_NEW, "a SYN alone is no connection")
	s.want(t, d, clientPort, ackFlag, 1, "the connection stands where another director sent its SYN")
}

// An imported fresh flow never moves one that has gone on here: another host may have sent the packets
// to another director in the client's name.
func testFlowImportedForged(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		first := int(synFlag)
		if s.protocol == model.UDP {
			first = 0
		}
		s.sends(t, d, clientPort, first, int(ackFlag))
		entry := s.remembered(t, d)[clientPort]
		entry.Seen -= 5
		backend := entry.Backend
		s.wantImported(t, d, s.record(t, d, clientPort, s.freshState(), 1, 0), abi.ToldOutcomeTOLD_OLDER, "the flow has gone on here")
		if e := s.remembered(t, d)[clientPort]; e == nil || e.Backend != backend {
			t.Errorf("remembered as %+v, want backend %d", e, backend)
		}
		s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 0), abi.ToldOutcomeTOLD_NEW, "a flow that is not fresh prevails")
		s.want(t, d, clientPort+1, ackFlag, 2, "a guess")
		s.wantImported(t, d, s.record(t, d, clientPort+1, s.freshState(), 1, 2), abi.ToldOutcomeTOLD_NEW, "a guess counts less than a flow that has gone on, which is older")
		s.want(t, d, clientPort+1, ackFlag, 1, "as was shared")
	})
}

// The end of a flow is shared, too, and makes room as it does on directors that have seen it.
func testFlowImportedEnd(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const closing, reset = abi.FlowStateFLOW_CLOSING, abi.FlowStateFLOW_RESET
	state := func(port uint16, want abi.FlowState, why string) {
		t.Helper()
		if e := s.remembered(t, d)[port]; e == nil || e.State != uint8(want) {
			t.Errorf("remembered as %+v, want state %d: %s", e, want, why)
		}
	}
	s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 5), abi.ToldOutcomeTOLD_NEW, "nobody knew the flow")
	s.wantImported(t, d, s.record(t, d, clientPort, closing, 1, 0), abi.ToldOutcomeTOLD_AGAIN, "its end")
	state(clientPort, closing, "it has ended")
	s.wantImported(t, d, s.record(t, d, clientPort, s.openState(), 1, 4), abi.ToldOutcomeTOLD_OLDER, "what was before the end")
	state(clientPort, closing, "an end is not taken back by what is older")
	s.wantImported(t, d, s.record(t, d, clientPort, reset, 1, 0), abi.ToldOutcomeTOLD_AGAIN, "a RST")
	state(clientPort, reset, "it was reset")
	s.wantImported(t, d, s.record(t, d, clientPort+1, closing, 1, 0), abi.ToldOutcomeTOLD_NEW, "what is half closed may go on for long")
	s.want(t, d, clientPort+1, ackFlag, 1, "as was shared")
	s.wantImported(t, d, s.record(t, d, clientPort+2, reset, 1, 0), abi.ToldOutcomeTOLD_OLDER, "a RST of an unknown flow")
	s.want(t, d, clientPort+3, synFlag, 0, "a new connection from the same port")
	s.wantImported(t, d, s.record(t, d, clientPort+3, closing, 0, 0), abi.ToldOutcomeTOLD_OLDER, "the end of the one before it")
	state(clientPort+3, abi.FlowStateFLOW_SYN, "another one has begun")
	if n := len(s.remembered(t, d)); n != 3 {
		t.Errorf("%d flows are remembered, want 3", n)
	}
}

// An imported flow pushes out no established one, and its refusal is counted by its reason.
func testFlowImportedPressure(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const established = 40
	for i := range uint16(established) {
		s.sends(t, d, clientPort+i, int(synFlag), int(ackFlag), int(ackFlag)|lasting)
	}
	outcomes := map[abi.ToldOutcome]int{}
	for first := range uint16(8) {
		var records []abi.Telling
		for i := range uint16(512) {
			records = append(records, s.record(t, d, 1000+first*512+i, s.openState(), 1, 0))
		}
		for _, outcome := range d.importAll(t, records...) {
			outcomes[outcome]++
		}
	}
	if outcomes[abi.ToldOutcomeTOLD_REFUSED] == 0 || outcomes[abi.ToldOutcomeTOLD_NEW] == 0 || len(outcomes) != 2 {
		t.Errorf("outcomes %v, want some new and some refused", outcomes)
	}
	s.setRing(t, d, listedRing(2, 0, 1))
	for i := range uint16(established) {
		s.want(t, d, clientPort+i, ackFlag, 0, "established before the others were imported")
	}
}

// An imported flow that is not fresh gets the place of a fresh one, also where a flood has just taken
// them all.
func testFlowImportedCrowded(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	outcomes := map[abi.ToldOutcome]int{}
	importAll := func(first, flows uint16, state abi.FlowState) {
		t.Helper()
		var records []abi.Telling
		for i := range flows {
			records = append(records, s.record(t, d, first+i, state, 1, 0))
		}
		for _, outcome := range d.importAll(t, records...) {
			outcomes[outcome]++
		}
	}
	for first := range uint16(8) {
		importAll(1000+first*512, 512, abi.FlowStateFLOW_BEGUN)
	}
	if outcomes[abi.ToldOutcomeTOLD_REFUSED] == 0 {
		t.Errorf("outcomes %v: no place is taken by a fresh flow of just now", outcomes)
	}
	clear(outcomes)
	const established = 40
	importAll(clientPort, established, s.openState())
	if outcomes[abi.ToldOutcomeTOLD_NEW] != established {
		t.Errorf("outcomes %v, want all %d new", outcomes, established)
	}
	for i := range uint16(established) {
		s.want(t, d, clientPort+i, ackFlag, 1, "as another director has shared")
	}
}

// A backend that has left meanwhile is remembered for nothing.
func testFlowImportedGone(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		record := s.record(t, d, clientPort, s.openState(), 1, 0)
		record.Entry.Epoch++
		s.wantImported(t, d, record, abi.ToldOutcomeTOLD_GONE, "the index is another backend's")
		record.Entry.Backend = 9999
		s.wantImported(t, d, record, abi.ToldOutcomeTOLD_GONE, "no backend has this index")
		if n := len(s.remembered(t, d)); n != 0 {
			t.Errorf("%d flows are remembered", n)
		}
		s.want(t, d, clientPort, ackFlag, 2, "as any unknown flow")
	})
}

// news reads what the program has written for the other directors.
func (d *testDirector) news(t testing.TB) (list []abi.FlowEntry) {
	t.Helper()
	reader, err := ringbuf.NewReader(d.Maps["told_flows"])
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	reader.SetDeadline(time.Unix(1, 0))
	for {
		record, err := reader.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, *(*abi.FlowEntry)(unsafe.Pointer(&record.RawSample[0])))
	}
}

// Each step's packet, and in which state the flow is news after it; 0: it is none.
func testFlowNews(t *testing.T) {
	type step struct {
		flags int
		older uint32 // the flow's last packet was so long ago
		news  abi.FlowState
	}
	const begun, open, closing, reset, active = abi.FlowStateFLOW_BEGUN, abi.FlowStateFLOW_ESTABLISHED, abi.FlowStateFLOW_CLOSING, abi.FlowStateFLOW_RESET, abi.FlowStateFLOW_ACTIVE
	const syn, ack, fin, rst = int(synFlag), int(ackFlag), int(finFlag), int(rstFlag)
	for _, test := range []struct {
		name     string
		protocol model.Protocol
		cpus     int // that get the packets in turns
		steps    []step
	}{
		{"connection", model.TCP, 2, []step{{syn, 0, 0}, {ack, 0, begun}, {ack | lasting, 0, open}, {ack, 0, 0}, {ack, 1024, open},
			{ack, 0, 0}, {fin, 0, closing}, {ack, 0, 0}, {ack, 32, closing}}},
		{"guess", model.TCP, 2, []step{{ack, 0, 0}, {ack, 0, begun}, {ack | lasting, 0, open}, {rst, 0, reset}, {rst, 0, 0}}},
		{"attempt", model.TCP, 2, []step{{syn, 0, 0}, {rst, 0, 0}}},
		{"short connection", model.TCP, 2, []step{{syn, 0, 0}, {ack, 0, begun}, {fin, 0, abi.FlowStateFLOW_PARTED}, {rst, 0, 0}}},
		{"flood", model.TCP, 1, []step{{fin, 0, 0}}},
		{"same port", model.TCP, 1, []step{{syn, 0, 0}, {syn, 0, 0}, {ack, 0, begun}, {ack | lasting, 0, open}, {fin, 0, closing}, {syn, 0, 0}, {ack, 0, begun}, {ack | lasting, 0, open}}},
		{"datagrams", model.UDP, 2, []step{{0, 0, 0}, {0, 0, abi.FlowStateFLOW_TWICE}, {lasting, 0, active}, {0, 0, 0}, {0, 64, active}, {0, 0, 0}}},
	} {
		for _, is4 := range []bool{true, false} {
			w, s := flowWorld(test.protocol, is4)
			w.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_TELL)
			d := loadTestDirector(t, w)
			d.news(t)
			for i, step := range test.steps {
				if step.older > 0 {
					s.remembered(t, d)[clientPort].Seen -= step.older
				}
				onCPU(t, i%test.cpus, func() { s.sends(t, d, clientPort, step.flags) }) // a flow that moves is news all the same
				news := d.news(t)
				if step.news == 0 && len(news) > 0 || step.news != 0 && len(news) != 1 {
					t.Fatalf("%s, step %d: %d events %+v", test.name, i, len(news), news)
				}
				if step.news == 0 {
					continue
				}
				var want abi.FlowEntry
				for _, e := range flowsIn(d.flowPlaces(t)) {
					want = e
				}
				got := news[0]
				got.Turn, want.Turn = 0, 0
				if got != want || got.State != uint8(step.news) {
					t.Errorf("%s, step %d: shared %+v, remembered %+v, want state %d", test.name, i, got, want, step.news)
				}
			}
		}
	}
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.sends(t, d, clientPort, int(ackFlag), int(ackFlag), int(ackFlag)|lasting)
		if news := d.news(t); len(news) > 0 {
			t.Errorf("nobody wants to know, and %d events are shared", len(news))
		}
	})
}

// A follower that waits for news is woken for the first one, and again when it has taken all.
func testFlowNewsWakes(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	w.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_TELL)
	d := loadTestDirector(t, w)
	d.news(t)
	reader, err := ringbuf.NewReader(d.Maps["told_flows"])
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() // ends a Read that nothing has woken
	for i := range uint16(3) {
		news := make(chan error, 1)
		go func() {
			_, err := reader.Read()
			news <- err
		}()
		onCPU(t, 0, func() {
			s.sends(t, d, clientPort+i, int(synFlag), int(ackFlag), int(ackFlag)|lasting)
		})
		select {
		case err := <-news:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody is woken for flow %d", i)
		}
	}
}

// Flows that find no room in the ring are counted, and later ones are shared again.
func testFlowUnshared(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	w.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_TELL)
	d := loadTestDirector(t, w)
	d.news(t)
	unshared := d.flowCount(t, abi.FlowEventFLOW_UNTOLD)
	s.sends(t, d, clientPort, int(synFlag), int(ackFlag), int(ackFlag)|lasting)
	const times = 6000
	entry := s.remembered(t, d)[clientPort]
	for range times {
		entry.Seen -= 1024
		s.want(t, d, clientPort, ackFlag, 0, "whether it is shared or not")
	}
	unshared = d.flowCount(t, abi.FlowEventFLOW_UNTOLD) - unshared
	if news := len(d.news(t)); unshared == 0 || uint64(news)+unshared != times+2 { // it began, and lasts
		t.Errorf("%d events were shared and %d not, of %d", news, unshared, times+2)
	}
	entry.Seen -= 1024
	s.goes(t, d, clientPort, ackFlag)
	if news := len(d.news(t)); news != 1 {
		t.Errorf("%d events were shared when there was room again, want 1", news)
	}
}

// usedBudget is struct budget.
type usedBudget struct {
	second  uint64
	used, _ uint32
}

// Fresh flows are shared within a budget: when all sources have used up the common one, each network
// has a few, and then none. Flows that last are shared whatever fresh ones have used.
func testFreshBudget(t *testing.T) {
	for _, row := range []struct {
		name   string
		usedUp int // budgets: the common one, and those of networks
		shared int
	}{{"nothing is used", 0, 2}, {"the common budget is used up", 1, 2}, {"all are used up", 65, 1}} {
		w, s := flowWorld(model.TCP, true)
		w.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_TELL)
		d := loadTestDirector(t, w)
		full := slices.Repeat([]usedBudget{{second: uint64(d.clock / time.Second), used: 1 << 30}}, ebpf.MustPossibleCPU())
		for i := range row.usedUp {
			d.put(t, "budgets", uint32(abi.BudgetKindBUDGET_FRESH*abi.BudgetKindBUDGETS_EACH)+uint32(i), full)
		}
		s.sends(t, d, clientPort, int(synFlag), int(ackFlag), int(ackFlag)|lasting)
		if n := len(d.news(t)); n != row.shared {
			t.Errorf("%s: %d events are shared, want %d", row.name, n, row.shared)
		}
	}
}
