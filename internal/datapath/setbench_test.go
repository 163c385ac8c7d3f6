package datapath

import (
	"net/netip"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// What a change of the table costs, and how large tables load. docs/results/costs.md
// has the figures.

// BenchmarkSet4096 changes the rings of 4,096 services at once.
func BenchmarkSet4096(b *testing.B) { benchmarkSet(b, 4096) }

// BenchmarkSetOne changes the ring of one of 4,096 services.
func BenchmarkSetOne(b *testing.B) { benchmarkSet(b, 1) }

func benchmarkSet(b *testing.B, changed int) {
	if !inNamespace(b) {
		return
	}
	d, tables := openChanging(b, changed)
	i := 0
	for b.Loop() {
		i++
		must(b, d.Set(tables[i%2]))
	}
}

// openChanging sets 4,096 services and returns two tables that differ in the
// rings of some; the others keep their memory, as the planner keeps it.
func openChanging(b *testing.B, changed int) (*Datapath, [2]model.Table) {
	const services = 4096
	for i := range 4 {
		addNeighbor(b, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
	}
	d := openTest(b, model.Limits{Services: services, RingMemory: 1 << 30})
	tables := [2]model.Table{tableOf(services, 4, 0), tableOf(services, 4, 1)}
	copy(tables[1].Services[changed:], tables[0].Services[changed:])
	must(b, d.Set(tables[0]))
	return d, tables
}

// BenchmarkVisible changes one of 4,096 services and reports when the last CPU
// forwards by the new ring (visible-ms), which is before Set returns (ns/op).
func BenchmarkVisible(b *testing.B) {
	if !inNamespace(b) {
		return
	}
	d, tables := openChanging(b, 1)
	s := d.services[keyOf(&tables[0].Services[0])]
	var total time.Duration
	i := 0
	for b.Loop() {
		i++
		watch := watchRing(b, d, s)
		start := time.Now()
		must(b, d.Set(tables[i%2]))
		total += watch.lastSeen().Sub(start)
	}
	b.ReportMetric(float64(total.Microseconds())/1000/float64(i), "visible-ms")
}

// ringWatch runs the program on every CPU until each has chosen another backend.
type ringWatch struct {
	done sync.WaitGroup
	mu   sync.Mutex
	last time.Time
}

func (w *ringWatch) lastSeen() time.Time {
	w.done.Wait()
	return w.last
}

func watchRing(b *testing.B, d *Datapath, s *service) *ringWatch {
	frame := build(ip(netip.MustParseAddr("192.0.2.9"), s.key.vip), l4(model.TCP, 40000, 80))
	w := &ringWatch{}
	var ready sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		ready.Add(1)
		w.done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				b.Error(err)
			}
			before := destination(b, d, frame)
			ready.Done()
			for destination(b, d, frame) == before {
				time.Sleep(20 * time.Microsecond) // packets leave Set some of its CPU
			}
			now := time.Now()
			w.mu.Lock()
			defer w.mu.Unlock()
			if now.After(w.last) {
				w.last = now
			}
		})
	}
	ready.Wait()
	return w
}

func destination(b testing.TB, d *Datapath, frame []byte) [6]byte {
	out := make([]byte, len(frame))
	if _, err := d.kernel.program.Run(&ebpf.RunOptions{Data: frame, DataOut: out}); err != nil {
		b.Error(err)
	}
	return [6]byte(out)
}

// BenchmarkLoad4096x64 and BenchmarkLoad1x4000 open a director and set a large
// table: load time, and the memory of its maps (map-MB) and of its rings (ring-MB).
func BenchmarkLoad4096x64(b *testing.B) { benchmarkLoad(b, 4096, 64) }

// BenchmarkLoad1x4000 is one service with 4,000 backends.
func BenchmarkLoad1x4000(b *testing.B) { benchmarkLoad(b, 1, 4000) }

func benchmarkLoad(b *testing.B, services, backends int) {
	if !inNamespace(b) {
		return
	}
	table := tableOf(services, backends, 0)
	limits := model.Limits{Services: uint32(services), Backends: uint32(services * backends), RingMemory: 1 << 30}
	var maps, rings uint64
	for b.Loop() {
		d, err := Open(Options{Pin: "/sys/fs/bpf/weir", Limits: limits})
		must(b, err)
		must(b, d.Set(table))
		b.StopTimer()
		maps, rings = mapMemory(b, d), statusOf(b, d).RingMemory
		must(b, d.Close())
		must(b, Detach("/sys/fs/bpf/weir"))
		b.StartTimer()
	}
	b.ReportMetric(float64(maps)/1e6, "map-MB")
	b.ReportMetric(float64(rings)/1e6, "ring-MB")
}

func mapMemory(b *testing.B, d *Datapath) (bytes uint64) {
	all := reflect.ValueOf(d.kernel.directorMaps)
	for i := range all.NumField() {
		m, ok := all.Field(i).Interface().(*ebpf.Map)
		if !ok {
			continue
		}
		info, err := m.Info()
		must(b, err)
		used, _ := info.Memlock() // 0 for a map of maps: rings count apart
		bytes += used
	}
	return bytes
}
