package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// quotas are what segments may have of the datapath. Each segment has a number, as long as it
// has one. The program reads by service or segment which number it has, and by number what that is.
type quotas struct {
	of        bpfload.Memory[uint64] // by service index
	ofSegment *ebpf.Map
	each      bpfload.Memory[abi.Quota] // by number
	numbers   map[model.Segment]uint32
	stale     []uint32 // keys of ofSegment that the process before has left
}

func (q *quotas) open(k *kernel) (err error) {
	q.numbers, q.ofSegment = map[model.Segment]uint32{}, k.SegmentQuotas
	if q.of, err = bpfload.Map[uint64](k.ServiceQuotas); err != nil {
		return err
	}
	if q.each, err = bpfload.Map[abi.Quota](k.Quotas); err != nil {
		return err
	}
	return q.readStale()
}

// readStale notes the segments to which the process before has given numbers. Its program goes on by them.
func (q *quotas) readStale() error {
	var segment, number uint32
	all := q.ofSegment.Iterate()
	for all.Next(&segment, &number) {
		q.stale = append(q.stale, segment)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read the quotas of segments: %w", err)
	}
	return nil
}

// flag is the setting by which the program looks for quotas.
func (q *quotas) flag(t *model.Table) uint32 {
	if len(t.Quotas) == 0 && len(q.numbers) == 0 {
		return 0
	}
	return uint32(abi.SettingsFlagSETTINGS_QUOTAS)
}

// mostQuotas is how many segments may have one.
const mostQuotas = int(abi.QuotaSizeQUOTAS_MAX) - 1

// setQuotas lets segments and their services have their quotas, before rings say that they have one. What it
// takes from a segment that has none any more it takes when no ring says so: see endQuotas. Only where others need
// its number it takes it now, and until then the segment's services have no bound.
func (d *Datapath) setQuotas(services []*service) error {
	q := &d.quotas
	if q.lacking(d.table.Quotas) {
		if err := d.endQuotas(services); err != nil {
			return err
		}
	}
	taken := make([]bool, mostQuotas+1)
	taken[0] = true // that of no quota
	for _, number := range q.numbers {
		taken[number] = true
	}
	for segment, quota := range d.table.Quotas {
		number, known := q.numbers[segment]
		if !known {
			free := slices.Index(taken, false)
			if free < 0 { // checkLimits refuses what may come here
				return fmt.Errorf("no quota is left for segment %s: %d segments have one", segment, len(q.numbers))
			}
			number = uint32(free)
			if err := d.kernel.clearQuota(number); err != nil {
				return err
			}
		}
		q.each.Entries[number] = quotaOf(quota, d.kernel.FlowTable.MaxEntries())
		if !known {
			if err := q.ofSegment.Put(segment.Key(), number); err != nil {
				return fmt.Errorf("give segment %s its quota: %w", segment, err)
			}
			q.numbers[segment], taken[number] = number, true
		}
	}
	for _, s := range services {
		if s.desired.Quota {
			q.of.Entries[s.index] = uint64(q.numbers[s.desired.Segment])
		} else if s.ring.lines == 0 { // else its present ring may still say that it has one
			q.of.Entries[s.index] = 0
		}
	}
	return nil
}

// lacking reports whether there are not as many free numbers as some of these segments need.
func (q *quotas) lacking(segments map[model.Segment]model.SegmentQuota) bool {
	all := len(q.numbers)
	for segment := range segments {
		if _, known := q.numbers[segment]; !known {
			all++
		}
	}
	return all > mostQuotas
}

// endQuotas forgets the quotas of segments that have none any more, and the numbers that the process before gave to
// segments. Services that are gone, or whose rings still say that they have one, have the number of none from then on:
// theirs may be another segment's next.
func (d *Datapath) endQuotas(services []*service) error {
	q := &d.quotas
	for _, s := range services {
		if !s.desired.Quota {
			q.of.Entries[s.index] = 0
		}
	}
	ends := map[uint64]bool{}
	var errs []error
	for segment, number := range q.numbers {
		if _, stays := d.table.Quotas[segment]; stays {
			continue
		}
		if err := q.ofSegment.Delete(segment.Key()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("end the quota of segment %s: %w", segment, err))
			continue
		}
		ends[uint64(number)] = true
		delete(q.numbers, segment)
	}
	errs = append(errs, q.forgetStale())
	for i, number := range q.of.Entries {
		if ends[number] {
			q.of.Entries[i] = 0
		}
	}
	for number := range ends {
		q.each.Entries[number] = abi.Quota{}
	}
	return errors.Join(errs...)
}

// forgetStale removes the numbers that the process before gave to segments that have none now.
func (q *quotas) forgetStale() error {
	numbers := map[uint32]bool{}
	for segment := range q.numbers {
		numbers[segment.Key()] = true
	}
	for _, key := range q.stale {
		if numbers[key] {
			continue
		}
		if err := q.ofSegment.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove the quota of a segment: %w", err)
		}
	}
	q.stale = nil
	return nil
}

// quotaBatches is into how many batches the packets of a window are divided.
const quotaBatches, mostBatch = 64, 64

// quotaOf is a quota in the program's form, for so many buckets of flow memory.
func quotaOf(q model.SegmentQuota, buckets uint32) (of abi.Quota) {
	const windows = 1e9 / (1 << abi.QuotaSizeQUOTA_WINDOW) // in a second
	if q.PacketsPerSecond > 0 {
		of.Packets = max(1, uint32(float64(q.PacketsPerSecond)/windows+0.5))
		of.Batch = min(max(1, of.Packets/quotaBatches), mostBatch)
	}
	if q.Flows > 0 {
		// Flow memory that is larger than the configuration says, until a restart, makes no smaller part of it.
		const most = uint64(flows.Ways) << 16
		of.Flows = uint32(max(most/model.LeastFlowsPart, min(uint64(q.Flows)<<16/uint64(max(1, buckets)), most)))
	}
	return of
}

// clearQuota begins the counts of a number anew: it has got another segment.
func (k *kernel) clearQuota(number uint32) error {
	shares := make([]abi.QuotaShare, ebpf.MustPossibleCPU())
	if err := k.QuotaShares.Put(number, shares); err != nil {
		return fmt.Errorf("clear a segment's quota: %w", err)
	}
	return nil
}

// overQuota adds what was refused to a segment because it had had all that it may have.
func (d *Datapath) overQuota(c *model.SegmentCounts) error {
	number, has := d.quotas.numbers[c.ID]
	if !has {
		return nil
	}
	var shares []abi.QuotaShare
	if err := d.kernel.QuotaShares.Lookup(number, &shares); err != nil {
		return fmt.Errorf("read a segment's quota: %w", err)
	}
	for _, s := range shares {
		c.Limited, c.FlowsRefused = c.Limited+s.Packets, c.FlowsRefused+s.Flows
	}
	return nil
}
