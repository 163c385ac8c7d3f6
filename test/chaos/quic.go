package main

import (
	"context"
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
	"weir.io/weir/quiclb"
	"weir.io/weir/test/chaos/traffic"
)

// The ports of the service, and of its nat backends.
const (
	quicPort = 443
	natQUIC  = 4443
)

// quicIDs is the format of connection IDs: server ID and nonce are one AES block.
var quicIDs = quiclb.Config{ID: 2, ServerIDLength: 3, NonceLength: 13, Key: []byte("chaos has no key")}

func serverID(backend int) []byte { return []byte{0xc4, 0x60, byte(backend)} }

// withoutQUIC says why a mode's run has no QUIC connections; empty: it has them.
func (m mode) withoutQUIC() string {
	switch {
	case m.dnat:
		return "iptables does not read connection IDs: a client that moves is lost"
	case m.forgetful:
		return "a plain Maglev does not read connection IDs: a client that moves is lost"
	case m.snat:
		return "a service with snat cannot have quic"
	}
	return ""
}

// declaredQUIC is what directors are told of a service's connection IDs.
func declaredQUIC() []model.QUICConfig {
	return []model.QUICConfig{{ID: quicIDs.ID, NonceLength: uint8(quicIDs.NonceLength), Key: model.QUICKey(quicIDs.Key)}}
}

// serveQUIC runs a backend's QUIC server at the address to which its packets come.
func (h *harness) serveQUIC(ctx context.Context, backend int, server *traffic.Server) error {
	codec, err := quiclb.New(quicIDs)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(vip), quicPort)
	if h.mode.viaGroup() {
		at = netip.AddrPortFrom(lanAddress(natHost+backend), natQUIC)
	}
	b := h.top.backends[backend]
	// The agent, which adds the VIP, starts later.
	b.Sysctl("net.ipv4.ip_nonlocal_bind", "1")
	if err := server.ServeQUIC(ctx, at.String(), codec, serverID(backend)); err != nil {
		return fmt.Errorf("serve QUIC on %s: %w", b.Name, err)
	}
	return nil
}
