package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// The checks into which docs/operate/keepalived.md translates keepalived's take real servers out, and bring them
// back: of a mail server that ends, of a page that changes, and of a queue that a program finds full.
//
//	client --- switch --- director
//	                  --- two real servers
func TestKeepalivedChecks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/keepalived.md")
	if err != nil {
		t.Fatal(err)
	}
	_, checks, _ := strings.Cut(string(page), "\n## Checks\n")
	text := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(checks)
	if text == nil {
		t.Fatal("docs/operate/keepalived.md has no file of weir with checks")
	}
	l := netlab.ForTest(t)
	lan := l.Switch("switch")
	client, director := l.Host("client"), l.Host("director")
	servers := []*netlab.Host{l.Host("server1"), l.Host("server2")}
	for h, address := range map[*netlab.Host]string{client: "192.0.2.9/24", director: "192.0.2.2/24", servers[0]: "192.0.2.21/24", servers[1]: "192.0.2.22/24"} {
		l.Link(h, lan, netlab.LinkOptions{XDP: true, A: []string{address}})
	}
	var healthy atomic.Bool // the first server's page
	healthy.Store(true)
	for i, s := range servers {
		s.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		s.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		on(t, s, "ip", "address", "add", "192.0.2.10/32", "dev", "lo")
		for _, port := range []string{":80", ":5672"} {
			if err := s.Serve("tcp", port, func(conn net.Conn) { _, _ = io.WriteString(conn, s.Name) }); err != nil {
				t.Fatal(err)
			}
		}
		serveHTTP(t, s, ":8080", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/status":
				w.WriteHeader(http.StatusNoContent)
			case i == 0 && !healthy.Load():
				_, _ = io.WriteString(w, "all is lost\n")
			default:
				_, _ = io.WriteString(w, "all is well\n")
			}
		})
	}
	endMail := startMail(t, servers[0])
	defer startMail(t, servers[1])()
	full := filepath.Join(director.Dir(), "192.0.2.21.full")
	script := write(t, director, "check-queue", "#!/bin/sh\n[ ! -e "+director.Dir()+"/$WEIR_ADDRESS.full ] && exit\n"+
		"echo $WEIR_SERVICE $WEIR_ADDRESS:$WEIR_PORT is full, says $(id -u) with $(grep NoNewPrivs /proc/self/status), $(grep CapPrm /proc/self/status)\nexit 2\n")
	letIn(t, script)
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	file := strings.Replace(text[1], "/usr/local/bin/check-queue", script, 1)
	d := startDaemon(t, director, "run", file)
	defer d.end(syscall.SIGTERM)
	waitFor(t, "both real servers to be healthy for all services", func() bool { return d.checked(6) })

	// found waits until the first server is as wanted for one service alone, and clients get there or not.
	found := func(service string, want model.HealthState, reason, detail string) {
		t.Helper()
		waitFor(t, "server1 to be "+string(want)+" for "+service, func() bool {
			services, err := d.services()
			if err != nil {
				return false
			}
			for _, s := range services {
				h := s.Backends[0].Health
				if s.Name != service {
					if h.State != model.HealthUp {
						t.Fatalf("server1 is %s for %s, too: %s", h.State, s.Name, h.Detail)
					}
					continue
				}
				if h.State != want || want == model.HealthDown && (h.Reason != reason || !strings.Contains(h.Detail, detail)) {
					return false
				}
			}
			return true
		})
	}
	asked := func(port string) bool { // whether the first server is
		for range 30 {
			if conn, err := client.DialContext(t.Context(), "tcp", "192.0.2.10:"+port); err == nil {
				name, _ := io.ReadAll(conn)
				conn.Close()
				if string(name) == "server1" {
					return true
				}
			}
		}
		return false
	}
	waitFor(t, "server1 to be asked", func() bool { return asked("5672") && asked("80") })

	if err := os.WriteFile(full, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	found("queue", model.HealthDown, "exit", "exit status 2: queue 192.0.2.21:5672 is full, says 65534 with NoNewPrivs: 1, CapPrm: 0000000000000000")
	waitFor(t, "server1 not to be asked any more", func() bool { return !asked("5672") })
	if out := on(t, director, weir, "backends", "-o", "wide", "--socket", d.socket); !strings.Contains(out, "exit: exit status 2: queue 192.0.2.21:5672 is full") {
		t.Errorf("weir backends says\n%s", out)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	found("queue", model.HealthUp, "", "")
	waitFor(t, "server1 to be asked again", func() bool { return asked("5672") })

	healthy.Store(false)
	found("web", model.HealthDown, "body", "the answer to GET / (200 OK) has the digest md5:")
	waitFor(t, "server1 not to be asked any more", func() bool { return !asked("80") })
	if out := on(t, director, weir, "explain", "--socket", d.socket, "192.0.2.9:5555", "192.0.2.10:80/tcp", "--flags", "syn"); !strings.Contains(out, " (body: the answer to GET / (200 OK) has the digest md5:") {
		t.Errorf("weir explain says\n%s", out)
	}
	healthy.Store(true)
	found("web", model.HealthUp, "", "")
	waitFor(t, "server1 to be asked again", func() bool { return asked("80") })

	endMail()
	found("mail", model.HealthDown, "refused", "")
	defer startMail(t, servers[0])()
	found("mail", model.HealthUp, "", "")

	// A program that cannot be run is a problem, and no finding.
	if err := os.Chmod(script, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the problem that the program cannot be run", func() bool {
		return d.hasProblem(model.ProblemHealth, "this host cannot run "+script+": permission denied")
	})
	found("queue", model.HealthUp, "", "")
	set := write(t, director, "set.yaml", "services:\n- name: other\n  vip: 192.0.2.11\n  protocol: tcp\n  port: 80\n  mode: l2dsr\n"+
		"  health: {kind: exec, exec: [/bin/sh, -c, id]}\n  backends: [{address: 192.0.2.21}]\n")
	out, err := tryOn(t, director, weir, "apply", "--socket", d.socket, "--owner", "x", "-f", set)
	if err == nil || !strings.Contains(out, "health.exec[0]") || !strings.Contains(out, `director.exec-checks.sets: "/bin/sh" is not there`) {
		t.Errorf("a set with a program is answered with %v, %s", err, out)
	}
}

// serveHTTP answers requests at a port of a host until the test ends.
func serveHTTP(t *testing.T, h *netlab.Host, address string, f http.HandlerFunc) {
	t.Helper()
	listener, err := h.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(listener) }()
}

// startMail starts a mail server at port 25, and returns what ends it.
func startMail(t *testing.T, h *netlab.Host) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := h.Command(ctx, "/usr/bin/python3", "-m", "aiosmtpd", "-n", "-l", netip.AddrPortFrom(netip.IPv4Unspecified(), 25).String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		cancel()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	waitFor(t, "the mail server of "+h.Name, func() bool { return strings.Contains(on(t, h, "ss", "-Hltn"), " 0.0.0.0:25 ") })
	return end
}
