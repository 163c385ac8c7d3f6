package doctor_test

import (
	"context"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// What kube-proxy writes for a Service with an external IP that is the VIP 203.0.113.10, and one
// endpoint, which is on this host: in its mode nftables, and in iptables.
const (
	kubeProxyNFT = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 203.0.113.10 . tcp . 80 : goto external-ULMVA6XW-default/web/tcp/http }
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
	chain nat-output { type nat hook output priority -100; policy accept; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading { meta mark and 0x4000 == 0x0 return; meta mark set meta mark xor 0x4000; masquerade fully-random; }
	chain external-ULMVA6XW-default/web/tcp/http { jump mark-for-masquerade; goto service-ULMVA6XW-default/web/tcp/http; }
	chain service-ULMVA6XW-default/web/tcp/http { numgen random mod 1 vmap { 0 : goto endpoint-5OJB2KTY-default/web/tcp/http__10.0.1.3/8080 }; }
	chain endpoint-5OJB2KTY-default/web/tcp/http__10.0.1.3/8080 { ip saddr 10.0.1.3 jump mark-for-masquerade; meta l4proto tcp dnat to 10.0.1.3:8080; }
}
`
	kubeProxyIPTables = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-EXT-TEST - [0:0]
:KUBE-SVC-TEST - [0:0]
:KUBE-SEP-TEST - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 203.0.113.10/32 -p tcp -m comment --comment "default/web:http external IP" -m tcp --dport 80 -j KUBE-EXT-TEST
-A KUBE-EXT-TEST -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-TEST -j KUBE-SVC-TEST
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SVC-TEST -m comment --comment "default/web:http -> 10.0.1.3:8080" -j KUBE-SEP-TEST
-A KUBE-SEP-TEST -s 10.0.1.3/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-TEST -p tcp -m tcp -j DNAT --to-destination 10.0.1.3:8080
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
`
)

// TestKubeProxyIsSeen: a kube-proxy that takes the VIP away, on a backend's host from the agent, and on
// a director's host from its health checks, is named by what it makes of connections.
func TestKubeProxyIsSeen(t *testing.T) {
	for name, rules := range map[string][]string{"nftables": {kubeProxyNFT, "nft", "-f", "-"}, "iptables": {kubeProxyIPTables, "iptables-restore", "--noflush"}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.director.Route("203.0.113.0/24", "10.0.1.2")
			c := config(model.GUE, "10.0.1.2")
			c.Services[0].Health = &model.HealthCheck{Kind: model.CheckTCP}
			c.SetDefaults()
			listener, err := l.backend.Listen("tcp", "10.0.1.3:8080")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			load := func(h *netlab.Host) {
				t.Helper()
				cmd := h.Command(context.Background(), rules[1], rules[2:]...)
				cmd.Stdin = strings.NewReader(rules[0])
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v: %s", rules[1:], err, out)
				}
			}
			call := func() {
				t.Helper()
				conn, err := l.director.DialContext(t.Context(), "tcp", "203.0.113.10:80")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
			load(l.backend)
			call()
			want(t, examine(t, l.backend, doctor.Options{Config: c, Role: doctor.Agent}), "sockets of web", doctor.Fail,
				"connections to VIP 203.0.113.10", "one leads from 203.0.113.10:80 to 10.0.1.3:8080")
			load(l.director)
			call()
			want(t, examine(t, l.director, doctor.Options{Config: c}), "health checks of web", doctor.Warn,
				"from 203.0.113.10:80, which is checked, to 10.0.1.3:8080", "rules of NAT")
		})
	}
}
