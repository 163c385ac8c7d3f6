package health

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"weir.io/weir/internal/model"
)

// TestConnectionsOfProbesAreKnown: by them NAT that turns health checks elsewhere is told from NAT of
// other connections.
func TestConnectionsOfProbesAreKnown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var mu sync.Mutex
	seen := map[netip.AddrPort]bool{}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			seen[conn.RemoteAddr().(*net.TCPAddr).AddrPort()] = true
			mu.Unlock()
			conn.Close()
		}
	}()
	to := netip.MustParseAddrPort(listener.Addr().String())
	for _, kind := range []model.CheckKind{model.CheckTCP, model.CheckTLS} { // of the connector, and not
		c := newChecker(t, Direct{})
		c.Set([]model.Check{checkOf(1, to, func(h *model.HealthCheck) { h.Kind = kind })})
		await(t, fmt.Sprintf("the connection of the last probe of kind %s is known", kind), func() bool {
			mu.Lock()
			defer mu.Unlock()
			for ends := range c.Connections() {
				return ends[1] == to && seen[ends[0]]
			}
			return false
		})
		c.Set(nil)
		if left := c.Connections(); len(left) > 0 {
			t.Errorf("without checks there are the connections %v", left)
		}
	}
}
