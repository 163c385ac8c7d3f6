package edge

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Director is one of the hosts that forward.
type Director struct {
	Name    string
	Running bool // whether it should run

	edge    *Edge
	host    *netlab.Host
	port    *netlab.Port
	address netip.Addr
	weir    *process.Weir
	bfd     bool
}

func (e *Edge) addDirector(i int, rate uint64) error {
	d := &Director{Name: "director" + strconv.Itoa(i+1), edge: e, address: address(directorNumber + i), bfd: true}
	d.host = e.lab.Router(d.Name)
	link, err := e.plugIn(d.host, directorNumber+i)
	if err != nil {
		return err
	}
	d.port = link.A
	e.Directors = append(e.Directors, d)
	e.seen.stations[mac(d.port.MAC)] = station{name: d.Name, director: d}
	if rate == 0 {
		return nil
	}
	return limit(link.B, rate)
}

// notice is shorter than by default, 5 s: no director of this lab is behind the others for long,
// and this lab measures how long changes take.
const notice = 20 * time.Millisecond

// config is a director's file: its services come from the store.
func (d *Director) config() model.Config {
	n := model.BGPNeighbor{Address: address(routerNumber), ASN: 65000, HoldTime: model.Duration(3 * time.Second)}
	if d.bfd {
		n.BFD = &model.BGPNeighborBFD{Interval: model.Duration(d.edge.bfd), Multiplier: 3}
	}
	c := model.Config{Services: []model.Service{}, BGP: model.BGP{ASN: 65001, RouterID: d.address, Neighbors: []model.BGPNeighbor{n}},
		Directors: d.edge.sources(), Notice: model.Duration(notice)}
	c.Director.Interfaces = []string{"eth0"}
	c.Director.Store.Directory = filepath.Join(d.host.Dir(), "state")
	c.Director.Store.Etcd.Endpoints = []string{storeURL(clientPort)}
	c.Director.Limits = model.Limits{Services: 16, Backends: 256, RingMemory: 1 << 20, Fragments: 1024, Flows: 1 << 16}
	return c
}

// launch starts the director's process.
func (d *Director) launch() (err error) {
	d.Running = true
	d.weir, err = process.StartDirector(d.host, d.config(), "--grace-period", d.edge.drain.String())
	return err
}

// tellToEnd tells the director's process to end.
func (d *Director) tellToEnd() error {
	d.Running = false
	if err := syscall.Kill(d.weir.PID(), syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", d.Name, err)
	}
	return nil
}

// RunningDirectors is how many directors run.
func (e *Edge) RunningDirectors() int { return len(e.hops()) }
