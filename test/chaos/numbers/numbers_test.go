package numbers

import (
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

const (
	vip      = "192.0.2.1"
	patience = 10 * time.Second
)

// network is a client and two hosts with one address, which answer every SYN with a cookie.
type network struct {
	client *netlab.Host
	hosts  [2]*netlab.Host
}

func newNetwork(t *testing.T, offsets [2]uint32) *network {
	t.Helper()
	lab := netlab.ForTest(t)
	lan := lab.Switch("switch")
	n := &network{client: lab.Host("client")}
	lab.Link(n.client, lan, netlab.LinkOptions{A: []string{"10.0.0.1/24"}})
	for i, address := range []string{"10.0.0.11", "10.0.0.12"} {
		h := lab.Host("host" + strconv.Itoa(i))
		cable := lab.Link(h, lan, netlab.LinkOptions{A: []string{address + "/24"}})
		h.Address("lo", vip+"/32")
		h.Sysctl("net.ipv4.tcp_syncookies", "2")
		must(t, Apart(t.Context(), cable.B, offsets[i]))
		n.hosts[i] = h
	}
	n.goTo(0)
	return n
}

// goTo routes the client's packets to the address to one of the hosts.
func (n *network) goTo(host int) { n.client.Route(vip+"/32", "10.0.0.1"+strconv.Itoa(host+1)) }

// listen listens on one of the hosts.
func (n *network) listen(t *testing.T, host int) *net.TCPListener {
	t.Helper()
	listener, err := n.hosts[host].Listen("tcp4", ":80")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	tcp := listener.(*net.TCPListener)
	must(t, tcp.SetDeadline(time.Now().Add(patience)))
	return tcp
}

// open opens a connection to the listener.
func (n *network) open(t *testing.T, listener net.Listener) (client, server net.Conn) {
	t.Helper()
	client, err := n.client.DialContext(t.Context(), "tcp4", vip+":80")
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	server, err = listener.Accept()
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	for _, end := range []net.Conn{client, server} {
		must(t, end.SetDeadline(time.Now().Add(patience)))
	}
	return client, server
}

// TestForeignCookies: a connection that one host has opened with a cookie is not accepted by
// another host, though they share a kernel. With the same numbers it is, which is why this package
// exists.
func TestForeignCookies(t *testing.T) {
	for name, test := range map[string]struct {
		offsets [2]uint32
		reset   bool
	}{
		"apart":      {[2]uint32{1 << 31, 0x9e3779b1}, true},
		"not apart":  {[2]uint32{7 << 20, 7 << 20}, false},
		"one is not": {[2]uint32{0, 0x9e3779b1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, test.offsets)
			other := n.listen(t, 1)
			n.goTo(1)
			n.open(t, other) // a kernel that has sent no cookie lately accepts none
			n.goTo(0)
			client, _ := n.open(t, n.listen(t, 0))
			n.goTo(1)
			_, err := client.Write([]byte{1})
			must(t, err)
			if test.reset {
				if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the other host answers with %v, want a reset", err)
				}
				return
			}
			taken, err := other.Accept()
			must(t, err)
			_ = taken.Close()
		})
	}
}

// TestNumbersUnderLoss: both ends still agree about lost segments.
func TestNumbersUnderLoss(t *testing.T) {
	n := newNetwork(t, [2]uint32{0x9e3779b1, 0})
	client, server := n.open(t, n.listen(t, 0))
	_, err := process.Run(t.Context(), n.client, "nft", `table ip loss { chain in {
		type filter hook input priority 0; tcp sport 80 numgen random mod 100 < 3 drop; }; }`)
	must(t, err)
	go func() { // if this fails, too few bytes are read
		for err := error(nil); err == nil; {
			_, err = server.Write(make([]byte, 1<<20))
		}
	}()
	// Chance decides which segments are lost, and which losses acknowledgments reveal.
	must(t, client.SetReadDeadline(time.Now().Add(30*time.Second)))
	for got := int64(0); got < 4<<20 || n.counter(t, "TCPSackRecovery") == 0; {
		piece, err := io.CopyN(io.Discard, client, 1<<20)
		if got += piece; err != nil {
			t.Fatalf("the client got %d bytes, and the host has been told of no loss that it recovered from: %v", got, err)
		}
	}
	for _, name := range []string{"TCPSACKDiscard", "TCPACKSkippedSeq", "PAWSEstab"} {
		if count := n.counter(t, name); count != 0 {
			t.Errorf("%s of the host is %d, want 0", name, count)
		}
	}
}

// counter reads one of the first host's TCP counters (netstat(8)).
func (n *network) counter(t *testing.T, name string) int {
	t.Helper()
	var text []byte
	must(t, n.hosts[0].Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	}))
	lines := strings.Split(string(text), "\n")
	for i, value := range strings.Fields(lines[1]) {
		if strings.Fields(lines[0])[i] == name {
			count, err := strconv.Atoi(value)
			must(t, err)
			return count
		}
	}
	t.Fatalf("the kernel has no counter %s", name)
	return 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
