package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// fakeCapture stands for what a director captures: a packet that it forwards, and one that
// it drops.
func fakeCapture(_ context.Context, wanted model.Capture) (api.CaptureRun, error) {
	if wanted.Service == "busy" {
		return nil, api.NewProblem(http.StatusConflict, "a capture runs already: there is one at a time")
	}
	frame := func(from, to string, port uint16) model.Hex {
		q := model.Question{Protocol: "tcp", Flags: []string{"syn"}, TTL: 64}
		var errs [3]error
		q.Source, errs[0] = explain.Endpoint(from)
		q.Destination, errs[1] = explain.Endpoint(to)
		built, err := explain.Build(&q, model.MAC{2, 0, 0, 0, 0, byte(port)})
		errs[2] = err
		if err := errors.Join(errs[:]...); err != nil {
			panic(err)
		}
		return built
	}
	began, slot := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 469
	in, dropped := frame("198.51.100.7:5555", "203.0.113.10:443", 1), frame("[2001:db8::7]:5556", "[2001:db8::10]:80", 1)
	messages := []model.CaptureMessage{
		{Began: &began, Interfaces: []string{"eth0"}},
		{Packet: &model.CapturedPacket{Number: 1, Time: began.Add(1500 * time.Microsecond), Interface: "eth0", Reason: "forward_l2dsr", Action: 4, Service: "web",
			Backend: "a", Address: "10.0.1.1", Slot: &slot, Slots: 1021, Leaves: "eth1", In: in, InLength: len(in), Out: frame("198.51.100.7:5555", "203.0.113.10:443", 2), OutLength: len(in)}},
		{Packet: &model.CapturedPacket{Number: 2, Time: began.Add(time.Second), Interface: "eth0", Reason: "drop_no_backend", Action: 1, Service: "dns", In: dropped[:60], InLength: len(dropped)}},
		{Counts: &model.CaptureCounts{Matched: 12, Limited: 7, Lost: 3}, Ended: "packets"},
	}
	return func(_ context.Context, send func([]model.CaptureMessage) error) error { return send(messages) }, nil
}

// A capture's file has each packet as it came and as it left, on the interfaces by which it
// did.
func TestCaptureFile(t *testing.T) {
	socket, _ := serveFakes(t)
	path := filepath.Join(t.TempDir(), "out.pcapng")
	var stderr bytes.Buffer
	if code := execute(t.Context(), []string{"capture", "--socket", socket, "-w", path}, io.Discard, &stderr); code != 0 {
		t.Fatalf("weir capture ends with %d:\n%s", code, &stderr)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != captureMode {
		t.Errorf("the file may be read by others: %v, %v", info, err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	options := pcapgo.NgReaderOptions{WantMixedLinkType: true}
	reader, err := pcapgo.NewNgReader(file, options)
	if err != nil {
		t.Fatal(err)
	}
	type packet struct {
		By, Is      string
		Length, Cut int
	}
	var got []packet
	for {
		frame, info, err := reader.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		by, err := reader.Interface(info.InterfaceIndex)
		if err != nil || by.LinkType != layers.LinkTypeEthernet {
			t.Fatal(by, err)
		}
		got = append(got, packet{by.Name, explain.Summary(frame), info.Length, info.Length - info.CaptureLength})
	}
	want := []packet{
		{"eth0", "tcp 198.51.100.7:5555 > 203.0.113.10:443 syn", 60, 0}, {"eth1", "tcp 198.51.100.7:5555 > 203.0.113.10:443 syn", 60, 0},
		{"eth0", "tcp 2001:db8::7 > 2001:db8::10", 74, 14},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the file differs (-want +got):\n%s", diff)
	}
}
