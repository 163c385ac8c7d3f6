package answers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// services is the number of services in each configuration. The first half is in all configurations
// and has a history; the others have VIPs that only their configuration has.
const services = 14

// configuration is what the director's file says.
func (l *Lab) configuration(list []model.Service) model.Config {
	c := model.Config{Services: list}
	c.Director.Interfaces = []string{"eth0", "eth1"}
	c.Director.Limits = limits
	c.Director.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.7.255.1"), netip.MustParseAddr("2001:db8:7::ffff")},
		Ports: model.PortRange{First: 20000, Last: 20000 + 1023}}
	c.Coalesce = model.Duration(time.Millisecond)
	c.SetDefaults()
	return c
}

// randomServices are the services of the configuration with this number.
func randomServices(r *rand.Rand, number int) (list []model.Service) {
	for n := range services {
		if r.IntN(8) > 0 {
			list = append(list, randomService(r, n, number))
		}
	}
	return list
}

// ofThis says whether a service has no history, by its place.
func ofThis(n int) bool { return n >= services/2 }

func randomService(r *rand.Rand, n, number int) model.Service {
	kind, is4 := n%7, n%2 == 0
	s := model.Service{Name: fmt.Sprintf("s%d-%d", n, number), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}}
	generation := 0
	if ofThis(n) {
		generation = 1 + number%250
	}
	if is4 {
		s.VIP = netip.AddrFrom4([4]byte{203, 0, byte(generation), byte(n)})
	} else {
		s.VIP = netip.MustParseAddr(fmt.Sprintf("2001:db8:203:%x::%x", generation, 1+n))
	}
	s.Mode = []model.Mode{model.L2DSR, model.IPIP, model.GUE, model.GUE, model.NAT, model.NAT, model.L2DSR}[kind]
	s.SNAT = kind == 5
	s.Affinity = model.UsualAffinities[r.IntN(2)]
	switch kind {
	case 0, 2:
		s.Protocol = model.UDP
	case 3:
		s.Policy, s.Affinity = model.P2C, model.AffinityFlow // source-ip would keep a client in one place
	case 6:
		s.Port = model.PortRange{First: 70, Last: 90}
		if is4 {
			s.Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
		}
	}
	for range r.IntN(2) * r.IntN(4) {
		p, err := clientAddress(is4, r.IntN(clients)).Prefix(s.VIP.BitLen() - r.IntN(3))
		if err != nil {
			panic(err) // no address has that many bits
		}
		s.SourceRanges = append(s.SourceRanges, p)
	}
	over4 := is4 || s.Mode == model.IPIP || s.Mode == model.GUE
	first := r.IntN(3) // some backends come and go
	for i := range 1 + r.IntN(5) {
		b := model.Backend{Name: fmt.Sprint("b", first+i), Address: backendAddress(over4, n, first+i), MAC: model.MAC{0x02, 0, 0, 7, byte(n), byte(first + i)},
			Weight: uint16(1 + r.IntN(3)*50), State: []model.BackendState{model.Active, model.Active, model.Active, model.Draining, model.Down}[r.IntN(5)]}
		if s.Mode == model.NAT {
			b.Port = 8080
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}

func backendAddress(is4 bool, service, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, 7, byte(service), byte(1 + n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:7:%x::%x", service, 1+n))
}

// configure makes the director forward these services.
func (l *Lab) configure(ctx context.Context, list []model.Service) error {
	c := l.configuration(list)
	if err := c.Validate(); err != nil {
		return fmt.Errorf("make a configuration: %w", err)
	}
	if err := l.director.Write(c); err != nil {
		return err
	}
	return l.director.Await(ctx, "take the configuration", func() error {
		status, err := l.client.Services(ctx)
		if err != nil {
			return err
		}
		have := map[string]int{}
		for _, s := range status {
			have[s.Name] = len(s.Backends)
		}
		for i := range list {
			if n, is := have[list[i].Name]; !is || n != len(list[i].Backends) {
				return errors.New("it does not yet")
			}
		}
		if len(have) != len(list) {
			return errors.New("it has others yet")
		}
		return nil
	})
}
