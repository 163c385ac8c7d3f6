package test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/lab/netlab"
)

// The file into which docs/operate/keepalived.md translates keepalived's forwards to real servers that
// stay as they were, without agents; a client on the director's link finds the VIP by ARP; and the sorry server serves when
// no other does.
//
//	client --- switch --- director
//	                  --- two real servers, a sorry server
func TestKeepalivedPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/keepalived.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if text == nil {
		t.Fatal("docs/operate/keepalived.md has no file of weir")
	}
	l := netlab.ForTest(t)
	lan := l.Switch("switch")
	client, director := l.Host("client"), l.Host("director")
	servers := []*netlab.Host{l.Host("server1"), l.Host("server2"), l.Host("sorry")}
	for h, address := range map[*netlab.Host]string{client: "192.0.2.9/24", director: "192.0.2.2/24", servers[0]: "192.0.2.21/24", servers[1]: "192.0.2.22/24", servers[2]: "192.0.2.29/24"} {
		l.Link(h, lan, netlab.LinkOptions{XDP: true, A: []string{address}})
	}
	for _, s := range servers { // what IPVS's direct routing asks of them
		s.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		s.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		on(t, s, "ip", "address", "add", "192.0.2.10/32", "dev", "lo")
		if err := s.Serve("tcp", ":80", func(c net.Conn) { _, _ = c.Write([]byte(s.Name)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, director, "run", string(text[1]))
	defer d.end(syscall.SIGTERM)
	waitFor(t, "both real servers to be healthy", func() bool {
		out, err := tryOn(t, director, weir, "backends", "--socket", filepath.Join(director.Dir(), "run.sock"))
		return err == nil && len(regexp.MustCompile(`192\.0\.2\.2[12] .* up `).FindAllString(out, -1)) == 2
	})
	waitFor(t, "the client to be served at the VIP", func() bool {
		conn, err := client.DialContext(t.Context(), "tcp", "192.0.2.10:80")
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	served := func() string {
		conn, err := client.DialContext(t.Context(), "tcp", "192.0.2.10:80")
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		name, _ := io.ReadAll(conn)
		return string(name)
	}
	if by := served(); by != "server1" && by != "server2" {
		t.Errorf("a client is served by %s, and both real servers are healthy", by)
	}
	for _, s := range servers[:2] {
		for _, rule := range []string{"add table inet test", "add chain inet test in { type filter hook input priority 0 ; }", "add rule inet test in tcp dport 80 reject with tcp reset"} {
			on(t, s, "nft", rule)
		}
	}
	waitFor(t, "the sorry server to serve", func() bool { return served() == "sorry" })
	for _, s := range servers[:2] {
		on(t, s, "nft", "delete table inet test")
	}
	waitFor(t, "a real server to serve again", func() bool { return strings.HasPrefix(served(), "server") })
}
