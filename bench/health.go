package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/bench/process"
	"weir.io/weir/bench/record"
	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/netlab"
)

// What checks take of a CPU, and how many there were.
var (
	checkShare = record.Quantity{Name: "cpu", Unit: "%", Better: record.Lower}
	ownShare   = record.Quantity{Name: "cpu-process", Unit: "%", Better: record.Lower}
	napiShare  = record.Quantity{Name: "cpu-napi", Unit: "%", Better: record.Lower}
	checkRate  = record.Quantity{Name: "probes", Unit: "1/s", Better: record.Neither}
)

// checkedBackends are checked so often.
const (
	checkedBackends = 1000
	checkEvery      = time.Second
)

// healthKinds are the kinds that are measured, none first: what the process takes anyway.
var healthKinds = []model.CheckKind{model.CheckNone, model.CheckTCP, model.CheckSYN, model.CheckICMP, model.CheckHTTP}

var healthNotes = []string{
	"a real weir run with one service of 1,000 backends that are checked once a second; all addresses are one host's, whose nginx answers",
	"cpu: run time of all threads of the director's process, and of the kernel thread of its interface (threaded NAPI, which gets the answers), as a share of one CPU; the other end's NAPI is a thread, too, so that its part is not in it",
	"a sample is as long as an interval at least, so that every backend is checked in it, and nobody asks the director for anything in it",
	"none: without checks; not taken off from the others. Two cores for everything: a number is better on a host that has some to spare",
}

func measureHealth(ctx context.Context, s *session) error {
	s.into.Notes = healthNotes
	n := checkedBackends
	if s.settings.Smoke {
		n = 20
	}
	lab, err := netlab.New()
	if err != nil {
		return err
	}
	defer lab.Close()
	h, err := newHealthLab(ctx, lab, n)
	if err != nil {
		return fmt.Errorf("build the lab: %w", err)
	}
	var steps []func(context.Context) error
	for _, kind := range healthKinds {
		steps = append(steps, func(ctx context.Context) error { return h.measure(ctx, s, kind) })
	}
	return s.inRounds(ctx, steps...)
}

// healthLab is a director beside a host that is all of its backends:
//
//	director 10.0.0.1 --- 10.0.0.2 backends, 10.1.0.0/16
type healthLab struct {
	director *process.Weir
	napi     *process.NAPI // the director's
	config   model.Config
}

func newHealthLab(ctx context.Context, lab *netlab.Lab, n int) (*healthLab, error) {
	director, backends := lab.Host("director"), lab.Host("backends")
	// The names are those of the threads.
	link := lab.Link(director, backends, netlab.LinkOptions{XDP: true, NameA: "hcheckd", NameB: "hcheckb",
		A: []string{"10.0.0.1/24"}, B: []string{"10.0.0.2/24"}})
	director.Route("10.1.0.0/16", "10.0.0.2")
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if out, err := backends.Command(ctx, "ip", "route", "add", "local", "10.1.0.0/16", "dev", "lo").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("let %s have the backends' addresses: %w: %s", backends.Name, err, out)
	}
	conf := filepath.Join(backends.Dir(), "nginx.conf")
	text := strings.ReplaceAll(`
daemon off; master_process off; user root; pid DIR/nginx.pid; error_log DIR/nginx.err;
events { worker_connections 4096; }
http { access_log off; server { listen 80 backlog=4096; return 200 "ok"; } }
`, "DIR", backends.Dir())
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("configure nginx: %w", err)
	}
	if _, err := process.Start(backends, "nginx", "nginx", "-e", "stderr", "-c", conf); err != nil {
		return nil, err
	}
	h := &healthLab{config: manyBackends(n)}
	h.config.Director.Interfaces = []string{link.A.Name}
	var err error
	if h.director, err = process.StartDirector(director, h.config); err != nil {
		return nil, err
	}
	if _, err := process.ThreadNAPI(link.B, 1); err != nil {
		return nil, err
	}
	h.napi, err = process.ThreadNAPI(link.A, 0)
	return h, errors.Join(err, h.director.Forwards(ctx))
}

// manyBackends is a service with so many of them.
func manyBackends(n int) model.Config {
	s := model.Service{Name: "web", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 80}, Mode: model.GUE}
	for i := range n {
		b := model.NewBackend()
		b.Name, b.Address = strconv.Itoa(i), netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)})
		s.Backends = append(s.Backends, b)
	}
	return model.Config{Services: []model.Service{s}}
}

// measure has the director make checks of a kind.
func (h *healthLab) measure(ctx context.Context, s *session, kind model.CheckKind) error {
	// To their own addresses: one host that has them all unwraps no tunnels to them.
	h.config.Services[0].Health = &model.HealthCheck{Kind: kind, To: model.CheckAddress, Interval: model.Duration(checkEvery), Timeout: model.Duration(5 * time.Second)}
	if err := h.director.Write(h.config); err != nil {
		return err
	}
	client := api.NewClient(h.director.Socket)
	if err := h.director.Await(ctx, "check by "+string(kind), func() error { return allUp(ctx, client, kind) }); err != nil {
		return err
	}
	// Asking for the counts takes the director a while, too: the time is read between.
	probes, err := succeeded(ctx, client)
	if err != nil {
		return err
	}
	before, err := h.used()
	if err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-time.After(max(s.sample(), checkEvery)): // all backends are checked once at least
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := h.used()
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	all, err := succeeded(ctx, client)
	if err != nil {
		return err
	}
	own, napi := (after.own - before.own).Seconds(), (after.napi - before.napi).Seconds()
	s.add(string(kind), record.Conditions{}, checkShare, 100*(own+napi)/took)
	s.add(string(kind), record.Conditions{}, ownShare, 100*own/took)
	s.add(string(kind), record.Conditions{}, napiShare, 100*napi/took)
	s.add(string(kind), record.Conditions{}, checkRate, (all-probes)/took)
	return nil
}

// allUp says what is not yet as it is with a kind of check.
func allUp(ctx context.Context, client *api.Client, kind model.CheckKind) error {
	backends, err := client.Backends(ctx)
	if err != nil {
		return err
	}
	for _, b := range backends {
		switch {
		case kind == model.CheckNone && b.Health == nil:
		case kind == model.CheckNone:
			return fmt.Errorf("backend %s is checked", b.Name)
		case b.Health == nil || b.Health.Kind != kind || b.Health.Probed.IsZero() || b.Health.State != model.HealthUp || b.Health.Reason != "":
			return fmt.Errorf("backend %s: %+v", b.Name, b.Health)
		}
	}
	return nil
}

// succeeded returns how many probes have found a backend well.
func succeeded(ctx context.Context, client *api.Client) (float64, error) {
	status, err := client.Status(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range status.Probes {
		if p.Name == "ok" {
			return float64(p.Count), nil
		}
	}
	return 0, nil
}

// healthUse is the CPU time of the process, and of the interface's thread.
type healthUse struct{ own, napi time.Duration }

func (h *healthLab) used() (u healthUse, err error) {
	if u.own, err = h.director.CPUTime(); err != nil {
		return u, err
	}
	u.napi, err = h.napi.CPUTime()
	return u, err
}
