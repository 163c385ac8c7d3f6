package test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
)

// nodePort is where each node of the lab takes connections, at its own address.
const nodePort = 30080

// nodePortAt is the NodePort of a node, from 1.
func nodePortAt(node int, six bool) string {
	return netip.AddrPortFrom(lanAddress(backendHost+node-1, six), nodePort).String()
}

// nodePortServices are one service at the addresses of three nodes. The first node has a pod and
// also hands over to the second one's, the second node has only its own pod, and the third node has
// none. Connections that are not handed over go by full NAT.
func nodePortServices() (services []string) {
	for i, pods := range [][]int{{1, 2}, {2}, {1, 2}} {
		node := i + 1
		for _, six := range []bool{false, true} {
			var b strings.Builder
			fmt.Fprintf(&b, "- name: node%d-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: redirect\n  fallback: nat\n  snat: true\n  health: {kind: none}\n  backends:\n",
				node, six, lanAddress(backendHost+node-1, six), nodePort)
			for _, pod := range pods {
				fmt.Fprintf(&b, "  - {name: pod%d, address: \"%s\", port: 80}\n", pod, lanAddress(backendHost+pod-1, six))
			}
			services = append(services, b.String())
		}
	}
	return services
}

// nodePortText is the file of a node; 0: of a host that is no node.
func nodePortText(node int) string {
	var b strings.Builder
	if node > 0 {
		fmt.Fprintf(&b, "director:\n  interfaces: [eth0]\n  snat:\n    addresses: [%s, \"%s\"]\n    ports: 20000-29999\n",
			lanAddress(natHost+node-1, false), lanAddress(natHost+node-1, true))
	}
	return b.String() + "agent:\n  interfaces: [eth0]\nservices:\n" + strings.Join(nodePortServices(), "")
}

// nodePortLab is a lab whose nodes are directors.
type nodePortLab struct {
	*redirectLab
	directors []*daemon // of the nodes
	roots     []string  // of the pods' files
}

// newNodePortLab is a lab without a director of its own:
//
//	client --- router --- switch --- node1, node2: director, agent, pod
//	                             --- node3: director, agent
//
// The daemon is node3's director. The client has an agent, the router has none.
func newNodePortLab(t *testing.T) *nodePortLab {
	t.Helper()
	l := &nodePortLab{redirectLab: &redirectLab{lab: newLab(t, size{backends: 3}), agents: map[string]*daemon{}}}
	l.agents["client"] = startDaemon(t, l.client, "agent", nodePortText(0))
	l.startNodes()
	return l
}

// startNodes starts what runs on the nodes.
func (l *nodePortLab) startNodes() {
	t := l.t
	t.Helper()
	for i, node := range l.backends {
		node.Sysctl("net.ipv4.ip_forward", "1")
		node.Sysctl("net.ipv6.conf.all.forwarding", "1")
		if i < 2 {
			l.roots = append(l.roots, startNginx(t, node))
		}
		l.agents[node.Name] = startDaemon(t, node, "agent", nodePortText(i+1))
		l.daemon = startDaemon(t, node, "run", nodePortText(i+1))
		l.directors = append(l.directors, l.daemon)
	}
	l.waitRedirects("")
}

// A node without a pod hands a connection over, and sees no more of it; a node with a pod serves it
// there. Clients that cannot be handed over are served, too.
func TestNodePort(t *testing.T) {
	t.Parallel()
	l := newNodePortLab(t)
	ask := func(t *testing.T, from *netlab.Host, node int, six bool) string {
		t.Helper()
		return on(t, from, "curl", "-sS", "--fail", "--max-time", "10", "http://"+nodePortAt(node, six)+"/name")
	}
	// Twenty coin tosses are all equal once in 500,000 times.
	ofBoth := func(t *testing.T, from *netlab.Host, node int, six bool) {
		t.Helper()
		seen := map[string]bool{}
		for range 20 {
			seen[ask(t, from, node, six)] = true
		}
		for n := 0; n < 200 && len(seen) < 2; n++ {
			seen[ask(t, from, node, six)] = true
		}
		if !seen["backend1"] || !seen["backend2"] || len(seen) != 2 {
			t.Errorf("answers came from %v, want both pods", seen)
		}
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		t.Run("handed over", func(t *testing.T) {
			l.bypasses(t, 0, func() { ofBoth(t, l.client, 3, six) })
			l.bypasses(t, 0, func() {
				if out := on(t, l.client, "wrk", "-t", "1", "-c", "10", "-d", "1s", "http://"+nodePortAt(3, six)+"/name"); strings.Contains(out, "Socket errors") || strings.Contains(out, "Non-2xx") {
					t.Errorf("wrk says:\n%s", out)
				}
			})
		})
		t.Run("the pod sees the client", func(t *testing.T) {
			conn, err := l.client.DialContext(t.Context(), "tcp", nodePortAt(3, six))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answers(t, conn, "keep-alive")
			sees := ""
			for _, pod := range l.backends[:2] {
				sees += on(t, pod, "ss", "-Htn", "state", "established", "sport", "=", ":80")
			}
			if !strings.Contains(sees, conn.LocalAddr().String()) {
				t.Errorf("pods have %q, want %s", sees, conn.LocalAddr())
			}
		})
		t.Run("a pod of the node", func(t *testing.T) {
			ofBoth(t, l.client, 1, six)
			if name := ask(t, l.client, 2, six); name != "backend2" {
				t.Errorf("%s answers for the second node", name)
			}
		})
		t.Run("client without agent", func(t *testing.T) {
			handed, others := l.passing()
			ofBoth(t, l.router, 3, six)
			nowHanded, nowOthers := l.passing()
			if nowHanded != handed || nowOthers-others < 20*4 {
				t.Errorf("the node has handed %d connections over and relayed %d packets, want 0 and all of the connections'", nowHanded-handed, nowOthers-others)
			}
			ofBoth(t, l.router, 1, six)
			if name := ask(t, l.router, 2, six); name != "backend2" {
				t.Errorf("%s answers for the second node", name)
			}
		})
	})
	if n := l.event("client", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}

// A connection that was handed over goes on when the client calls the pod's own node from the same
// port: there, both would be the same connection.
func TestNodePortSamePort(t *testing.T) {
	t.Parallel()
	l := newNodePortLab(t)
	second := *l.redirectLab // as its director sees it
	second.daemon = l.directors[1]
	bothFamilies(t, func(t *testing.T, six bool) {
		// Pods are chosen by flow: a connection from one of these ports goes to the second pod.
		port := 20099
		var conn *net.TCPConn
		for pod := ""; pod != "backend2"; {
			port++
			conn = l.dialAddressFrom(t, six, port, nodePortAt(3, six))
			pod = answers(t, conn, "keep-alive")
		}
		dropped := second.daemon.reason("drop_snat_clash")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		dialer := fromPort(port)
		done := make(chan error, 1)
		go func() {
			done <- l.client.Do(func() error {
				conn, err := dialer.DialContext(ctx, "tcp", nodePortAt(2, six))
				if err == nil {
					_ = conn.Close()
				}
				return err
			})
		}()
		waitFor(t, "the second node to drop the SYN", func() bool { return second.daemon.reason("drop_snat_clash") > dropped })
		stop()
		if err := <-done; err == nil {
			t.Error("two connections of one port to one pod are open")
		}
		answers(t, conn, "close")
	})
}
