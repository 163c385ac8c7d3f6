// Package inside looks at a director's program and maps in the kernel from outside its process: the
// resources that they use, and when packets follow a new ring.
package inside

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

// ErrNotVisible says that a change did not show in time.
var ErrNotVisible = errors.New("packets do not follow the new ring")

// patience bounds the wait for a change.
const patience = time.Minute

// between is how long a CPU's watcher leaves the CPU to others between two packets: far less than a
// change takes, but enough that the change does not wait for the watcher.
const between = 100 * time.Microsecond

// Program returns the director's program that uses the maps pinned in a director's directory: the
// one that handles incoming packets now. The caller closes it.
func Program(pin string) (*ebpf.Program, error) {
	pins, err := filepath.Glob(filepath.Join(pin, "maps-*", "backends"))
	if err != nil || len(pins) != 1 {
		return nil, fmt.Errorf("find the backends of the director below %s: %d pinned maps", pin, len(pins))
	}
	backends, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		return nil, fmt.Errorf("open the director's backends: %w", err)
	}
	defer backends.Close()
	info, err := backends.Info()
	if err != nil {
		return nil, fmt.Errorf("look at the director's backends: %w", err)
	}
	id, _ := info.ID()
	return programOf(id)
}

// programOf looks for the XDP program that has the map. Programs come and go while
// the list is read.
func programOf(backends ebpf.MapID) (*ebpf.Program, error) {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			return nil, fmt.Errorf("find the director's program: %w", err)
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		info, err := program.Info()
		if err == nil && info.Type == ebpf.XDP {
			if maps, known := info.MapIDs(); known && slices.Contains(maps, backends) {
				return program, nil
			}
		}
		program.Close()
	}
}

// Seen is when the first and the last CPU forwarded by the new ring.
type Seen struct {
	First, Last time.Time
}

// Watch sends connections to that address and port through the program on every CPU until one of
// each CPU's leaves for a next hop that none had before. It returns when all CPUs are watched; the
// function that it returns waits for the end. Its error may be ErrNotVisible.
//
// Every packet begins a connection of its own: a connection that the director knows stays where it
// is, whatever the ring says.
func Watch(ctx context.Context, program *ebpf.Program, vip netip.Addr, port uint16) (wait func() (Seen, error), err error) {
	before, err := hops(program, vip, port)
	if err != nil {
		return nil, err
	}
	cpus := runtime.NumCPU()
	times, errs := make([]time.Time, cpus), make([]error, cpus)
	var ready, done sync.WaitGroup
	ready.Add(cpus)
	for cpu := range cpus {
		done.Go(func() {
			times[cpu], errs[cpu] = watchOn(ctx, cpu, program, newClients(vip, port), before, ready.Done)
		})
	}
	ready.Wait()
	return func() (Seen, error) {
		done.Wait()
		byTime := slices.SortedFunc(slices.Values(times), time.Time.Compare)
		return Seen{byTime[0], byTime[cpus-1]}, errors.Join(errs...)
	}, nil
}

// watchOn watches one CPU. Its thread is bound to the CPU and ends with the goroutine. It runs
// before all processes there, as packets do.
func watchOn(ctx context.Context, cpu int, program *ebpf.Program, clients *clients, before []MAC, ready func()) (time.Time, error) {
	_, err := netlab.OnCPU(cpu)
	if err == nil {
		_, err = netlab.Urgent(1)
	}
	ready()
	if err != nil {
		return time.Time{}, fmt.Errorf("go first on CPU %d: %w", cpu, err)
	}
	for deadline := time.Now().Add(patience); ; nap() {
		now, err := clients.connect(program)
		seen := time.Now()
		switch {
		case err != nil:
			return seen, err
		case !slices.Contains(before, now):
			return seen, nil
		case ctx.Err() != nil:
			return seen, ctx.Err()
		case seen.After(deadline):
			return seen, fmt.Errorf("CPU %d: %w", cpu, ErrNotVisible)
		}
	}
}

// nap lets the thread sleep in the kernel: Go's own timers run in threads that do not go first.
func nap() {
	_ = unix.Nanosleep(&unix.Timespec{Nsec: between.Nanoseconds()}, nil) // shorter if interrupted
}

// MAC is where a frame goes.
type MAC [6]byte

// clients begin connections: each packet is the SYN of a new one.
type clients struct {
	frame []byte
	next  uint32 // the next connection's source port, and above it the last byte of its address
}

// networks counts the clients' networks so far: a director may still know their connections.
var networks atomic.Uint32

// newClients returns clients of a network of their own. No host receives what they send.
func newClients(vip netip.Addr, port uint16) *clients {
	number := networks.Add(1)
	return &clients{frame: packet.Build(packet.EthernetHeader{}, packet.IPv4Header{Src: netip.AddrFrom4([4]byte{10, byte(number >> 8), byte(number), 0}), Dst: vip},
		packet.TCPHeader{Dst: port, Flags: packet.SYN})}
}

// connect begins the next connection, and returns where the program sends it. The frame itself is
// not sent.
func (c *clients) connect(program *ebpf.Program) (MAC, error) {
	const sourceByte, sourcePort = 14 + 15, 14 + 20 // behind Ethernet; checksums are not verified
	c.frame[sourceByte] = byte(c.next >> 16)
	binary.BigEndian.PutUint16(c.frame[sourcePort:], uint16(c.next))
	c.next++
	out := make([]byte, len(c.frame))
	if _, err := program.Run(&ebpf.RunOptions{Data: c.frame, DataOut: out}); err != nil {
		return MAC{}, fmt.Errorf("run the director's program: %w", err)
	}
	return MAC(out), nil
}

// hops are the next hops of a service's connections: of all connections, if a handful of backends
// have even shares.
func hops(program *ebpf.Program, vip netip.Addr, port uint16) ([]MAC, error) {
	c, seen := newClients(vip, port), map[MAC]bool{}
	for range 256 {
		hop, err := c.connect(program)
		if err != nil {
			return nil, err
		}
		seen[hop] = true
	}
	return slices.Collect(maps.Keys(seen)), nil
}
