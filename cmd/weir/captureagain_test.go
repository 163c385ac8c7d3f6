package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Several clients begin captures again and again, and leave each capture as soon as it runs. One
// capture runs at a time, and the director says whose. When the clients have gone, it has its own
// program, and nothing is left of the captures: no pin, no file.
func TestCapturesAgainAndAgain(t *testing.T) {
	const captures, clients = 3, 2
	from := time.Now()
	h := newHost(t)
	h.configure(onEth0, "web")
	p := h.start("director runs")
	defer p.stop()
	plain := h.program()
	errGone := errors.New("gone")
	p.wait("let somebody capture", func() bool {
		err := api.NewClient(h.socket).Capture(t.Context(), model.Capture{}, func(*model.CaptureMessage) error { return errGone })
		return errors.Is(err, errGone)
	})
	p.wait("have its program again", func() bool { return h.status().Capture.Running == nil && h.program() == plain })
	before := p.files() // with all that the director keeps after a capture

	var running, refused, slowed atomic.Int32
	var busy sync.WaitGroup
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	for range clients {
		busy.Go(func() {
			for ctx.Err() == nil {
				err := api.NewClient(h.socket).Capture(ctx, model.Capture{}, func(m *model.CaptureMessage) error {
					if n := running.Add(1); n != 1 {
						t.Errorf("%d captures run at the same time", n)
					}
					defer running.Add(-1)
					return errGone
				})
				var problem *api.Problem
				switch {
				case errors.As(err, &problem) && problem.Status == http.StatusTooManyRequests:
					slowed.Add(1)
					time.Sleep(10 * time.Millisecond) // this client ignores Retry-After
				case errors.As(err, &problem) && problem.Status == http.StatusConflict:
					refused.Add(1)
					time.Sleep(10 * time.Millisecond) // between two tries: the clients take turns, and not all CPUs
				case err != nil && !errors.Is(err, errGone) && ctx.Err() == nil:
					t.Errorf("a capture ends with %v", err)
					return
				}
			}
		})
	}
	for n := range uint64(captures) {
		p.wait(fmt.Sprintf("begin capture %d", n+1), func() bool {
			s := h.status()
			if r := s.Capture.Running; r != nil && (r.Client != "local" || r.Since.IsZero()) {
				t.Errorf("the status says of a capture that runs %+v", r)
			}
			return s.Capture.Begun > n+1 || t.Failed()
		})
	}
	p.wait("let its clients begin captures less often", func() bool { return slowed.Load() > 100 })
	asked, begun := refused.Load()+slowed.Load(), h.status().Capture.Begun
	if most := uint64(time.Since(from)/(2*time.Second)) + 6; begun > most {
		t.Errorf("after %v %d captures were begun, want %d at most", time.Since(from), begun, most)
	}
	t.Logf("%d captures were begun, %d tries refused", begun, asked)
	p.refusesCaptures(h)
	enough()
	busy.Wait()
	if refused.Load() == 0 {
		t.Errorf("nobody of %d clients was refused", clients)
	}
	p.wait("have its program again", func() bool { return h.status().Capture.Running == nil && h.program() == plain })
	p.wait(fmt.Sprintf("close what captures have open (%d files were)", before), func() bool { return p.files() < before+captures })
	if left, err := filepath.Glob(filepath.Join(h.bpffs, "weir", "programs-*", "capture")); err != nil || len(left) > 0 {
		t.Errorf("after the captures there is %v, error %v", left, err)
	}
}

// refusesCaptures asks for captures until one is refused for being too soon, and checks the answer.
func (p *process) refusesCaptures(h *host) {
	p.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.socket)
	}}}
	p.wait("refuse a capture that is begun too soon, and say when to ask again", func() bool {
		response, err := client.Post("http://weir/v1/capture", "application/json", strings.NewReader("{}"))
		if err != nil {
			p.t.Fatal(err)
		}
		defer response.Body.Close()
		after, err := strconv.Atoi(response.Header.Get("Retry-After"))
		return response.StatusCode == http.StatusTooManyRequests && err == nil && after >= 1 && after <= 2
	})
}

// files returns how many files the process has open.
func (p *process) files() int {
	p.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(list)
}
