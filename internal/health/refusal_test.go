package health

import (
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// The answers of hosts to tunnels that no socket takes, and other ICMP messages.
func TestRefusalsOfTunnels(t *testing.T) {
	quote := func(version byte, protocol byte, port byte) []byte {
		if version == 4 {
			b := make([]byte, ipv4.HeaderLen+8, 100)
			b[0], b[9] = 0x45, protocol
			b[ipv4.HeaderLen+2], b[ipv4.HeaderLen+3] = 0x17, port
			return b
		}
		b := make([]byte, ipv6.HeaderLen+8, 100)
		b[0], b[6] = 0x60, protocol
		b[ipv6.HeaderLen+2], b[ipv6.HeaderLen+3] = 0x17, port
		return b
	}
	const gue, other = 0xc0, 0xc1
	unreachable := func(b []byte) icmp.MessageBody { return &icmp.DstUnreach{Data: b} }
	for _, row := range []struct {
		name    string
		echo    echo
		kind    icmp.Type
		code    int
		body    icmp.MessageBody
		refuses bool
	}{
		{"port, GUE", echo4, ipv4.ICMPTypeDestinationUnreachable, 3, unreachable(quote(4, protocolUDP, gue)), true},
		{"port, of another tunnel", echo4, ipv4.ICMPTypeDestinationUnreachable, 3, unreachable(quote(4, protocolUDP, other)), false},
		{"protocol, IPIP", echo4, ipv4.ICMPTypeDestinationUnreachable, 2, unreachable(quote(4, protocolIPv4, 0)), true},
		{"protocol, SIT", echo4, ipv4.ICMPTypeDestinationUnreachable, 2, unreachable(quote(4, protocolIPv6, 0)), true},
		{"host", echo4, ipv4.ICMPTypeDestinationUnreachable, 1, unreachable(quote(4, protocolIPv4, 0)), false},
		{"cut short", echo4, ipv4.ICMPTypeDestinationUnreachable, 3, unreachable(quote(4, protocolUDP, gue)[:ipv4.HeaderLen+2]), false},
		{"echo reply", echo4, ipv4.ICMPTypeEchoReply, 0, &icmp.Echo{ID: 1, Data: quote(4, protocolUDP, gue)}, false},
		{"IPv6, port, GUE", echo6, ipv6.ICMPTypeDestinationUnreachable, 4, unreachable(quote(6, protocolUDP, gue)), true},
		{"IPv6, port, of another tunnel", echo6, ipv6.ICMPTypeDestinationUnreachable, 4, unreachable(quote(6, protocolUDP, other)), false},
		{"IPv6, next header", echo6, ipv6.ICMPTypeParameterProblem, 1, &icmp.ParamProb{Pointer: 6, Data: quote(6, protocolIPv6, 0)}, true},
		{"IPv6, no route", echo6, ipv6.ICMPTypeDestinationUnreachable, 0, unreachable(quote(6, protocolUDP, gue)), false},
	} {
		text, err := (&icmp.Message{Type: row.kind, Code: row.code, Body: row.body}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		message, err := icmp.ParseMessage(row.echo.protocol, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := refusesTunnel(message); got != row.refuses {
			t.Errorf("%s: refuses %v, want %v", row.name, got, row.refuses)
		}
	}
}
