package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// fakeExplain says what the fake decides, as a director does.
func fakeExplain(_ context.Context, q model.Question) (model.Explanation, error) {
	e, err := fakeDecide(&q)
	e.Steps = explain.Steps(&e)
	return e, err
}

// fakeDecide answers that SYNs are forwarded, and all other packets are not.
func fakeDecide(q *model.Question) (model.Explanation, error) {
	frame, err := explain.Build(q, model.MAC{2, 0, 0, 0, 0, 1})
	if err != nil {
		return model.Explanation{}, api.NewProblem(http.StatusUnprocessableEntity, err.Error())
	}
	e := model.Explanation{Interface: "eth0", Frame: frame, Reason: "drop_no_backend", Outcome: model.OutcomeDrop}
	a, b := netip.MustParseAddrPort("10.0.1.1:0"), netip.MustParseAddrPort("10.0.1.2:0")
	vip := netip.MustParseAddr("203.0.113.10")
	e.Flow = &model.ExplainedFlow{Segment: q.Segment, Protocol: 6, Source: netip.MustParseAddrPort("198.51.100.7:5555"), Destination: netip.AddrPortFrom(vip, 443), TTL: 64, Length: 40, TCPFlags: strings.Join(q.Flags, ",")}
	e.Service = &model.ExplainedService{Name: "web", ID: model.ServiceID{VIP: vip, Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}}}
	e.Slot = &model.ExplainedSlot{Number: 469, Of: 1021, Settling: true, Candidates: []model.ExplainedCandidate{
		{Name: "a", Backend: a, State: model.Down, Generations: []model.ExplainedGeneration{{Number: 2}, {Number: 1, Backup: true}}},
		{Name: "b", Backend: b, State: model.Active, Age: 1, Generations: []model.ExplainedGeneration{{Number: 2, Backup: true}, {Number: 1}}}}}
	if len(q.Flags) == 0 {
		return e, nil
	}
	e.Memory = &model.ExplainedMemory{Backend: a, Class: "sustained", State: "closing", Age: model.Duration(70 * time.Second)}
	e.Chosen, e.Reason, e.Outcome, e.Leaves = model.ChosenByRow, "forward_l2dsr", model.OutcomeForward, "eth1"
	e.Backend = &model.ExplainedBackend{Name: "b", Backend: b, State: model.Active, Mode: model.L2DSR, Interface: "eth1", NextHop: model.MAC{2, 0, 0, 0, 1, 2}, VLAN: 7, MTU: 1500}
	e.Out = frame
	return e, nil
}

// The packets of a capture file, of either kind, are asked about one by one.
func TestExplainCapture(t *testing.T) {
	director, _ := serveFakes(t)
	q := model.Question{Source: netip.MustParseAddrPort("198.51.100.7:5555"), Destination: netip.MustParseAddrPort("203.0.113.10:443"), Protocol: "tcp"}
	frame, err := explain.Build(&q, model.MAC{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, with func(f *os.File) error) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(with(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	info := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), Length: len(frame), CaptureLength: len(frame)}
	old := func(link layers.LinkType, packets int) func(f *os.File) error {
		return func(f *os.File) error {
			w := pcapgo.NewWriter(f)
			err := w.WriteFileHeader(65535, link)
			for range packets {
				err = errors.Join(err, w.WritePacket(info, frame))
			}
			return err
		}
	}
	ng := write("ng", func(f *os.File) error {
		w, err := pcapgo.NewNgWriter(f, layers.LinkTypeEthernet)
		if err != nil {
			return err
		}
		return errors.Join(w.WritePacket(info, frame), w.WritePacket(info, frame), w.Flush())
	})
	weirs := func(flags ...string) string {
		path := filepath.Join(t.TempDir(), "weirs")
		if code := execute(t.Context(), append([]string{"capture", "--socket", director, "-w", path}, flags...), io.Discard, io.Discard); code != 0 {
			t.Fatalf("weir capture ends with %d", code)
		}
		return path
	}
	outbound := write("outbound", func(f *os.File) error {
		w, err := pcapgo.NewNgWriter(f, layers.LinkTypeEthernet)
		if err != nil {
			return err
		}
		left := pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}}
		return errors.Join(w.WritePacketWithOptions(info, frame, left), w.Flush())
	})
	cut := info
	cut.Length += 3000
	for _, test := range []struct {
		path, want string
		code, rows int
	}{
		// What weir capture writes: a packet that left, and one that is cut.
		{weirs(), "\n3 ", 0, 3},
		{weirs(), "cut at 60 of 74 bytes", 0, 3},
		{weirs(), "left out: 1 packet on the way out, which no director gets; not asked about: 1 packet, cut, of up to 74 bytes: capture with --snap 74", 0, 3},
		{outbound, "has no packets that come in (left out: 1 packet on the way out", 1, 0},
		{write("cut", func(f *os.File) error {
			w := pcapgo.NewWriter(f)
			return errors.Join(w.WriteFileHeader(60, layers.LinkTypeEthernet), w.WritePacket(cut, frame))
		}), "not asked about: 1 packet, cut, of up to 3060 bytes: capture with --snap 2048, which is enough for", 1, 0},
		{write("many", old(layers.LinkTypeEthernet, mostPackets+1)), "asked about: the first 10000, and the file has more", 0, mostPackets + 1},
		{write("pcap", old(layers.LinkTypeEthernet, 3)), "drop_no_backend", 0, 3},
		{ng, "drop_no_backend", 0, 2},
		{write("none", old(layers.LinkTypeEthernet, 0)), "has no packets", 1, 0},
		{write("raw", old(layers.LinkTypeRaw, 1)), "not of Ethernet", 1, 0},
		{write("text", func(f *os.File) error { _, err := f.WriteString("no capture at all"); return err }), "is neither pcap nor pcapng", 1, 0},
		{"/nowhere", "open capture", 1, 0},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), []string{"explain", "--pcap", test.path, "--socket", director}, &out, &out); code != test.code ||
			!strings.Contains(out.String(), test.want) || test.rows > 0 && strings.Count(out.String(), "\n") != test.rows+1 {
			t.Errorf("%s: exit status %d\n%swant %d, %d packets and %q", test.path, code, &out, test.code, test.rows, test.want)
		}
	}
}

// FuzzOpenCapture: packets of any capture file are read to its end or to an error, and each can be
// described.
func FuzzOpenCapture(f *testing.F) {
	frame := make([]byte, 60)
	info := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), Length: len(frame), CaptureLength: len(frame)}
	var old, ng bytes.Buffer
	w := pcapgo.NewWriter(&old)
	n, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err := errors.Join(err, w.WriteFileHeader(65535, layers.LinkTypeEthernet), w.WritePacket(info, frame), n.WritePacket(info, frame), n.Flush()); err != nil {
		f.Fatal(err)
	}
	f.Add(old.Bytes())
	f.Add(ng.Bytes())
	f.Add(old.Bytes()[:30])
	f.Add([]byte("no capture at all"))
	f.Fuzz(func(t *testing.T, file []byte) {
		memlab.Bound{PerByte: 100, AtLeast: 8 << 20}.Check(t, len(file), func() {
			next, err := openCapture(bytes.NewReader(file))
			for err == nil {
				_, err = next()
			}
		})
		next, err := openCapture(bytes.NewReader(file))
		if err != nil {
			return
		}
		for range mostPackets {
			p, err := next()
			if err != nil {
				return
			}
			if len(p.frame) > 0 && len(explain.Describe(p.frame)) == 0 {
				t.Fatalf("nothing is said of % x", p.frame)
			}
		}
	})
}
