package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/kube/v1alpha1"
)

const (
	lookAgain = 10 * time.Second // the time between two looks at how packets get to a pod
	lookFor   = 2 * time.Second  // a pod has to answer within it
)

// looker looks how packets get from here to pods' addresses, for one pod of each node that the
// controller asks about: mode ipip sends them there, if a network routes them unchanged.
type looker struct {
	changed func()
	asked   chan struct{}

	mu    sync.Mutex
	pods  map[netip.AddrPort]bool
	found map[netip.AddrPort]string // what is in the way; empty: nothing
}

func newLooker(changed func()) *looker {
	return &looker{changed: changed, asked: make(chan struct{}, 1), pods: map[netip.AddrPort]bool{}, found: map[netip.AddrPort]string{}}
}

// look notes which pods the group's status names, and returns what is known about them.
func (l *looker) look(g *v1alpha1.DirectorGroup) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	pods, found := map[netip.AddrPort]bool{}, map[string]string{}
	for _, way := range g.Status.Ways {
		pod, err := netip.ParseAddrPort(way.Pod)
		if err != nil {
			continue
		}
		pods[pod] = true
		if why, known := l.found[pod]; known {
			found[pod.String()] = why
		}
	}
	if !maps.Equal(pods, l.pods) {
		l.pods = pods
		select {
		case l.asked <- struct{}{}:
		default:
		}
	}
	return found
}

// run looks until the context ends.
func (l *looker) run(ctx context.Context) {
	ticks := time.NewTicker(lookAgain)
	defer ticks.Stop()
	for {
		select {
		case <-l.asked:
			l.all(ctx, false)
		case <-ticks.C:
			l.all(ctx, true)
		case <-ctx.Done():
			return
		}
	}
}

// all looks at all pods that are asked about, or only at those about which nothing is known.
func (l *looker) all(ctx context.Context, again bool) {
	l.mu.Lock()
	maps.DeleteFunc(l.found, func(pod netip.AddrPort, _ string) bool { return !l.pods[pod] })
	pods := slices.SortedFunc(maps.Keys(l.pods), netip.AddrPort.Compare)
	before := maps.Clone(l.found)
	l.mu.Unlock()
	var looking sync.WaitGroup
	limit := make(chan struct{}, 16)
	for _, pod := range pods {
		if _, known := before[pod]; known && !again {
			continue
		}
		limit <- struct{}{}
		looking.Go(func() {
			why := wayTo(ctx, pod)
			l.mu.Lock()
			l.found[pod] = why
			l.mu.Unlock()
			<-limit
		})
	}
	looking.Wait()
	l.mu.Lock()
	same := maps.Equal(before, l.found)
	l.mu.Unlock()
	if !same {
		l.changed()
	}
}

// tunnels are the kinds of interfaces by which packets do not leave unchanged.
var tunnelKinds = map[string]bool{"vxlan": true, "geneve": true, "ipip": true, "sit": true, "ip6tnl": true, "gre": true, "gretap": true, "ip6gre": true, "ip6gretap": true,
	"erspan": true, "fou": true, "wireguard": true, "tun": true, "tuntap": true, "vti": true, "vti6": true, "xfrm": true, "bareudp": true}

// wayTo returns what is in the way of packets for a pod's address; empty: nothing. A tunnel
// interface is in the way: ipip's packets have no room for the tunnel, and the pod's node would get
// them where its agent does not look. And the pod has to answer, if only that the port is closed.
func wayTo(ctx context.Context, pod netip.AddrPort) string {
	routes, err := netlink.RouteGet(pod.Addr().AsSlice())
	if err != nil || len(routes) == 0 {
		return fmt.Sprintf("%s has no route: %v", pod.Addr(), err)
	}
	if routes[0].Encap != nil {
		return fmt.Sprintf("%s is routed into a tunnel (%s)", pod.Addr(), routes[0].Encap)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return fmt.Sprintf("the interface to %s is not known: %v", pod.Addr(), err)
	}
	if tunnelKinds[link.Type()] {
		return fmt.Sprintf("%s is reached through a tunnel, %s (%s)", pod.Addr(), link.Attrs().Name, link.Type())
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", pod.String())
	if err == nil {
		conn.Close()
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Sprintf("nothing answers at %s: %v", pod, err)
	}
	return ""
}
