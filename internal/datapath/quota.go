package datapath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
)

// quotas are what segments may have of the datapath. Each segment has a number, as long as some service there
// has one. The program reads by service which number it has, and by number what that is.
type quotas struct {
	of      bpfload.Memory[uint64]    // by service index
	each    bpfload.Memory[abi.Quota] // by number
	numbers map[model.Segment]uint32
}

func (q *quotas) open(k *kernel) (err error) {
	q.numbers = map[model.Segment]uint32{}
	if q.of, err = bpfload.Map[uint64](k.ServiceQuotas); err == nil {
		q.each, err = bpfload.Map[abi.Quota](k.Quotas)
	}
	return err
}

// mostQuotas is how many segments may have one.
const mostQuotas = int(abi.QuotaSizeQUOTAS_MAX) - 1

// quotaSegments are the segments of a table's services that have one.
func quotaSegments(services []model.TableService) (list []model.Segment) {
	for i := range services {
		if s := &services[i]; s.Quota && !slices.Contains(list, s.Segment) {
			list = append(list, s.Segment)
		}
	}
	return list
}

// set lets services have the quotas of their segments, before their rings say that they have one. What it takes
// from a segment that has none any more it takes when no ring says so: see endQuotas.
func (d *Datapath) setQuotas(services []*service) error {
	q := &d.quotas
	taken := make([]bool, mostQuotas+1)
	for _, number := range q.numbers {
		taken[number] = true
	}
	for _, s := range services {
		number := uint32(0)
		if s.desired.Quota {
			known := false
			if number, known = q.numbers[s.desired.Segment]; !known {
				number = uint32(slices.Index(taken[1:], false) + 1)
				if err := d.kernel.clearQuota(number); err != nil {
					return err
				}
				q.numbers[s.desired.Segment], taken[number] = number, true
			}
			q.each.Entries[number] = quotaOf(d.table.Quotas[s.desired.Segment], d.kernel.FlowTable.MaxEntries())
		} else if s.ring.lines > 0 {
			continue // its present ring may still say that it has one
		}
		q.of.Entries[s.index] = uint64(number)
	}
	return nil
}

// endQuotas forgets the quotas of segments whose services have none any more.
func (d *Datapath) endQuotas(services []*service) {
	q := &d.quotas
	stays := map[model.Segment]bool{}
	for _, s := range services {
		if s.desired.Quota {
			stays[s.desired.Segment] = true
		} else {
			q.of.Entries[s.index] = 0
		}
	}
	for segment, number := range q.numbers {
		if !stays[segment] {
			q.each.Entries[number] = abi.Quota{}
			delete(q.numbers, segment)
		}
	}
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
		of.Flows = uint32(max(1, min(uint64(q.Flows)<<16/uint64(max(1, buckets)), uint64(flows.Ways)<<16)))
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
