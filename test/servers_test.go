package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// startNginx serves the host's files at port 80 of every address and takes uploads
// under /upload/. The file name has the host's name.
func startNginx(t *testing.T, h *netlab.Host) (root string) {
	t.Helper()
	return startNginxAt(t, h, 80)
}

// startNginxAt does so at another port. /client returns the client's address that nginx sees.
func startNginxAt(t *testing.T, h *netlab.Host, port uint16) (root string) {
	t.Helper()
	root = filepath.Join(h.Dir(), "www")
	for _, dir := range []string{root, filepath.Join(root, "upload"), filepath.Join(h.Dir(), "tmp")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "name"), []byte(h.Name), 0o644); err != nil {
		t.Fatal(err)
	}
	conf := write(t, h, "nginx.conf", strings.NewReplacer("DIR", h.Dir(), "PORT", fmt.Sprint(port)).Replace(`
daemon off; master_process off; user root; pid DIR/nginx.pid; error_log DIR/nginx.log;
events { worker_connections 4096; }
http {
	access_log off; client_max_body_size 0; client_body_temp_path DIR/tmp; proxy_temp_path DIR/tmp;
	fastcgi_temp_path DIR/tmp; uwsgi_temp_path DIR/tmp; scgi_temp_path DIR/tmp;
	server { listen PORT; listen [::]:PORT; root DIR/www;
		location /upload/ { dav_methods PUT; } location = /client { return 200 $remote_addr; } }
}
`))
	startServer(t, h, netip.AddrPortFrom(netip.IPv4Unspecified(), port), "nginx", "-e", filepath.Join(h.Dir(), "nginx.log"), "-c", conf)
	return root
}

// startServer starts a server on the host and waits until it listens.
func startServer(t *testing.T, h *netlab.Host, at netip.AddrPort, name string, args ...string) {
	t.Helper()
	startListening(t, h, "-Hltn", at.String(), name, args...)
}

// startDatagramServer is startServer for a server of datagrams at a port of all addresses.
func startDatagramServer(t *testing.T, h *netlab.Host, port uint16, name string, args ...string) {
	t.Helper()
	startListening(t, h, "-Hlun", fmt.Sprintf("[::]:%d", port), name, args...)
}

// startListening waits until ss shows the server's socket.
func startListening(t *testing.T, h *netlab.Host, sockets, at, name string, args ...string) {
	t.Helper()
	cmd := h.Command(context.Background(), name, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s on %s: %v", name, h.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the server is killed
		close(ended)
	}()
	// Otherwise a later test might take this server for the next one at its address.
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the server may have ended by itself
		<-ended
	})
	waitFor(t, fmt.Sprintf("%s on %s to listen at %s", name, h.Name, at), func() bool {
		select {
		case <-ended:
			t.Fatalf("%s on %s ended: %s", name, h.Name, &output)
		default:
		}
		// Not tried by connecting: some servers serve only one client.
		return strings.Contains(on(t, h, "ss", sockets), " "+at+" ")
	})
}

// serveTCP serves each connection that comes to a host's address, and closes it after that.
func serveTCP(t *testing.T, h *netlab.Host, at string, serve func(net.Conn)) net.Listener {
	t.Helper()
	listener, err := h.Listen("tcp", at)
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go accept(listener, serve)
	return listener
}

// accept serves the connections of a listener until that is closed.
func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// answerLines answers each line of a connection, until there is no answer.
func answerLines(conn net.Conn, answer func(line string) string) {
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		text := answer(lines.Text())
		if text == "" {
			return
		}
		if _, err := fmt.Fprintln(conn, text); err != nil {
			return
		}
	}
}

// serveUDP answers each datagram that comes to a host's address, from that address. An answer may be
// lost: then the client asks again.
func serveUDP(t *testing.T, h *netlab.Host, at netip.AddrPort, answer func(datagram []byte) []byte) {
	t.Helper()
	conn, err := h.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatalf("listen on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	largeBuffer(t, conn)
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, peer, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(answer(buffer[:n]), peer)
		}
	}()
}

var waitFor = netlab.WaitFor

// on runs a command on a host and returns what it prints; the test ends if it
// fails.
func on(t *testing.T, h *netlab.Host, name string, args ...string) string {
	t.Helper()
	out, err := tryOn(t, h, name, args...)
	if err != nil {
		t.Fatalf("%s: %s %s: %v\n%s", h.Name, name, strings.Join(args, " "), err, out)
	}
	return out
}

// tryOn is on for commands that may fail.
func tryOn(t *testing.T, h *netlab.Host, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out, err := h.Command(ctx, name, args...).CombinedOutput()
	return string(out), err
}
