package datapath

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// quotaTable is two tenants in VLANs with the same VIP, and one service in none. Their quotas are given.
func quotaTable(red, blue model.SegmentQuota) model.Table {
	t := tableOf(3, 2, 0)
	t.Services[1].VIP = t.Services[0].VIP
	t.Services[0].Segment, t.Services[1].Segment = redVLAN, blueVLAN
	t.Quotas = map[model.Segment]model.SegmentQuota{}
	for id, q := range map[model.Segment]model.SegmentQuota{redVLAN: red, blueVLAN: blue} {
		if q != (model.SegmentQuota{}) {
			t.Quotas[id] = q
		}
	}
	for i := range t.Services {
		_, t.Services[i].Quota = t.Quotas[t.Services[i].Segment]
	}
	return t
}

var redVLAN, blueVLAN = model.Segment{Kind: model.SegmentVLAN, ID: 7}, model.Segment{Kind: model.SegmentVLAN, ID: 8}

// sendTo sends packets to a table's service, each of a flow of its own, and returns how many are not dropped.
func sendTo(t *testing.T, d *Datapath, s *model.TableService, count int, flags uint8) (passed int) {
	t.Helper()
	for i := range count {
		headers := []packet.Header{arrived}
		if s.Segment != (model.Segment{}) {
			headers = append(headers, packet.VLANTag{ID: uint16(s.Segment.ID)})
		}
		headers = append(headers, ip(client4, s.VIP), packet.TCPHeader{Src: uint16(1024 + i), Dst: 80, Seq: 1, Flags: flags})
		action, _, err := d.kernel.program.Test(packet.Build(headers...))
		must(t, err)
		if action != xdpDrop {
			passed++
		}
	}
	return passed
}

func reasonOf(t *testing.T, d *Datapath, name string) uint64 {
	t.Helper()
	for _, r := range statusOf(t, d).Reasons {
		if r.Name == name {
			return r.Packets
		}
	}
	t.Fatalf("there is no reason %s", name)
	return 0
}

// A segment gets the packets that it may have, also if all of them come to one CPU, and no more. What others have
// is not touched, and each drop is counted: under its reason, for its service and for its segment.
func TestPacketsPerSecond(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openTest(t, model.Limits{})
	const window = time.Second * (1 << abi.QuotaSizeQUOTA_WINDOW) / 1e9
	inWindow := func(rate uint32) int { return int(quotaOf(model.SegmentQuota{PacketsPerSecond: rate}, 1).Packets) }

	table := quotaTable(model.SegmentQuota{PacketsPerSecond: 100}, model.SegmentQuota{PacketsPerSecond: 100_000})
	must(t, d.Set(table))
	const flood, some = 3000, 5000 // more than half of what blue may have in a window
	if some <= inWindow(100_000)/2 || some > inWindow(100_000) {
		t.Fatalf("%d packets are not most of a window's %d", some, inWindow(100_000))
	}
	begin := time.Now()
	red := sendTo(t, d, &table.Services[0], flood, packet.ACK)
	most := inWindow(100) * (2 + int(time.Since(begin)/window))
	if red < inWindow(100) || red > most {
		t.Errorf("of %d packets to red %d pass, want %d to %d", flood, red, inWindow(100), most)
	}
	if blue := sendTo(t, d, &table.Services[1], some, packet.ACK); blue != some {
		t.Errorf("of %d packets to blue, which may have %d in a second, %d pass", some, 100_000, blue)
	}
	if none := sendTo(t, d, &table.Services[2], flood, packet.ACK); none != flood {
		t.Errorf("of %d packets to no segment %d pass", flood, none)
	}
	dropped := uint64(flood - red)
	status := statusOf(t, d)
	if got := reasonOf(t, d, "drop_segment_limit"); got != dropped {
		t.Errorf("%d packets are counted as over a limit, want %d", got, dropped)
	}
	for _, s := range status.Segments {
		want := map[model.Segment]uint64{redVLAN: dropped}[s.ID]
		if s.Limited != want || s.Dropped != want {
			t.Errorf("of %s %d are limited and %d dropped, want %d", s.ID, s.Limited, s.Dropped, want)
		}
	}

	// An explanation spends nothing, and does not say that a packet is over the limit now.
	e, err := d.Explain("wire0", packet.Build(arrived, packet.VLANTag{ID: 7}, ip(client4, table.Services[0].VIP), packet.TCPHeader{Src: 9, Dst: 80, Flags: packet.ACK}))
	must(t, err)
	if e.Outcome != model.OutcomeForward {
		t.Errorf("a packet is explained as %s", e.Reason)
	}

	// A limit that is raised counts at once, and one that goes is none.
	table = quotaTable(model.SegmentQuota{PacketsPerSecond: 1 << 30}, model.SegmentQuota{})
	must(t, d.Set(table))
	for _, i := range []int{0, 1} {
		if passed := sendTo(t, d, &table.Services[i], flood, packet.ACK); passed != flood {
			t.Errorf("of %d packets %d pass with a larger limit, or none, of %s", flood, passed, table.Services[i].Segment)
		}
	}
	table = quotaTable(model.SegmentQuota{}, model.SegmentQuota{PacketsPerSecond: 100})
	must(t, d.Set(table)) // the number of one, perhaps, for the other
	if passed := sendTo(t, d, &table.Services[0], flood, packet.ACK); passed != flood {
		t.Errorf("of %d packets %d pass without a limit", flood, passed)
	}
	if passed := sendTo(t, d, &table.Services[1], flood, packet.ACK); passed > flood/2 {
		t.Errorf("of %d packets %d pass with a limit", flood, passed)
	}
	if counts := statusOf(t, d).Segments; counts[len(counts)-2].Limited != 0 {
		t.Errorf("red has no limit, and there is %+v", counts)
	}

	// The next process goes on with it.
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	must(t, d.Set(table))
	if passed := sendTo(t, d, &table.Services[1], flood, packet.ACK); passed > flood/2 {
		t.Errorf("of %d packets %d pass with a limit, after a restart", flood, passed)
	}
}

// quotaWorld is two tenants with services of both families, of which the first has a quota of flows or none.
func quotaWorld(quota uint32) (*testWorld, [2][2]scenario) {
	w, services := twoFamilies()
	var all [2][2]scenario
	all[0] = services
	for family, s := range services {
		s.testService.quota = quota
		other := *s.testService
		other.vip, other.quota = vipAddress(family == 0, 9), 0
		all[1][family] = scenario{testService: w.add(other), client: s.client}
	}
	w.settings.FlowShare = flows.Ways
	return w, all
}

// TestFlowQuota: a segment with a quota has no more flows than that, however many begin, and whatever they are: none
// of another segment's flows gives way to one, and new ones of that segment find places. Without the quota the
// same flood takes the fresh flows' places, and at last all.
func TestFlowQuota(t *testing.T) {
	for _, limited := range []bool{true, false} {
		number := uint32(0)
		if limited {
			number = 5
		}
		w, services := quotaWorld(number)
		d := loadTestDirector(t, w)
		places := d.flowPlaces(t)
		quota := uint32(len(places) / 3)
		d.put(t, "quotas", uint32(5), quotaOf(model.SegmentQuota{Flows: quota}, uint32(len(places))/flows.Ways))
		red, blue := services[0], services[1]
		inserted := func(s scenario, port uint16) bool {
			before := d.flowCount(t, abi.FlowEventFLOW_INSERTED)
			s.goes(t, d, port, synFlag)
			return d.flowCount(t, abi.FlowEventFLOW_INSERTED) > before
		}
		// age makes flows old enough to give way, and keeps some.
		age := func(services [2]scenario, keep int) {
			for _, s := range services {
				n := 0
				for _, place := range s.remembered(t, d) {
					if n++; n <= keep {
						place.State, place.Seen = uint8(abi.FlowStateFLOW_PROVED), d.now()
					} else if place.State == uint8(abi.FlowStateFLOW_SYN) && place.Seen+2 >= d.now() {
						place.Seen -= 4 // once: it does not time out
					}
				}
			}
		}
		var known [2]map[uint16]uint32
		for family, s := range blue {
			for port := range uint16(len(places) / 8) {
				inserted(s, 1+port)
			}
			age(blue, len(places)/32)
			known[family] = map[uint16]uint32{}
		}
		for family, s := range blue {
			for port, place := range s.remembered(t, d) {
				known[family][port] = place.Backend
			}
		}
		used := func() (n uint32) {
			return uint32(len(red[0].remembered(t, d)) + 2*len(red[1].remembered(t, d)))
		}
		for i := range uint16(8 * len(places) / 5) {
			inserted(red[i%2], 1+i/2)
			if i%64 == 0 {
				age(red, len(places)/24) // blue's are not: they would time out
			}
		}
		lost := 0
		for family, s := range blue {
			is := s.remembered(t, d)
			for port, backend := range known[family] {
				if is[port] == nil || is[port].Backend != backend {
					lost++
				}
			}
		}
		most := quota // no two CPUs insert here, which could pass it by one
		t.Logf("limited %v: red has %d places of %d, and may have %d; %d of %d flows of blue are lost", limited, used(), len(places), quota, lost, len(known[0])+len(known[1]))
		if limited && (used() > most || used() < quota*8/10 || lost > 0) {
			t.Errorf("red has %d places, and may have %d; %d flows of blue are lost", used(), quota, lost)
		}
		if !limited && (used() <= most || lost == 0) {
			t.Errorf("without a limit red has %d places, and %d flows of blue are lost: the test shows nothing", used(), lost)
		}
		// A flood of flows that are all kept.
		for i := range uint16(4 * len(places)) {
			inserted(red[i%2], 20000+i/2)
			if i%64 == 0 {
				age(red, len(places))
			}
		}
		found := 0
		for i := range uint16(len(places) / 8) {
			if inserted(blue[0], 30000+i) {
				found++
			}
		}
		if limited && (used() > most || found < len(places)/8*9/10) {
			t.Errorf("red keeps %d places, and may have %d; %d of %d new flows of blue find one", used(), quota, found, len(places)/8)
		}
		if !limited && found > len(places)/16 {
			t.Errorf("without a limit %d of %d new flows of blue find a place: the test shows nothing", found, len(places)/8)
		}
	}
}

// TestSmallFlowQuotas: of a small part of a large flow memory, a segment that has nothing else has most of its first
// half, whichever family its flows are of, and never more than the whole.
func TestSmallFlowQuotas(t *testing.T) {
	const buckets = model.DefaultFlows / flows.Ways
	w, services := quotaWorld(5)
	d := largeDirector(t, w, buckets)
	places := d.flowPlaces(t)
	least := quotaOf(model.SegmentQuota{Flows: model.DefaultFlows / model.LeastFlowsPart}, buckets)
	if quotaOf(model.SegmentQuota{Flows: 1}, buckets) != least {
		t.Errorf("what a larger flow memory has of an earlier process makes of a quota is not the least, %+v", least)
	}
	for _, quota := range []uint32{model.DefaultFlows / model.LeastFlowsPart, 10_000, 65_536} {
		d.put(t, "quotas", uint32(5), quotaOf(model.SegmentQuota{Flows: quota}, buckets))
		for name, families := range map[string][]scenario{"IPv4": services[0][:1], "IPv6": services[0][1:], "both": services[0][:]} {
			d.forgetFlows(t)
			clients, port, taken := []netip.Addr{families[0].client, families[len(families)-1].client}, uint16(0), uint32(0)
			begin := func(most uint32) (begun, remembered int) {
				before := d.flowCount(t, abi.FlowEventFLOW_INSERTED)
				for i := 0; taken < most; i++ {
					family := i % len(families)
					if port++; port == 0 {
						port, clients[0], clients[1] = 1, clients[0].Next(), clients[1].Next()
					}
					s := families[family]
					s.client = clients[family]
					s.goes(t, d, port, synFlag)
					begun, taken = begun+1, taken+1
					if s.client.Is6() {
						taken++
					}
				}
				return begun, int(d.flowCount(t, abi.FlowEventFLOW_INSERTED) - before)
			}
			begun, remembered := begin(quota / 2)
			t.Logf("%s: of %d flows in half of %d places %d are remembered", name, begun, quota, remembered)
			if remembered < begun*9/10 {
				t.Errorf("%s: of %d flows in half of %d places %d are remembered, want nine of ten", name, begun, quota, remembered)
			}
			begin(2 * quota)
			used := uint32(0)
			for _, e := range flowsIn(places) {
				used++
				if e.Service == services[0][1].index {
					used++
				}
			}
			if most := quota + quota/256; used > most || used < quota*8/10 { // parts are rounded, some up and some down
				t.Errorf("%s: of twice as many as it may have a segment has %d places, and may have %d", name, used, quota)
			}
		}
	}
}

// largeDirector is a program whose flow memory has so many buckets.
func largeDirector(t *testing.T, w *testWorld, buckets uint32) *testDirector {
	t.Helper()
	spec, err := loadPrograms()
	must(t, err)
	addClock(spec)
	size := mapSizes["flow_table"]
	mapSizes["flow_table"] = buckets
	defer func() { mapSizes["flow_table"] = size }()
	d := loadSpec(t, spec, "director")
	t.Cleanup(d.Close)
	d.stopClock(t)
	d.fill(t, w)
	settings := w.abiSettings()
	settings.FlowBuckets = buckets
	d.put(t, "this_director", uint32(0), settings)
	return d
}

// TestFormerFlowsOfQuota: a flow that only the table of versions before 0.2 has comes to flow memory if its segment
// may have one more there. Without, it stays where it is, and goes on.
func TestFormerFlowsOfQuota(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	s.testService.quota = 5
	w.settings.FormerCpus, w.settings.FormerBuckets, w.settings.Flags = 2, testFormerBuckets, uint32(abi.SettingsFlagSETTINGS_FORMER)
	d := loadTestDirector(t, w)
	former := d.putFormer(t)
	entries, tags := former.places(s.flowFrom(clientPort).Hash(w.abiSettings().FlowSalt, model.AffinityFlow), 0)
	entries[3] = abi.FlowEntry{
		Seen: d.now() - 20, State: uint8(abi.FlowStateFLOW_ESTABLISHED), Turn: 7, Epoch: s.backends[1].epoch, Backend: s.first + 1, Service: s.index,
		Source: abi.AddressBytes(s.client), SourcePort: be16(clientPort), DestinationPort: be16(servicePort),
	}
	tags[3] = uint8(abi.FlowTagFLOW_TAG_ANY)
	s.setRing(t, d, listedRing(0, 1, 2))
	moved := d.flowCount(t, abi.FlowEventFLOW_MOVED)
	for most, want := range []int{0, 1} {
		flows := uint32(1) // of 65,536 parts of a place
		if most > 0 {
			flows = 4 << 16
		}
		d.put(t, "quotas", uint32(5), abi.Quota{Flows: flows})
		onCPU(t, 0, func() { s.want(t, d, clientPort, ackFlag, 1, "the former table has it") })
		if n := d.flowCount(t, abi.FlowEventFLOW_MOVED) - moved; n != uint64(want) || len(s.remembered(t, d)) != want {
			t.Errorf("of a segment that may have %d flows in each bucket %d are taken over and %d remembered, want %d", 4*most, n, len(s.remembered(t, d)), want)
		}
	}
}

// TestManyQuotas: 2,100 segments with quotas give way to as many others at once, which is more together than may have
// one: each of the others has its own, and what has none has none.
func TestManyQuotas(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 1)
	const count = 2100
	d := openTest(t, model.Limits{Services: 3 * count, Backends: 3 * count, RingMemory: 64 << 20})
	for outer := range uint32(3) {
		table := tableOf(count, 1, 0)
		table.Quotas = map[model.Segment]model.SegmentQuota{}
		for i := range table.Services {
			s := &table.Services[i]
			s.Segment, s.Quota = model.Segment{Kind: model.SegmentVLAN, ID: outer<<12 | uint32(i+1)}, true
			s.Ring.Slots = s.Ring.Slots[:13]
			table.Quotas[s.Segment] = model.SegmentQuota{Flows: model.DefaultFlows / 2}
		}
		must(t, d.Set(table))
		q := &d.quotas
		if q.each.Entries[0] != (abi.Quota{}) {
			t.Fatalf("what has no quota has %+v", q.each.Entries[0])
		}
		seen := map[uint64]bool{}
		for _, s := range d.services {
			number := q.of.Entries[s.index]
			if number == 0 || seen[number] || uint64(q.numbers[s.desired.Segment]) != number || q.each.Entries[number].Flows == 0 {
				t.Fatalf("segment %s has quota %d, %+v, and is known with %d; another one has it: %v", s.desired.Segment, number, q.each.Entries[number],
					q.numbers[s.desired.Segment], seen[number])
			}
			seen[number] = true
		}
		if len(seen) != count || len(q.numbers) != count {
			t.Errorf("%d services have quotas, and %d segments, want %d", len(seen), len(q.numbers), count)
		}
		others := 0
		for _, number := range q.of.Entries {
			if number != 0 {
				others++
			}
		}
		if others != count {
			t.Errorf("%d indexes of services have quotas, also of services that are gone, want %d", others, count)
		}
	}
}

// fullNATQuotaTable is two tenants' services of full NAT with so many ports, the first of which has a quota; the fourth
// service is another one of the tenant with this number.
func fullNATQuotaTable(red model.SegmentQuota, ports, of int) model.Table {
	table := quotaTable(red, model.SegmentQuota{})
	more := table.Services[of]
	more.Name, more.VIP = "more", netip.MustParseAddr("198.51.100.77")
	table.Services = append(table.Services, more)
	for i := range table.Services {
		s := &table.Services[i]
		s.Backends = slices.Clone(s.Backends)
		for j := range s.Backends {
			s.Backends[j].Mode, s.Backends[j].SNAT, s.Backends[j].Port = model.NAT, true, 8080
		}
	}
	table.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.5")}, Ports: model.PortRange{First: 10000, Last: 10000 + uint16(ports) - 1}}
	return table
}

// A segment has its part of full NAT's ports, whatever it sends and by however many services, and flows of others
// keep theirs. What finds no place is counted for it. Its own flows that have begun, and not gone on, give way.
func TestFullNATQuota(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openTest(t, model.Limits{})
	const ports, flood, part = 256, 1000, 256 / 4
	table := fullNATQuotaTable(model.SegmentQuota{Flows: model.DefaultFlows / 4}, ports, 0)
	must(t, d.Set(table))
	red := sendTo(t, d, &table.Services[0], flood, packet.SYN)
	if red > part || red < part*3/4 {
		t.Errorf("red has %d of %d ports, want at most %d and most of these", red, ports, part)
	}
	if again := sendTo(t, d, &table.Services[3], flood, packet.SYN); red+again > part {
		t.Errorf("red has %d ports by another service besides %d, want %d in all", again, red, part)
	}
	blue := sendTo(t, d, &table.Services[1], flood, packet.SYN)
	if share := ports * 3 / 4; blue < share*3/4 {
		t.Errorf("blue has %d ports while red is at its limit, want most of %d", blue, share)
	}
	counts := map[model.Segment]uint64{}
	for _, s := range statusOf(t, d).Segments {
		counts[s.ID] = s.FlowsRefused
	}
	if counts[redVLAN] < 2*flood-part || counts[blueVLAN] != 0 {
		t.Errorf("%d flows of red are refused and %d of blue, want at least %d and none", counts[redVLAN], counts[blueVLAN], 2*flood-part)
	}
	next := 0
	eventually(t, "red's new flows take the places of its quiet ones", func() bool {
		next = sendTo(t, d, &table.Services[3], flood, packet.SYN)
		return next >= part/2
	})
	if next > part {
		t.Errorf("red has %d ports when its flows give way, want %d at most", next, part)
	}
}

// A segment that has its part of full NAT's ports free gets it from others' quiet flows, as one without a limit does.
func TestFullNATPartOfOthers(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	const ports, part = 256, 256 / 4
	d := openTest(t, model.Limits{})
	table := fullNATQuotaTable(model.SegmentQuota{Flows: model.DefaultFlows / 4}, ports, 1)
	must(t, d.Set(table))
	if taken := sendTo(t, d, &table.Services[1], 3000, packet.SYN) + sendTo(t, d, &table.Services[3], 3000, packet.SYN); taken < ports*3/4 {
		t.Fatalf("blue has %d of %d ports: this shows nothing", taken, ports)
	}
	red := 0
	eventually(t, "red gets most of its part where others' flows are quiet", func() bool {
		red = sendTo(t, d, &table.Services[0], 1000, packet.SYN)
		return red >= part*3/4
	})
	if red > part {
		t.Errorf("red has %d ports where others' flows are quiet, want %d at most", red, part)
	}
}

// A segment whose quota could not be written has it after the next try, and a number that another process gave to it is
// gone with that process's table.
func TestQuotasOfSegmentsAreWritten(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openTest(t, model.Limits{})
	table := quotaTable(model.SegmentQuota{PacketsPerSecond: 100}, model.SegmentQuota{})
	m := d.kernel.SegmentQuotas
	const other = 0xf0000000
	for i := range m.MaxEntries() {
		must(t, m.Put(other+i, uint32(1)))
	}
	if err := d.Set(table); err == nil {
		t.Error("a quota is set, and the kernel has no room for it")
	}
	for i := range m.MaxEntries() {
		must(t, m.Delete(other+i))
	}
	must(t, d.Set(table))
	has := func(segment model.Segment) bool {
		var number uint32
		return d.kernel.SegmentQuotas.Lookup(segment.Key(), &number) == nil
	}
	if !has(redVLAN) {
		t.Error("red has no quota after the next try")
	}
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	if !has(redVLAN) {
		t.Error("red has no quota while the next process has set nothing yet")
	}
	must(t, d.Set(quotaTable(model.SegmentQuota{}, model.SegmentQuota{PacketsPerSecond: 100})))
	if has(redVLAN) || !has(blueVLAN) {
		t.Errorf("red has a quota: %v, and blue: %v; want blue alone", has(redVLAN), has(blueVLAN))
	}
}

// What a segment asks of the director itself is part of what it may send: pings to a VIP.
func TestPingsOfQuota(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openTest(t, model.Limits{})
	table := quotaTable(model.SegmentQuota{PacketsPerSecond: 100}, model.SegmentQuota{})
	pings := func(s *model.TableService, count, payload int) (answered int) {
		for i := range count {
			action, _, err := d.kernel.program.Test(packet.Build(arrived, packet.VLANTag{ID: uint16(s.Segment.ID)}, ip(client4, s.VIP),
				packet.ICMPv4Header{Type: 8, Rest: uint32(i)}, packet.Zeros(payload)))
			must(t, err)
			if action == xdpTX {
				answered++
			}
		}
		return answered
	}
	const flood = 3000
	check := func() {
		t.Helper()
		must(t, d.Set(table))
		if red := pings(&table.Services[0], flood, 56); red == 0 || red > flood/2 {
			t.Errorf("of %d pings of red %d are answered", flood, red)
		}
		if blue := pings(&table.Services[1], flood, 56); blue != flood {
			t.Errorf("of %d pings of blue, which has no limit, %d are answered", flood, blue)
		}
	}
	check()
	must(t, d.Close())
	d = openTest(t, model.Limits{})
	check()
	table = quotaTable(model.SegmentQuota{}, model.SegmentQuota{})
	must(t, d.Set(table))
	if red := pings(&table.Services[0], flood, 56); red != flood {
		t.Errorf("of %d pings of red %d are answered without a limit", flood, red)
	}
	for _, s := range statusOf(t, d).Segments {
		if s.Limited != 0 {
			t.Errorf("%s has no limit, and %d packets are over it", s.ID, s.Limited)
		}
	}
}

// A packet of a segment that has had all that it may have now is dropped, whichever of its services it is to, and
// one of another segment is not.
func testSegmentLimit(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	for i, s := range scenarios {
		s.testService.quota = uint32(1 + i%2)
	}
	d := loadTestDirector(t, w)
	d.put(t, "quotas", uint32(1), abi.Quota{Packets: 1, Batch: 1})
	d.put(t, "quotas", uint32(2), abi.Quota{Packets: 1 << 30, Batch: 64})
	first := scenarios[0]
	onCPU(t, 0, func() {
		beginWindow(t)
		first.goes(t, d, 1, ackFlag)
		for _, s := range scenarios[:4] {
			frame := build(s.data(5)...)
			if s.quota == 1 {
				d.check(t, []row{row{name: s.name, in: frame}.dropped(abi.ReasonDROP_SEGMENT_LIMIT, s.testService)})
			} else {
				d.check(t, []row{s.forward(s.name, s.flow(), 0, s.data(5)...)})
			}
		}
	})
}

// Later fragments are packets, too: a segment that has had all that it may have now gets none more of a packet whose
// first fragment it got.
func testSegmentLimitOfFragments(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	for i, s := range scenarios {
		s.testService.quota = uint32(10 + i) // no other test has spent of these
	}
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		d.put(t, "quotas", s.quota, abi.Quota{Packets: 2, Batch: 1})
		frames := pieces(uint32(1+i), s.data(600)...)
		onCPU(t, 0, func() {
			beginWindow(t)
			d.check(t, []row{
				s.fragment(s.name+", first", frames[0], s.data(600)),
				s.fragment(s.name+", second", frames[1], s.data(600)),
				row{name: s.name + ", third", in: frames[2]}.dropped(abi.ReasonDROP_SEGMENT_LIMIT, s.testService),
			})
		})
	}
}

// beginWindow waits until a window begins in which packets are counted, by the clock that the program reads: what
// follows is in one window.
func beginWindow(t *testing.T) {
	t.Helper()
	window := func() int64 {
		var now unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now))
		return now.Nano() >> abi.QuotaSizeQUOTA_WINDOW
	}
	for begin := window(); window() == begin; {
		time.Sleep(time.Millisecond) // windows come by the clock
	}
}
