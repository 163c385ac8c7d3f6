package edge

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// frrText accepts sessions from any host in the servers' network. Its argument is the interval of
// BFD packets, in milliseconds.
const frrText = `
router bgp 65000
 bgp router-id 10.1.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as 65001
 neighbor directors advertisement-interval 0
 neighbor directors timers 1 3
 neighbor directors bfd 3 %[1]d %[1]d
 bgp listen range 10.1.0.0/16 peer-group directors
 address-family ipv4 unicast
  maximum-paths 16
 exit-address-family
`

func (e *Edge) startRouter() error {
	frr, err := routerlab.StartFRR(e.router, routerlab.FRRConfig{BFD: "bfd\n", BGP: fmt.Sprintf(frrText, e.bfd.Milliseconds())})
	if err != nil {
		return err
	}
	if err := frr.Realtime(); err != nil {
		return err
	}
	// Routes then contain their next hops, which are replaced in one step.
	if err := frr.Configure("no zebra nexthop kernel enable"); err != nil {
		return err
	}
	e.route, err = routerlab.Follow(e.router, netip.PrefixFrom(vip, 32))
	return err
}

// hops are the addresses of the directors that run.
func (e *Edge) hops() []netip.Addr {
	var list []netip.Addr
	for _, d := range e.Directors {
		if d.Running {
			list = append(list, d.address)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// routed waits until the router sends to the directors that run, and to no others, and returns
// since when.
func (e *Edge) routed(ctx context.Context) (since time.Time, err error) {
	hops := e.hops()
	return since, until(ctx, fmt.Sprintf("the router to send to %v", hops), func() (ok bool) {
		since, ok = e.route.Since(hops)
		return ok
	})
}

// Settled waits until the router sends to the directors that run, and until their BFD
// sessions are up.
func (e *Edge) Settled(ctx context.Context) error {
	if _, err := e.routed(ctx); err != nil {
		return err
	}
	for _, d := range e.Directors {
		if !d.Running {
			continue
		}
		if err := until(ctx, d.Name+" to have BGP and BFD", func() bool {
			status, err := api.NewClient(d.weir.Socket).BGP(ctx)
			return err == nil && len(status.Neighbors) == 1 && status.Neighbors[0].State == model.SessionEstablished &&
				(!d.bfd || status.Neighbors[0].BFD == "up")
		}); err != nil {
			return fmt.Errorf("%w; its log:\n%s", err, d.weir.Log())
		}
	}
	return nil
}

// limit lets a port send at most that many bits per second of clients' packets. Traffic between
// routers and directors has a class of its own, as networks give it. The queue holds the frames of a
// tenth of a second, as before a switch's port, and up to a hundredth of a second without sending may
// be caught up on, because the kernel that sends is not always there in time.
func limit(port *netlab.Port, rate uint64) error {
	const queued, catchUp, longest = 10, 100, 1514 // parts of a second; bytes of a frame
	class := func(rate uint64) netlab.Class { return netlab.Class{Rate: rate, Burst: uint32(rate / 8 / catchUp)} }
	const clients = 2
	if err := port.Shape(int(rate/8/queued/longest), class(netlab.Unlimited), class(rate)); err != nil {
		return err
	}
	toVIP := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: port.Index, Parent: netlab.ClassHandle(0), Priority: 1, Protocol: unix.ETH_P_IP},
		ClassId:     netlab.ClassHandle(clients),
		Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1,
			Keys: []netlink.TcU32Key{{Mask: 0xffffffff, Val: binary.BigEndian.Uint32(vip.AsSlice()), Off: 16}}}, // IPv4's destination
	}
	if err := port.Host.Do(func() error { return netlink.FilterAdd(toVIP) }); err != nil {
		return fmt.Errorf("limit the rate of a port of %s: %w", port.Host.Name, err)
	}
	return nil
}
