package agent

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// A server's open connections are those for which it may have something to do: once it has closed
// its end, the rest is the kernel's work.
const (
	stateEstablished = 1
	stateCloseWait   = 8
	open             = uint32(1<<stateEstablished | 1<<stateCloseWait)
)

// Meter measures the loads of the backends on this host. It is for one goroutine.
type Meter struct {
	agent    *Agent
	sockets  sockets
	pressure pressure
}

// Meter returns a Meter for the network namespace of the thread that calls it.
func (a *Agent) Meter() (*Meter, error) {
	s, err := openSockets()
	if err != nil {
		return nil, err
	}
	return &Meter{agent: a, sockets: s, pressure: newPressure()}, nil
}

// Close ends measuring.
func (m *Meter) Close() { m.sockets.close() }

// Loads returns the load of each TCP service on each of its backends that is this host, and the CPU
// time that it took to find out.
func (m *Meter) Loads() (loads []model.Load, took time.Duration, err error) {
	began, unlock, err := threadTime()
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	watched := m.agent.watched.Load()
	if watched == nil || len(watched.loads) == 0 {
		return nil, 0, nil
	}
	count := newCount(watched)
	if err := eachNamespace(m.sockets, watched.namespaces, count.look); err != nil {
		return nil, 0, err
	}
	for i := range count.loads {
		l := &count.loads[i]
		l.Queue = min(l.Queue, l.Connections) // some came or went between the two listings
		l.Pressure = m.pressure.of(count.groups[i], time.Now())
	}
	ended, err := cpuTime()
	return count.loads, ended - began, err
}

// threadTime keeps the goroutine on its thread and returns the CPU time of that thread: on a busy
// host more time passes by a clock.
func threadTime() (now time.Duration, unlock func(), err error) {
	runtime.LockOSThread()
	now, err = cpuTime()
	if err != nil {
		runtime.UnlockOSThread()
	}
	return now, runtime.UnlockOSThread, err
}

func cpuTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read the thread's time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// watched is the backends whose loads are measured: a pure function of the configuration and the
// host.
type watched struct {
	loads      []model.Load // all zero
	ends       map[netip.Addr][]end
	namespaces []string
}

// end is the ports at which an address has the connections of one load.
type end struct {
	ports model.PortRange
	load  int
}

func newWatched(config model.Config, here func(netip.Addr) bool) *watched {
	w := &watched{ends: map[netip.Addr][]end{}, namespaces: config.Agent.Namespaces}
	if !config.Loads.Given() {
		return w
	}
	for i := range config.Services {
		s := &config.Services[i]
		if s.Protocol != model.TCP {
			continue
		}
		for j := range s.Backends {
			if b := &s.Backends[j]; here(b.Address) && !b.Host.IsValid() {
				w.add(s, &s.Backends[j])
			}
		}
	}
	return w
}

// add watches a backend. Depending on its mode, its connections are to the VIP, to the backend
// itself, or to either.
func (w *watched) add(s *model.Service, b *model.Backend) {
	at := len(w.loads)
	w.loads = append(w.loads, model.Load{Target: model.Target{Service: s.ID(), Backend: b.Endpoint()}})
	mode := b.ModeIn(*s)
	if mode != model.NAT {
		w.ends[s.VIP] = append(w.ends[s.VIP], end{s.Port, at})
	}
	if mode == model.NAT || b.RedirectsIn(s) {
		ports := s.Port
		if b.Port != 0 {
			ports = model.PortRange{First: b.Port, Last: b.Port}
		}
		w.ends[b.Address] = append(w.ends[b.Address], end{ports, at})
	}
}

// count is one look at all sockets.
type count struct {
	*watched
	loads  []model.Load
	groups []uint64 // the cgroup of each load's server, 0: not known
}

func newCount(w *watched) *count {
	return &count{w, append([]model.Load(nil), w.loads...), make([]uint64, len(w.loads))}
}

// look adds the sockets of a network namespace. Listening sockets come first: a connection that is
// accepted meanwhile no longer waits, but still counts as open.
func (c *count) look(s sockets) error {
	err := s.listeners(func(l listener) {
		for address, ends := range c.ends {
			for _, e := range ends {
				if l.receives(address, e.ports) {
					c.loads[e.load].Queue += l.waiting
					if c.groups[e.load] == 0 {
						c.groups[e.load] = l.group
					}
				}
			}
		}
	})
	if err != nil {
		return err
	}
	return s.dump(unix.IPPROTO_TCP, open, 0, func(answer []byte) {
		at := diagEnd(answer, diagSource, 0)
		for _, e := range c.ends[at.Addr()] {
			if e.ports.Contains(at.Port()) {
				c.loads[e.load].Connections++
			}
		}
	})
}
