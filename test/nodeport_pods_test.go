package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// podNodesLab is podLab with all nodes as directors, each with services at its own address:
//
//	client --- edge --- router --- switch --- director --- pods of node 0
//	                                      --- backend1 --- pods of node 1
//	                                      --- backend2 --- pods of node 2
//
// The link between edge and router has the smallest MTU.
type podNodesLab struct {
	*podLab
	directors []*daemon
	roots     []string // of the pods' files
}

// newPodNodesLab makes this many pods on each node, and starts everything on nodes and pods.
func newPodNodesLab(t *testing.T, each ...int) *podNodesLab {
	t.Helper()
	l := &podNodesLab{podLab: newPodLabOf(t, size{edgeMTU: 1280}, each...)}
	for i, pod := range l.pods {
		l.roots = append(l.roots, startNginxAt(t, pod, podPort(l.numbers[i], 80)))
		for node := 1; node < len(each); node++ { // the director has these routes
			for _, six := range []bool{false, true} {
				if at := podAddress(l.of[i], l.numbers[i], six); node != l.of[i] {
					l.node(node).Route(netip.PrefixFrom(at, at.BitLen()).String(), l.host(l.of[i], six).String())
				}
			}
		}
	}
	var hosts []string
	for node := range each {
		for _, six := range []bool{false, true} {
			hosts = append(hosts, `"`+l.host(node, six).String()+`"`)
		}
	}
	text := "director:\n  interfaces: [eth0]\nagent:\n  interfaces: [eth0]\ndirectors: [" + strings.Join(hosts, ", ") + "]\nservices:\n" + strings.Join(l.ports(len(each)), "")
	for node := range each {
		l.agents[node] = startDaemon(t, l.node(node), "agent", text)
	}
	for node := range each {
		l.directors = append(l.directors, startDaemon(t, l.node(node), "run", text))
	}
	return l
}

// podNodeModes are the modes in which nodes relay to pods, at consecutive ports.
var podNodeModes = []string{"gue", "ipip"}

// ports are a service for each node, family and mode, each with all pods.
func (l *podNodesLab) ports(nodes int) (services []string) {
	for node := range nodes {
		for number, mode := range podNodeModes {
			for _, six := range []bool{false, true} {
				text := fmt.Sprintf("- name: node%d-%s-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: %s\n  backends:\n",
					node, mode, six, l.host(node, six), nodePort+number, mode)
				for i, pod := range l.pods {
					text += fmt.Sprintf("  - {name: %s, address: \"%s\", port: %d, host: \"%s\"}\n", pod.Name,
						podAddress(l.of[i], l.numbers[i], six), podPort(l.numbers[i], 80), l.host(l.of[i], six))
				}
				services = append(services, text)
			}
		}
	}
	return services
}

// url is the URL of a file at a node's port.
func (l *podNodesLab) url(node, number int, six bool, file string) string {
	return "http://" + netip.AddrPortFrom(l.host(node, six), uint16(nodePort+number)).String() + "/" + file
}

// A node relays connections to a port of its own address to pods of any node, including its own.
// Pods see the client, which has no agent, and answer it without the node. The rest of the node's
// traffic stays as it was.
func TestNodePortToPods(t *testing.T) {
	t.Parallel()
	l := newPodNodesLab(t, 0, 2, 1)
	for number, mode := range podNodeModes {
		t.Run(mode, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				client := map[bool]string{false: "10.0.0.2", true: "fd00::2"}[six]
				for node := range 3 {
					l.reachesAllPods(t, node, number, six)
					for range 8 {
						if got := curl(t, l.client, l.url(node, number, six, "client")); got != client {
							t.Errorf("a pod sees %s as its client at node %d, want %s", got, node, client)
						}
					}
				}
				l.answersWithoutNode(t, number, six)
			})
		})
	}
	bothFamilies(t, func(t *testing.T, six bool) { l.nodeIsItself(t, six) })
	for _, never := range []string{"drop_no_pod", "drop_pod_taken", "drop_decap_failed", "drop_row_malformed", "decap_last_resort"} {
		if n := l.count(t, never); n > 0 {
			t.Errorf("the agents count %d packets as %s", n, never)
		}
	}
}

func (l *podNodesLab) reachesAllPods(t *testing.T, node, number int, six bool) {
	t.Helper()
	answers := map[string]int{}
	// 60 answers leave out one of three pods once in 10^10 times.
	for range 60 {
		answers[curl(t, l.client, l.url(node, number, six, "name"))]++
	}
	if len(answers) != len(l.pods) {
		t.Errorf("60 answers at node %d come from %v, want them from all pods", node, answers)
	}
}

// answersWithoutNode fetches a file by the node that has no pods: only what the client sends passes
// there, in and out.
func (l *podNodesLab) answersWithoutNode(t *testing.T, number int, six bool) {
	t.Helper()
	data := noise()[:4<<20]
	for _, root := range l.roots {
		if err := os.WriteFile(filepath.Join(root, "large"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := passed(t, l.node(0))
	if got := curl(t, l.client, l.url(0, number, six, "large")); got != string(data) {
		t.Errorf("%d bytes arrive that are not the %d of the file", len(got), len(data))
	}
	if n := passed(t, l.node(0)) - before; n == 0 || n > uint64(len(data))/2 {
		t.Errorf("%d bytes have passed the node while %d were fetched: want those that ask, and not the answer", n, len(data))
	}
}

// passed is how many bytes a host's eth0 has received and sent.
func passed(t *testing.T, h *netlab.Host) (bytes uint64) {
	t.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			bytes = link.Attrs().Statistics.RxBytes + link.Attrs().Statistics.TxBytes
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// nodeIsItself checks the node's own traffic at the address that is a VIP: servers at other ports,
// also with errors about the path's MTU, its own connections, and datagrams and pings, also in
// fragments.
func (l *podNodesLab) nodeIsItself(t *testing.T, six bool) {
	t.Helper()
	const port = 2222
	node, address := l.node(0), l.host(0, six)
	client := netip.MustParseAddr(map[bool]string{false: "10.0.0.2", true: "fd00::2"}[six])
	for _, to := range []struct {
		server, client *netlab.Host
		address        netip.Addr
	}{{node, l.client, address}, {l.client, node, client}} {
		at := netip.AddrPortFrom(to.address, port)
		echoStream(t, to.server, at)
		if err := streams(t, to.client, at); err != nil {
			t.Errorf("a stream from %s to %s: %v", to.client.Name, at, err)
		}
		for _, size := range []int{56, 4000} {
			if !pings(t, to.client, to.address, size) {
				t.Errorf("%d bytes from %s to %s are not echoed", size, to.client.Name, to.address)
			}
		}
	}
	// The port number of a service, in a protocol that no service has.
	at := netip.AddrPortFrom(address, nodePort)
	digest(t, node, at)
	for i, size := range []int{400, 4000} {
		// The first packet of a path may only teach its smaller MTU.
		if !l.isDigested(at, fragmentPort+i, size, unanswered) && !l.isDigested(at, fragmentPort+i, size, answered) {
			t.Errorf("a datagram of %d bytes to %s is not answered", size, at)
		}
	}
}

// streams sends data there by TCP, and compares what comes back.
func streams(t *testing.T, from *netlab.Host, at netip.AddrPort) error {
	t.Helper()
	conn, err := from.DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	data := noise()[:1<<20]
	go func() { _, _ = conn.Write(data) }() // data that is not sent does not come back
	back := make([]byte, len(data))
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if !bytes.Equal(back, data) {
		return errors.New("what comes back is not what was sent")
	}
	return nil
}

// pings sends echo requests until one is answered.
func pings(t *testing.T, from *netlab.Host, to netip.Addr, size int) bool {
	t.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	conn, err := from.ListenPacket(network, "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	written := gopacket.NewSerializeBuffer()
	payload := gopacket.Payload(noise()[:size])
	// Linux writes the checksum of ICMPv6.
	err = gopacket.SerializeLayers(written, gopacket.SerializeOptions{ComputeChecksums: true},
		&layers.ICMPv4{TypeCode: layers.ICMPv4TypeCode(uint16(request) << 8), Id: 0x7765, Seq: 1}, payload)
	if err != nil {
		t.Fatal(err)
	}
	data := written.Bytes()
	answer := make([]byte, len(data)+64) // with the reply's own header, which is not compared
	for range 10 {
		if _, err := conn.WriteTo(data, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			t.Fatalf("send an echo request to %s: %v", to, err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := conn.ReadFrom(answer)
			if err != nil {
				break
			}
			if answer[0] == reply && bytes.Equal(answer[4:n], data[4:]) {
				return true
			}
		}
	}
	return false
}

// handsOverToPods is the file of a host in TestNodePortHandsOverToPods.
func handsOverToPods(l *podLab, director, guests string) string {
	var b strings.Builder
	if director != "" {
		fmt.Fprintf(&b, "director:\n  interfaces: [%s]\n  snat:\n    addresses: [%s, \"%s\"]\n    ports: 20000-29999\n",
			director, lanAddress(snatHost, false), lanAddress(snatHost, true))
	}
	fmt.Fprintf(&b, "agent:\n  interfaces: [eth0]\n  guests: [%s]\nservices:\n", guests)
	for _, six := range []bool{false, true} {
		fmt.Fprintf(&b, "- name: node0-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: redirect\n  fallback: nat\n  snat: true\n  health: {kind: none}\n  backends:\n", six, l.host(0, six), nodePort)
		for i, pod := range l.pods {
			fmt.Fprintf(&b, "  - {name: %s, address: \"%s\", port: %d}\n", pod.Name, podAddress(l.of[i], l.numbers[i], six), podPort(l.numbers[i], 80))
		}
	}
	return b.String()
}

// A node without a pod hands connections over to pods of other nodes, at the pods' own addresses,
// which the network routes: pods see the client, and it goes on without the node. Clients without
// an agent are relayed.
func TestNodePortHandsOverToPods(t *testing.T) {
	t.Parallel()
	p := newPodLab(t, 0, 1, 1)
	l := &redirectLab{lab: p.lab, agents: map[string]*daemon{}}
	for i, pod := range p.pods {
		startNginxAt(t, pod, podPort(p.numbers[i], 80))
		var own []string
		for _, six := range []bool{false, true} {
			at := podAddress(p.of[i], p.numbers[i], six)
			l.router.Route(netip.PrefixFrom(at, at.BitLen()).String(), p.host(p.of[i], six).String())
			own = append(own, `"`+at.String()+`"`)
		}
		host := p.node(p.of[i])
		l.agents[host.Name] = startDaemon(t, host, "agent", handsOverToPods(p, "", strings.Join(own, ", ")))
	}
	l.agents["client"] = startDaemon(t, l.client, "agent", handsOverToPods(p, "", ""))
	l.daemon = startDaemon(t, l.director, "run", handsOverToPods(p, "eth0", ""))
	l.waitRedirects("")
	bothFamilies(t, func(t *testing.T, six bool) {
		url := "http://" + netip.AddrPortFrom(p.host(0, six), nodePort).String()
		both := func(t *testing.T, from *netlab.Host) {
			t.Helper()
			seen := map[string]bool{}
			for range 20 { // all come from one pod once in 500,000 times
				seen[curl(t, from, url+"/name")] = true
			}
			if len(seen) != 2 {
				t.Errorf("answers came from %v, want both pods", seen)
			}
		}
		t.Run("handed over", func(t *testing.T) {
			l.bypasses(t, 28, func() {
				both(t, l.client)
				for range 8 {
					if got, want := curl(t, l.client, url+"/client"), map[bool]string{false: "10.0.0.2", true: "fd00::2"}[six]; got != want {
						t.Errorf("a pod sees %s as its client, want %s", got, want)
					}
				}
			})
		})
		t.Run("client without agent", func(t *testing.T) {
			handed, others := l.passing()
			both(t, l.router)
			if nowHanded, nowOthers := l.passing(); nowHanded != handed || nowOthers == others {
				t.Errorf("the node has handed %d connections over and relayed %d packets, want 0 and all of the connections'", nowHanded-handed, nowOthers-others)
			}
		})
	})
	if n := l.event("client", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}
