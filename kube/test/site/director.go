package site

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/lab/routerlab"
)

// Director is one of the hosts that forward.
type Director struct {
	Name    string
	Address netip.Addr
	SNAT    netip.Addr // the client that pods see in full NAT
	Weir    *process.Weir

	host *netlab.Host
}

func (s *Site) addDirector(i int) {
	d := &Director{Name: named("director", i), Address: address(directorNumber + i), SNAT: address(snatNumber + i)}
	d.host = s.lab.Router(d.Name)
	s.plugIn(d.host, directorNumber+i, snatNumber+i)
	s.Directors = append(s.Directors, d)
}

// config is a director's file: its services come from the controller.
func (s *Site) config(d *Director) model.Config {
	n := model.BGPNeighbor{Address: address(routerNumber), ASN: 65000, HoldTime: model.Duration(9 * time.Second)}
	c := model.Config{Services: []model.Service{}, Coalesce: model.Duration(s.options.OwnCoalesce), Notice: model.Duration(s.options.OwnNotice),
		BGP: model.BGP{ASN: 65001, RouterID: d.Address, Neighbors: []model.BGPNeighbor{n}}}
	for _, other := range s.Directors {
		c.Directors = append(c.Directors, netip.PrefixFrom(other.Address, 32))
	}
	c.Director.Interfaces = []string{"eth0"}
	c.Director.SNAT.Addresses = []netip.Addr{d.SNAT}
	c.Director.Store.Directory = filepath.Join(d.host.Dir(), "state")
	c.Director.Store.Etcd.Endpoints = []string{storeURL(2379)}
	c.Director.Limits = model.Limits{Services: 64, Backends: 1024, RingMemory: 16 << 20, Fragments: 1024, Flows: 1 << 16}
	return c
}

func (s *Site) startDirectors() (err error) {
	for _, d := range s.Directors {
		if d.Weir, err = process.StartDirectorAs(d.host, s.options.Programs.Weir, s.config(d)); err != nil {
			return err
		}
	}
	return nil
}

// directorsRun waits until all directors have handed a table to the kernel, and have sessions with
// the router.
func (s *Site) directorsRun(ctx context.Context) error {
	for _, d := range s.Directors {
		if err := d.Weir.Runs(ctx); err != nil {
			return err
		}
		if err := d.Weir.Await(ctx, "have a BGP session", func() error {
			status, err := api.NewClient(d.Weir.Socket).BGP(ctx)
			if err == nil && (len(status.Neighbors) != 1 || status.Neighbors[0].State != model.SessionEstablished) {
				err = errNotYet
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// frrText accepts sessions of all hosts in the servers' network.
const frrText = `
router bgp 65000
 bgp router-id 10.1.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as 65001
 neighbor directors advertisement-interval 0
 neighbor directors timers 3 9
 bgp listen range 10.1.0.0/16 peer-group directors
 bgp listen range fd00:1::/64 peer-group directors
 address-family ipv4 unicast
  maximum-paths 16
 exit-address-family
 address-family ipv6 unicast
  neighbor directors activate
  maximum-paths 16
 exit-address-family
`

func (s *Site) startRouter() error {
	frr, err := routerlab.StartFRR(s.router, routerlab.FRRConfig{BGP: frrText})
	if err != nil {
		return fmt.Errorf("start the router: %w", err)
	}
	// A real router is a machine of its own: its daemons run before other processes of the lab.
	if err := frr.Realtime(); err != nil {
		return err
	}
	// Routes contain their next hops, so that these are replaced in one step.
	return frr.Configure("no zebra nexthop kernel enable")
}

// NextHops returns where the router sends packets to a Service's address.
func (s *Site) NextHops(vip netip.Addr) ([]netip.Addr, error) {
	return routerlab.NextHops(s.router, netip.PrefixFrom(vip, vip.BitLen()))
}
