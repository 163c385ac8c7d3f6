package datapath

import (
	"context"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// BenchmarkCapture runs ACKs of a service against the program that interfaces have, without a capture
// and during one. The backend is this host, so that the frame stays as it is.
func BenchmarkCapture(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	d := openTest(b, explainLimits)
	table := tableOf(1, 1, 0)
	table.Services[0].Backends[0].Address, table.Services[0].Backends[0].Mode = netip.MustParseAddr("10.0.0.1"), model.IPIP
	must(b, d.Set(table))
	frame := build(ip(client4, table.Services[0].VIP), packet.TCPHeader{Src: clientPort, Dst: 80, Flags: packet.ACK})
	for _, test := range []struct {
		name   string
		wanted *model.Capture
	}{
		{"no capture", nil},
		{"of another client", &model.Capture{Client: "192.0.2.99", Packets: model.MostCapturePackets}},
		{"one of 1000", &model.Capture{Sample: 1000, Rate: model.MostCaptureRate, Packets: model.MostCapturePackets}},
		{"2000 in a second", &model.Capture{Packets: model.MostCapturePackets}},
		{"all", &model.Capture{Rate: model.MostCaptureRate, Packets: model.MostCapturePackets}},
	} {
		b.Run(test.name, func(b *testing.B) {
			program := d.kernel.program
			if test.wanted != nil {
				c, err := d.StartCapture(context.Background(), "ops", *test.wanted)
				must(b, err)
				done := make(chan error, 1)
				go func() { done <- c.Run(context.Background(), func([]model.CaptureMessage) error { return nil }) }()
				defer func() {
					c.Close()
					must(b, <-done)
				}()
				program = c.Program()
			}
			onCPU(b, 0, func() {
				action, took, err := program.Benchmark(frame, b.N, nil)
				if err != nil || action != xdpPass {
					b.Errorf("verdict %d: %v", action, err)
				}
				b.ReportMetric(float64(took.Nanoseconds()), "program-ns/packet")
			})
		})
	}
}

// The program that interfaces have without a capture has nothing of one: no map, and not a
// reference to any.
func TestNothingOfCapturesWithoutOne(t *testing.T) {
	plain, err := loadDirector()
	must(t, err)
	capturing, err := ebpf.LoadCollectionSpec("observe/capture_bpfel.o")
	must(t, err)
	for _, name := range []string{"captured", "capture_scratch", "capture_counted", "capture_budget", "capture_lease"} {
		if capturing.Maps[name] == nil {
			t.Errorf("the capture's program has no map %s", name)
		}
		if plain.Maps[name] != nil {
			t.Errorf("the director's program has the map %s", name)
		}
		for program, spec := range plain.Programs {
			for i := range spec.Instructions {
				if spec.Instructions[i].Reference() == name {
					t.Errorf("program %s refers to %s at instruction %d", program, name, i)
				}
			}
		}
	}
	if plain.Variables["capture_want"] != nil {
		t.Error("the director's program has a capture's filter")
	}
}
