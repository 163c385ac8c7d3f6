package bulk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir.io/weir/lab/process"
)

// port is iperf3's, for its control connection and its data.
const port = 5201

// window bounds the bytes that iperf3 does not count: it stops reading when the client says that it
// has sent everything, but the bytes in buffers then have already taken time.
const window = "1M"

// Result is what one transfer cost the backend.
type Result struct {
	Bytes   int           // received
	Segment int           // largest payload of a TCP segment without options
	Elapsed time.Duration // of the transfer
	NAPI    time.Duration // run time of the uplink's kernel thread: from the driver to the socket
	Server  time.Duration // run time of the receiving process: from the socket to user space
}

// CPU is the backend's time.
func (r Result) CPU() time.Duration { return r.NAPI + r.Server }

// Measure sends that many bytes by TCP from the client to the subject's backend.
func (b *Bulk) Measure(ctx context.Context, s Subject, bytes int) (Result, error) {
	backend := b.backends[s.Attach]
	at := s.address().String()
	server, err := process.Start(backend.host, "iperf3", "taskset", "--cpu-list", strconv.Itoa(backendCPU),
		"iperf3", "--server", "--bind", at)
	if err != nil {
		return Result{}, err
	}
	err = server.Await(ctx, "listen", func() error {
		out, err := process.Run(ctx, backend.host, "ss", "-Hltn", "sport", "=", ":"+strconv.Itoa(port))
		if err == nil && out == "" {
			return errors.New("nobody listens")
		}
		return err
	})
	if err != nil {
		return Result{}, err
	}
	result, err := b.transfer(ctx, backend, server, at, bytes)
	return result, errors.Join(err, server.Stop())
}

func (b *Bulk) transfer(ctx context.Context, backend *backend, server *process.Process, to string, bytes int) (r Result, err error) {
	napi, err := backend.napi.CPUTime()
	if err != nil {
		return r, err
	}
	ran, err := server.CPUTime()
	if err != nil {
		return r, err
	}
	out, err := process.Run(ctx, b.client, "taskset", "--cpu-list", strconv.Itoa(sendingCPU),
		"iperf3", "--client", to, "--bytes", strconv.Itoa(bytes), "--window", window, "--json")
	if err != nil {
		return r, err
	}
	if r, err = parse(out); err != nil {
		return r, err
	}
	if r.NAPI, err = backend.napi.CPUTime(); err != nil {
		return r, err
	}
	if r.Server, err = server.CPUTime(); err != nil {
		return r, err
	}
	r.NAPI -= napi
	r.Server -= ran
	return r, nil
}

func parse(out string) (Result, error) {
	var report struct {
		Error string
		Start struct {
			MSS int `json:"tcp_mss_default"`
		}
		End struct {
			Received struct {
				Bytes   int
				Seconds float64
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return Result{}, fmt.Errorf("read iperf3's result: %w", err)
	}
	if report.Error != "" || report.End.Received.Bytes == 0 {
		return Result{}, fmt.Errorf("iperf3 received %d bytes: %s", report.End.Received.Bytes, report.Error)
	}
	return Result{Bytes: report.End.Received.Bytes, Segment: report.Start.MSS,
		Elapsed: time.Duration(report.End.Received.Seconds * float64(time.Second))}, nil
}
