package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// metrics scrapes the director, or the agent.
func (h *host) metrics() string {
	h.t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", h.socket)
		},
	}}
	response, err := client.Get("http://weir/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		h.t.Fatalf("GET /metrics: %s, %v\n%s", response.Status, err, body)
	}
	return string(body)
}

func TestDirectorSaysHowBusyItIs(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start(`msg="director runs"`)
	p.wait("answer", func() bool {
		conn, err := net.Dial("unix", h.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	metrics := h.metrics()
	for _, want := range []string{`weir_datapath_utilization{cpu="0"} `, `weir_packets_total{reason="pass_no_service"} `, `weir_bytes_total{reason="`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q:\n%s", want, metrics)
		}
	}
	cpus := h.status().CPUs
	if len(cpus) == 0 {
		t.Error("status has no CPUs")
	}
	for _, c := range cpus {
		if c.Utilization < 0 || c.Utilization > c.Busy || c.Busy > 1 {
			t.Errorf("CPU %+v", c)
		}
	}
	p.stop()
}

// On a kernel that does not let CPUs be watched, the metric is missing and there is one warning.
// Here the kernel does not tell the layout of its structures.
func TestDirectorForwardsWithoutUtilization(t *testing.T) {
	h := newHost(t)
	h.configure(onEth0, "web")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, stderr: &lines{}, ended: make(chan error, 1)}
	p.cmd = h.Command(context.Background(), "unshare", "--mount", "sh", "-c", `mount -t tmpfs none /sys/kernel/btf && exec "$@"`, "sh",
		self, "run", "-c", h.file, "--socket", h.socket, "--bpffs", h.bpffs)
	p.cmd.Env = append(p.cmd.Env, asWeir+"=1")
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })

	p.waitLog(`msg="director runs"`)
	p.waitLog(`msg="no utilization in status and metrics, forwarding is not affected"`)
	if metrics := h.metrics(); strings.Contains(metrics, "utilization") || !strings.Contains(metrics, "weir_packets_total") {
		t.Errorf("/metrics without utilization:\n%s", metrics)
	}
	if cpus := h.status().CPUs; len(cpus) != 0 {
		t.Errorf("status has CPUs: %+v", cpus)
	}
	if h.program() == 0 {
		t.Error("no program is attached")
	}
	p.stop()
	if n := strings.Count(p.stderr.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, p.stderr)
	}
}
