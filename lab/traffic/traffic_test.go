package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

var ways = []Traffic{
	{Protocol: model.TCP, Flows: 1, VIPs: 1, Frames: []int{64}},
	{Protocol: model.UDP, Flows: 1000, VIPs: 128, Frames: []int{64}},
	{Protocol: model.TCP, Flows: 1_000_000, VIPs: 7, Frames: []int{1514}, SYNEvery: 4},
	{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: IMIX},
	{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{78}, IPv6: true, InTurn: true},
	{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{AskingFrame}, SYNEvery: 1, Asks: true},
	{Protocol: model.UDP, Flows: 300_000, VIPs: 3, Frames: []int{128}, IPv6: true},
	{Protocol: model.UDP, Flows: 1000, VIPs: 3, Frames: []int{64}, VLAN: 100},
	{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{78}, IPv6: true, VLAN: 4094},
	{Protocol: model.UDP, Flows: 1000, VIPs: 1, Frames: IMIXByBytes, VLAN: 7},
	{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{64}, Zipf: 1.5},
	{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{64}, Overlay: inVXLAN},
	{Protocol: model.UDP, Flows: 1000, VIPs: 3, Frames: []int{64, 594}, Overlay: inGeneve6},
	{Protocol: model.UDP, Flows: 1000, VIPs: 1, Frames: []int{78}, IPv6: true, Overlay: inVXLAN},
	{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{128}, IPv6: true, Overlay: inGeneve6},
}

// Tunnels from and to VTEPs. The second one is of two tenants.
var (
	inVXLAN = Overlay{Kind: model.SegmentVXLAN, VNI: 5001, From: netip.MustParseAddr("10.0.0.2"), To: netip.MustParseAddr("10.0.0.1")}

	inGeneve6 = Overlay{Kind: model.SegmentGeneve, IPv6: true, VNI: 1<<24 - 2, Tenants: 2, From: netip.MustParseAddr("fd00::2"), To: netip.MustParseAddr("fd00::1")}
)

// Everything arrives, and nothing of it is wrong.
//
//	source --- redirect --- sink
func TestWhatIsSentArrives(t *testing.T) {
	for _, way := range ways {
		name := way
		name.Frames = way.Frames[:1] // of many
		t.Run(fmt.Sprintf("%+v", name), func(t *testing.T) {
			lab := netlab.ForTest(t)
			a, r, b := lab.Host("source"), lab.Host("redirect"), lab.Host("sink")
			in, out := lab.Link(a, r, netlab.LinkOptions{XDP: true}), lab.Link(r, b, netlab.LinkOptions{XDP: true})
			redirect, err := NewRedirect(in.B, out.A)
			if err != nil {
				t.Fatal(err)
			}
			defer redirect.Close()
			source, sink := ends(t, in, out, way, Arrival{Traffic: way, Shape: Bare, Overlay: way.Overlay})
			const packets = 12 * 64 * 10
			if _, err := source.Send(packets); err != nil {
				t.Fatal(err)
			}
			got, err := sink.Count()
			if err != nil {
				t.Fatal(err)
			}
			var bytes uint64
			for i := range packets {
				bytes += uint64(way.Frames[i%len(way.Frames)] - FCS + way.Longer())
			}
			// Each CPU checks its first packet, and every 64th after it.
			checked := got.Checked >= packets/64 && got.Checked < uint64(packets/64+runtime.NumCPU())
			if got.Packets != packets || got.Bytes != bytes || !checked {
				t.Errorf("of %d packets of %d bytes arrived %+v", packets, bytes, got)
			}
		})
	}
}

// As many packets leave as are asked for, whatever signals the Go runtime sends meanwhile.
//
//	source --- sink
func TestSignalsSendNothing(t *testing.T) {
	lab := netlab.ForTest(t)
	link := lab.Link(lab.Host("source"), lab.Host("sink"), netlab.LinkOptions{XDP: true})
	traffic := ways[0]
	source, sink := ends(t, link, link, traffic, Arrival{Traffic: traffic, Shape: Bare})
	sent, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-sent:
				return
			default:
			}
			threads, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, thread := range threads {
				if id, err := strconv.Atoi(thread.Name()); err == nil {
					_ = unix.Tgkill(os.Getpid(), id, unix.SIGURG) // the thread may have ended
				}
			}
		}
	}()
	const packets = 64 * 10_000
	_, err := source.Send(packets)
	close(sent)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sink.Count(); err != nil || got.Packets != packets {
		t.Errorf("of %d packets arrived %+v, error %v", packets, got, err)
	}
}

// Flows are sent as often as Zipf's law has drawn them, and a source has no flow before its first one.
func TestZipf(t *testing.T) {
	lab := netlab.ForTest(t)
	link := lab.Link(lab.Host("source"), lab.Host("sink"), netlab.LinkOptions{XDP: true})
	way := Traffic{Protocol: model.UDP, Flows: 300_000, VIPs: 1, Frames: []int{64}, Zipf: 1.1, First: 5000}
	source, err := NewSource(link.A, link.B.MAC, way, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	drawn := map[int]float64{}
	for _, flow := range way.Order() {
		drawn[way.First+int(flow)] += 1.0 / orderLength
	}
	const packets = 20_000
	sent := map[int]float64{}
	for range packets {
		frame, err := source.Frame()
		if err != nil {
			t.Fatal(err)
		}
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame[26:30])), binary.BigEndian.Uint16(frame[34:]))
		sent[Number(from)] += 1.0 / packets
	}
	large := 0
	for flow, share := range drawn {
		if share < 0.01 {
			continue
		}
		large++
		if got := sent[flow]; got < 0.8*share || got > 1.2*share {
			t.Errorf("flow %d has %.4f of the packets, and the law has drawn %.4f", flow, got, share)
		}
	}
	for flow := range sent {
		if drawn[flow] == 0 {
			t.Errorf("flow %d was sent, and not drawn", flow)
		}
	}
	if large < 10 || len(drawn) < 100_000 {
		t.Errorf("%d flows of %d are large", large, len(drawn))
	}
}

func ends(t *testing.T, in, out *netlab.Link, sent Traffic, arrives Arrival) (*Source, *Sink) {
	t.Helper()
	source, err := NewSource(in.A, in.B.MAC, sent, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	sink, err := NewSink(out.B, arrives)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sink.Close() })
	return source, sink
}

// A sink finds what is not as it must be: each of these expects something other than what is sent.
//
//	source --- sink
func TestSinkFindsWhatIsWrong(t *testing.T) {
	sent := Traffic{Protocol: model.TCP, Flows: 100, VIPs: 2, Frames: []int{128}}
	tagged := Traffic{Protocol: model.TCP, Flows: 100, VIPs: 2, Frames: []int{128}, VLAN: 100}
	asking := Traffic{Protocol: model.TCP, Flows: 100, VIPs: 2, Frames: []int{AskingFrame}, SYNEvery: 1, Asks: true}
	tunneled := Traffic{Protocol: model.TCP, Flows: 100, VIPs: 2, Frames: []int{128}, Overlay: inVXLAN}
	// Frames inside are to backend 0, whose MAC address has the same last bytes as OverlayMAC, and outside to its VTEP.
	there := tunneled
	there.Overlay.To = VTEP(0, 0, false, false)
	two := there
	two.Overlay.Tenants = 2
	for _, c := range []struct {
		problem string
		sent    Traffic
		expect  func(*Arrival)
	}{
		{"of no flow", sent, func(a *Arrival) { a.Traffic.Flows = 10 }},
		{"of no flow", sent, func(a *Arrival) { a.Traffic.VIPs = 1 }},
		{"malformed", sent, func(a *Arrival) { a.Traffic.Protocol = model.UDP }},
		{"malformed", sent, func(a *Arrival) { a.Traffic.IPv6 = true }},
		{"malformed", sent, func(a *Arrival) { a.Traffic.VLAN = 100 }},
		{"malformed", tagged, func(a *Arrival) { a.Traffic.VLAN = 0 }},
		{"malformed", tagged, func(a *Arrival) { a.Traffic.VLAN = 101 }},
		{"sent to nobody", sent, func(a *Arrival) { a.Shape, a.Backends = L2DSR, 3 }},
		{"malformed", sent, func(a *Arrival) { a.Shape, a.Backends = IPIP, 1000 }},
		{"not handed over to its backend", asking, func(a *Arrival) { a.Handed = true }},
		{"malformed", sent, func(a *Arrival) { a.Overlay = inVXLAN }},
		{"malformed", tunneled, func(a *Arrival) { a.Overlay = Overlay{} }},
		{"malformed", tunneled, func(a *Arrival) { a.Overlay.Kind = model.SegmentGeneve }},
		{"malformed", tunneled, func(a *Arrival) { a.Overlay.IPv6 = true }},
		{"in a network of no tenant", tunneled, func(a *Arrival) { a.Overlay.VNI++ }},
		{"in a network of no tenant", two, func(a *Arrival) { a.Overlay.VNI++ }},
		{"at a VTEP that does not have its backend", tunneled, func(a *Arrival) { a.Shape, a.Backends = L2DSR, vtepMoved }},
		{Foreign, two, func(a *Arrival) { a.Shape, a.Backends = L2DSR, vtepMoved }},
		{Foreign, two, func(a *Arrival) { a.Overlay.Tenants, a.Overlay.VNI = 3, a.Overlay.VNI-1 }},
	} {
		t.Run(c.problem, func(t *testing.T) {
			arrives := Arrival{Traffic: c.sent, Overlay: c.sent.Overlay}
			c.expect(&arrives)
			lab := netlab.ForTest(t)
			link := lab.Link(lab.Host("source"), lab.Host("sink"), netlab.LinkOptions{XDP: true})
			source, sink := ends(t, link, link, c.sent, arrives)
			if _, err := source.Send(64 * 200); err != nil {
				t.Fatal(err)
			}
			_, err := sink.Count()
			var wrong *WrongError
			if !errors.As(err, &wrong) || wrong.Packets[c.problem] == 0 {
				t.Errorf("the sink says %v", err)
			}
		})
	}
}

// However fast the machine is, no more is sent than the rate allows, and nothing is lost if the
// sink is as fast; without a rate the source does not wait.
func TestPace(t *testing.T) {
	way := Traffic{Protocol: model.UDP, Flows: 100, VIPs: 1, Frames: []int{64}}
	lab := netlab.ForTest(t)
	link := lab.Link(lab.Host("source"), lab.Host("sink"), netlab.LinkOptions{XDP: true})
	source, sink := ends(t, link, link, way, Arrival{Traffic: way})
	const packets, rate = 6400, 100_000
	if err := source.Pace(rate, FewFrames); err != nil {
		t.Fatal(err)
	}
	took, err := source.Send(packets)
	if err != nil {
		t.Fatal(err)
	}
	if least := time.Second * (packets - 1) / rate; took < least {
		t.Errorf("%d packets at %d packet/s took %v, want %v at least", packets, rate, took, least)
	}
	waited, err := source.Waited()
	if err != nil || waited <= 0 || waited >= took {
		t.Errorf("of %v it waited %v (%v)", took, waited, err)
	}
	if err := source.Pace(0, FullPoll); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Send(packets); err != nil {
		t.Fatal(err)
	}
	if again, err := source.Waited(); err != nil || again != waited {
		t.Errorf("without a rate it waited %v (%v)", again-waited, err)
	}
	if got, err := sink.Count(); err != nil || got.Packets != 2*packets {
		t.Errorf("%d of %d packets arrived (%v)", got.Packets, 2*packets, err)
	}
}

func TestTrafficIsRefused(t *testing.T) {
	for _, wrong := range []Traffic{
		{Protocol: model.TCP, Flows: 0, VIPs: 1, Frames: []int{64}},
		{Protocol: model.TCP, Flows: 1, VIPs: 255, Frames: []int{64}},
		{Protocol: model.TCP, Flows: 1, VIPs: 1, Frames: []int{64}, IPv6: true},
		{Protocol: model.TCP, Flows: 1, VIPs: 1},
		{Flows: 1, VIPs: 1, Frames: []int{64}},
		{Protocol: model.TCP, Flows: 1, VIPs: 1, Frames: []int{64}, Asks: true},
		{Protocol: model.UDP, Flows: 1, VIPs: 1, Frames: []int{AskingFrame}, Asks: true},
		{Protocol: model.UDP, Flows: 1, VIPs: 1, Frames: []int{64}, VLAN: 4095},
		{Protocol: model.UDP, Flows: 1, VIPs: 1, Frames: slices.Repeat([]int{64}, 257)},
	} {
		if err := wrong.validate(); err == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
}
