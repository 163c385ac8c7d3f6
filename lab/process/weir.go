package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Binary returns the path of the weir that is measured: the one that "make build" makes, in the
// directory where the benchmarks run.
func Binary() (string, error) {
	path, err := filepath.Abs("bin/weir")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find weir (make build): %w", err)
	}
	return path, nil
}

// Weir is a director or an agent that runs on a host.
type Weir struct {
	*Process
	Pin    string // its directory on a BPF file system
	Socket string
	file   string
	older  bool // may not know every key
}

// StartDirector runs "weir run" on a host, with flags besides those that every lab needs.
func StartDirector(host *netlab.Host, c model.Config, flags ...string) (*Weir, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	return startWeir(host, &Weir{}, binary, "run", c, flags...)
}

// RunDirector runs "weir run" on a host, on its eth0 where the configuration names no interface, and
// returns when it knows the way to every backend.
func RunDirector(ctx context.Context, host *netlab.Host, c model.Config) (*Weir, error) {
	if c.Director.Interfaces == nil {
		c.Director.Interfaces = []string{"eth0"}
	}
	director, err := StartDirector(host, c)
	if err != nil {
		return nil, err
	}
	return director, director.Forwards(ctx)
}

// StartDirectorAs runs another binary of weir that knows the same configuration.
func StartDirectorAs(host *netlab.Host, binary string, c model.Config) (*Weir, error) {
	return startWeir(host, &Weir{}, binary, "run", c)
}

// StartOlderDirector runs another version of weir. Its file has only what the
// configuration says: that version may not know all of today's defaults.
func StartOlderDirector(host *netlab.Host, binary string, c model.Config) (*Weir, error) {
	return startWeir(host, &Weir{older: true}, binary, "run", c)
}

// RunAgents runs "weir agent" on hosts, on their eth0 where the configuration names no interface,
// and returns when each has the VIPs that it is to hold. attach is how agents catch packets: auto,
// xdp or tc.
func RunAgents(ctx context.Context, c model.Config, attach string, holds map[*netlab.Host][]netip.Addr) (map[*netlab.Host]*Weir, error) {
	if c.Agent.Interfaces == nil {
		c.Agent.Interfaces = []string{"eth0"}
	}
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	agents := map[*netlab.Host]*Weir{}
	for host := range holds {
		if agents[host], err = StartAgentAs(host, binary, c, attach); err != nil {
			return nil, fmt.Errorf("agent of %s: %w", host.Name, err)
		}
	}
	for host, vips := range holds {
		if err := agents[host].Holds(ctx, vips...); err != nil {
			return nil, err
		}
	}
	return agents, nil
}

// StartAgentAs runs a binary of weir as "weir agent" on a host.
func StartAgentAs(host *netlab.Host, binary string, c model.Config, attach string) (*Weir, error) {
	return startWeir(host, &Weir{}, binary, "agent", c, "--attach", attach)
}

// Service is a TCP service of these backends, at one port.
func Service(name string, vip netip.Addr, port uint16, mode model.Mode, backends ...netip.Addr) model.Service {
	s := model.Service{Name: name, VIP: vip, Protocol: model.TCP, Port: model.PortRange{First: port, Last: port}, Mode: mode}
	for _, address := range backends {
		b := model.NewBackend()
		b.Address = address
		s.Backends = append(s.Backends, b)
	}
	return s
}

func startWeir(host *netlab.Host, w *Weir, binary, verb string, c model.Config, args ...string) (_ *Weir, err error) {
	// The file has its directory to itself: weir watches the directory.
	dir := filepath.Join(host.Dir(), "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of %s: %w", host.Name, err)
	}
	bpffs := host.BPFFS()
	w.Pin, w.Socket, w.file = filepath.Join(bpffs, "weir"), filepath.Join(host.Dir(), verb+".sock"), filepath.Join(dir, "weir.yaml")
	if err := w.Write(c); err != nil {
		return nil, err
	}
	args = append([]string{verb, "-c", w.file, "--bpffs", bpffs, "--socket", w.Socket}, args...)
	w.Process, err = Start(host, "weir-"+verb, binary, args...)
	return w, err
}

// Write replaces the process's file as editors do: no reader sees half of it.
func (w *Weir) Write(c model.Config) error {
	if err := w.Prepare(c); err != nil {
		return err
	}
	return w.Commit()
}

// Prepare writes a configuration beside the process's file.
func (w *Weir) Prepare(c model.Config) error {
	if !w.older {
		c.SetDefaults()
	}
	text, err := config.Marshal(c)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(w.file+".new", text, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// Commit renames the file that Prepare wrote to the process's file.
func (w *Weir) Commit() error {
	if err := os.Rename(w.file+".new", w.file); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// errNotYet says that a process is not that far yet.
var errNotYet = errors.New("not yet")

// Runs waits until the director has handed its first configuration to the kernel. It reads the log,
// because answering about a large table would take memory.
func (w *Weir) Runs(ctx context.Context) error {
	return w.Await(ctx, "run", func() error {
		if !strings.Contains(w.Log(), "director runs") {
			return errNotYet
		}
		return nil
	})
}

// RunsSince returns when the director had handed its first configuration to the kernel, as
// its log says.
func (w *Weir) RunsSince() (time.Time, error) {
	for line := range strings.Lines(w.Log()) {
		if !strings.Contains(line, "director runs") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return at, fmt.Errorf("when the director on %s began to run: %w", w.Host.Name, err)
		}
		return at, nil
	}
	return time.Time{}, errNotYet
}

// Metric returns a value without labels that the director exports.
func (w *Weir) Metric(ctx context.Context, name string) (float64, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.Socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("metrics of the director on %s: %w", w.Host.Name, err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, is := strings.CutPrefix(lines.Text(), name+" "); is {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("the director on %s exports no %s (%s)", w.Host.Name, name, answer.Status)
}

// Forwards waits until the director knows the way to every active backend.
func (w *Weir) Forwards(ctx context.Context) error {
	return w.Await(ctx, "forward", func() error {
		backends, err := api.NewClient(w.Socket).Backends(ctx)
		if err != nil {
			return err
		}
		for _, b := range backends {
			if !b.State.Alive() {
				return fmt.Errorf("backend %s of %s is down", b.Name, b.Service)
			}
		}
		if len(backends) == 0 {
			return errNotYet
		}
		return nil
	})
}

// Holds waits until the agent has attached and its host has the VIPs.
func (w *Weir) Holds(ctx context.Context, vips ...netip.Addr) error {
	return w.Await(ctx, "hold the VIPs", func() error {
		if !strings.Contains(w.Log(), "agent runs") {
			return errNotYet
		}
		return w.Host.Do(func() error { return hold(vips) })
	})
}

// hold says which address the calling thread's host lacks.
func hold(vips []netip.Addr) error {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	held := map[netip.Addr]bool{}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			held[prefix.Addr()] = true
		}
	}
	for _, vip := range vips {
		if !held[vip] {
			return fmt.Errorf("VIP %s is not on lo", vip)
		}
	}
	return nil
}
