package track

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/traffic"
)

// Where full NAT's source addresses begin: beyond the balancer's own addresses.
var snat4, snat6 = netip.MustParseAddr("10.1.255.2"), netip.MustParseAddr("fd00:1::1:2")

// snatPorts are the ports of each address.
var snatPorts = model.PortRange{First: 10000, Last: 59999}

// startWeir makes the balancer forward by a real director, and tells the sink which backend each
// flow belongs to. The process ends before measurements, unless it is needed: packets do not need
// it. It would meter the work of all CPUs a tenth of the time, and with several tracks up, each
// process would meter the others' work.
func startWeir(ctx context.Context, t *Track) error {
	if err := t.StartDirector(ctx); err != nil {
		return err
	}
	before := t.placement(t.config(t.set))
	if t.Swaps {
		t.closers = append(t.closers, t.StopDirector)
		return t.sink.Expect(before, t.placement(t.config(upperSet)))
	}
	after, err := t.share(ctx)
	if err := errors.Join(err, t.StopDirector()); err != nil || !t.Subject.places {
		return err
	}
	return t.sink.Expect(before, after)
}

// StartDirector returns when a director's process runs on the balancer and forwards.
func (t *Track) StartDirector(ctx context.Context) error {
	var err error
	if t.Older != "" {
		t.director, err = process.StartOlderDirector(t.balancer, t.Older, t.bareConfig(wholeSet))
	} else {
		t.director, err = process.StartDirector(t.balancer, t.config(t.set))
	}
	if err != nil {
		return err
	}
	return t.director.Forwards(ctx)
}

// StopDirector ends the process; packets are still forwarded.
func (t *Track) StopDirector() error { return t.director.Stop() }

// config is the director's configuration: every VIP is a service, with its backends in the set.
func (t *Track) config(set backendSet) model.Config {
	c := t.bareConfig(set)
	c.SetDefaults()
	return c
}

// bareConfig leaves defaults out.
func (t *Track) bareConfig(set backendSet) model.Config {
	c := model.Config{
		Director: model.Director{Interfaces: []string{t.in.Name}, Limits: model.Limits{Backends: uint32(t.Backends)}},
		Services: make([]model.Service, t.Traffic.VIPs),
	}
	if t.Subject.snat {
		c.Director.SNAT = model.SNAT{Ports: snatPorts, Addresses: t.snatAddresses()}
	}
	if t.Swaps {
		c.Director.Limits.Backends *= 4 // entries of removed backends rest for a while before they are used again
		c.Coalesce = model.Duration(time.Millisecond)
	}
	for n := range c.Services {
		s := &c.Services[n]
		*s = model.Service{Name: fmt.Sprintf("vip%d", n), VIP: traffic.VIP(n, t.Traffic.IPv6), Protocol: t.Traffic.Protocol,
			Port: model.PortRange{First: traffic.Port, Last: traffic.Port}, Mode: t.Subject.mode, SNAT: t.Subject.snat, Policy: t.Subject.policy,
			RedirectUnprobed: t.Subject.mode == model.Redirect} // a sink answers nothing
		first, end := set.of(t.Traffic.BackendsOf(n, t.Backends))
		for b := first; b < end; b++ {
			backend := model.Backend{Name: fmt.Sprintf("backend%d", b), Address: traffic.Backend(b, t.outer6()), Weight: 100, State: model.Active}
			if t.Subject.mode == model.NAT {
				backend.Port = traffic.Port
			}
			s.Backends = append(s.Backends, backend)
		}
	}
	return c
}

// snatAddresses returns as many addresses as have ports for all of the flows, or
// as many as weir takes.
func (t *Track) snatAddresses() []netip.Addr {
	const most = 62
	ports := int(snatPorts.Last-snatPorts.First) + 1
	address := snat4
	if t.Traffic.IPv6 {
		address = snat6
	}
	var addresses []netip.Addr
	for range min(most, (t.Traffic.Flows+ports-1)/ports) {
		addresses = append(addresses, address)
		address = address.Next()
	}
	return addresses
}

// placement returns the backend that any director must choose for each flow.
func (t *Track) placement(c model.Config) func(flow int) int {
	table, _ := engine.Plan(c, nil, nil)
	numbers := map[netip.Addr]int{}
	for n := range t.Backends {
		numbers[traffic.Backend(n, t.outer6())] = n
	}
	services := make([]*model.TableService, t.Traffic.VIPs)
	backends := make([][]int, t.Traffic.VIPs) // the backends' numbers, of each service
	for n := range services {
		at := slices.IndexFunc(table.Services, func(s model.TableService) bool { return s.VIP == traffic.VIP(n, t.Traffic.IPv6) })
		services[n] = &table.Services[at]
		for _, b := range services[n].Backends {
			backends[n] = append(backends[n], numbers[b.Address])
		}
	}
	return func(flow int) int {
		vip := flow % t.Traffic.VIPs
		s := services[vip]
		slot := s.Ring.SlotOf(t.Traffic.Flow(flow).Hash(s.Salt, s.Affinity))
		return backends[vip][s.Ring.Slots[slot].Owner]
	}
}
