package agent

import (
	"net/netip"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
)

// countCost limits the share of time that counting takes: a memory may have millions of flows.
const countCost = 100

// countDatagrams counts the sustained flows of UDP that are not too old, for the
// services' quotas. The agent's lock is held.
func (a *Agent) countDatagrams() error {
	began := now()
	if !a.flows.remembers() || began < a.counting {
		return nil
	}
	byVIP := map[netip.AddrPort]uint32{}
	err := eachFlow(a.flows.sustained.Map, func(flow bpfHostFlow, seen uint64) {
		if uint64(began) < seen+flowTimeout {
			byVIP[flowEnd(flow.Vip, flow.VipPort)]++
		}
	})
	a.counting = now() + countCost*(now()-began)
	if err != nil {
		return err
	}
	counts := map[uint32]bpfHostQuota{0: {}} // 0: all services
	for _, s := range a.plan.services {
		if s.protocol == model.UDP {
			counts[a.tables.indexes[s.identity()]] = bpfHostQuota{}
		}
	}
	for vip, n := range byVIP {
		index := uint32(0)
		if s := a.plan.serviceOf(vip, model.UDP); s != nil {
			index = a.tables.indexes[s.identity()]
		}
		addQuota(counts, index, n)
	}
	return contents.Put(a.objects.UdpQuotas, counts)
}

// addQuota adds flows to the count of all services, and to that of one; 0: of none.
func addQuota(counts map[uint32]bpfHostQuota, service, flows uint32) {
	all := counts[0]
	all.Counted += flows
	counts[0] = all
	if own := counts[service]; service != 0 {
		own.Counted += flows
		counts[service] = own
	}
}
