package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/packet"
)

// ends is one connection, as the host sees it.
type ends struct{ local, remote netip.AddrPort }

func (f *flow) ends() ends {
	return ends{netip.AddrPortFrom(f.vip, 443), netip.AddrPortFrom(f.client, f.port)}
}

// listed returns the connections of a host's own namespace to the port of the flows.
func listed(t *testing.T, h *netlab.Host) []ends {
	t.Helper()
	var list []ends
	do(t, h, "list sockets", func() error {
		s, err := openSockets()
		if err != nil {
			return err
		}
		defer s.close()
		return s.connections(func(local, remote netip.AddrPort) {
			if local.Port() == 443 {
				list = append(list, ends{local, remote})
			}
		})
	})
	return list
}

// TestSocketsInEveryState: whatever state a connection is in, it is found; what only
// listens is none.
func TestSocketsInEveryState(t *testing.T) {
	r := newSecond(t)
	has := func(t *testing.T, what string, f *flow) {
		t.Helper()
		if all := listed(t, r.street.host); !slices.Contains(all, f.ends()) {
			t.Errorf("%s: %v is not among %v", what, f.ends(), all)
		}
		do(t, r.street.host, "ask for one socket", func() error {
			s, err := openSockets()
			if err != nil {
				return err
			}
			defer s.close()
			e := f.ends()
			for remote, want := range map[netip.AddrPort]bool{e.remote: what != "TIME_WAIT", netip.AddrPortFrom(e.remote.Addr(), 9): false} {
				if is, err := s.hasConnection(e.local, remote); err != nil || is != want {
					t.Errorf("%s: a socket of %v to %v: %v (%v), want %v", what, e.local, remote, is, err, want)
				}
			}
			return nil
		})
	}
	r.street.host.Sysctl("net.ipv4.tcp_syncookies", "1")
	if all := listed(t, r.street.host); len(all) > 0 {
		t.Fatalf("without any connection there are %v", all)
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		t.Run(vip.String(), func(t *testing.T) {
			f := r.flow(vip)
			f.ask()
			has(t, "request socket", f)
			f.send(packet.ACK, "")
			conn := r.accept(t).(*net.TCPConn)
			has(t, "established", f)
			_ = conn.CloseWrite()
			f.receive(packet.FIN)
			has(t, "FIN_WAIT1", f)
			f.send(packet.ACK, "")
			has(t, "FIN_WAIT2", f)
			_ = conn.Close()
			has(t, "FIN_WAIT2 that nobody has open", f)
			f.send(packet.ACK|packet.FIN, "")
			f.receive(packet.ACK)
			has(t, "TIME_WAIT", f)

			f = r.flow(vip)
			f.open()
			conn = r.accept(t).(*net.TCPConn)
			f.send(packet.ACK|packet.FIN, "")
			f.receive(packet.ACK)
			has(t, "CLOSE_WAIT", f)
			_ = conn.Close()
			f.receive(packet.FIN)
			has(t, "LAST_ACK", f)

			f = r.flow(vip)
			f.open()
			_ = r.accept(t).Close()
			f.receive(packet.FIN)
			has(t, "FIN_WAIT1 that nobody has open", f)
		})
	}
}

// TestIPv4InSocketsOfIPv6: servers mostly listen on one socket for both families.
func TestIPv4InSocketsOfIPv6(t *testing.T) {
	s := newStreet(t, true)
	s.host.Address("lo", vip4.String()+"/32")
	listener, err := s.host.Listen("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	f := s.wire(t).flow(vip4)
	f.open()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if all := listed(t, s.host); !slices.Equal(all, []ends{f.ends()}) {
		t.Errorf("the connections are %v, want %v", all, f.ends())
	}
}

// told is where the reports of a test go.
type told struct{ reports chan []model.AgentReport }

func (r told) PutReports(ctx context.Context, reports []model.AgentReport) error {
	select {
	case r.reports <- reports:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestReport: the agent reports the connections of its host and of other namespaces, at
// the ranges where a director looks for them.
func TestReport(t *testing.T) {
	s := newStreet(t, true)
	r := &second{wire: s.wire(t), accepted: make(chan net.Conn, 64)}
	container := s.container()
	config := testConfig()
	config.Agent.Namespaces = []string{container.Namespace(), "there-is-none"}
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	do(t, s.host, "set", func() error { return a.Set(config) })
	r.serve(t, container, vip4)
	r.serve(t, container, vip6)
	var flows []*flow
	for _, vip := range []netip.Addr{vip4, vip4, vip6} {
		f := r.flow(vip)
		f.open()
		r.accept(t)
		flows = append(flows, f)
	}
	began := time.Now()
	reports, err := a.connections()
	if err != nil {
		t.Fatal(err)
	}
	if len(reports) != 2 || reports[0].Backend != host4 || reports[1].Backend != host6 {
		t.Fatalf("there are reports %v, want one about each address of the host", reports)
	}
	for i, want := range []int{2, 1} {
		if n := len(reports[i].Services); n != len(model.UsualAffinities) {
			t.Fatalf("the report of %s is about %d services, want the one over TCP in gue by each affinity", reports[i].Backend, n)
		}
		if n := reports[i].Services[0].Used.Count(); n != want {
			t.Errorf("the report of %s has %d connections, want %d", reports[i].Backend, n, want)
		}
		if reports[i].Taken.Before(began) || reports[i].Taken.After(time.Now()) {
			t.Errorf("the report was taken at %v, want after %v", reports[i].Taken, began)
		}
	}
	for _, f := range flows {
		service := config.Services[0]
		report := &reports[0].Services[0]
		if f.vip == vip6 {
			service, report = config.Services[2], &reports[1].Services[0]
		}
		hash := model.Flow{Source: f.client, SourcePort: f.port, Destination: f.vip, DestinationPort: 443, Protocol: 6}.
			Hash(service.ID().Salt(), service.Affinity)
		if slot := uint32(hash >> 32 * 1021 >> 32); !report.UsedIn(slot, 1021) {
			t.Errorf("the connection of port %d is not reported in slot %d", f.port, slot)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	to, ended := told{make(chan []model.AgentReport)}, make(chan struct{})
	go func() {
		defer close(ended)
		a.Report(ctx, to, 1<<20)
	}()
	if got := <-to.reports; !sameConnections(got, reports) {
		t.Errorf("the directors are told %v, want %v", got, reports)
	}
	cancel()
	<-ended
}

// A report counts what either of two listings has seen, and waits for the second.
func TestTwoListingsAreOneReport(t *testing.T) {
	own := map[netip.Addr]int{host4: 2, host6: 2}
	look := func(hashes ...uint64) []model.AgentReport {
		reports := emptyReports(testConfig(), own, nil, false, time.Now())
		for _, hash := range hashes {
			reports[0].Services[0].Note(hash)
		}
		return reports
	}
	if _, joined := joinListings(look(1<<60), nil); joined {
		t.Error("one listing is a report")
	}
	reports, joined := joinListings(look(1<<60, 1<<61), look(1<<61, 1<<62))
	if !joined || !sameConnections(reports, look(1<<60, 1<<61, 1<<62)) {
		t.Errorf("two listings are the report %v", reports)
	}
	other := look()
	other[1].Services = other[1].Services[:1]
	if _, joined := joinListings(look(), other); joined {
		t.Error("listings that hash otherwise are one report")
	}
	if sameConnections(look(1<<60), look()) || !sameConnections(look(7<<60), look(7<<60)) {
		t.Error("reports are compared wrong")
	}
}

// Beside the usual affinities a service is reported by its own, which is the first, and by those that its file
// has had before: generations of directors' logs may have the slots of these.
func TestReportsByFormerAffinities(t *testing.T) {
	config := testConfig()
	s := &config.Services[0]
	var placed affinities
	of := func() (list []model.Affinity) {
		placed.note(config.Services)
		for _, about := range emptyReport(s, placed) {
			list = append(list, about.Affinity)
		}
		return list
	}
	prefix := func(v4 uint8) model.Affinity { return model.SourcePrefix(model.AffinityPrefix{V4: v4, V6: 64}) }
	set := func(affinity model.Affinity, v4 uint8) {
		s.Affinity, s.AffinityPrefix = affinity, model.AffinityPrefix{}
		if v4 > 0 {
			s.AffinityPrefix = model.AffinityPrefix{V4: v4, V6: 64}
		}
	}
	for _, step := range []struct {
		affinity model.Affinity
		v4       uint8
		want     []model.Affinity
	}{
		{model.AffinityFlow, 0, []model.Affinity{model.AffinityFlow, model.AffinitySourceIP}},
		{model.AffinitySourceIP, 24, []model.Affinity{prefix(24), model.AffinityFlow, model.AffinitySourceIP}},
		{model.AffinityDestinationPort, 0, []model.Affinity{model.AffinityDestinationPort, model.AffinityFlow, model.AffinitySourceIP, prefix(24)}},
		{model.AffinitySourceIP, 0, []model.Affinity{model.AffinitySourceIP, model.AffinityFlow, model.AffinityDestinationPort, prefix(24)}},
		{model.AffinitySourceIP, 24, []model.Affinity{prefix(24), model.AffinityFlow, model.AffinitySourceIP, model.AffinityDestinationPort}},
		{model.AffinitySourceIP, 20, []model.Affinity{prefix(20), model.AffinityFlow, model.AffinitySourceIP, prefix(24), model.AffinityDestinationPort}},
		{model.AffinitySourceIP, 16, []model.Affinity{prefix(16), model.AffinityFlow, model.AffinitySourceIP, prefix(20), prefix(24), model.AffinityDestinationPort}},
		{model.AffinitySourceIP, 12, []model.Affinity{prefix(12), model.AffinityFlow, model.AffinitySourceIP, prefix(16), prefix(20), prefix(24)}},
	} {
		set(step.affinity, step.v4)
		if got := of(); !slices.Equal(got, step.want) {
			t.Errorf("by %v the service is reported by %v, want %v", s.PlacedBy(), got, step.want)
		}
	}
	placed.note(nil)
	if len(placed) > 0 {
		t.Errorf("of services that are gone the agent still knows %v", placed)
	}
}

// A service in several segments has a report for each, and one by source address counts
// a client once.
func TestReportsOfSeveralServices(t *testing.T) {
	config := testConfig()
	web := config.Services[0]
	tenant, range8000 := web, web
	tenant.Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
	range8000.Port, range8000.Affinity = model.PortRange{First: 8000, Last: 8100}, model.AffinitySourceIP
	config.Services = append(config.Services, tenant, range8000)
	reports := emptyReports(config, map[netip.Addr]int{host4: 2}, nil, false, time.Now())
	tally := newTally(reports)
	for port := range uint16(50) {
		tally.note(model.TCP, netip.AddrPortFrom(vip4, 443), netip.AddrPortFrom(client4, 1000+port))
		tally.note(model.TCP, netip.AddrPortFrom(vip4, 8000+2*port), netip.AddrPortFrom(client4, 1000+port))
		tally.note(model.TCP, netip.AddrPortFrom(notVIP4, 443), netip.AddrPortFrom(client4, 1000+port))
		tally.note(model.TCP, netip.AddrPortFrom(vip4, 444), netip.AddrPortFrom(client4, 1000+port))
	}
	if len(reports) != 1 || len(reports[0].Services) != 3*len(model.UsualAffinities) {
		t.Fatalf("there are reports %v, want one of three services by each affinity", reports)
	}
	of := func(s model.Service) *model.SlotSet { return reports[0].Of(s.ID(), s.Affinity).Used }
	if other := reports[0].Of(range8000.ID(), model.AffinityFlow).Used; other.Count() < 45 {
		t.Errorf("by flow, 50 connections of one client are in %d ranges", other.Count())
	}
	if of(web).Count() < 45 || of(tenant).Count() < 45 || of(web).Equal(of(tenant)) || of(range8000).Count() != 1 {
		t.Errorf("the services have %d, %d and %d ranges with connections, want 50, other 50, and 1",
			of(web).Count(), of(tenant).Count(), of(range8000).Count())
	}
}

// A report that would be too long says less exactly where connections are, and forgets
// none.
func TestLongReportIsShortened(t *testing.T) {
	reports := emptyReports(testConfig(), map[netip.Addr]int{host4: 2}, nil, false, time.Now())
	r := &reports[0]
	whole := r.Services[0].Used
	for i := range whole.Size() {
		if i%3 == 0 {
			whole.Add(i)
		}
	}
	for _, limit := range []int{1 << 20, 2000, 500} {
		if err := shorten(r, limit); err != nil {
			t.Fatalf("no longer than %d bytes: %v", limit, err)
		}
		used := r.Services[0].Used
		for i := range whole.Size() {
			if whole.Has(i) && !used.Has(i*used.Size()/whole.Size()) {
				t.Fatalf("shortened to %d bytes, the report has lost range %d", limit, i)
			}
		}
	}
	if err := shorten(r, 50); err == nil {
		t.Error("a report has no length")
	}
}

// A report that cannot be written is tried again, and no other is made meanwhile.
func TestReportAgain(t *testing.T) {
	s := newStreet(t, true)
	a := s.agent(t, AttachAuto)
	defer s.detach(t, a)
	fails := &failing{problem: errors.New("etcd is away")}
	r := reports{agent: a, to: fails, limit: 1 << 20}
	for i, want := range []int{0, 1, 2} { // the first look has nothing to be compared with
		err := r.once(t.Context())
		if (err != nil) != (i > 0) || fails.asked != want {
			t.Fatalf("look %d: error %v, and the directors were told %d times, want %d", i, err, fails.asked, want)
		}
	}
	fails.problem = nil
	for i, want := range []int{3, 3} { // the second is too soon
		if err := r.once(t.Context()); err != nil || fails.asked != want {
			t.Fatalf("look %d: error %v, and the directors were told %d times, want %d", i, err, fails.asked, want)
		}
	}
	r.sent = r.sent.Add(-reportEvery + 100*time.Millisecond) // they were sent a moment after the look
	if err := r.once(t.Context()); err != nil || fails.asked != 4 {
		t.Fatalf("after %v: error %v, and the directors were told %d times, want 4", reportEvery, err, fails.asked)
	}
}

type failing struct {
	problem error
	asked   int
}

func (f *failing) PutReports(_ context.Context, reports []model.AgentReport) error {
	f.asked++
	if len(reports) != 2 {
		return fmt.Errorf("%d reports, want 2", len(reports))
	}
	return f.problem
}

// sameConnections reports whether two lists of reports differ only in the time.
func sameConnections(a, b []model.AgentReport) bool {
	return slices.EqualFunc(a, b, func(a, b model.AgentReport) bool {
		return a.Backend == b.Backend && slices.EqualFunc(a.Services, b.Services, func(a, b model.ReportedService) bool {
			return a.ServiceID == b.ServiceID && a.Affinity == b.Affinity && a.Used.Equal(b.Used)
		})
	})
}

// A host whose address is a backend's in several segments has a report for each: directors tell them apart.
func TestReportsOfSegments(t *testing.T) {
	config := testConfig()
	none := config.Services[0]
	config.Services = nil
	for id := range uint32(3) {
		s := none
		s.Backends = slices.Clone(s.Backends)
		if id > 0 {
			s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: id}
			for i := range s.Backends {
				s.Backends[i].Segment = &s.Segment
			}
		}
		config.Services = append(config.Services, s)
	}
	reports := emptyReports(config, map[netip.Addr]int{host4: 2}, nil, false, time.Now())
	if len(reports) != 3 {
		t.Fatalf("there are %d reports, want one for each segment", len(reports))
	}
	for i := range reports {
		s := &config.Services[i]
		if r := &reports[i]; r.At() != (model.HostAddress{Segment: s.Segment, Address: host4}) || len(r.Services) != len(model.UsualAffinities) || !r.IsAbout(s.ID()) {
			t.Errorf("of segment %s there is the report %v", s.Segment, r)
		}
	}
}
