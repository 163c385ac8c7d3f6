package test

import (
	"bytes"
	"context"
	"fmt"
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

// waitFor polls a condition, because most things become true in milliseconds and none in a known
// time. The limit claims nothing about how long it may take: a busy machine is slow.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

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
