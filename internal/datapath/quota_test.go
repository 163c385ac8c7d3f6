package datapath

import (
	"testing"
	"time"

	"weir.io/weir/internal/datapath/abi"
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
	inWindow := func(rate uint32) int { return int(quotaOf(model.SegmentQuota{PacketsPerSecond: rate}).Packets) }

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
