package datapath

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// runsOf is a memory of so many lines, besides nobody's, for so many services.
func runsOf(lines uint32, services int) *ringMemory {
	return &ringMemory{lines: bpfload.Memory[byte]{Bytes: make([]byte, (lines+1)*abi.LineSize)}, begins: bpfload.Memory[uint64]{Entries: make([]uint64, services)}, free: []run{{1, lines}}, now: time.Now}
}

// TestLinesBelongToOneRing: whatever is taken and freed, no line is in two rings or
// in a ring and free, none is lost, and none is taken before it has rested.
func TestLinesBelongToOneRing(t *testing.T) {
	const lines, services = 200, 12
	random := rand.New(rand.NewPCG(1, 2))
	m := runsOf(lines, services)
	clock := time.Unix(0, 0)
	m.now = func() time.Time { return clock }
	have := make([]run, services)
	for range 20_000 {
		clock = clock.Add(time.Duration(random.IntN(int(rest) / 2)))
		service := random.IntN(services)
		next := run{}
		if random.IntN(3) > 0 {
			size := 1 + random.Uint32N(25)
			// take would wait for what rests, which is not what is tested here.
			if m.wake(); !m.fits(size) {
				continue
			}
			var err error
			if next, err = m.allocate(size); err != nil {
				t.Fatal(err)
			}
		}
		m.switchTo(uint32(service), have[service], next)
		have[service] = next
		checkLines(t, m, have, lines)
	}
	for service := range services {
		m.switchTo(uint32(service), have[service], run{})
	}
	clock = clock.Add(rest)
	if m.wake(); len(m.free) != 1 || m.free[0] != (run{1, lines}) {
		t.Errorf("with no ring left %v is free, want all %d lines in one piece", m.free, lines)
	}
}

func (m *ringMemory) fits(lines uint32) bool {
	for _, f := range m.free {
		if f.lines >= lines {
			return true
		}
	}
	return false
}

func checkLines(t *testing.T, m *ringMemory, have []run, lines uint32) {
	t.Helper()
	owner := make([]string, lines+1)
	owner[0] = "nobody"
	claim := func(r run, who string) {
		for i := r.first; i < r.end() && r.lines > 0; i++ {
			if owner[i] != "" {
				t.Fatalf("line %d belongs to %s and %s", i, owner[i], who)
			}
			owner[i] = who
		}
	}
	for _, r := range have {
		claim(r, "a ring")
	}
	for _, r := range m.free {
		claim(r, "nobody yet")
	}
	for _, r := range m.tired {
		claim(r.run, "nobody any more")
	}
	for i, who := range owner {
		if who == "" {
			t.Fatalf("line %d is lost", i)
		}
	}
}

// TestLinesRunOut: what does not fit is refused, at once when nothing rests, and
// after the rest when something does.
func TestLinesRunOut(t *testing.T) {
	m := runsOf(10, 2)
	first, err := m.allocate(6)
	must(t, err)
	if _, err := m.allocate(5); !errors.Is(err, errNoLines) {
		t.Errorf("error is %v, want %v", err, errNoLines)
	}
	m.switchTo(0, first, run{})
	if second, err := m.allocate(10); err != nil || second != (run{1, 10}) {
		t.Errorf("took %v, %v; want all ten lines when they have rested", second, err)
	}
}

// TestDamagedRingIsNone: numbers that an earlier process cannot have left are no
// reason to read beyond the memory.
func TestDamagedRingIsNone(t *testing.T) {
	m := runsOf(10, 4)
	header := func(line int) *abi.RingHeader {
		return (*abi.RingHeader)(unsafe.Pointer(&m.lines.Bytes[line*abi.LineSize]))
	}
	m.begins.Entries = []uint64{11, 1 << 40, 3, 8}
	header(3).Lines, header(8).Lines = 9, 3
	for service, want := range []run{{}, {}, {}, {8, 3}} {
		if got := m.of(uint32(service)); got != want {
			t.Errorf("service %d has ring %v, want %v", service, got, want)
		}
	}
	m.occupy([]uint32{0, 1, 2, 3})
	if len(m.free) != 1 || m.free[0] != (run{1, 7}) {
		t.Errorf("%v is free, want the seven lines before the one ring", m.free)
	}
}

// TestEveryServiceHasItsRing: each of many services, whose rings were switched
// several times by two processes, forwards by its own ring.
func TestEveryServiceHasItsRing(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const services, backends = 40, 4
	for i := range backends {
		addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	// As small as it may be: the rings of a service, before and after, and the others'.
	limits := model.Limits{Services: services, RingMemory: (services + 2) * 2 * ringBytes(&tableOf(1, backends, 0).Services[0])}
	d := openTest(t, limits)
	for vary := range 5 {
		if vary == 3 {
			must(t, d.Close())
			d = openTest(t, limits)
		}
		table := tableOf(services, backends, vary)
		for i := range table.Services {
			s := &table.Services[i]
			s.Ring.Slots = s.Ring.Slots[:1021-13*i-vary]
		}
		must(t, d.Set(table))
		for i := range table.Services {
			checkPlacement(t, d, &table.Services[i], netip.AddrFrom4([4]byte{192, 0, 2, byte(9 + vary)}))
		}
	}
	before := d.services[keyOf(&d.table.Services[7])].ring
	must(t, d.Close())
	again := openTest(t, limits)
	must(t, again.Set(d.table))
	if after := again.services[keyOf(&d.table.Services[7])].ring; after != before {
		t.Errorf("a ring that did not change moved from %v to %v at a restart", before, after)
	}
}

// checkPlacement sends packets of a client that has sent none before, so that
// nothing else than the ring says where they go.
func checkPlacement(t *testing.T, d *Datapath, s *model.TableService, client netip.Addr) {
	t.Helper()
	for port := range uint16(20) {
		frame := build(ip(client, s.VIP), l4(model.TCP, 40000+port, 80))
		flow := model.Flow{Source: client, Destination: s.VIP, SourcePort: 40000 + port, DestinationPort: 80, Protocol: uint8(model.TCP)}
		want := s.Backends[s.Ring.Slots[s.Ring.SlotOf(flow.Hash(s.Salt, s.Affinity))].Owner].Address
		if got := destination(t, d, frame); got != neighborMAC(want) {
			t.Fatalf("%s: port %d goes to %x, want %s (%x)", s.Name, 40000+port, got, want, neighborMAC(want))
		}
	}
}
