package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/record"
)

// The share of a CPU that checks take, and their number.
var (
	checkShare = record.Quantity{Name: "cpu", Unit: "%", Better: record.Lower}
	ownShare   = record.Quantity{Name: "cpu-process", Unit: "%", Better: record.Lower}
	napiShare  = record.Quantity{Name: "cpu-napi", Unit: "%", Better: record.Lower}
	checkRate  = record.Quantity{Name: "probes", Unit: "1/s", Better: record.Neither}
)

// How many backends are checked, and how often.
const (
	checkedBackends = 1000
	checkEvery      = time.Second
)

// checked is a kind of check, and the address that it asks.
type checked struct {
	kind model.CheckKind
	to   model.CheckTo
}

func (c checked) at() record.Conditions { return record.Conditions{"to": string(c.to)} }

// healthChecks are the checks that are measured. None comes first: it shows what the process takes
// anyway.
var healthChecks = []checked{{model.CheckNone, model.CheckAddress}, {model.CheckTCP, model.CheckAddress},
	{model.CheckSYN, model.CheckAddress}, {model.CheckICMP, model.CheckAddress}, {model.CheckHTTP, model.CheckAddress},
	{model.CheckTCP, model.CheckVIP}, {model.CheckHTTP, model.CheckVIP}}

var healthNotes = []string{
	"a real weir run with one service of 1,000 backends in gue that are checked once a second; all addresses are one host's, whose nginx answers",
	"to: the backends' own addresses, or the VIP by the way of clients' packets (through the tunnel, which a weir agent on that host unwraps)",
	"cpu: run time of all threads of the director's process, and of the kernel thread of its interface (threaded NAPI, which gets the answers), as a share of one CPU; the other end's NAPI is a thread, too, so that its part is not in it",
	"a sample is as long as an interval at least, so that every backend is checked in it, and nobody asks the director for anything in it",
	"none: without checks; not taken off from the others. Two cores for everything: a number is better on a host that has some to spare",
}

func measureHealth(ctx context.Context, s *session) error {
	n := checkedBackends
	if s.settings.Smoke {
		n = 20
	}
	h, err := inLab(ctx, s, func(ctx context.Context, lab *netlab.Lab) (*healthLab, error) { return newHealthLab(ctx, lab, n) })
	if err != nil {
		return err
	}
	var steps []func(context.Context) error
	for _, c := range healthChecks {
		steps = append(steps, func(ctx context.Context) error { return h.measure(ctx, s, c) })
	}
	return s.inRounds(ctx, steps...)
}

// healthLab is a director beside a host that has all of its backends:
//
//	director 10.0.0.1 --- 10.0.0.2 backends, 10.1.0.0/16
type healthLab struct {
	director *process.Weir
	napi     *process.NAPI // that of the director's interface
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
	h := &healthLab{config: manyBackends(n)}
	var addresses []string
	for _, b := range h.config.Services[0].Backends {
		addresses = append(addresses, b.Address.String()+"/32")
	}
	backends.Address("lo", addresses...)
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if _, err := process.Nginx(ctx, backends, "nginx", netip.AddrPortFrom(netip.Addr{}, checkedPort), `master_process off;
events { worker_connections 4096; }
http { access_log off; server { listen 80 backlog=4096; return 200 "ok"; } }`); err != nil {
		return nil, err
	}
	source := netip.MustParseAddr("10.0.0.1")
	h.config.Directors = []netip.Prefix{netip.PrefixFrom(source, source.BitLen())}
	h.config.Director.TunnelSource = h.config.Directors
	h.config.Agent.Interfaces = []string{link.B.Name}
	if _, err := process.RunAgents(ctx, h.config, "auto", map[*netlab.Host][]netip.Addr{backends: {checkedVIP}}); err != nil {
		return nil, err
	}
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

const checkedPort = 80

var checkedVIP = netip.MustParseAddr("192.0.2.1")

// manyBackends is a service with that many backends.
func manyBackends(n int) model.Config {
	s := process.Service("web", checkedVIP, checkedPort, model.GUE)
	for i := range n {
		b := model.NewBackend()
		b.Name, b.Address = strconv.Itoa(i), netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)})
		s.Backends = append(s.Backends, b)
	}
	return model.Config{Services: []model.Service{s}}
}

// measure measures a director that makes such checks.
func (h *healthLab) measure(ctx context.Context, s *session, c checked) error {
	h.config.Services[0].Health = &model.HealthCheck{Kind: c.kind, To: c.to, Interval: model.Duration(checkEvery), Timeout: model.Duration(5 * time.Second)}
	if err := h.director.Write(h.config); err != nil {
		return err
	}
	client := api.NewClient(h.director.Socket)
	if err := h.director.Await(ctx, "check by "+string(c.kind), func() error { return allUp(ctx, client, c) }); err != nil {
		return err
	}
	// Asking for the counts takes the director time, too: the CPU time is read in between.
	probes, err := succeeded(ctx, client)
	if err != nil {
		return err
	}
	ownBefore, napiBefore, err := h.used()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := process.Sleep(ctx, max(s.sample(), checkEvery)); err != nil { // all backends are checked at least once
		return err
	}
	ownAfter, napiAfter, err := h.used()
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	all, err := succeeded(ctx, client)
	if err != nil {
		return err
	}
	own, napi := (ownAfter - ownBefore).Seconds(), (napiAfter - napiBefore).Seconds()
	s.add(string(c.kind), c.at(), checkShare, 100*(own+napi)/took)
	s.add(string(c.kind), c.at(), ownShare, 100*own/took)
	s.add(string(c.kind), c.at(), napiShare, 100*napi/took)
	s.add(string(c.kind), c.at(), checkRate, (all-probes)/took)
	return nil
}

// allUp says what is not yet as it should be with a kind of check.
func allUp(ctx context.Context, client *api.Client, c checked) error {
	backends, err := client.Backends(ctx)
	if err != nil {
		return err
	}
	for _, b := range backends {
		switch {
		case c.kind == model.CheckNone && b.Health == nil:
		case c.kind == model.CheckNone:
			return fmt.Errorf("backend %s is checked", b.Name)
		case b.Health == nil || b.Health.Kind != c.kind || (b.Health.To.Addr() == checkedVIP) != (c.to == model.CheckVIP) || b.Health.Probed.IsZero() || b.Health.State != model.HealthUp || b.Health.Reason != "":
			return fmt.Errorf("backend %s: %+v", b.Name, b.Health)
		}
	}
	return nil
}

// succeeded returns how many probes have found a backend up.
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

// used is the CPU time of the process and of the interface's thread.
func (h *healthLab) used() (own, napi time.Duration, err error) {
	own, errOwn := h.director.CPUTime()
	napi, errNAPI := h.napi.CPUTime()
	return own, napi, errors.Join(errOwn, errNAPI)
}
