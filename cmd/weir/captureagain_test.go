package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// Clients that may capture begin to again and again, at once, and go away from each capture as
// soon as it runs. There is one at a time, the director says whose, and when they have gone it
// has its own program, and nothing of theirs is left: no pin, no file.
func TestCapturesAgainAndAgain(t *testing.T) {
	const captures, clients = 3, 2
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
	before := p.files() // with all that it keeps after a capture

	var running, refused atomic.Int32
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
				case errors.As(err, &problem) && problem.Status == http.StatusConflict:
					refused.Add(1)
					time.Sleep(10 * time.Millisecond) // between two tries: they are to take turns, and not all CPUs
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

// files returns how many files the process has open.
func (p *process) files() int {
	p.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(list)
}
