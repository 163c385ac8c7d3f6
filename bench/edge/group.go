package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Ports of the etcd.
const clientPort, peerPort = 2379, 2380

func storeURL(port int) string { return fmt.Sprintf("http://%s:%d", address(storeNumber), port) }

// startStore starts the etcd in which the directors share services and logs: one member, as
// this lab loses none.
func (e *Edge) startStore() (err error) {
	host := e.lab.Host("store")
	e.lab.Link(host, e.lan, netlab.LinkOptions{A: []string{address(storeNumber).String() + "/16"}})
	if err := e.lab.Err(); err != nil {
		return err
	}
	e.store, err = process.Start(host, "etcd", "etcd", "--name", "store", "--data-dir", filepath.Join(host.Dir(), "etcd"),
		"--listen-client-urls", storeURL(clientPort), "--advertise-client-urls", storeURL(clientPort),
		"--listen-peer-urls", storeURL(peerPort), "--initial-advertise-peer-urls", storeURL(peerPort),
		"--initial-cluster", "store="+storeURL(peerPort), "--initial-cluster-state", "new")
	return err
}

// sources are the directors' addresses.
func (e *Edge) sources() []netip.Prefix {
	var list []netip.Prefix
	for _, d := range e.Directors {
		list = append(list, netip.PrefixFrom(d.address, 32))
	}
	return list
}

// Service is a service that gets no requests.
type Service struct {
	Name   string
	Active bool

	vip netip.Addr
}

const otherNumber = 20 // in the VIP's network

func otherService(i int) *Service {
	return &Service{Name: "other" + strconv.Itoa(i+1), vip: netip.AddrFrom4([4]byte{192, 0, 2, byte(otherNumber + i)})}
}

// services are those of all directors; all: every service that there may be, as agents know them.
func (e *Edge) services(all bool) []model.Service {
	list := []model.Service{e.service("web", vip, all)}
	for _, s := range e.Others {
		if s.Active || all {
			list = append(list, e.service(s.Name, s.vip, all))
		}
	}
	return list
}

func (e *Edge) service(name string, at netip.Addr, all bool) model.Service {
	s := process.Service(name, at, port, model.GUE)
	s.Retention = model.Duration(time.Second)
	s.Health = &model.HealthCheck{Kind: model.CheckTCP, Interval: model.Duration(250 * time.Millisecond),
		Timeout: model.Duration(200 * time.Millisecond), Fall: 2}
	for _, b := range e.Backends {
		if !all && !b.Active && !b.drains {
			continue
		}
		one := model.NewBackend()
		one.Name, one.Address = b.Name, b.address
		if !all && b.drains {
			one.State = model.Draining
		}
		s.Backends = append(s.Backends, one)
	}
	return s
}

// Apply tells the group which backends are active now, through the first director that runs.
func (e *Edge) Apply(ctx context.Context) error {
	c := model.Config{Services: e.services(false)}
	c.SetDefaults()
	text, err := config.Marshal(struct {
		Services []model.Service `json:"services"`
	}{c.Services})
	if err != nil {
		return fmt.Errorf("write the set: %w", err)
	}
	for _, d := range e.Directors {
		if d.Running {
			if _, err := api.NewClient(d.weir.Socket).PutSet(ctx, "bench", api.SetText{Text: text}, api.Condition{}); err != nil {
				return fmt.Errorf("apply the set by %s: %w", d.Name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("apply the set: no director runs")
}

// startAgents starts an agent on every backend: they know all backends from the beginning.
func (e *Edge) startAgents(ctx context.Context) error {
	c := model.Config{Directors: e.sources(), Services: e.services(true)}
	holds := map[*netlab.Host][]netip.Addr{}
	for _, b := range e.Backends {
		holds[b.host] = []netip.Addr{vip}
	}
	agents, err := process.RunAgents(ctx, c, "auto", holds)
	for _, b := range e.Backends {
		b.agent = agents[b.host]
	}
	return err
}

// ActiveBackends is how many backends get new connections.
func (e *Edge) ActiveBackends() (n int) {
	for _, b := range e.Backends {
		if b.Active {
			n++
		}
	}
	return n
}

// Backend is a server. It answers every connection with its name, counts what else comes on it, and
// notes which director its beginning came from.
type Backend struct {
	Name   string
	Active bool // directors must send it new connections

	drains bool // it is no longer active, but keeps its connections

	agent   *process.Weir
	host    *netlab.Host
	port    *netlab.Port
	address netip.Addr
	got     atomic.Uint64 // bytes of all connections
}

func (e *Edge) addBackend(i int) error {
	b := &Backend{Name: "backend" + strconv.Itoa(i+1), Active: true, address: address(backendNumber + i)}
	b.host = e.lab.Host(b.Name)
	link, err := e.plugIn(b.host, backendNumber+i)
	if err != nil {
		return err
	}
	b.port = link.A
	e.Backends = append(e.Backends, b)
	e.seen.stations[mac(b.port.MAC)] = station{name: b.Name, backend: b}
	return b.serve()
}

// Write counts what a client sends.
func (b *Backend) Write(text []byte) (int, error) {
	b.got.Add(uint64(len(text)))
	return len(text), nil
}

// serve answers connections until the lab is closed.
func (b *Backend) serve() error {
	return b.host.Serve("tcp4", ":"+strconv.Itoa(port), func(conn net.Conn) {
		if _, err := io.WriteString(conn, b.Name); err == nil && conn.(*net.TCPConn).CloseWrite() == nil {
			_, _ = io.Copy(b, conn)
		}
	})
}
