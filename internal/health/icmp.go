package health

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echo is how echo requests look in one family. The numbers are those of protocols (IANA).
type echo struct {
	network        string
	protocol       int
	request, reply icmp.Type
}

var (
	echo4 = echo{"ip4:icmp", 1, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	echo6 = echo{"ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
)

// probeICMP sends an echo request from a raw socket. The socket is connected: it gets only what
// comes from the backend. It needs CAP_NET_RAW, as the kernel's own ping sockets need a sysctl that
// few hosts have set (net.ipv4.ping_group_range).
func probeICMP(ctx context.Context, a *attempt) error {
	a.at = sending
	e := echo6
	if a.way.To.Addr().Is4() {
		e = echo4
	}
	conn, err := a.dial(ctx, e.network, a.way.To.Addr().String(), a.allErrors)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	id, cookie := int(uint16(rand.Uint32())), binary.BigEndian.AppendUint64(nil, rand.Uint64())
	text, err := (&icmp.Message{Type: e.request, Body: &icmp.Echo{ID: id, Seq: 1, Data: cookie}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.Write(text); err != nil {
		return err
	}
	return e.await(conn.(*net.IPConn), id, cookie)
}

// await reads until the reply comes. Replies to other probes come here, too.
func (e *echo) await(conn *net.IPConn, id int, cookie []byte) error {
	buffer := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFromIP(buffer) // without the IPv4 header
		if err != nil {
			return err
		}
		message, err := icmp.ParseMessage(e.protocol, buffer[:n])
		if err != nil || message.Type != e.reply {
			continue
		}
		if body, is := message.Body.(*icmp.Echo); is && body.ID == id && bytes.Equal(body.Data, cookie) {
			return nil
		}
	}
}
