package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// How many frames leave together: as many as a NAPI poll takes or, at a rate, fewer, as they come to a CPU
// that has time.
const (
	FullPoll  = 64
	FewFrames = 16
)

// Source sends traffic out of a port, from a given CPU.
type Source struct {
	host    *netlab.Host
	cpu     int
	frame   []byte
	program struct {
		Program *ebpf.Program  `ebpf:"source"`
		Order   *ebpf.Map      `ebpf:"flow_order"`
		Began   *ebpf.Variable `ebpf:"pace_began"`
		Gap     *ebpf.Variable `ebpf:"pace_gap"`
		Due     *ebpf.Variable `ebpf:"pace_due"`
		Waited  *ebpf.Variable `ebpf:"pace_waited"`
	}
	together int // frames that leave at once
}

// NewSource makes a source of that traffic, to the MAC address at the other end of the port's
// cable. The other end must be able to receive from XDP.
func NewSource(port *netlab.Port, to net.HardwareAddr, t Traffic, cpu int) (*Source, error) {
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("traffic: %w", err)
	}
	longest := slices.Max(t.Frames) - FCS + t.Longer()
	constants := t.constants()
	constants["out_ifindex"] = uint32(port.Index)
	constants["syn_every"] = uint32(t.SYNEvery)
	constants["flows_in_turn"] = truth(t.InTurn)
	constants["first_flow"] = uint32(t.First)
	var order []uint32
	if t.Zipf > 0 {
		order = t.Order()
		constants["order_length"] = uint32(len(order))
	}
	if len(t.Frames) > 1 {
		var sizes [framesRoom]uint32
		for i, length := range t.Frames {
			sizes[i] = uint32(length - FCS + t.Longer())
		}
		constants["frame_sizes"], constants["frame_size"] = uint32(len(t.Frames)), sizes
	}
	constants["mac"] = halfwords(to, port.MAC)
	outer, err := t.Overlay.sent()
	if err != nil {
		return nil, fmt.Errorf("traffic: %w", err)
	}
	maps.Copy(constants, outer)
	s := &Source{host: port.Host, cpu: cpu, frame: make([]byte, longest), together: FullPoll}
	if err := load("source", constants, map[string]int{"flow_order": len(order)}, &s.program); err != nil {
		return nil, err
	}
	if err := s.writeOrder(order); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// writeOrder says which flows are sent.
func (s *Source) writeOrder(order []uint32) error {
	memory, err := s.program.Order.Memory()
	if err != nil {
		return fmt.Errorf("say which flows are sent: %w", err)
	}
	var entry [4]byte
	for i, flow := range order {
		binary.NativeEndian.PutUint32(entry[:], flow)
		if _, err := memory.WriteAt(entry[:], int64(i)*arrayStride); err != nil {
			return fmt.Errorf("say which flows are sent: %w", err)
		}
	}
	return nil
}

// Close forgets the source.
func (s *Source) Close() error {
	return errors.Join(s.program.Program.Close(), s.program.Order.Close())
}

// Pace makes the source send at a rate, in packets per second, or as fast as it can if that is
// less. A rate of 0 means as fast as it can. So many frames leave together, when the last one is due.
func (s *Source) Pace(rate float64, together int) error {
	var gap uint64
	if rate > 0 {
		gap = uint64(1024 * 1e9 / rate)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	for _, set := range []struct {
		variable *ebpf.Variable
		value    uint64
	}{{s.program.Began, uint64(now.Nano())}, {s.program.Due, 0}, {s.program.Gap, gap}} {
		if err := set.variable.Set(set.value); err != nil {
			return fmt.Errorf("set the source's rate: %w", err)
		}
	}
	s.together = together
	return nil
}

// Waited returns how long the source waited so far, at a rate, until packets were due: the rest of the time
// its CPU worked on packets.
func (s *Source) Waited() (time.Duration, error) {
	var waited uint64
	if err := s.program.Waited.Get(&waited); err != nil {
		return 0, fmt.Errorf("read how long the source waited: %w", err)
	}
	return time.Duration(waited >> 10), nil
}

// Send sends that many packets, a multiple of those that leave together at least, and returns how long it took: as
// long as it must, or as its rate says. That includes work on the packets on the same CPU.
func (s *Source) Send(packets int) (took time.Duration, err error) {
	err = s.host.Do(func() error {
		free, err := netlab.OnCPU(s.cpu)
		if err != nil {
			return err
		}
		defer free()
		// A signal that ends a run early makes ebpf begin it anew, and more packets than asked for leave.
		// Go's runtime sends one to a thread that runs for long.
		restore, err := holdBack(unix.SIGURG)
		if err != nil {
			return err
		}
		defer restore()
		begin := time.Now()
		_, err = s.program.Program.Run(&ebpf.RunOptions{Data: s.frame, Repeat: uint32(packets),
			Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: uint32(s.together)})
		took = time.Since(begin)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("send %d packets from %s: %w", packets, s.host.Name, err)
	}
	return took, nil
}

// holdBack keeps a signal from this thread, which its caller has locked, until restore is called.
func holdBack(signal syscall.Signal) (restore func(), err error) {
	var held, before unix.Sigset_t
	held.Val[0] = 1 << (signal - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &held, &before); err != nil {
		return nil, fmt.Errorf("hold back %v: %w", signal, err)
	}
	return func() { unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }, nil
}

// Frame returns the next packet without its FCS, instead of sending it.
func (s *Source) Frame() ([]byte, error) {
	frame := make([]byte, len(s.frame))
	verdict, err := s.program.Program.Run(&ebpf.RunOptions{Data: s.frame, DataOut: frame})
	if err != nil {
		return nil, fmt.Errorf("make a packet: %w", err)
	}
	if verdict != xdpRedirect {
		return nil, fmt.Errorf("make a packet: verdict %d", verdict)
	}
	return frame, nil
}

// xdpRedirect is the verdict when a packet was made.
const xdpRedirect = 4
