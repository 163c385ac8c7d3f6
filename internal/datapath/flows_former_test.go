package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// formerView is the table of versions before 0.2, in memory.
type formerView struct {
	entries bpfload.Memory[abi.FlowEntry]
	tags    bpfload.Memory[uint8]
	cpus    uint32
	buckets uint32
}

func viewFormer(t testing.TB, of, tags *ebpf.Map, cpus uint32) *formerView {
	t.Helper()
	f := &formerView{cpus: cpus, buckets: of.MaxEntries() / cpus}
	var err error
	if f.entries, err = bpfload.Map[abi.FlowEntry](of); err != nil {
		t.Fatal(err)
	}
	if f.tags, err = bpfload.Map[uint8](tags); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.entries.Close(); f.tags.Close() })
	return f
}

// putFormer gives the program such a table, with room for two CPUs.
func (d *testDirector) putFormer(t testing.TB) *formerView {
	t.Helper()
	made := map[string]*ebpf.Map{}
	for name, outer := range formerMaps {
		m, err := ebpf.NewMap(d.former[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		d.put(t, outer, uint32(0), m)
		t.Cleanup(func() { d.Maps[outer].Delete(uint32(0)) })
		made[name] = m
	}
	return viewFormer(t, made[formerFlows], made[formerTags], 2)
}

// TestFormerPins: pins have the names that version 0.1.0 gives them with its default limits.
func TestFormerPins(t *testing.T) {
	config := model.Config{}
	config.SetDefaults()
	formats, err := Formats(config.Director.Limits)
	must(t, err)
	if formats[formerFlows] != "b36b129e5b172138" || formats[formerTags] != "679a580776deeae1" {
		t.Errorf("formats are %s and %s", formats[formerFlows], formats[formerTags])
	}
}

// places are the places that a flow with this hash may have on a CPU, and the tags of these.
func (f *formerView) places(hash uint64, cpu uint32) (entries []abi.FlowEntry, tags []uint8) {
	bucket := uint32(hash >> 32 * uint64(f.buckets) >> 32)
	first, firstTag := (cpu*f.buckets+bucket)*flows.FormerWays, (bucket*f.cpus+cpu)*flows.FormerWays
	return f.entries.Entries[first:][:flows.FormerWays], f.tags.Entries[firstTag:][:flows.FormerWays]
}

// find is what a version before 0.2 finds on a CPU: in any place of that CPU's own bucket, and where
// the tags say so in another one's.
func (f *formerView) find(hash uint64, cpu uint32, port uint16) *abi.FlowEntry {
	tag := formerTag(hash)
	for at := range f.cpus {
		entries, tags := f.places(hash, at)
		for i := range entries {
			if e := &entries[i]; e.State > uint8(abi.FlowStateFLOW_CLAIMED) && be16(e.SourcePort) == port && (at == cpu || tags[i] == tag) {
				return e
			}
		}
	}
	return nil
}

// TestFormerTable: the program finds flows that only the table of versions before 0.2 has, whichever
// CPU has filled it, and keeps that table up to date.
func TestFormerTable(t *testing.T) {
	if ebpf.MustPossibleCPU() < 2 {
		t.Fatal("needs two CPUs")
	}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		for _, is4 := range []bool{true, false} {
			testFormerTable(t, protocol, is4)
		}
	}
}

func testFormerTable(t *testing.T, protocol model.Protocol, is4 bool) {
	w, s := flowWorld(protocol, is4)
	w.settings.FormerCpus, w.settings.FormerBuckets, w.settings.Flags = 2, testFormerBuckets, uint32(abi.SettingsFlagSETTINGS_FORMER)
	d := loadTestDirector(t, w)
	former := d.putFormer(t)
	open, salt := uint8(abi.FlowStateFLOW_ESTABLISHED), d.world.abiSettings().FlowSalt
	if protocol == model.UDP {
		open = uint8(abi.FlowStateFLOW_ACTIVE)
	}
	hash := func(port uint16) uint64 { return s.flowFrom(port).Hash(salt, model.AffinityFlow) }
	for cpu := range uint32(2) {
		port := clientPort + uint16(cpu)
		entries, tags := former.places(hash(port), cpu)
		entries[3] = abi.FlowEntry{
			Seen: d.now() - 20, State: open, Turn: 7, Epoch: s.backends[2].epoch, Backend: s.first + 2, Service: s.index,
			Source: abi.AddressBytes(s.client), SourcePort: be16(port), DestinationPort: be16(servicePort),
		}
		tags[3] = []uint8{uint8(abi.FlowTagFLOW_TAG_ANY), formerTag(hash(port))}[cpu]
	}
	s.setRing(t, d, listedRing(0, 1, 2))
	moved := d.flowCount(t, abi.FlowEventFLOW_MOVED)
	onCPU(t, 0, func() {
		s.want(t, d, clientPort, ackFlag, 2, "this CPU has it in the former table")
		s.want(t, d, clientPort+1, ackFlag, 2, "another CPU has")
		s.want(t, d, clientPort+1, ackFlag, 2, "it is remembered")
	})
	if n := d.flowCount(t, abi.FlowEventFLOW_MOVED) - moved; n != 2 || len(s.remembered(t, d)) != 2 {
		t.Errorf("%v, %v: %d flows were taken over and %d are remembered, want 2", protocol, s.vip, n, len(s.remembered(t, d)))
	}
	for port := range uint16(2) {
		if e := former.find(hash(clientPort+port), 0, clientPort+port); e == nil || e.Backend != s.first+2 || d.now()-e.Seen > 2 || e.Source != abi.AddressBytes(s.client) {
			t.Errorf("%v, %v: the former table has %+v of flow %d, want its last packet", protocol, s.vip, e, port)
		}
	}
	// A flow that begins now.
	const begins = clientPort + 9
	onCPU(t, 1, func() {
		s.goes(t, d, begins, synFlag)
		s.goes(t, d, begins, ackFlag)
		s.lasts(t, d, begins)
		s.goes(t, d, begins, ackFlag)
	})
	place := s.remembered(t, d)[begins]
	for cpu := range uint32(2) {
		if e := former.find(hash(begins), cpu, begins); e == nil || place == nil || e.Backend != place.Backend || e.State != place.State || e.Epoch != place.Epoch || e.Next != place.Next {
			t.Errorf("%v, %v: on CPU %d a version before 0.2 finds %+v of a new flow, remembered is %+v", protocol, s.vip, cpu, e, place)
		}
	}
	d.advance(t, 20*time.Second)
	onCPU(t, 1, func() { s.goes(t, d, begins, ackFlag) })
	if e := former.find(hash(begins), 1, begins); e == nil || e.Seen != d.now() {
		t.Errorf("%v, %v: the former table has %+v of a flow that goes on after a while, and it is %d", protocol, s.vip, e, d.now())
	}
	d.put(t, "this_director", uint32(0), func() abi.Settings { s := d.world.abiSettings(); s.FormerBuckets = 0; return s }())
	s.goes(t, d, clientPort+20, ackFlag)
	if e := former.find(hash(clientPort+20), 0, clientPort+20); e != nil {
		t.Errorf("without that table a flow was written there: %+v", e)
	}
}

// A flow of the former table that has no place in the new one stays with its backend, too.
func TestFormerFlowWithoutPlace(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	w.settings.FormerCpus, w.settings.FormerBuckets, w.settings.Flags = 2, testFormerBuckets, uint32(abi.SettingsFlagSETTINGS_FORMER)
	d := loadTestDirector(t, w)
	former, now := d.putFormer(t), d.now()
	entries, tags := former.places(s.flowFrom(clientPort).Hash(d.world.abiSettings().FlowSalt, model.AffinityFlow), 0)
	entries[0] = abi.FlowEntry{
		Seen: now, State: uint8(abi.FlowStateFLOW_ESTABLISHED), Epoch: s.backends[1].epoch, Backend: s.first + 1, Service: s.index,
		Source: abi.AddressBytes(s.client), SourcePort: be16(clientPort), DestinationPort: be16(servicePort),
	}
	tags[0] = uint8(abi.FlowTagFLOW_TAG_ANY)
	places := d.flowPlaces(t)
	for i := range places {
		places[i] = abi.FlowPlace{Seen: now, State: uint8(abi.FlowStateFLOW_PROVED), Epoch: s.backends[0].epoch, Backend: s.first, Service: s.index, SourcePort: uint16(i)}
	}
	onCPU(t, 0, func() {
		for range 2 {
			s.want(t, d, clientPort, ackFlag, 1, "its backend, of three")
		}
	})
	s.setBackend(t, d, 1, abi.BackendStateBACKEND_DOWN)
	onCPU(t, 0, func() { s.want(t, d, clientPort, ackFlag, 0, "its backend is down: the first of the row") })
}

// A full bucket of the former table gives a place of a fresh flow to another one, and none of a flow
// that is sustained.
func TestFormerTableIsFull(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	w.settings.FormerCpus, w.settings.FormerBuckets = 2, testFormerBuckets
	d := loadTestDirector(t, w)
	former := d.putFormer(t)
	hash := s.flowFrom(clientPort).Hash(d.world.abiSettings().FlowSalt, model.AffinityFlow)
	entries, _ := former.places(hash, 0)
	for i := range entries {
		entries[i] = abi.FlowEntry{Seen: d.now(), State: uint8(abi.FlowStateFLOW_ESTABLISHED), Epoch: s.backends[0].epoch, Backend: s.first, Service: s.index, SourcePort: be16(uint16(i))}
	}
	onCPU(t, 0, func() { s.goes(t, d, clientPort, synFlag) })
	if former.find(hash, 0, clientPort) != nil || s.remembered(t, d)[clientPort] == nil {
		t.Error("a new flow has the place of a sustained one, or is not remembered")
	}
	entries[5].State = uint8(abi.FlowStateFLOW_SYN)
	onCPU(t, 0, func() { s.goes(t, d, clientPort, ackFlag) })
	if e := former.find(hash, 0, clientPort); e != &entries[5] {
		t.Errorf("a new flow is at %p, want the place of the fresh one", e)
	}
}

// asFormer makes what a process has pinned what a version before 0.2 would have pinned: the flows,
// as a version without classes had them, in its table.
func (d *Datapath) asFormer(t *testing.T) {
	t.Helper()
	made := map[string]*ebpf.Map{}
	for name, path := range d.kernel.formerTable.pins {
		m, err := ebpf.NewMap(d.kernel.formerTable.specs[name])
		must(t, err)
		must(t, m.Pin(path))
		t.Cleanup(func() { m.Close() })
		made[name] = m
	}
	cpus := d.written.Cpus
	former := viewFormer(t, made[formerFlows], made[formerTags], cpus)
	d.nameIndexes()
	for e := range d.flows.All() {
		entry := *e
		entry.State, entry.Since, entry.Next = uint8(abi.FlowStateFLOW_ESTABLISHED), 0, 0
		hash := flowOf(d.names.services[e.Service], e).Hash(d.written.FlowSalt, model.AffinityFlow)
		entries, _ := former.places(hash, 0)
		entries[0] = entry
	}
	must(t, os.Remove(d.kernel.state[directorMapFlowTable]))
	record := &d.kernel.records.director.Entries[0]
	record.formerCPUs, record.formerBuckets = cpus, former.buckets
	record.formerLeft = 1 // by a process of this version, before that version ran: it leaves the record as it is
}

// TestFlowsOfBeforeAreKept: an upgrade from a version before 0.2 keeps the flows, in all that looks at
// them, and so does the way back, for a day.
func TestFlowsOfBeforeAreKept(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	onCPU(t, 0, func() { testFlowsOfBefore(t) })
}

func testFlowsOfBefore(t *testing.T) {
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 3, 0)))
	must(t, d.Set(tableOf(1, 3, 1))) // its slots settle
	backend := d.sends(t, packet.SYN)
	d.sends(t, packet.ACK)
	d.asFormer(t)
	d.kernel.formerTable.in = true // so that it leaves nothing
	must(t, d.Close())

	d = openVersion(t, otherABI)
	must(t, d.Set(tableOf(1, 3, 2)))
	var classes []model.FlowClass
	must(t, d.RememberedFlows(func(some []model.RememberedFlow) bool {
		for i := range some {
			classes = append(classes, some[i].Class)
		}
		return true
	}))
	if len(classes) != 1 || classes[0] != model.SustainedFlow {
		t.Errorf("flows of classes %v are remembered, want one that is sustained", classes)
	}
	if to := d.sends(t, packet.ACK); to != backend {
		t.Errorf("the connection went from %v to %v", backend, to)
	}
	// What begins now is in that table, too, also after a process was killed.
	d.sendsFrom(t, clientPort+1, packet.SYN)
	kill(t, d)
	d = openVersion(t, otherABI)
	d.sendsFrom(t, clientPort+2, packet.SYN)
	must(t, d.Set(tableOf(1, 3, 2)))
	d.sendsFrom(t, clientPort+3, packet.SYN)
	ports := map[uint16]bool{}
	for _, e := range d.formerView(t).entries.Entries {
		if e.State > uint8(abi.FlowStateFLOW_CLAIMED) {
			ports[be16(e.SourcePort)] = true
		}
	}
	for port := range uint16(4) {
		if !ports[clientPort+port] {
			t.Errorf("the former table lacks the flow from port %d, it has %v", clientPort+port, ports)
		}
	}
	must(t, d.Close())

	// A day later it goes.
	at := d.kernel.state[directorMapFlowTable]
	old := unix.NsecToTimespec(time.Now().Add(-formerLasts - time.Minute).UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{old, old}, 0))
	d = openVersion(t, nil)
	must(t, d.Set(tableOf(1, 3, 2)))
	d.wantNoFormer(t)
	if to := d.sends(t, packet.ACK); to != backend {
		t.Errorf("without that table the connection went from %v to %v", backend, to)
	}
}

// formerView is the former table as a version before 0.2 would find it.
func (d *Datapath) formerView(t *testing.T) *formerView {
	t.Helper()
	made := map[string]*ebpf.Map{}
	for name, path := range d.kernel.formerTable.pins {
		m, err := ebpf.LoadPinnedMap(path, nil)
		must(t, err)
		t.Cleanup(func() { m.Close() })
		made[name] = m
	}
	return viewFormer(t, made[formerFlows], made[formerTags], d.kernel.records.director.Entries[0].formerCPUs)
}

func (d *Datapath) wantNoFormer(t *testing.T) {
	t.Helper()
	if d.written.FormerBuckets != 0 {
		t.Errorf("the former table has %d buckets", d.written.FormerBuckets)
	}
	for name, outer := range formerMaps {
		if left, err := filepath.Glob(d.kernel.statePin(name + "-*")); err != nil || len(left) > 0 {
			t.Errorf("%v, %v are left of it", left, err)
		}
		if err := d.kernel.all[outer].Lookup(uint32(0), new(uint32)); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("the program still has %s: %v", name, err)
		}
	}
}

// TestFormerTableIsLeft: a process that ends leaves all flows for a version before 0.2, and what
// begins afterwards; the next process of this version has no use for it.
func TestFormerTableIsLeft(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	for _, next := range []func(*ebpf.CollectionSpec){nil, otherABI} {
		d := openVersion(t, nil)
		must(t, d.Set(tableOf(1, 3, 0)))
		must(t, d.Set(tableOf(1, 3, 1))) // its slots settle
		d.wantNoFormer(t)
		for port := range uint16(20) {
			d.sendsFrom(t, clientPort+port, packet.SYN)
		}
		vip := d.table.Services[0].VIP
		program, err := d.kernel.program.Clone()
		must(t, err)
		must(t, d.Close())
		frame := build(ip(client4, vip), packet.TCPHeader{Src: clientPort + 20, Dst: 80, Flags: packet.SYN}, packet.Text("client"))
		_, _, err = program.Test(frame)
		must(t, errors.Join(err, program.Close()))

		d = openVersion(t, next)
		former := d.formerView(t)
		for port := range uint16(21) {
			f := model.Flow{Source: client4, Destination: vip, Protocol: uint8(model.TCP), SourcePort: clientPort + port, DestinationPort: 80}
			hash := f.Hash(d.written.FlowSalt, model.AffinityFlow)
			for cpu := range former.cpus {
				if former.find(hash, cpu, clientPort+port) == nil {
					t.Errorf("CPU %d does not find the flow from port %d", cpu, clientPort+port)
				}
			}
		}
		must(t, d.Set(tableOf(1, 3, 1)))
		d.wantNoFormer(t)
		if n := d.flowsRemembered(t); n != 21 {
			t.Errorf("%d flows are remembered, want 21", n)
		}
		d.kernel.formerTable.in = true
		must(t, d.Close())
	}
}

// TestStaleFlowTable: a version before 0.2 that has run meanwhile has not kept the new table up to
// date, so the next one does not read it.
func TestStaleFlowTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 3, 0)))
	must(t, d.Set(tableOf(1, 3, 1)))
	d.sends(t, packet.SYN)
	if n := d.flowsRemembered(t); n != 1 {
		t.Fatalf("%d flows are remembered, want 1", n)
	}
	// Such a version ran, more than a day after this one was installed, and was killed before it has
	// removed the pin.
	at := d.kernel.state[directorMapFlowTable]
	stale, err := d.kernel.FlowTable.Clone()
	must(t, err)
	defer stale.Close()
	d.asFormer(t)
	d.kernel.formerTable.in = true
	must(t, d.Close())
	d = openVersion(t, otherABI)
	must(t, d.Set(tableOf(1, 3, 1)))
	d.sendsFrom(t, clientPort+1, packet.SYN)
	d.kernel.formerTable.in = true
	must(t, d.Close())
	must(t, os.Remove(at))
	must(t, pinClone(stale, at))
	old := unix.NsecToTimespec(time.Now().Add(-formerLasts - time.Minute).UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{old, old}, 0))
	d = openVersion(t, nil)
	if n := d.flowsRemembered(t); n != 0 {
		t.Errorf("%d flows of the stale table are remembered, want none", n)
	}
	must(t, d.Set(tableOf(1, 3, 1)))
	if n := d.flowsRemembered(t); n != 2 {
		t.Errorf("%d flows are remembered, want the two of the former table", n)
	}
}

// flowsRemembered counts all that is in flow memory.
func (d *Datapath) flowsRemembered(t *testing.T) (n int) {
	t.Helper()
	for range d.flows.All() {
		n++
	}
	return n
}
