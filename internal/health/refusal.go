package health

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// guePort is the port that GUE is sent to (IANA).
const guePort = 6080

// The protocols that tunnels begin with (IANA).
const (
	protocolIPv4 = 4
	protocolUDP  = 17
	protocolIPv6 = 41
)

// listenRefusals begins to listen for what a host says about tunnels to it, and returns a function
// that waits until the host has refused one, or the context has ended.
func listenRefusals(ctx context.Context, host netip.Addr) (func() bool, error) {
	e := echo6
	if host.Is4() {
		e = echo4
	}
	// Not connected: tunnels may come from another address of this host than it would be.
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, e.network, "")
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() bool {
		defer conn.Close()
		defer stop()
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return false
			}
			if by, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP); by.Unmap() != host {
				continue
			}
			if message, err := icmp.ParseMessage(e.protocol, buffer[:n]); err == nil && refusesTunnel(message) {
				return true
			}
		}
	}, nil
}

// refusesTunnel says whether an ICMP message is about a tunnel, and says that its end does not take
// it.
func refusesTunnel(m *icmp.Message) bool {
	body, quotes := quoted(m)
	switch {
	case !quotes:
		return false
	case m.Type == ipv4.ICMPTypeDestinationUnreachable && (m.Code == 2 || m.Code == 3): // protocol, port
		return len(body) >= ipv4.HeaderLen && isTunnel(body[9], body[min(len(body), int(body[0]&15)*4):])
	case m.Type == ipv6.ICMPTypeDestinationUnreachable && m.Code == 4, // port
		m.Type == ipv6.ICMPTypeParameterProblem && m.Code == 1: // next header
		return len(body) >= ipv6.HeaderLen && isTunnel(body[6], body[ipv6.HeaderLen:])
	}
	return false
}

// quoted returns the packet that an ICMP error is about.
func quoted(m *icmp.Message) ([]byte, bool) {
	switch body := m.Body.(type) {
	case *icmp.DstUnreach:
		return body.Data, true
	case *icmp.ParamProb:
		return body.Data, true
	}
	return nil, false
}

func isTunnel(protocol byte, l4 []byte) bool {
	if protocol == protocolUDP {
		return len(l4) >= 4 && binary.BigEndian.Uint16(l4[2:]) == guePort
	}
	return protocol == protocolIPv4 || protocol == protocolIPv6
}
