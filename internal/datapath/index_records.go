package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Index records say what each index stands for, in a format that is the same in all versions.
// Remembered flows and fragments name backends by their indexes. So another version, whose other
// maps look different, has to give every service and backend the index that it had. No program
// reads the records. A record is written before the kernel's maps have the index, and erased after;
// its first word is written last and erased first.
//
// The number at the end of a name is the format's: a version that needs another format takes
// another number.
const (
	recordServices = "services-1"
	recordBackends = "backends-1"
	recordDirector = "director-1"
)

func recordNames() []string {
	var names []string
	for _, name := range []string{recordServices, recordBackends, recordDirector} {
		names = append(names, name, name+beside)
	}
	return names
}

// serviceRecord is 64 bytes, numbers in this machine's order.
type serviceRecord struct {
	used     uint32
	segment  uint32
	first    uint16
	last     uint16
	protocol uint8
	ipv6     uint8
	_        [2]uint8
	vip      [16]byte
	retired  [3]uint64 // packets, bytes and connections of backends that are gone
	_        [8]byte
}

type backendRecord struct {
	used    uint32
	service uint32
	port    uint16
	mode    uint8 // enum mode
	snat    uint8
	ipv6    uint8
	epoch   uint8 // stays when the record is erased
	health  uint8 // notSaid, wasWell or wasUnwell
	_       uint8
	address [16]byte
	_       [32]byte
}

// What probes have said of a backend. Versions before this one do not write it.
const (
	notSaid = iota
	wasWell // or has not been probed
	wasUnwell
)

// directorRecord is how flow memory is laid out (struct settings).
type directorRecord struct {
	flowSalt      uint64
	formerCPUs    uint32
	formerBuckets uint32
	formerLeft    uint32 // 1: a process has left the former table when it ended
	formerTaken   uint32 // 1: its flows are in the new table. Versions before 0.2 write neither
	_             [40]byte
}

type indexRecords struct {
	pins     *pins
	services recordMap[serviceRecord]
	backends recordMap[backendRecord]
	director recordMap[directorRecord]
}

// recordMap is one array of records in memory.
type recordMap[T any] struct {
	bpfload.Memory[T]
	m     *ebpf.Map
	fresh bool // not pinned yet
}

func openIndexRecords(p *pins, limits model.Limits) (*indexRecords, error) {
	b := &indexRecords{pins: p}
	err := errors.Join(
		b.services.open(p.statePin(recordServices), limits.Services),
		b.backends.open(p.statePin(recordBackends), limits.Backends+1), // index 0 is no backend
		b.director.open(p.statePin(recordDirector), 1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the index records: %w", err), b.close())
	}
	return b, nil
}

// hasIndexRecords says whether there are any.
func (p *pins) hasIndexRecords() bool {
	for _, name := range []string{recordServices, recordBackends, recordDirector} {
		if _, err := os.Stat(p.statePin(name)); err != nil {
			return false
		}
	}
	return true
}

// open opens what is pinned. If it is too small now, its records go to a larger map, which takes
// its place in publish.
func (b *recordMap[T]) open(path string, records uint32) error {
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return b.create(records)
	}
	if err != nil {
		return err
	}
	if err := b.use(pinned); err != nil {
		return errors.Join(err, pinned.Close())
	}
	if pinned.MaxEntries() >= records {
		return nil
	}
	small := *b
	if err := b.create(records); err != nil {
		return errors.Join(err, small.close())
	}
	copy(b.Entries, small.Entries)
	return small.close()
}

func (b *recordMap[T]) create(records uint32) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(*new(T))), MaxEntries: records, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return err
	}
	if err := b.use(m); err != nil {
		return errors.Join(err, m.Close())
	}
	b.fresh = true
	return nil
}

func (b *recordMap[T]) use(m *ebpf.Map) error {
	if m.Type() != ebpf.Array || m.ValueSize() != uint32(unsafe.Sizeof(*new(T))) {
		return fmt.Errorf("%v of %d bytes is not the format of index records", m.Type(), m.ValueSize())
	}
	memory, err := bpfload.Map[T](m)
	if err == nil {
		*b = recordMap[T]{Memory: memory, m: m}
	}
	return err
}

func (b *recordMap[T]) close() error {
	if b.m == nil {
		return nil
	}
	err := errors.Join(b.Close(), b.m.Close())
	*b = recordMap[T]{}
	return err
}

// publish pins what is new, in place of what was too small.
func (b *recordMap[T]) publish(path string) error {
	if !b.fresh {
		return nil
	}
	if err := os.Remove(path + beside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin of an interrupted start: %w", err)
	}
	if err := pinClone(b.m, path+beside); err != nil {
		return err
	}
	if err := os.Rename(path+beside, path); err != nil {
		return fmt.Errorf("pin the index records: %w", err)
	}
	b.fresh = false
	return nil
}

func (b *indexRecords) publish() error {
	return errors.Join(
		b.services.publish(b.pins.statePin(recordServices)),
		b.backends.publish(b.pins.statePin(recordBackends)),
		b.director.publish(b.pins.statePin(recordDirector)))
}

// pinAgain pins what is not pinned any more.
func (b *indexRecords) pinAgain() error {
	b.services.fresh = b.services.fresh || missing([]string{b.pins.statePin(recordServices)}) > 0
	b.backends.fresh = b.backends.fresh || missing([]string{b.pins.statePin(recordBackends)}) > 0
	b.director.fresh = b.director.fresh || missing([]string{b.pins.statePin(recordDirector)}) > 0
	return b.publish()
}

func (b *indexRecords) close() error {
	return errors.Join(b.services.close(), b.backends.close(), b.director.close())
}

func (b *indexRecords) addService(index uint32, key serviceKey) {
	r := &b.services.Entries[index]
	atomic.StoreUint32(&r.used, 0)
	r.segment, r.protocol = key.segment, uint8(key.protocol)
	r.first, r.last = key.port.First, key.port.Last
	r.vip, r.ipv6 = abi.AddressBytes(key.vip).Bytes, truth(key.vip.Is6())
	r.retired = [3]uint64{}
	atomic.StoreUint32(&r.used, 1)
}

// retire notes what was forwarded to a service's backends that are gone: the service's counters go
// on from there in the next process.
func (b *indexRecords) retire(index uint32, t tally) {
	b.services.Entries[index].retired = [3]uint64{t.packets, t.bytes, t.opened}
}

func (b *indexRecords) retired(index uint32) tally {
	r := b.services.Entries[index].retired
	return tally{r[0], r[1], r[2]}
}

func (b *indexRecords) removeService(index uint32) {
	atomic.StoreUint32(&b.services.Entries[index].used, 0)
}

func (b *indexRecords) addBackend(index, service uint32, key backendKey, mode model.Mode, epoch uint8) {
	r := &b.backends.Entries[index]
	atomic.StoreUint32(&r.used, 0)
	r.service, r.port, r.mode = service, key.port, uint8(mode)
	r.snat, r.ipv6, r.epoch = truth(key.snat), truth(key.address.Is6()), epoch
	r.address, r.health = abi.AddressBytes(key.address).Bytes, notSaid
	atomic.StoreUint32(&r.used, 1)
}

// note records what may change of a backend: its mode, by which versions before this one tell
// backends apart, and what probes say.
func (b *indexRecords) note(index uint32, desired *model.TableBackend) {
	r := &b.backends.Entries[index]
	r.mode, r.health = uint8(desired.Mode), wasWell
	if desired.Unwell {
		r.health = wasUnwell
	}
}

// removeBackend erases the record except the epoch, so that the next backend with its index is not
// mistaken for this one.
func (b *indexRecords) removeBackend(index uint32, epoch uint8) {
	r := &b.backends.Entries[index]
	atomic.StoreUint32(&r.used, 0)
	r.epoch = epoch
}

// within returns the records of services and backends whose indexes this process has room for.
// Others count as new.
func (b *indexRecords) within(limits model.Limits) (map[serviceKey]uint32, map[uint32]map[backendKey]uint32) {
	services, backends := map[serviceKey]uint32{}, map[uint32]map[backendKey]uint32{}
	for i := range min(uint32(len(b.services.Entries)), limits.Services) {
		if r := &b.services.Entries[i]; r.used != 0 {
			services[r.key()] = i
		}
	}
	for i := uint32(1); i < min(uint32(len(b.backends.Entries)), limits.Backends+1); i++ {
		r := &b.backends.Entries[i]
		if r.used == 0 {
			continue
		}
		if backends[r.service] == nil {
			backends[r.service] = map[backendKey]uint32{}
		}
		backends[r.service][r.key()] = i
	}
	return services, backends
}

// forgetBeyond erases the records that this process has no room for.
func (b *indexRecords) forgetBeyond(limits model.Limits) {
	for i := limits.Services; i < uint32(len(b.services.Entries)); i++ {
		b.removeService(i)
	}
	for i := limits.Backends + 1; i < uint32(len(b.backends.Entries)); i++ {
		b.removeBackend(i, b.backends.Entries[i].epoch)
	}
}

func (r *serviceRecord) key() serviceKey {
	return serviceKey{segment: r.segment, vip: abi.AddressOf(abi.Address{Bytes: r.vip}, r.ipv6 != 0),
		protocol: model.Protocol(r.protocol), port: model.PortRange{First: r.first, Last: r.last}}
}

func (r *backendRecord) key() backendKey {
	return backendKey{address: abi.AddressOf(abi.Address{Bytes: r.address}, r.ipv6 != 0), port: r.port,
		snat: r.snat != 0}
}

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// Records have room for more fields.
var (
	_ [64]byte = [unsafe.Sizeof(serviceRecord{})]byte{}
	_ [64]byte = [unsafe.Sizeof(backendRecord{})]byte{}
	_ [64]byte = [unsafe.Sizeof(directorRecord{})]byte{}
)
