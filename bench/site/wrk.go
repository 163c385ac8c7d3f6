package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weir.io/weir/lab/process"
)

// ErrRequestsFailed says that not every request got its answer.
var ErrRequestsFailed = errors.New("requests failed")

// Load is the client's load on a way.
type Load struct {
	Servers     int
	Connections int  // at a time
	PerRequest  bool // a connection for each request
	Duration    time.Duration
}

// Result is the outcome of a load.
type Result struct {
	Requests  int
	Elapsed   time.Duration
	Latency50 time.Duration
	Latency99 time.Duration
	// CPU is how long the balancer's processes ran, zero for those in the kernel.
	CPU time.Duration
}

// report makes wrk print its results as JSON. Its times are microseconds.
const report = `function done(summary, latency, requests)
	local e = summary.errors
	io.write(string.format('\nJSON{"requests":%d,"elapsed":%d,"p50":%f,"p99":%f,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\n',
		summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
		e.connect, e.read, e.write, e.status, e.timeout))
end
`

// Measure puts a load on a way. The error may be ErrRequestsFailed.
func (s *Site) Measure(ctx context.Context, w *Way, load Load) (Result, error) {
	script, err := process.Configure(s.Client, "report.lua", report)
	if err != nil {
		return Result{}, err
	}
	args := []string{"--threads", "2", "--connections", strconv.Itoa(load.Connections), "--duration", "60s", "--script", script}
	if load.PerRequest {
		args = append(args, "--header", "Connection: close")
	}
	before, err := s.processTime(w)
	if err != nil {
		return Result{}, err
	}
	out, err := s.wrk(ctx, load.Duration, append(args, w.URL(load.Servers)))
	if err != nil {
		return Result{}, err
	}
	result, err := parseReport(out)
	if err != nil {
		return Result{}, err
	}
	after, err := s.processTime(w)
	result.CPU = after - before
	return result, err
}

func (s *Site) processTime(w *Way) (time.Duration, error) {
	if !w.Process {
		return 0, nil
	}
	return process.CPUTime(s.balancers[w.balancer])
}

// wrk runs wrk for a time. It takes only whole seconds, but an interrupt ends it cleanly.
func (s *Site) wrk(ctx context.Context, duration time.Duration, args []string) ([]byte, error) {
	var out bytes.Buffer
	cmd := s.Client.Command(ctx, "wrk", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start wrk: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for len(ended) == 0 && !catchesInterrupts(cmd.Process.Pid) {
		time.Sleep(time.Millisecond) // between two looks
	}
	timer := time.AfterFunc(duration, func() { _ = cmd.Process.Signal(os.Interrupt) })
	defer timer.Stop()
	if err := <-ended; err != nil {
		return nil, fmt.Errorf("wrk: %w: %s", err, &out)
	}
	return out.Bytes(), nil
}

// catchesInterrupts is whether a process handles SIGINT, as wrk does as soon as it sends: before
// that an interrupt would just kill it.
func catchesInterrupts(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false // it has ended, which the caller notices
	}
	_, caught, _ := strings.Cut(string(status), "SigCgt:")
	caught, _, _ = strings.Cut(strings.TrimSpace(caught), "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(caught), 16, 64)
	return err == nil && mask&(1<<(syscall.SIGINT-1)) != 0
}

func parseReport(out []byte) (Result, error) {
	var r struct {
		Requests, Elapsed                     int
		P50, P99                              float64
		Connect, Read, Write, Status, Timeout int
	}
	_, text, found := bytes.Cut(out, []byte("JSON"))
	if !found {
		return Result{}, fmt.Errorf("wrk printed no result: %s", out)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Result{}, fmt.Errorf("read wrk's result: %w", err)
	}
	if failed := r.Connect + r.Read + r.Write + r.Status + r.Timeout; failed > 0 || r.Requests == 0 {
		return Result{}, fmt.Errorf("%w: %d answered, %d connections refused, %d read, %d write errors, %d statuses, %d timeouts",
			ErrRequestsFailed, r.Requests, r.Connect, r.Read, r.Write, r.Status, r.Timeout)
	}
	micro := float64(time.Microsecond)
	return Result{Requests: r.Requests, Elapsed: time.Duration(r.Elapsed) * time.Microsecond,
		Latency50: time.Duration(r.P50 * micro), Latency99: time.Duration(r.P99 * micro)}, nil
}
