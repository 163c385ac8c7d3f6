package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
)

// fakeCapture stands for what a director captures: a packet that it forwards, and one that
// it drops.
func fakeCapture(_ context.Context, wanted model.Capture) (api.CaptureRun, error) {
	if wanted.Service == "busy" {
		return nil, api.NewProblem(http.StatusConflict, "a capture runs already: there is one at a time")
	}
	frame := func(from, to string, port uint16) model.Hex {
		q := model.Question{Protocol: "tcp", Flags: []string{"syn"}, TTL: 64}
		var errs [3]error
		q.Source, errs[0] = explain.Endpoint(from)
		q.Destination, errs[1] = explain.Endpoint(to)
		built, err := explain.Build(&q, model.MAC{2, 0, 0, 0, 0, byte(port)})
		errs[2] = err
		if err := errors.Join(errs[:]...); err != nil {
			panic(err)
		}
		return built
	}
	began, slot := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 469
	in, dropped := frame("198.51.100.7:5555", "203.0.113.10:443", 1), frame("[2001:db8::7]:5556", "[2001:db8::10]:80", 1)
	messages := []model.CaptureMessage{
		{Began: &began, Interfaces: []string{"eth0"}},
		{Packet: &model.CapturedPacket{Number: 1, Time: began.Add(1500 * time.Microsecond), Interface: "eth0", Reason: "forward_l2dsr", Action: 4, Service: "web",
			Backend: "a", Address: "10.0.1.1", Slot: &slot, Slots: 1021, Leaves: "eth1", In: in, InLength: len(in), Out: frame("198.51.100.7:5555", "203.0.113.10:443", 2), OutLength: len(in)}},
		{Packet: &model.CapturedPacket{Number: 2, Time: began.Add(time.Second), Interface: "eth0", Reason: "drop_no_backend", Action: 1, Service: "dns", In: dropped[:60], InLength: len(dropped)}},
		{Counts: &model.CaptureCounts{Matched: 12, Limited: 7, Lost: 3}, Ended: "packets"},
	}
	return func(_ context.Context, send func([]model.CaptureMessage) error) error { return send(messages) }, nil
}

// A capture's file has each packet as it came and as it left, on the interfaces by which it
// did.
func TestCaptureFile(t *testing.T) {
	socket, _ := serveFakes(t)
	path := filepath.Join(t.TempDir(), "out.pcapng")
	var stderr bytes.Buffer
	if code := execute(t.Context(), []string{"capture", "--socket", socket, "-w", path}, io.Discard, &stderr); code != 0 {
		t.Fatalf("weir capture ends with %d:\n%s", code, &stderr)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != captureMode {
		t.Errorf("the file may be read by others: %v, %v", info, err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	options := pcapgo.NgReaderOptions{WantMixedLinkType: true}
	reader, err := pcapgo.NewNgReader(file, options)
	if err != nil {
		t.Fatal(err)
	}
	type packet struct {
		By, Is      string
		Length, Cut int
	}
	var got []packet
	for {
		frame, info, err := reader.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		by, err := reader.Interface(info.InterfaceIndex)
		if err != nil || by.LinkType != layers.LinkTypeEthernet {
			t.Fatal(by, err)
		}
		got = append(got, packet{by.Name, explain.Summary(frame, model.Segment{}), info.Length, info.Length - info.CaptureLength})
	}
	want := []packet{
		{"eth0", "tcp 198.51.100.7:5555 > 203.0.113.10:443 syn", 60, 0}, {"eth1", "tcp 198.51.100.7:5555 > 203.0.113.10:443 syn", 60, 0},
		{"eth0", "tcp 2001:db8::7 > 2001:db8::10", 74, 14},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the file differs (-want +got):\n%s", diff)
	}
}

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
