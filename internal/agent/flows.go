package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
)

// flowTimeout is how long a flow may be idle, as for the programs (FLOW_TIMEOUT_UDP).
const flowTimeout = uint64(300 * time.Second)

// sctpBit tells flows of SCTP from those of UDP: HOST_FLOW_SCTP.
const sctpBit = 0x80

// ends returns a flow's protocol and both of its ends. Clients' addresses begin with bytes up to 0x5f, or
// from 0xfc on, those of SCTP with these bytes with the bit inverted (see struct host_flow).
func (f bpfHostFlow) ends() (protocol model.Protocol, local, remote netip.AddrPort) {
	client := f.Client
	protocol = model.UDP
	if first := client.Bytes[0]; 0x7c <= first && first < 0xfc {
		protocol = model.SCTP
		client.Bytes[0] ^= sctpBit
	}
	return protocol, flowEnd(f.Vip, f.VipPort), flowEnd(client, f.ClientPort)
}

// alive calls found with protocol and both ends of each flow that is remembered and not too old.
func (u *udpMemory) alive(found func(protocol model.Protocol, local, remote netip.AddrPort)) error {
	if !u.remembers() {
		return nil
	}
	now := uint64(now())
	note := func(flow bpfHostFlow, seen uint64) {
		if now < seen+flowTimeout {
			found(flow.ends())
		}
	}
	return errors.Join(
		eachEntry(u.sustained.Map, note),
		eachEntry(u.begun.Map, func(flow bpfHostFlow, fresh bpfHostFresh) { note(flow, fresh.Seen) }))
}

// entriesAtOnce has room for the fullest bucket.
const entriesAtOnce = 4096

// eachEntry calls found with each flow of a map. It reads whole buckets, so that flows that come and
// go do not make it miss others.
func eachEntry[K, V any](m *ebpf.Map, found func(K, V)) error {
	keys, values := make([]K, entriesAtOnce), make([]V, entriesAtOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read flows in %s: %w", m, err)
		}
		for i := range n {
			found(keys[i], values[i])
		}
		if err != nil {
			return nil // that was all
		}
	}
}

// removeFlow removes a flow, unless another one has its entry by now.
func removeFlow[K, V any](m *ebpf.Map, flow K, same func(V) bool) error {
	var is V
	err := m.Lookup(flow, &is)
	if err == nil && same(is) {
		err = m.Delete(flow)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove a flow from %s: %w", m, err)
	}
	return nil
}

func flowEnd(address bpfAddress, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(address.Bytes).Unmap(), networkOrder(port))
}

// countCost limits the share of time that counting takes: a memory may have millions of flows.
const countCost = 100

// countDatagrams counts the sustained flows of UDP and SCTP that are not too old, for the
// services' quotas. The agent's lock is held.
func (a *Agent) countDatagrams() error {
	began := now()
	if !a.memory.flows.remembers() || began < a.counting {
		return nil
	}
	type end struct {
		vip      netip.AddrPort
		protocol model.Protocol
	}
	byVIP := map[end]uint32{}
	err := eachEntry(a.memory.flows.sustained.Map, func(flow bpfHostFlow, seen uint64) {
		if uint64(began) < seen+flowTimeout {
			protocol, vip, _ := flow.ends()
			byVIP[end{vip, protocol}]++
		}
	})
	a.counting = now() + countCost*(now()-began)
	if err != nil {
		return err
	}
	counts := a.newQuotas(func(s *service) bool { return s.protocol.Datagrams() })
	for at, n := range byVIP {
		counts.add(a.indexOf(at.vip, at.protocol), n)
	}
	return contents.Put(a.objects.UdpQuotas, counts)
}

// quotas are the numbers of services' flows, by the services' indexes; at 0, of all services.
type quotas map[uint32]bpfHostQuota

// newQuotas has no flows of the services that may have some.
func (a *Agent) newQuotas(mayHave func(*service) bool) quotas {
	counts := quotas{0: {}}
	for i := range a.plan.services {
		if s := &a.plan.services[i]; mayHave(s) {
			counts[a.tables.indexes[s.identity()]] = bpfHostQuota{}
		}
	}
	return counts
}

// add adds flows of a service; 0: of none.
func (q quotas) add(service, flows uint32) {
	for _, index := range slices.Compact([]uint32{0, service}) {
		if of, is := q[index]; is {
			of.Counted += flows
			q[index] = of
		}
	}
}

// indexOf is the index of the service that clients call at an address and port; 0: there is none.
func (a *Agent) indexOf(vip netip.AddrPort, protocol model.Protocol) uint32 {
	if s := a.plan.serviceOf(vip, protocol); s != nil {
		return a.tables.indexes[s.identity()]
	}
	return 0
}
