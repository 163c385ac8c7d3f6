package test

import (
	"strings"
	"syscall"
	"testing"
)

// The process is not the datapath: a director that ends, is killed, and starts again under load
// loses no packet, and packets are forwarded while there is no process.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestRestartLosesNothing(t *testing.T) {
	t.Parallel()
	for _, w := range []way{{mode: "l2dsr"}, {mode: "ipip"}, {mode: "gue", inner6: true, outer6: true},
		{mode: "nat"}, {mode: "nat", snat: true}} {
		t.Run(w.String(), func(t *testing.T) {
			l := newLab(t, size{backends: 2})
			director := l.start(w.service("tcp", "7", everyBackend(2)), w.service("udp", "7", everyBackend(2)))
			for i, b := range l.backends {
				echo(t, b, w.at(i+1, 7))
				echoStream(t, b, w.at(i+1, 7))
			}
			load := startLoad(t, l, w)
			for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
				director.end(signal)
				load.more(200)
				director.start()
				director.ready()
				load.more(200)
			}
			load.wantUndisturbed()
		})
	}
}

// "weir detach" removes everything: programs, pins and so the forwarding. It finds only what
// SIGTERM has left.
//
//	client --- router --- switch --- director
//	                             --- backend
func TestDetachRemovesEverything(t *testing.T) {
	t.Parallel()
	w := way{mode: "ipip"}
	l := newLab(t, size{backends: 1})
	director := l.start(w.service("tcp", "80", everyBackend(1)))
	startNginx(t, l.backends[0])
	director.end(syscall.SIGTERM)
	if got := curl(t, l.client, w.url("name")); got != "backend1" {
		t.Errorf("with the process gone the answer is %q, want that of backend1", got)
	}
	if out := on(t, l.director, "ip", "link", "show", "eth0"); !strings.Contains(out, "xdp") {
		t.Fatalf("a director that ended has left no program:\n%s", out)
	}
	on(t, l.director, weir, "detach", "--bpffs", director.bpffs)
	if out := on(t, l.director, "ip", "link", "show", "eth0"); strings.Contains(out, "xdp") {
		t.Errorf("there is still a program:\n%s", out)
	}
	// The kernel's own two are in every BPF file system.
	if out := on(t, l.director, "find", director.bpffs, "-mindepth", "1", "!", "-name", "*.debug"); out != "" {
		t.Errorf("there are still pins:\n%s", out)
	}
	if out, err := tryOn(t, l.client, "curl", "--silent", "--max-time", "1", w.url("name")); err == nil {
		t.Errorf("a detached director still forwards: %s", out)
	}
	director.start()
	director.ready()
	if got := curl(t, l.client, w.url("name")); got != "backend1" {
		t.Errorf("started again, the director brings %q, want backend1", got)
	}
}
