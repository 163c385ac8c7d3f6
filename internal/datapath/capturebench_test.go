package datapath

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"weir.io/weir/internal/model"
)

// BenchmarkCapture runs ACKs of a service against the director's program, which is what
// interfaces have without a capture, and against the one that they have during one. The backend
// is this host, so that the frame stays as it is.
func BenchmarkCapture(b *testing.B) {
	w, s := amongAll(model.Maglev, true, 1)
	s.testService.memory, s.testService.settling = false, false
	s.backends[0].local = true
	d := loadTestDirector(b, w)
	frame := build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, ackFlag))
	anything := captureCaptureFilter{Reasons: ^uint64(0), Sample: 1, Snap: model.CaptureSnap, Rate: 1 << 30}
	other := anything
	other.Client = captureEndpoint(model.CaptureEnd{Prefix: netip.MustParsePrefix("192.0.2.99/32")})
	sampled, bounded := anything, anything
	sampled.Sample, bounded.Rate = 1000, model.CaptureRate
	for _, test := range []struct {
		name   string
		filter *captureCaptureFilter
	}{
		{"no capture", nil},
		{"of another client", &other},
		{"one of 1000", &sampled},
		{"2000 in a second", &bounded},
		{"all", &anything},
	} {
		b.Run(test.name, func(b *testing.B) {
			program := d.program
			if test.filter != nil {
				program = loadCaptureForBench(b, d, *test.filter)
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

// loadCaptureForBench loads the capture's program beside a director's, and reads what it takes.
func loadCaptureForBench(b *testing.B, d *testDirector, filter captureCaptureFilter) *ebpf.Program {
	b.Helper()
	spec, err := captureSpec(Options{}, filter)
	if err != nil {
		b.Fatal(err)
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m := d.Maps[name]; m != nil && name != constants {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			shared[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		b.Fatal(loadError(err))
	}
	b.Cleanup(c.Close)
	if err := c.Maps[captureMapCaptureLease].Put(uint32(0), ^uint64(0)); err != nil {
		b.Fatal(err)
	}
	reader, err := ringbuf.NewReader(c.Maps[captureMapCaptured])
	if err != nil {
		b.Fatal(err)
	}
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		record := ringbuf.Record{}
		for !over.Load() {
			reader.SetDeadline(time.Now().Add(captureLook))
			_ = reader.ReadInto(&record)
		}
	}()
	b.Cleanup(func() {
		over.Store(true)
		<-done
		reader.Close()
	})
	return c.Programs[captureProgCapture]
}

// The program that interfaces have without a capture has nothing of one: no map, and not a
// reference to any.
func TestNothingOfCapturesWithoutOne(t *testing.T) {
	plain, err := loadDirector()
	must(t, err)
	capturing, err := loadCapture()
	must(t, err)
	for _, name := range captureOwn {
		if name == constants {
			continue
		}
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
	if plain.Variables[captureVarCaptureWant] != nil {
		t.Error("the director's program has a capture's filter")
	}
}
