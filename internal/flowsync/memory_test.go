package flowsync

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// memory is flow memory without a kernel: what it learns it shares, what it imports it keeps.
type memory struct {
	mu        sync.Mutex
	flows     map[netip.AddrPort]model.RememberedFlow
	nat       map[netip.AddrPort]model.NATFlow
	followers map[chan model.FlowNews]bool
	resets    []model.ServiceResets                // its own
	heard     map[netip.Addr][]model.ServiceResets // of others
}

func newMemory() *memory {
	return &memory{flows: map[netip.AddrPort]model.RememberedFlow{}, nat: map[netip.AddrPort]model.NATFlow{}, followers: map[chan model.FlowNews]bool{}, heard: map[netip.Addr][]model.ServiceResets{}}
}

func (m *memory) FreshResets() []model.ServiceResets {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resets
}

func (m *memory) count(resets ...model.ServiceResets) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resets = resets
}

func (m *memory) hears(director netip.Addr) []model.ServiceResets {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard[director]
}

func (m *memory) HearResets(director netip.Addr, resets []model.ServiceResets) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard[director] = resets
}

// flowOf is the flow from a client's port.
func flowOf(port uint16, state model.RememberedState) model.RememberedFlow {
	return model.RememberedFlow{
		Service: model.ServiceID{VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 90}},
		Backend: netip.MustParseAddrPort("10.0.0.11:8080"), Source: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), port),
		Port: 81, Class: model.SustainedFlow, State: state, Age: 3, Next: 0xcafe0000 + uint32(port),
	}
}

func (m *memory) learn(flows ...model.RememberedFlow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range flows {
		m.flows[f.Source] = f
	}
	for c := range m.followers {
		c <- model.FlowNews{Flows: flows}
	}
}

func (m *memory) learnNAT(flows ...model.NATFlow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range flows {
		m.nat[f.Own] = f
	}
	for c := range m.followers {
		c <- model.FlowNews{NAT: flows}
	}
}

func (m *memory) knowsNAT(flow model.NATFlow) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nat[flow.Own] == flow
}

func (m *memory) SharedNATFlows(take func([]model.NATFlow) bool) error {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.nat))
	m.mu.Unlock()
	take(all)
	return nil
}

func (m *memory) RememberNAT(flows []model.NATFlow) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range flows {
		m.nat[f.Own] = f
	}
	return nil
}

func (m *memory) knows(flow model.RememberedFlow) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.flows[flow.Source] == flow
}

func (m *memory) FollowFlows(ctx context.Context, take func(model.FlowNews, bool)) error {
	news := make(chan model.FlowNews, 1000)
	m.mu.Lock()
	m.followers[news] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.followers, news)
	}()
	take(model.FlowNews{}, true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case flows := <-news:
			take(flows, false)
		}
	}
}

func (m *memory) RememberedFlows(take func([]model.RememberedFlow) bool) error {
	m.mu.Lock()
	var all []model.RememberedFlow
	for _, f := range m.flows {
		all = append(all, f)
	}
	m.mu.Unlock()
	take(all)
	return nil
}

func (m *memory) Remember(flows []model.RememberedFlow) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range flows {
		m.flows[f.Source] = f
	}
	return nil
}

// directory is what all directors read of each other's certificates.
type directory struct {
	mu   sync.Mutex
	by   map[netip.Addr]string
	dead map[netip.Addr]bool
}

func newDirectory() *directory {
	return &directory{by: map[netip.Addr]string{}, dead: map[netip.Addr]bool{}}
}

func (d *directory) Lives(director netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.by[director] != "" && !d.dead[director]
}

// forget is what etcd does with a director that shows no life: its fingerprint stays.
func (d *directory) forget(director netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead[director] = true
}

func (d *directory) Fingerprint(director netip.Addr) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.by[director], true
}

func (d *directory) write(director netip.Addr, fingerprint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by[director] = fingerprint
}

// member is a director of the tests' groups, at an address of the loopback interface.
func member(number byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 6, 82, number}) }

// freePort is a port that nobody listens at.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(member(1), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// start makes a director that has written its fingerprint.
func start(t *testing.T, d *directory, m *memory, number byte) *Sync {
	t.Helper()
	s, err := New(m, d, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.write(member(number), s.Fingerprint())
	t.Cleanup(s.Close)
	return s
}

// join makes a director a member of a group of so many.
func (s *Sync) joinGroup(number, of byte, port uint16) {
	var others []netip.Addr
	for i := byte(1); i <= of; i++ {
		if i != number {
			others = append(others, member(i))
		}
	}
	s.Set([]netip.Addr{member(number)}, others, port)
}

func eventually(t *testing.T, claim string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not seen within a minute: %s", claim)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at the condition
	}
}

func await(t *testing.T, s *Sync) []netip.Addr {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return s.Await(ctx)
}
