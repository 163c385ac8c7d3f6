package test

import (
	"bufio"
	"bytes"
	"fmt"
	"testing"
	"time"
)

// A client whose handshake's ACK is lost begins with several segments at once, while the backends
// answer SYNs with cookies: the first segment makes a socket, and the others must find it. In one
// round of NAPI the others are judged before the kernel has seen the first.
//
//	client --- router --- switch --- director
//	           no ACKs           --- backend1, backend2, backend3
func TestBurstAfterCookie(t *testing.T) {
	t.Parallel()
	const connections = 20
	l := newChanceLab(t, "2", "")
	l.direct(t, everyBackend(3)...)
	// The lengths are those of IPv4 or IPv6 and TCP with timestamps, without data.
	on(t, l.router, "nft", fmt.Sprintf("table inet lossy { chain forward { type filter hook forward priority 0; "+
		"ip daddr %s ip length 52 tcp flags == ack drop; ip6 daddr %s ip6 length 32 tcp flags == ack drop; }; }",
		gueWays[0].vip(), gueWays[1].vip()))
	request := append(bytes.Repeat([]byte("x"), 30000), '\n')
	for _, w := range gueWays[:2] {
		broken := 0
		for range connections {
			conn, err := l.connect(t, w)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, sent := conn.Write(request)
			if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil || sent != nil {
				broken++
			}
			conn.Close()
		}
		if broken > 0 {
			t.Errorf("%s: %d of %d connections were reset as they were opened; %d packets found nobody", w, broken, connections, l.count(t, "decap_last_resort"))
		}
	}
}
