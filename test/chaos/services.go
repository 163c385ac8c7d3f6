package main

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/test/chaos/schedule"
)

// forgetAtOnce is the drain of a Maglev that forgets: the least possible one.
const forgetAtOnce = time.Millisecond

// listener is a service without its backends.
type listener struct {
	name        string
	protocol    model.Protocol
	port        uint16
	backendPort uint16 // the translated port of backends
	quic        bool
}

var (
	tcpListener  = listener{name: "tcp", protocol: model.TCP, port: tcpPort, backendPort: natTCP}
	udpListener  = listener{name: "udp", protocol: model.UDP, port: udpPort, backendPort: natUDP}
	quicListener = listener{name: "quic", protocol: model.UDP, port: quicPort, backendPort: natQUIC, quic: true}
)

// services are what directors and agents are told.
func (g *group) services(of schedule.Group) []model.Service {
	list := []model.Service{g.service(tcpListener, of), g.service(udpListener, of)}
	if g.mode.withoutQUIC() == "" {
		list = append(list, g.service(quicListener, of))
	}
	return list
}

func (g *group) service(l listener, of schedule.Group) model.Service {
	s := model.Service{Name: l.name, VIP: netip.MustParseAddr(vip), Protocol: l.protocol, Port: model.PortRange{First: l.port, Last: l.port},
		Mode: g.mode.of(l.protocol), SNAT: g.mode.snat, RingSize: of.RingSize, Retention: model.Duration(g.retention)}
	if l.protocol == model.TCP {
		s.Policy = g.mode.policy
	}
	if g.mode.forgetful {
		s.Retention = model.Duration(forgetAtOnce)
	}
	if l.quic {
		s.QUIC = declaredQUIC()
	}
	if g.tiers {
		s.Health = tierCheck()
	}
	for i, b := range of.Backends {
		if b.State == schedule.Absent {
			continue
		}
		backend := model.NewBackend()
		backend.Name, backend.Address, backend.Weight = backendName(i), lanAddress(backends+i), b.Weight
		if g.tiers {
			backend.Tier = schedule.Tier(i)
		}
		if b.State == schedule.Draining {
			backend.State = model.Draining
		}
		if g.mode.translates() {
			backend.Port = l.backendPort
		}
		if g.mode.viaGroup() {
			backend.Address = lanAddress(natHost + i)
		}
		if l.quic {
			backend.ServerID = model.SameServerID(model.ServerID(serverID(i)))
		}
		s.Backends = append(s.Backends, backend)
	}
	return s
}
