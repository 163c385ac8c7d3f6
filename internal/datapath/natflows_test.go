package datapath

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/crowd"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// The flows of full NAT are listed with what people ask for, its table is counted, and the services
// are named of which the most flows are in it: not those that drop the most, by other reasons.
func TestFlowsOfFullNATAreKnown(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 2, 0)))
	if status, err := d.Status(); err != nil || status.NAT != nil {
		t.Errorf("without full NAT its table is %+v, %v", status.NAT, err)
	}
	table := tableOf(2, 2, 0)
	nat := fullNATTable(model.PortRange{First: 1024, Last: 2047}, "192.0.2.5", "2001:db8::5")
	table.SNAT = nat.SNAT
	for i := range table.Services {
		for j := range table.Services[i].Backends {
			b := &table.Services[i].Backends[j]
			b.Mode, b.SNAT, b.Port = model.NAT, true, 8080
		}
	}
	must(t, d.Set(table))
	memory, err := ebpf.LoadPinnedMap(d.kernel.snatTable.pin, nil)
	must(t, err)
	defer memory.Close()
	now, err := flows.Clock()
	must(t, err)
	write := func(number int, service int, state abi.SnatState, age uint32) {
		s := d.services[keyOf(&table.Services[service])]
		e := abi.SnatFlow{Seen: now - age, State: uint8(state), Backend: s.order[1].index, Epoch: d.entries.Entries[s.order[1].index].Epoch,
			Client: abi.AddressBytes(netip.MustParseAddr("198.51.100.7")), ClientPort: uint16(0x3930), Vip: abi.AddressBytes(s.key.vip), VipPort: uint16(0x5000)}
		var bucket abi.SnatBucket
		index := uint32(1 + number/flows.BucketPorts)
		must(t, memory.Lookup(index, &bucket))
		bucket.Flows[number%flows.BucketPorts] = e
		must(t, memory.Update(index, &bucket, ebpf.UpdateAny))
	}
	write(3, 0, abi.SnatStateSNAT_ESTABLISHED, 100)
	write(1024+40, 1, abi.SnatStateSNAT_ONE_WAY, 2)
	write(50, 1, abi.SnatStateSNAT_SYN, 2)
	write(51, 1, abi.SnatStateSNAT_SYN, 200) // it has run out
	write(52, 0, abi.SnatStateSNAT_CLAIMED, 0)
	var got []model.NATFlow
	must(t, d.NATFlows(func(some []model.NATFlow) bool { got = append(got, some...); return true }))
	if len(got) != 3 {
		t.Fatalf("%d flows are listed, want 3: %+v", len(got), got)
	}
	first, backend := got[0], table.Services[0].Backends[1]
	want := model.NATFlow{RememberedFlow: model.RememberedFlow{Service: d.services[keyOf(&table.Services[0])].key.id(),
		Backend: netip.AddrPortFrom(backend.Address, backend.Port), Source: netip.MustParseAddrPort("198.51.100.7:12345"), Port: 80,
		Class: model.ProvedFlow, State: model.FlowOpen, Age: first.Age}, Own: netip.MustParseAddrPort("192.0.2.5:1027"), ByOwner: true}
	if first != want || first.Age < 100 || first.Age > 110 {
		t.Errorf("the first flow is\n%+v, want\n%+v", first, want)
	}
	if got[1].Own != netip.MustParseAddrPort("192.0.2.5:1074") || got[2].Own != netip.MustParseAddrPort("192.0.2.5:1064") || got[2].Class != model.FreshFlow {
		t.Errorf("the others are %+v", got[1:])
	}
	calls := 0
	must(t, d.NATFlows(func([]model.NATFlow) bool { calls++; return false }))
	if calls != 1 {
		t.Errorf("who has enough is asked %d times", calls)
	}
	status, err := d.Status()
	must(t, err)
	if *status.NAT != (model.NATStatus{Flows: 3, Fresh: 2, Places: 4 * 1024}) {
		t.Errorf("full NAT's table is %+v", *status.NAT)
	}
	must(t, writeTally(d.kernel.ServiceDrops, d.services[keyOf(&table.Services[0])].index, tally{packets: 1 << 20}))
	read := time.Now()
	d.crowded(read)
	must(t, writeTally(d.kernel.all[directorMapReasons], uint32(abi.ReasonDROP_SNAT_FULL), tally{packets: 1000}))
	crowds := d.crowded(read.Add(crowd.Every))
	if len(crowds) != 1 || crowds[0] != (model.CrowdedService{Service: table.Services[1].Name, Table: model.NATTable, Flows: 2}) {
		t.Errorf("full NAT's table is full, and named are %+v", crowds)
	}
}

// Flow memory that is full of flows that are not fresh names the services that have most, too.
func TestCrowdOfSustainedFlows(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 4)
	d := openTest(t, model.Limits{Flows: 1024})
	must(t, d.Set(tableOf(2, 3, 0)))
	must(t, d.Set(tableOf(2, 3, 1))) // its slots settle
	d.sends(t, packet.SYN)
	read := time.Now()
	crowded := func(refused uint64, at time.Duration) []model.CrowdedService {
		must(t, writeTally(d.kernel.FlowEvents, uint32(abi.FlowEventFLOW_REFUSED), tally{packets: refused}))
		return d.crowded(read.Add(at))
	}
	want := func(found []model.CrowdedService, when string) {
		t.Helper()
		if len(found) != 1 || found[0] != (model.CrowdedService{Service: "s0", Table: model.FlowMemoryTable, Flows: 1}) {
			t.Errorf("%s flow memory is full, and named are %+v", when, found)
		}
	}
	crowded(0, 0)
	want(crowded(1000, crowd.Every), "with a fresh flow")
	for i := range d.flows.Entries {
		if at := &d.flows.Entries[i]; at.State != 0 {
			at.State = uint8(abi.FlowStateFLOW_ESTABLISHED)
		}
	}
	want(crowded(2000, 2*crowd.Every), "without a fresh flow")
	want(crowded(2000, 3*crowd.Every), "a while later")
	if found := crowded(2000, 4*crowd.Every+crowd.Lasts); len(found) > 0 {
		t.Errorf("nothing is refused any more, and named are %+v", found)
	}
}

// Timeouts are those of the program.
func TestTimeoutsOfFullNAT(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../bpf/director/nat/snat_state.h")
	must(t, err)
	var seconds []string
	for _, m := range regexp.MustCompile(`return FLOW_SECONDS\((\d+)\)`).FindAllSubmatch(text, -1) {
		seconds = append(seconds, string(m[1]))
	}
	if !slices.Equal(seconds, []string{"7440", "300", "240", "30", "60"}) {
		t.Errorf("the program's timeouts are %v: natTimeout has others", seconds)
	}
}
