package agent

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"weir.io/weir/internal/model"
)

// flowMemory is a map of UDP flows whose datagrams this host has kept. Programs of every version
// share it, because its content cannot be made again. So its pin is not among those of their maps,
// and is named by format and size. A map of another size gets the content of the one before it.
type flowMemory struct {
	*ebpf.Map
	dir, kind, name string
	fresh           bool // this process made it
}

// The maps of flows: those that are sustained (bpf/lib/proof.h), and those that have just begun.
const (
	flowsName = "udp_flows"
	freshName = "udp_fresh"
)

// udpMemory is both maps.
type udpMemory struct{ sustained, begun *flowMemory }

// openFlows opens the memory for so many flows; 0: nothing is remembered.
func openFlows(dir string, spec *ebpf.CollectionSpec, flows uint32) (*udpMemory, error) {
	if err := spec.Variables["remembers_flows"].Set(uint8(min(flows, 1))); err != nil {
		return nil, fmt.Errorf("set remembers_flows: %w", err)
	}
	if err := spec.Variables["udp_room"].Set(flows); err != nil {
		return nil, fmt.Errorf("set udp_room: %w", err)
	}
	sustained, err := openMemory(dir, "udp-flows", spec.Maps[flowsName], flows)
	if err != nil {
		return nil, err
	}
	begun, err := openMemory(dir, "udp-fresh", spec.Maps[freshName], freshFlows(flows))
	if err != nil {
		return nil, errors.Join(err, sustained.giveUp())
	}
	return &udpMemory{sustained, begun}, nil
}

// freshFlows is how many flows that have just begun are remembered beside so many that are
// sustained: few, because most soon become sustained or are part of a flood.
func freshFlows(flows uint32) uint32 {
	if flows == 0 {
		return 0
	}
	return max(model.MinUDPFlows, flows/4)
}

func (u *udpMemory) all() []*flowMemory { return []*flowMemory{u.sustained, u.begun} }

func (u *udpMemory) each(do func(*flowMemory) error) error {
	return errors.Join(do(u.sustained), do(u.begun))
}

func (u *udpMemory) giveUp() error   { return u.each((*flowMemory).giveUp) }
func (u *udpMemory) close() error    { return u.each((*flowMemory).close) }
func (u *udpMemory) takeOver() error { return u.each((*flowMemory).takeOver) }

// remembers says whether there is a memory.
func (u *udpMemory) remembers() bool { return u.sustained.Map != nil }

// replacements gives the programs these maps instead of their own.
func (u *udpMemory) replacements() map[string]*ebpf.Map {
	if !u.remembers() {
		return nil
	}
	return map[string]*ebpf.Map{flowsName: u.sustained.Map, freshName: u.begun.Map}
}

// openMemory opens a map for so many flows; 0: none.
func openMemory(dir, kind string, m *ebpf.MapSpec, flows uint32) (*flowMemory, error) {
	m.MaxEntries = max(1, flows)
	format := sha256.Sum256(fmt.Appendf(nil, "%v %d %d %9v %9v", m.Type, m.KeySize, m.ValueSize, m.Key, m.Value))
	f := &flowMemory{dir: dir, kind: kind, name: fmt.Sprintf("%s-%x-%d", kind, format[:8], flows)}
	if flows == 0 {
		f.name = ""
		return f, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	var err error
	f.Map, err = ebpf.LoadPinnedMap(f.path(), nil)
	if errors.Is(err, os.ErrNotExist) {
		f.fresh = true
		f.Map, err = ebpf.NewMap(m)
	}
	if err != nil {
		return nil, fmt.Errorf("open memory of %d UDP flows: %w", flows, err)
	}
	if !f.fresh {
		return f, nil
	}
	if err := f.Pin(f.path()); err != nil {
		return nil, errors.Join(fmt.Errorf("pin memory of UDP flows: %w", err), f.Close())
	}
	if err := f.copyOthers(); err != nil {
		return nil, errors.Join(err, f.giveUp())
	}
	return f, nil
}

func (f *flowMemory) path() string { return filepath.Join(f.dir, f.name) }

// giveUp removes a memory that this process made and no program uses.
func (f *flowMemory) giveUp() error {
	if f.Map == nil {
		return nil
	}
	err := f.Close()
	if f.fresh {
		err = errors.Join(err, os.Remove(f.path()))
		_ = os.Remove(f.dir) // only if it is empty
	}
	return err
}

// close ends this process's part: the memory stays.
func (f *flowMemory) close() error {
	if f.Map == nil {
		return nil
	}
	return f.Close()
}

// takeOver ends the memories of earlier settings and versions, whose programs no longer run. What
// they have noted since the first copy is copied, too.
func (f *flowMemory) takeOver() error {
	if err := f.copyOthers(); err != nil {
		return err
	}
	return f.eachOther(os.Remove)
}

// copyOthers copies the flows in memories of another size. If there is less room, the kernel
// decides which flows have none.
func (f *flowMemory) copyOthers() error {
	if f.Map == nil {
		return nil
	}
	format := f.name[:strings.LastIndex(f.name, "-")]
	return f.eachOther(func(path string) error {
		if !strings.HasPrefix(filepath.Base(path), format) {
			return nil // this version cannot read it
		}
		other, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return fmt.Errorf("open memory of UDP flows %s: %w", path, err)
		}
		defer other.Close()
		return f.copy(other)
	})
}

func (f *flowMemory) eachOther(do func(path string) error) error {
	others, err := filepath.Glob(filepath.Join(f.dir, f.kind+"-*"))
	for _, path := range others {
		if filepath.Base(path) != f.name {
			err = errors.Join(err, do(path))
		}
	}
	return err
}

// copy adds the flows of another memory that this one lacks. The other one is in use: an iteration
// that the kernel would have to begin anew because of that has seen enough.
func (f *flowMemory) copy(other *ebpf.Map) error {
	var flow bpfHostFlow
	var value []byte
	entries := other.Iterate()
	for entries.Next(&flow, &value) {
		if err := f.Update(&flow, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("copy memory of UDP flows: %w", err)
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read memory of UDP flows: %w", err)
	}
	return nil
}

// flowTimeout is how long a flow may be idle, as for the programs (FLOW_TIMEOUT_UDP).
const flowTimeout = uint64(300 * time.Second)

// alive calls found with both ends of each flow that is remembered and not too old.
func (u *udpMemory) alive(found func(local, remote netip.AddrPort)) error {
	if !u.remembers() {
		return nil
	}
	now := uint64(now())
	note := func(flow bpfHostFlow, seen uint64) {
		if now < seen+flowTimeout {
			found(flowEnd(flow.Vip, flow.VipPort), flowEnd(flow.Client, flow.ClientPort))
		}
	}
	return errors.Join(
		eachFlow(u.sustained.Map, note),
		eachFlow(u.begun.Map, func(flow bpfHostFlow, fresh bpfHostFresh) { note(flow, fresh.Seen) }))
}

// eachFlow reads whole buckets of the map, so that flows that come and go do not make it miss
// others.
func eachFlow[V any](m *ebpf.Map, found func(bpfHostFlow, V)) error {
	flows, values := make([]bpfHostFlow, flowsAtOnce), make([]V, flowsAtOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, flows, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read memory of UDP flows: %w", err)
		}
		for i := range n {
			found(flows[i], values[i])
		}
		if err != nil {
			return nil // that was all
		}
	}
}

// flowsAtOnce has room for the fullest bucket.
const flowsAtOnce = 4096

func flowEnd(address bpfAddress, port uint16) netip.AddrPort {
	bytes := binary.NativeEndian.AppendUint16(nil, port)
	return netip.AddrPortFrom(netip.AddrFrom16(address.Bytes).Unmap(), binary.BigEndian.Uint16(bytes))
}
