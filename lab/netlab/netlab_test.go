package netlab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// answer runs a server on the host that writes the host's name to whoever
// connects.
func answer(t *testing.T, h *Host, address string) {
	t.Helper()
	listener, err := h.Listen("tcp", address)
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, h.Name)
			conn.Close()
		}
	}()
}

func ask(t *testing.T, h *Host, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := h.DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("%s cannot reach %s: %v", h.Name, address, err)
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%s: read from %s: %v", h.Name, address, err)
	}
	return string(text)
}

// client --- router --- left and right, which both have 192.0.2.1 and 2001:db8::1
func TestRouterSpreadsFlowsOverNextHops(t *testing.T) {
	lab := ForTest(t)
	client, router := lab.Host("client"), lab.Router("router")
	left, right := lab.Host("left"), lab.Host("right")
	lab.Link(client, router, LinkOptions{A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	lab.Link(router, left, LinkOptions{A: []string{"10.0.1.1/24", "fd00:1::1/64"}, B: []string{"10.0.1.2/24", "fd00:1::2/64"}})
	lab.Link(router, right, LinkOptions{A: []string{"10.0.2.1/24", "fd00:2::1/64"}, B: []string{"10.0.2.2/24", "fd00:2::2/64"}})
	client.Route("default", "10.0.0.1")
	client.Route("default", "fd00::1")
	left.Route("default", "10.0.1.1")
	left.Route("default", "fd00:1::1")
	right.Route("default", "10.0.2.1")
	right.Route("default", "fd00:2::1")
	router.Route("192.0.2.1/32", "10.0.1.2", "10.0.2.2")
	router.Route("2001:db8::1/128", "fd00:1::2", "fd00:2::2")
	for _, h := range []*Host{left, right} {
		h.Address("lo", "192.0.2.1/32", "2001:db8::1/128")
		answer(t, h, "192.0.2.1:80")
		answer(t, h, "[2001:db8::1]:80")
	}
	for _, vip := range []string{"192.0.2.1:80", "[2001:db8::1]:80"} {
		count := map[string]int{}
		for range 64 {
			count[ask(t, client, vip)]++
		}
		// A fair coin gives fewer than 8 of 64 once in 10^9 times.
		if count["left"] < 8 || count["right"] < 8 {
			t.Errorf("%s: 64 connections went %v, want a spread over both", vip, count)
		}
	}
}

// a --- switch (bridge) --- b     MTU 9000
func TestSwitchCarriesJumboFrames(t *testing.T) {
	lab := ForTest(t)
	a, b, sw := lab.Host("a"), lab.Host("b"), lab.Switch("switch")
	lab.Link(a, sw, LinkOptions{MTU: 9000, A: []string{"10.0.0.1/24"}})
	lab.Link(b, sw, LinkOptions{MTU: 9000, A: []string{"10.0.0.2/24"}})
	if got := echoDatagram(t, a, b, "10.0.0.2:7", 8900); got != 8900 {
		t.Errorf("a datagram of 8900 bytes came back with %d", got)
	}
}

// a --- b     MTU 1400
// A link is in use when [Lab.Link] returns: the first frame, which nobody repeats,
// goes through.
//
//	host1 --- switch --- host2
//	  '-------------------'
func TestSwitchCarriesTheFirstFrame(t *testing.T) {
	for range 5 {
		lab := ForTest(t)
		sw, a, b := lab.Switch("switch"), lab.Host("host1"), lab.Host("host2")
		lab.Link(a, b, LinkOptions{}) // or the interfaces' indexes would differ anyway
		from := lab.Link(a, sw, LinkOptions{A: []string{"10.0.0.1/24"}}).A
		to := lab.Link(b, sw, LinkOptions{A: []string{"10.0.0.2/24"}}).A
		a.Neighbor(from.Name, "10.0.0.2", to.MAC)
		server, err := b.ListenPacket("udp", "10.0.0.2:7")
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		client, err := a.DialContext(t.Context(), "udp", "10.0.0.2:7")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("once")); err != nil {
			t.Fatal(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, _, err := server.ReadFrom(make([]byte, 16)); err != nil {
			t.Fatalf("the only datagram did not arrive: %v", err)
		}
	}
}

func TestLinkRefusesWhatDoesNotFit(t *testing.T) {
	lab := ForTest(t)
	a, b := lab.Host("a"), lab.Host("b")
	lab.Link(a, b, LinkOptions{MTU: 1400, A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	if got := echoDatagram(t, a, b, "10.0.0.2:7", 1372); got != 1372 {
		t.Errorf("a datagram of 1372 bytes came back with %d", got)
	}
	if got := echoDatagram(t, a, b, "10.0.0.2:7", 1373); got != 0 {
		t.Errorf("a packet of 1401 bytes that may not be fragmented crossed a link of 1400")
	}
}

// echoDatagram returns the length of what comes back from b; 0 when the packet,
// which may not be fragmented, does not fit.
func echoDatagram(t *testing.T, a, b *Host, address string, size int) int {
	t.Helper()
	server, err := b.ListenPacket("udp", address)
	if err != nil {
		t.Fatalf("listen on b: %v", err)
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, 1<<16)
		n, peer, err := server.ReadFrom(buffer)
		if err == nil {
			server.WriteTo(buffer[:n], peer)
		}
	}()
	conn, err := a.DialContext(t.Context(), "udp", address)
	if err != nil {
		t.Fatalf("dial from a: %v", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	if err != nil {
		t.Fatalf("forbid fragments: %v", err)
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return 0
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := conn.Read(make([]byte, 1<<16))
	if err != nil {
		t.Fatalf("no echo of %d bytes: %v", size, err)
	}
	return n
}

// host has one way out per address: by left from 10.0.9.1, by right from 10.0.9.2
func TestRouteDependsOnTheSource(t *testing.T) {
	lab := ForTest(t)
	host, left, right := lab.Host("host"), lab.Host("left"), lab.Host("right")
	lab.Link(host, left, LinkOptions{A: []string{"10.0.1.1/24", "fd00:1::1/64"}, B: []string{"10.0.1.2/24", "fd00:1::2/64"}})
	lab.Link(host, right, LinkOptions{A: []string{"10.0.2.1/24", "fd00:2::1/64"}, B: []string{"10.0.2.2/24", "fd00:2::2/64"}})
	host.Address("lo", "10.0.9.1/32", "10.0.9.2/32", "fd00:9::1/128", "fd00:9::2/128")
	host.RouteFrom("10.0.9.1/32", "default", "10.0.1.2")
	host.RouteFrom("10.0.9.2/32", "default", "10.0.2.2")
	host.RouteFrom("fd00:9::1/128", "default", "fd00:1::2")
	host.RouteFrom("fd00:9::2/128", "default", "fd00:2::2")
	for source, want := range map[string]string{"10.0.9.1": "10.0.1.2", "10.0.9.2": "10.0.2.2",
		"fd00:9::1": "fd00:1::2", "fd00:9::2": "fd00:2::2"} {
		far := "198.51.100.1"
		if strings.Contains(source, ":") {
			far = "2001:db8::1"
		}
		out, err := host.Command(t.Context(), "ip", "route", "get", far, "from", source).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "via "+want+" ") {
			t.Errorf("from %s: %s (%v), want via %s", source, out, err, want)
		}
	}
}

func TestHostSettings(t *testing.T) {
	lab := ForTest(t)
	a, b := lab.Host("a"), lab.Host("b")
	link := lab.Link(a, b, LinkOptions{NameA: "uplink", XDP: true, Tagged: true, Queues: 2,
		A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	a.Neighbor("uplink", "10.0.0.2", link.B.MAC)
	a.Sysctl("net/ipv4/conf/uplink/arp_ignore", "1")
	for _, probe := range []struct {
		command []string
		want    []string
	}{
		{[]string{"ethtool", "-k", "uplink"}, []string{"tx-checksumming: off", "tx-tcp-segmentation: off",
			"generic-receive-offload: on", "tx-vlan-offload: off", "rx-vlan-offload: off"}},
		{[]string{"ip", "neigh", "show", "dev", "uplink"}, []string{"10.0.0.2 lladdr " + link.B.MAC.String() + " PERMANENT"}},
		{[]string{"cat", "/proc/sys/net/ipv4/conf/uplink/arp_ignore"}, []string{"1"}},
		{[]string{"cat", "/proc/sys/net/ipv4/conf/uplink/rp_filter"}, []string{"0"}},
		{[]string{"ip", "-d", "link", "show", "uplink"}, []string{"numtxqueues 2", "numrxqueues 2"}},
	} {
		out, err := a.Command(t.Context(), probe.command[0], probe.command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", probe.command, err, out)
		}
		for _, want := range probe.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v prints no %q:\n%s", probe.command, want, out)
			}
		}
	}
	stats, err := link.A.Counters()
	if err != nil || stats.RxErrors != 0 {
		t.Errorf("counters of uplink: %+v, %v", stats, err)
	}
}

func TestDoReturnsToTheNamespaceItCameFrom(t *testing.T) {
	lab := ForTest(t)
	h := lab.Host("a")
	before := currentNamespace(t)
	var inside string
	func() {
		defer func() { recover() }()
		h.Do(func() error {
			inside = currentNamespace(t)
			panic("on purpose")
		})
	}()
	if inside == before {
		t.Errorf("Do ran in the namespace it was called from")
	}
	if after := currentNamespace(t); after != before {
		t.Errorf("after a panic in Do the namespace is %s, want %s", after, before)
	}
}

func currentNamespace(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestBuildingStopsAtTheFirstError(t *testing.T) {
	lab, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	h := lab.Host("a")
	h.Address("eth9", "10.0.0.1/24")
	h.Address("lo", "not an address")
	if err := lab.Err(); err == nil || !strings.Contains(err.Error(), "host a: address 10.0.0.1/24 on eth9") {
		t.Errorf("error %v, want the first one, of eth9", err)
	}
}

func TestCloseRemovesEverything(t *testing.T) {
	lab, err := New()
	if err != nil {
		t.Fatal(err)
	}
	h := lab.Host("a")
	bpffs := h.BPFFS()
	// A shell whose child outlives it, as daemons do.
	cmd := h.Command(t.Context(), "sh", "-c", "setsid sleep 1000 & wait")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := lab.Err(); err != nil {
		t.Fatal(err)
	}
	ids := map[fileID]bool{}
	id, err := identify(filepath.Join(namespaceDir, h.Namespace()))
	if err != nil {
		t.Fatal(err)
	}
	ids[id] = true
	WaitFor(t, "two processes on the host", func() bool { return len(processesIn(ids)) == 2 })
	if err := lab.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("the process on the host ended by itself: %s", stderr.String())
	}
	if left := processesIn(ids); len(left) > 0 {
		t.Errorf("processes %v still run", left)
	}
	for _, path := range []string{filepath.Join(namespaceDir, h.Namespace()), bpffs, h.Dir(), lab.dir} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if err := lab.Close(); err != nil {
		t.Errorf("close twice: %v", err)
	}
}
