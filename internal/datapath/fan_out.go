package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Fan-out (bpf/director/fan_out.h): the CPUs of a NIC's queues give packets of expensive services to others.

// fanOutQueue is how many packets may wait for a CPU. The kernel gives a CPU eight at a time.
const fanOutQueue = 2048

// fansOut says whether packets are given to other CPUs.
func (o Options) fansOut() bool { return len(o.FanOut) > 0 }

// fanOutCPUs is a map's size by CPU. A map has at least one element.
func (o Options) fanOutCPUs() uint32 {
	if !o.fansOut() {
		return 1
	}
	return uint32(ebpf.MustPossibleCPU())
}

// Expensive says whether a service's packets take so long that it pays to give them to another CPU, which
// takes some 40 ns: those of full NAT and GUE, and those that ask flow memory.
func Expensive(s *model.TableService) bool {
	if s.Policy != model.Maglev {
		return true
	}
	for i := range s.Backends {
		if b := &s.Backends[i]; b.SNAT || b.Mode == model.GUE {
			return true
		}
	}
	return false
}

// fanOut is what packets that are given to other CPUs are counted by.
type fanOut struct {
	list    bpfload.Memory[uint32]
	data    bpfload.Memory[fanOutData]
	dropped uint64 // at least, so far: packets that are on their way are not
	last    struct {
		given, taken uint64
		since        time.Time // they are as they were
	}
}

// fanOutData is the section of fan_out_count and fan_out_salt.
type fanOutData struct {
	Count, _ uint32
	Salt     uint64
}

// cpuEntry is struct bpf_cpumap_val.
type cpuEntry struct {
	queue   uint32
	program uint32 // a descriptor
}

// open has the CPUs run the program. Those of an earlier process go on with it, if it is the same.
func (f *fanOut) open(k *kernel, o Options) (err error) {
	if f.list, err = bpfload.Map[uint32](k.FanOutList); err != nil {
		return err
	}
	if f.data, err = bpfload.Map[fanOutData](k.all[abi.FanOut]); err != nil || !o.fansOut() {
		return err
	}
	program := k.collection.Programs[directorProgDirectorOnCpu]
	if program == nil {
		return errors.New("the program for other CPUs is not there")
	}
	same := k.adopted && k.same
	for i, cpu := range o.FanOut {
		if !same {
			err := k.FanOutCpus.Put(cpu, cpuEntry{fanOutQueue, uint32(program.FD())})
			if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENODEV) {
				err = fmt.Errorf("there is no such CPU: %w", err)
			}
			if err != nil {
				return fmt.Errorf("give packets to CPU %d: %w", cpu, err)
			}
		}
		atomic.StoreUint32(&f.list.Entries[i], cpu)
	}
	data := &f.data.Entries[0]
	if data.Salt == 0 { // else an earlier process has chosen it
		atomic.StoreUint64(&data.Salt, rand.Uint64()|1)
	}
	atomic.StoreUint32(&data.Count, uint32(len(o.FanOut)))
	return nil
}

func (f *fanOut) close() error { return errors.Join(f.list.Close(), f.data.Close()) }

// fanOutRests is how long nothing is given or taken until nothing is on its way.
const fanOutRests = time.Second

// count finds out how many packets were dropped: what was given, and is neither taken nor may wait. While nothing
// comes nothing waits.
func (f *fanOut) count(given, taken, mayWait uint64, now time.Time) {
	if last := &f.last; given != last.given || taken != last.taken || last.since.IsZero() {
		last.given, last.taken, last.since = given, taken, now
	} else if now.Sub(last.since) >= fanOutRests {
		mayWait = 0
	}
	if given > taken+mayWait {
		f.dropped = max(f.dropped, given-taken-mayWait)
	}
}

// FanOut returns the CPUs that get packets, and how many; nil: none do.
func (d *Datapath) FanOut() (*model.FanOutStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.options.fansOut() || d.closed() {
		return nil, nil
	}
	given, err := readTally(d.kernel.FanOutEvents, 0)
	if err != nil {
		return nil, err
	}
	// Later, so that packets that are on their way are hardly taken for dropped.
	taken, err := readTally(d.kernel.FanOutEvents, 1)
	if err != nil {
		return nil, err
	}
	d.fanOut.count(given.packets, taken.packets, uint64(len(d.options.FanOut))*fanOutQueue, time.Now())
	return &model.FanOutStatus{CPUs: d.options.FanOut, Given: given.packets, Taken: taken.packets, Dropped: d.fanOut.dropped}, nil
}
