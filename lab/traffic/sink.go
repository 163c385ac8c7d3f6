package traffic

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Shape is how packets were forwarded: where in a packet the backend is.
type Shape = trafficArrivalShape

// The shapes.
const (
	Bare  = trafficArrivalShapeARRIVAL_BARE // as they were sent
	L2DSR = trafficArrivalShapeARRIVAL_L2DSR
	IPIP  = trafficArrivalShapeARRIVAL_IPIP
	GUE   = trafficArrivalShapeARRIVAL_GUE
	NAT   = trafficArrivalShapeARRIVAL_NAT
)

// ShapeOf returns the shape of a mode.
func ShapeOf(mode model.Mode) Shape {
	return map[model.Mode]Shape{model.L2DSR: L2DSR, model.IPIP: IPIP, model.GUE: GUE, model.NAT: NAT, model.Redirect: NAT}[mode]
}

// Arrival says what must arrive at a sink.
type Arrival struct {
	Traffic  Traffic
	Shape    Shape
	Outer6   bool   // tunnels: the outer header is IPv6
	SNAT     bool   // the source is no longer the client
	Handed   bool   // SYNs that ask to be redirected name their VIP: they were handed over
	Backends int    // of all VIPs, see [Traffic.BackendsOf]
	Port     uint16 // NAT: the backends'; 0: the VIP's
	// Expect says that [Sink.Expect] will name each flow's backend.
	Expect bool
	// SeveralCPUs says that packets arrive on several CPUs at a time: then [Sink.Arrived] counts none.
	SeveralCPUs bool
	// Unseen says that packets are counted, and not looked at.
	Unseen bool
	// Every says that every packet is looked at, not one in 64 of each backend.
	Every bool
	// Overlay is the tunnel in which packets come to backends, each at its VTEP; as in the traffic for [Bare].
	Overlay Overlay
	// Move says that a backend's packets may also come to where it moves to, see [VTEP].
	Move bool
}

// Sink is the destination of the traffic.
type Sink struct {
	arrival  Arrival
	attached link.Link // kept, because the collector would detach it
	kernel   struct {
		Program     *ebpf.Program  `ebpf:"sink"`
		Arrivals    *ebpf.Map      `ebpf:"arrivals"`
		Expected    *ebpf.Map      `ebpf:"expected"`
		Problems    *ebpf.Map      `ebpf:"problems"`
		WrongPacket *ebpf.Map      `ebpf:"wrong_packet"`
		Arrived     *ebpf.Variable `ebpf:"arrived"`
	}
}

// NewSink makes a sink for what arrives at a port.
func NewSink(port *netlab.Port, a Arrival) (*Sink, error) {
	if err := a.Traffic.validate(); err != nil {
		return nil, fmt.Errorf("traffic: %w", err)
	}
	if a.Shape == Bare {
		a.Backends = 1
	}
	most := 65534
	if a.Overlay.Given() {
		most = vtepMoved
	}
	if a.Backends < 1 || a.Backends > most {
		return nil, fmt.Errorf("%d backends are not in 1 to %d", a.Backends, most)
	}
	if err := a.Overlay.validate(); err != nil {
		return nil, fmt.Errorf("traffic: %w", err)
	}
	s := &Sink{arrival: a}
	constants := a.Traffic.constants()
	if a.Shape == IPIP || a.Shape == GUE {
		constants["vlan"] = uint16(0) // tunnels leave without a tag
	}
	maps.Copy(constants, a.Overlay.arriving())
	for name, value := range map[string]any{
		"shape": uint32(a.Shape), "outer6": truth(a.Outer6), "source_rewritten": truth(a.SNAT), "handed_over": truth(a.Handed), "on_several_cpus": truth(a.SeveralCPUs), "only_counts": truth(a.Unseen), "checks_all": truth(a.Every), "backends_move": truth(a.Move), "backend_port": a.Port,
		"backends_per_vip": uint32(max(a.Backends/a.Traffic.VIPs, 1)), "backend4": word4(backend4), "backend6": words6(backend6),
	} {
		constants[name] = value
	}
	sizes := map[string]int{"arrivals": a.Backends}
	if a.Expect {
		sizes["expected"] = a.Traffic.Flows
	}
	if err := load("sink", constants, sizes, &s.kernel); err != nil {
		return nil, err
	}
	err := port.Host.Do(func() (err error) {
		s.attached, err = link.AttachXDP(link.XDPOptions{Program: s.kernel.Program, Interface: port.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attach the sink to %s of %s: %w", port.Name, port.Host.Name, err)
	}
	return s, nil
}

// Close detaches the sink.
func (s *Sink) Close() error {
	return errors.Join(s.attached.Close(), s.kernel.Program.Close(), s.kernel.Arrivals.Close(),
		s.kernel.Expected.Close(), s.kernel.Problems.Close(), s.kernel.WrongPacket.Close())
}

// arrayStride is how far apart the elements of an array are in memory: the kernel
// rounds their size up to this (array_map_alloc in kernel/bpf/arraymap.c).
const arrayStride = 8

// Expect says which backend each flow belongs to: before names one, after may name another, both
// from 0; -1 is any backend of the flow's VIP. Without after there is only the first.
func (s *Sink) Expect(before, after func(flow int) int) error {
	memory, err := s.kernel.Expected.Memory()
	if err != nil {
		return fmt.Errorf("say where flows belong: %w", err)
	}
	var entry trafficExpectation
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&entry)), unsafe.Sizeof(entry))
	for n := range s.arrival.Traffic.Flows {
		first := before(n)
		second := first
		if after != nil {
			second = after(n)
		}
		entry = trafficExpectation{Before: uint16(first + 1), After: uint16(second + 1)}
		if _, err := memory.WriteAt(bytes, int64(n)*arrayStride); err != nil {
			return fmt.Errorf("say where flow %d belongs: %w", n, err)
		}
	}
	return nil
}

// Count is what has arrived.
type Count struct {
	Packets  uint64
	Bytes    uint64   // of frames, without FCS
	Checked  uint64   // packets that were parsed
	Moved    uint64   // packets that came to where their backend has moved to
	Backends []uint64 // packets of each
}

// Count returns what has arrived since the sink was made. Its error names the last wrong packet.
func (s *Sink) Count() (Count, error) {
	if s.arrival.Unseen {
		n, err := s.Arrived()
		return Count{Packets: n}, err
	}
	c := Count{Backends: make([]uint64, s.arrival.Backends)}
	var perCPU []trafficArrival
	var key uint32
	for it := s.kernel.Arrivals.Iterate(); it.Next(&key, &perCPU); {
		for _, a := range perCPU {
			c.Packets += a.Packets
			c.Bytes += a.Bytes
			c.Checked += a.Checked
			c.Moved += a.Moved
			c.Backends[key] += a.Packets
		}
	}
	return c, s.problems()
}

// Arrived returns how many packets have arrived, which takes no time.
func (s *Sink) Arrived() (uint64, error) {
	var n uint64
	if err := s.kernel.Arrived.Get(&n); err != nil {
		return 0, fmt.Errorf("how many packets have arrived: %w", err)
	}
	return n, nil
}

// At returns how many packets have arrived at that many backends, beginning with first.
func (s *Sink) At(first, backends int) (packets uint64, err error) {
	var perCPU []trafficArrival
	for n := range backends {
		if err := s.kernel.Arrivals.Lookup(uint32(first+n), &perCPU); err != nil {
			return 0, fmt.Errorf("how many packets have arrived at backend %d: %w", first+n, err)
		}
		for _, a := range perCPU {
			packets += a.Packets
		}
	}
	return packets, nil
}

// Moved returns how many packets have arrived where a backend is at home, and where it has moved to, see [VTEP].
func (s *Sink) Moved(backend int) (home, moved uint64, err error) {
	var perCPU []trafficArrival
	if err := s.kernel.Arrivals.Lookup(uint32(backend), &perCPU); err != nil {
		return 0, 0, fmt.Errorf("how many packets have arrived at backend %d: %w", backend, err)
	}
	for _, a := range perCPU {
		home += a.Packets - a.Moved
		moved += a.Moved
	}
	return home, moved, nil
}

// problemNames are the names of enum arrival_problem.
var problemNames = [...]string{"sent to nobody", "malformed", "of no flow", "at a backend of another VIP",
	"at another backend of its VIP", "with a wrong checksum", "not handed over to its backend",
	"in a network of no tenant", "at a VTEP that does not have its backend", Foreign}

// Foreign is the problem of packets that came in the network of another tenant than the one that has sent them, or
// to a VTEP of another one.
const Foreign = "of another tenant"

// WrongError says that packets arrived which must not have.
type WrongError struct {
	Packets map[string]uint64 // by problem
	Last    []byte            // the beginning of the last one
	Length  int               // of its frame
}

// Total returns how many packets were found wrong.
func (e *WrongError) Total() (packets uint64) {
	for _, n := range e.Packets {
		packets += n
	}
	return packets
}

// Error names the problems and shows the last packet.
func (e *WrongError) Error() string {
	var list []string
	for _, name := range problemNames {
		if n := e.Packets[name]; n > 0 {
			list = append(list, fmt.Sprintf("%d %s", n, name))
		}
	}
	return fmt.Sprintf("wrong packets arrived: %s; the last one has %d bytes: % x", strings.Join(list, ", "), e.Length, e.Last)
}

func (s *Sink) problems() error {
	wrong := &WrongError{Packets: map[string]uint64{}}
	var perCPU []uint64
	for i, name := range problemNames {
		if err := s.kernel.Problems.Lookup(uint32(i), &perCPU); err != nil {
			return fmt.Errorf("read what went wrong: %w", err)
		}
		for _, n := range perCPU {
			if n > 0 {
				wrong.Packets[name] += n
			}
		}
	}
	if len(wrong.Packets) == 0 {
		return nil
	}
	var last trafficEvidence
	if err := s.kernel.WrongPacket.Lookup(uint32(0), &last); err != nil {
		return fmt.Errorf("read the last wrong packet: %w", err)
	}
	wrong.Length = int(last.Length)
	wrong.Last = last.Bytes[:min(wrong.Length, len(last.Bytes))]
	return wrong
}
