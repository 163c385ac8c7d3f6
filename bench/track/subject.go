package track

import (
	"context"
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

// Subject is what forwards packets.
type Subject struct {
	Name      string
	start     func(context.Context, *Track) error // makes the balancer forward; nil: there is none
	shape     traffic.Shape
	places    bool       // it is known beforehand which backend a flow belongs to
	remembers bool       // it remembers flows, so that a flow's first packet is not like the others
	Mode      model.Mode // of weir
	SNAT      bool
	outer6    bool
	dnat      bool // DNAT by the kernel
	policy    model.Policy
	attach    model.XDPMode   // of weir; empty: as by default
	vtep      bool            // its director is a VTEP
	overlay   traffic.Overlay // that its backends are in: kind and family
}

// Tunnels is whether packets become longer.
func (s Subject) Tunnels() bool { return s.shape == traffic.IPIP || s.shape == traffic.GUE }

// ipv6 is whether backends have IPv6 addresses.
func (s Subject) ipv6(of traffic.Traffic) bool {
	if s.Tunnels() {
		return s.outer6
	}
	return of.IPv6
}

// Service is the service of a VIP of such traffic, with these of the backends. It leaves defaults
// out.
func (s Subject) Service(of traffic.Traffic, vip, first, end int) model.Service {
	service := model.Service{Name: fmt.Sprintf("vip%d", vip), VIP: traffic.VIP(vip, of.IPv6), Segment: of.Segment(), Protocol: of.Protocol,
		Port: model.PortRange{First: traffic.Port, Last: traffic.Port}, Mode: s.Mode, SNAT: s.SNAT, Policy: s.policy,
		RedirectUnprobed: s.Mode == model.Redirect} // no host answers a probe
	for n := first; n < end; n++ {
		b := model.Backend{Name: fmt.Sprintf("backend%d", n), Address: traffic.Backend(n, s.ipv6(of)), Weight: 100, State: model.Active}
		if s.Mode == model.NAT {
			b.Port = traffic.Port
		}
		if of.VLAN != 0 { // no interface of the balancer's is in the VLAN, so its kernel resolves nothing there
			b.MAC = model.MAC(traffic.BackendMAC(n))
		}
		service.Backends = append(service.Backends, b)
	}
	return service
}

// IsWeir is whether the subject is weir, in any mode.
func (s Subject) IsWeir() bool { return s.shape != traffic.Bare && !s.dnat }

// The balancers that weir is compared with.
var (
	// Direct has no balancer: what source and sink take by themselves.
	Direct = Subject{Name: "direct"}
	// Redirect is a program that looks at nothing: the ceiling.
	Redirect = Subject{Name: "redirect", start: startRedirect}
	// Reflect is the ceiling where the balancer has one arm.
	Reflect  = Subject{Name: "reflect", start: startReflect}
	Iptables = Subject{Name: "iptables", start: startIptables, shape: traffic.NAT, remembers: true, dnat: true}
	Nftables = Subject{Name: "nftables", start: startNftables, shape: traffic.NAT, remembers: true, dnat: true}
)

// Weir returns weir in a mode. For tunnels outer6 chooses the outer header's family.
func Weir(mode model.Mode, snat, outer6 bool) Subject {
	name := mode.String()
	switch {
	case snat:
		name = "snat"
	case outer6:
		name += "6"
	}
	return Subject{Name: name, start: startWeir, shape: traffic.ShapeOf(mode), places: !snat, remembers: snat,
		Mode: mode, SNAT: snat, outer6: outer6}
}

// Placing returns weir in l2dsr with a policy that chooses each connection's backend, and remembers
// it.
func Placing(policy model.Policy) Subject {
	s := Weir(model.L2DSR, false, false)
	s.Name, s.policy, s.places, s.remembers = policy.String(), policy, false, true
	return s
}

// Remembering returns the same under another name, for a track on which it remembers flows (see
// Options.Shared).
func (s Subject) Remembering(name string) Subject {
	s.Name, s.remembers = name, true
	return s
}

// Generic returns weir with a program that the kernel runs for its own packets, as where a driver has no XDP.
func Generic(s Subject) Subject {
	s.Name, s.attach = s.Name+" generic", model.XDPGeneric
	return s
}

// Handing returns weir in mode redirect, with a policy: it hands connections over, whose SYNs must
// ask for it.
func Handing(policy model.Policy) Subject {
	s := Weir(model.Redirect, false, false)
	// The program that only redirects frames has the same name as the mode.
	s.Name, s.policy = "weir-"+s.Name, policy
	if policy != model.Maglev {
		s.Name, s.places = s.Name+" "+policy.String(), false
	}
	return s
}

func startRedirect(_ context.Context, t *Track) error {
	m, err := traffic.NewRedirect(t.in, t.out)
	if err != nil {
		return err
	}
	t.closers = append(t.closers, m.Close)
	return nil
}

func startReflect(_ context.Context, t *Track) error {
	m, err := traffic.NewReflect(t.in)
	if err != nil {
		return err
	}
	t.closers = append(t.closers, m.Close)
	return nil
}
