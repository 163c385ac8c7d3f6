package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// If there are several services, none has more than its share of a bucket. Flows whose backend
// is gone do not count: their places are free.

func testSNATShare(t *testing.T) {
	const share = 12
	w, s, _ := snatWorld(true)
	w.settings.SnatShare = share
	d := loadTestDirector(t, w)
	d.putSNAT(t, snatSources[:1], model.PortRange{First: 10000, Last: 10015})
	for i := range uint16(share) {
		s.establish(t, d, clientPort+i)
	}
	more := row{name: "one more", in: build(ip(s.client, s.vip), s.segment4(clientPort+share, servicePort, packet.SYN))}
	d.check(t, []row{more.dropped(abi.ReasonDROP_SNAT_FULL, s.testService)})
	d.replaceBackends(t, s.testService)
	for i := range uint16(share) {
		if s.says(t, d, clientPort+share+i, packet.SYN) != xdpTX {
			t.Fatalf("SYN %d has no place beside flows whose backends are gone", i+1)
		}
	}
}

// testSNATShares: a share is a service's. Two services, which may be one owner's, have all places
// of a bucket between them; then a third one has none there, and what it has had goes on.
func testSNATShares(t *testing.T) {
	const share = 12
	w := &testWorld{}
	var services []scenario
	for len(services) < 3 {
		for _, s := range w.scenarios(isFullNAT) {
			if s.vip.Is4() && s.protocol == model.TCP {
				services = append(services, s)
			}
		}
	}
	first, second, third := services[0], services[1], services[2]
	w.settings.SnatShare = share
	d := loadTestDirector(t, w)
	d.putSNAT(t, snatSources[:1], model.PortRange{First: 10000, Last: 10015})
	third.establish(t, d, clientPort)
	for i := range uint16(share) {
		first.establish(t, d, clientPort+i)
	}
	for i := range uint16(snatBucketSize - share - 1) {
		second.establish(t, d, clientPort+i)
	}
	for _, s := range []scenario{first, second, third} {
		more := row{name: "one more", in: build(ip(s.client, s.vip), s.segment4(clientPort+share, servicePort, packet.SYN))}
		d.check(t, []row{more.dropped(abi.ReasonDROP_SNAT_FULL, s.testService)})
	}
	if third.says(t, d, clientPort, packet.ACK) != xdpTX {
		t.Error("a connection of before does not go on beside services that have all other places")
	}
}

func testFlowShare(t *testing.T) {
	const share = 12
	w, s := flowWorld(model.TCP, true)
	w.settings.FlowShare = share
	d := loadTestDirector(t, w)
	now := d.now()
	places := d.flowPlaces(t)
	for i := range uint32(len(places)) {
		if i%flows.Ways < share {
			places[i] = abi.FlowPlace{State: uint8(abi.FlowStateFLOW_PROVED), Seen: now, Epoch: s.backends[0].epoch,
				Backend: s.first, Service: s.index, SourcePort: uint16(i)}
		}
	}
	inserts := func(port uint16) uint64 {
		before := d.flowCount(t, abi.FlowEventFLOW_INSERTED)
		s.goes(t, d, port, synFlag)
		return d.flowCount(t, abi.FlowEventFLOW_INSERTED) - before
	}
	if inserts(clientPort) != 0 {
		t.Error("a service has more than its share")
	}
	d.replaceBackends(t, s.testService)
	if inserts(clientPort+1) != 1 {
		t.Error("flows whose backend is gone count for the share of their service")
	}
}

// replaceBackends makes others of a service's backends, with the same indexes.
func (d *testDirector) replaceBackends(t *testing.T, s *testService) {
	t.Helper()
	for i := range uint32(len(s.backends)) {
		var entry abi.Backend
		if err := d.Maps["backends"].Lookup(s.first+i, &entry); err != nil {
			t.Fatalf("read backend %d: %v", i, err)
		}
		entry.Epoch++
		d.put(t, "backends", s.first+i, entry)
	}
}
