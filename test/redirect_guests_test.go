package test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

// Virtual machines are redirected, as clients and as backends, by their hosts' agents, whether the
// host is their router or only bridges their frames. Their cards leave checksums and segmentation
// to the host.
//
//	guest --- client --- router --- switch --- director
//	                                       --- backend1 --- machine, the backend
func TestRedirectVM(t *testing.T) {
	t.Parallel()
	t.Run("routed", func(t *testing.T) {
		l := newRoutedGuestsLab(t)
		l.redirectsGuests(t, routedMachine...)
	})
	// Bridged, the uplinks have no addresses.
	t.Run("bridged", func(t *testing.T) {
		const guestHost = 51
		l := newGuestsLab(t)
		bridge(t, l.client, "eth0", "10.0.0.2/24", "fd00::2/64")
		bridge(t, l.backends[0], "eth0", lanPrefixes(backendHost, natHost)...)
		l.route(true)
		l.guest.connect([]string{"10.0.0.9/24", "fd00::9/64"}, "10.0.0.1", "fd00::1")
		l.machine.connect(lanPrefixes(guestHost), lanAddress(routerHost, false).String(), lanAddress(routerHost, true).String())
		l.redirectsGuests(t, lanAddress(guestHost, false), lanAddress(guestHost, true))
	})
}

// guestsLab has a guest behind the client and one behind the backend's host.
type guestsLab struct {
	*redirectLab
	guest, machine *guest
}

func newGuestsLab(t *testing.T) *guestsLab {
	l := &guestsLab{redirectLab: &redirectLab{lab: newLab(t, size{backends: 1}), agents: map[string]*daemon{}}}
	l.guest, l.machine = l.newGuest(t, "guest", l.client), l.newGuest(t, "machine", l.backends[0])
	return l
}

// routedMachine are the addresses of the backend behind backend1 if that host is its router.
var routedMachine = []netip.Addr{netip.MustParseAddr("10.9.2.2"), netip.MustParseAddr("fd00:9:2::2")}

// newRoutedGuestsLab is newGuestsLab with hosts as their guests' routers.
func newRoutedGuestsLab(t *testing.T) *guestsLab {
	l := newGuestsLab(t)
	bridge(t, l.client, "", "10.9.1.1/24", "fd00:9:1::1/64")
	bridge(t, l.backends[0], "", "10.9.2.1/24", "fd00:9:2::1/64")
	l.guest.connect([]string{"10.9.1.2/24", "fd00:9:1::2/64"}, "10.9.1.1", "fd00:9:1::1")
	l.machine.connect([]string{"10.9.2.2/24", "fd00:9:2::2/64"}, "10.9.2.1", "fd00:9:2::1")
	for _, h := range []*netlab.Host{l.client, l.backends[0]} {
		h.Sysctl("net.ipv4.ip_forward", "1")
		h.Sysctl("net.ipv6.conf.all.forwarding", "1")
	}
	l.router.Route("10.9.1.0/24", "10.0.0.2")
	l.router.Route("fd00:9:1::/64", "fd00::2")
	for _, h := range []*netlab.Host{l.router, l.director} {
		h.Route("10.9.2.0/24", lanAddress(backendHost, false).String())
		h.Route("fd00:9:2::/64", lanAddress(backendHost, true).String())
	}
	return l
}

// bridge gives a host a bridge with these addresses. Its ports are the tap and, if given, the
// uplink.
func bridge(t *testing.T, h *netlab.Host, uplink string, addresses ...string) {
	t.Helper()
	on(t, h, "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	on(t, h, "ip", "link", "set", tapName, "master", "br0")
	if uplink != "" {
		on(t, h, "ip", "address", "flush", "dev", uplink)
		on(t, h, "ip", "link", "set", uplink, "master", "br0")
	}
	on(t, h, "ip", "link", "set", "br0", "up")
	h.Address("br0", addresses...)
}

func (g *guest) connect(addresses []string, routers ...string) {
	g.Address("eth0", addresses...)
	for _, r := range routers {
		g.Route("default", r)
	}
}

const guestPort = 7000

// guestServices are services that redirect to these backends, one each.
func guestServices(backends ...netip.Addr) (services []string) {
	for _, address := range backends {
		services = append(services, fmt.Sprintf("- name: redirect1-%v\n  vip: %s\n  protocol: tcp\n  port: %d\n  mode: redirect\n  fallback: nat\n  snat: true\n  health: {kind: none}\n  backends:\n  - {name: machine, address: \"%s\"}\n",
			address.Is6(), redirectVIP(1, address.Is6()), guestPort, address))
	}
	return services
}

// startGuests starts the server, the agents of both hosts, and the director.
func (l *guestsLab) startGuests(t *testing.T, backends ...netip.Addr) {
	t.Helper()
	services := guestServices(backends...)
	echoStream(t, l.machine.Host, netip.AddrPortFrom(netip.IPv6Unspecified(), guestPort))
	host := l.backends[0]
	l.agents["client"] = startDaemon(t, l.client, "agent", configText("", "eth0", services...))
	l.agents[host.Name] = startDaemon(t, host, "agent", strings.Replace(configText("", "eth0", services...),
		"agent:\n", fmt.Sprintf("agent:\n  guests: [%s, \"%s/128\"]\n", backends[0], backends[1]), 1))
	l.daemon = startDaemon(t, l.director, "run", configText("eth0", "", services...))
	l.waitRedirects("")
}

func (l *guestsLab) redirectsGuests(t *testing.T, backends ...netip.Addr) {
	l.startGuests(t, backends...)
	text := make([]byte, bulkBytes)
	_, _ = rand.Read(text) // it never fails
	for _, from := range []*netlab.Host{l.guest.Host, l.client} {
		for _, address := range backends {
			l.bypasses(t, 1, func() {
				conn, err := from.DialContext(t.Context(), "tcp", netip.AddrPortFrom(redirectVIP(1, address.Is6()), guestPort).String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
					t.Fatal(err)
				}
				sent := make(chan error, 1)
				go func() {
					_, err := conn.Write(text)
					sent <- err
				}()
				back := make([]byte, len(text))
				if _, err := io.ReadFull(conn, back); err != nil {
					t.Fatalf("from %s to %s: %v", from.Name, address, err)
				}
				if err := <-sent; err != nil || !bytes.Equal(back, text) {
					t.Errorf("from %s to %s: what comes back is not what was sent (%v)", from.Name, address, err)
				}
			})
		}
	}
	if n := l.event("client", "taken"); n != 4 {
		t.Errorf("the client's host has taken %d connections over, want those of its own and of its guest: 4", n)
	}
	for _, g := range []*guest{l.guest, l.machine} {
		if g.partial.Load() == 0 || g.super.Load() == 0 || g.given.Load() == 0 {
			t.Errorf("%s has sent %d frames with an unfinished checksum and %d unsegmented ones, and got %d: want some of each, or this shows nothing",
				g.Name, g.partial.Load(), g.super.Load(), g.given.Load())
		}
	}
	for _, h := range []*netlab.Host{l.guest.Host, l.machine.Host, l.client, l.backends[0], l.director} {
		if n := badChecksums(t, h); n != 0 {
			t.Errorf("%s has got %d packets with wrong checksums", h.Name, n)
		}
	}
}
