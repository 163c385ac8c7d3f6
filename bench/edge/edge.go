// Package edge is the lab in which directors tell a real router which VIP they forward: FRR with
// the kernel's ECMP, under constant requests.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/routerlab"
)

// The VIP, its port, and the client's address.
var (
	vip           = netip.MustParseAddr("192.0.2.10")
	clientAddress = netip.MustParseAddr("10.0.0.2")
)

const port = 4000

// Host numbers in the servers' network.
const (
	routerNumber   = 1
	storeNumber    = 5
	directorNumber = 11
	backendNumber  = 51
)

// quickBFD is the interval of BFD packets when measuring how soon a loss is found.
const quickBFD = 50 * time.Millisecond

// patience bounds every wait.
const patience = 20 * time.Second

// Edge is the lab:
//
//	client --- router (FRR) --- switch --- director1 ... directorN
//	                                   --- backend1 ... backendM (agents)
//	                                   --- store (etcd)
//
// Replies go from the backends to the router.
type Edge struct {
	Directors []*Director
	Backends  []*Backend
	Others    []*Service // besides the one that requests are for

	lab    *netlab.Lab
	client *netlab.Host
	router *netlab.Host
	lan    *netlab.Host
	store  *process.Process
	route  *routerlab.Follower
	seen   *trail
	done   chan struct{}
	drain  time.Duration
	bfd    time.Duration
}

// Options are the size of the lab.
type Options struct {
	Directors, Backends int
	Others              int           // services that do not exist in the beginning
	Drain               time.Duration // how long a director that is told to end goes on
	BFD                 time.Duration // the interval of its packets, of which three make a loss; 0: 50 ms
	Rate                uint64        // bits per second of clients' packets on the cable to a director; 0: no limit
}

// New builds the lab, starts all directors, and returns when the router sends to all of them.
func New(ctx context.Context, lab *netlab.Lab, o Options) (*Edge, error) {
	e := &Edge{lab: lab, drain: o.Drain, bfd: cmp.Or(o.BFD, quickBFD), seen: newTrail(), done: make(chan struct{})}
	e.client, e.router, e.lan = lab.Host("client"), lab.Router("router"), lab.Switch("switch")
	lab.Link(e.client, e.router, netlab.LinkOptions{A: []string{clientAddress.String() + "/24"}, B: []string{"10.0.0.1/24"}})
	up := lab.Link(e.router, e.lan, netlab.LinkOptions{XDP: true, A: []string{address(routerNumber).String() + "/16"}})
	if err := lab.Err(); err != nil {
		return nil, err
	}
	e.seen.stations[mac(up.A.MAC)] = station{name: "router"}
	e.client.Route("default", "10.0.0.1")
	e.client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	for i := range o.Directors {
		if err := e.addDirector(i, o.Rate); err != nil {
			return nil, err
		}
	}
	for i := range o.Backends {
		if err := e.addBackend(i); err != nil {
			return nil, err
		}
	}
	for i := range o.Others {
		e.Others = append(e.Others, otherService(i))
	}
	if err := e.startStore(); err != nil {
		return nil, err
	}
	if err := e.seen.watch(e.lan); err != nil {
		return nil, err
	}
	go e.seen.follow(e.done)
	if err := e.startRouter(); err != nil {
		return nil, err
	}
	return e, errors.Join(e.start(ctx), lab.Err())
}

// start starts agents and directors, and gives these their services.
func (e *Edge) start(ctx context.Context) error {
	if err := e.startAgents(ctx); err != nil {
		return err
	}
	for _, d := range e.Directors {
		if err := d.launch(); err != nil {
			return err
		}
	}
	for _, d := range e.Directors {
		if err := d.weir.Runs(ctx); err != nil {
			return err
		}
	}
	if err := e.Apply(ctx); err != nil {
		return err
	}
	for _, d := range e.Directors {
		if err := d.weir.Forwards(ctx); err != nil {
			return err
		}
	}
	return e.Settled(ctx)
}

// Close stops watching the lab, and says whether everything was seen.
func (e *Edge) Close() error {
	err := e.seen.whole()
	close(e.done)
	e.route.Close()
	return err
}

func address(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(number)}) }

// plugIn connects a host to the switch.
func (e *Edge) plugIn(h *netlab.Host, number int) (*netlab.Link, error) {
	link := e.lab.Link(h, e.lan, netlab.LinkOptions{XDP: true, A: []string{address(number).String() + "/16"}})
	h.Route("default", address(routerNumber).String())
	if err := e.lab.Err(); err != nil {
		return nil, err
	}
	return link, e.pin(link)
}

// pin makes the switch remember where a host is. A switch that forgets the host when its cable goes
// down floods its frames, and another director forwards them: the loss of a host would not show.
func (e *Edge) pin(link *netlab.Link) error {
	err := e.lan.Do(func() error {
		return netlink.NeighSet(&netlink.Neigh{Family: unix.AF_BRIDGE, LinkIndex: link.B.Index, Flags: netlink.NTF_MASTER,
			State: netlink.NUD_NOARP, HardwareAddr: link.A.MAC})
	})
	if err != nil {
		return fmt.Errorf("pin %s to its port: %w", link.A.Host.Name, err)
	}
	return nil
}

// until waits for a condition.
func until(ctx context.Context, what string, condition func() bool) error {
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v in vain for %s", patience, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond): // between two looks
		}
	}
	return nil
}
