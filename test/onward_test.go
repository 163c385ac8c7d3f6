package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/lab/netlab"
)

// onwardWays are the ways in which the kernel may send what XDP cannot.
var onwardWays = []way{
	{mode: "nat", snat: true}, {mode: "nat", snat: true, inner6: true, outer6: true},
	{mode: "gue"}, {mode: "gue", inner6: true, outer6: true}, {mode: "ipip"},
}

// overlayEnd is the host number of a backend's address at its end of an overlay.
const overlayEnd = 41

// The routes to backends lead into interfaces into which XDP cannot send, and the kernel sends
// there small and large packets. Connections outlive the process. Replies of full NAT come by the
// network, or back by the same interfaces, where they are super-packets.
//
//	client --- router --- switch --- director === backend1, backend2
//	                             --- backend1, backend2
func TestInterfacesWithoutXDP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		build func(l *lab, number int)
		back  bool // replies of full NAT come by the interface, too
		told  bool // the configuration names the interface
		ways  []way
	}{
		{"vxlan", (*lab).joinVXLAN, false, false, onwardWays},
		{"tunnel without Ethernet", (*lab).joinTunnel, false, false, onwardWays[:2]},
		{"bridge", (*lab).joinBridge, false, false, onwardWays},
		{"vxlan, and back", (*lab).joinVXLAN, true, true, onwardWays[:2]},
		{"tunnel without Ethernet, and back", (*lab).joinTunnel, true, false, onwardWays[:2]},
		{"veth, and back", (*lab).joinVeth, true, false, onwardWays[:2]},
		{"veth that XDP sends into, and back", (*lab).joinReadyVeth, true, false, onwardWays[:2]}, // like a pod on the director's host
		{"veth whose other end is not made for it", (*lab).joinVeth, false, false, onwardWays[:2]},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, size{backends: 2})
			sends := strings.Contains(c.name, "XDP sends")
			for number := 1; number <= 2; number++ {
				c.build(l, number)
				for _, six := range []bool{false, true} {
					l.leadInto(number, six, c.back, sends)
				}
			}
			l.must(l.Err())
			var services, roots []string
			for _, w := range c.ways {
				for _, port := range []string{"7", "80"} {
					services = append(services, w.service("tcp", port, everyBackend(2)))
				}
				services = append(services, w.service("udp", "7", everyBackend(2)))
			}
			for i, b := range l.backends {
				if len(c.ways) > 2 { // an agent's program would make a veth ready
					startDaemon(t, b, "agent", configText("", fmt.Sprintf("eth0, over.%d", i+1), services...))
				}
			}
			for i, b := range l.backends {
				roots = append(roots, startNginx(t, b))
				for _, w := range c.ways {
					echo(t, b, w.at(i+1, 7))
					echoStream(t, b, w.at(i+1, 7))
				}
			}
			text := configText("eth0", "", services...)
			if c.told {
				text = strings.Replace(text, "director:\n", "director:\n  reply-interfaces: [over.1, over.2]\n", 1)
			}
			director := startDaemon(t, l.director, "run", text)
			for _, b := range director.backends() {
				if want := "over." + strings.TrimPrefix(b.Name, "backend"); b.Interface != want || b.ByKernel == sends || b.NextHop.IsZero() == sends {
					t.Errorf("%s of %s is reached by %s, by the kernel: %t, at %s", b.Name, b.Service, b.Interface, b.ByKernel, b.NextHop)
				}
			}
			for _, w := range c.ways {
				t.Run(w.String(), func(t *testing.T) {
					answers := map[string]int{}
					for range 40 {
						answers[curl(t, l.client, w.url("name"))]++
					}
					if len(answers) != 2 {
						t.Errorf("40 answers come from %v, want them from both", answers)
					}
					download(t, l.client, w, roots)
					upload(t, l.client, w, roots)
					if w == c.ways[0] {
						outlives(t, l, director, w)
					}
				})
			}
			if !sends {
				l.wantByKernel(100 * len(c.ways))
			}
			director.end(syscall.SIGTERM)
			on(t, l.director, weir, "detach", "--bpffs", director.bpffs)
			if out := on(t, l.director, "ip", "link"); strings.Contains(out, "weirout") {
				t.Errorf("a detached director has left a device:\n%s", out)
			}
		})
	}
}

// outlives kills the director, and starts it again, under load.
func outlives(t *testing.T, l *lab, director *daemon, w way) {
	t.Helper()
	load := startLoad(t, l, w)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		director.end(signal)
		load.more(100)
		director.start()
		director.ready()
		load.more(100)
	}
	load.wantUndisturbed()
}

// joinVXLAN connects the director with a backend by a VXLAN.
func (l *lab) joinVXLAN(number int) {
	director, end := lanAddress(directorHost, false), lanAddress(overlayEnd+number, false)
	l.backends[number-1].Address("eth0", end.String()+"/24")
	for h, ends := range map[*netlab.Host][2]netip.Addr{l.director: {director, end}, l.backends[number-1]: {end, director}} {
		on(l.t, h, "ip", "link", "add", fmt.Sprintf("over.%d", number), "type", "vxlan", "id", fmt.Sprint(number),
			"local", ends[0].String(), "remote", ends[1].String(), "dstport", "8472", "dev", "eth0")
	}
}

// joinTunnel connects them by a tunnel without Ethernet: packets that leave one host's end arrive
// at the other's.
func (l *lab) joinTunnel(number int) {
	var ends [2]*os.File
	for i, h := range []*netlab.Host{l.director, l.backends[number-1]} {
		l.must(h.Do(func() error {
			tunnel := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("over.%d", number)}, Mode: netlink.TUNTAP_MODE_TUN,
				Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1}
			if err := netlink.LinkAdd(tunnel); err != nil {
				return err
			}
			// The runtime can wait for packets only now that the file is connected to a device.
			fd, err := unix.Dup(int(tunnel.Fds[0].Fd()))
			if err != nil {
				return err
			}
			ends[i] = os.NewFile(uintptr(fd), "tunnel")
			return errors.Join(unix.SetNonblock(fd, true), tunnel.Fds[0].Close())
		}))
	}
	for i, from := range ends {
		l.t.Cleanup(func() { from.Close() })
		go func() {
			packet := make([]byte, 65536)
			for {
				n, err := from.Read(packet)
				if err != nil {
					return
				}
				_, _ = ends[1-i].Write(packet[:n]) // a full queue loses packets, as in a network
			}
		}()
	}
}

// joinBridge connects them by a cable that ends in one of the director's bridges.
func (l *lab) joinBridge(number int) {
	name, port := fmt.Sprintf("over.%d", number), fmt.Sprintf("port%d", number)
	l.Link(l.director, l.backends[number-1], netlab.LinkOptions{XDP: true, NameA: port, NameB: name})
	on(l.t, l.director, "ip", "link", "add", name, "type", "bridge")
	on(l.t, l.director, "ip", "link", "set", port, "master", name)
}

// joinVeth connects them by a cable whose ends do not accept packets that XDP sends.
func (l *lab) joinVeth(number int) {
	name := fmt.Sprintf("over.%d", number)
	l.Link(l.director, l.backends[number-1], netlab.LinkOptions{NameA: name, NameB: name})
}

// joinReadyVeth connects them by a cable whose ends accept them.
func (l *lab) joinReadyVeth(number int) {
	name := fmt.Sprintf("over.%d", number)
	l.Link(l.director, l.backends[number-1], netlab.LinkOptions{XDP: true, NameA: name, NameB: name})
}

// leadInto routes a backend's addresses into the joined interface on the director, and with back
// the director's source addresses of full NAT on the backend; direct routes have no router's
// address.
func (l *lab) leadInto(number int, six, back, direct bool) {
	name := fmt.Sprintf("over.%d", number)
	family, bits, prefix := "-4", 32, fmt.Sprintf("10.7.%d.", number)
	if six {
		family, bits, prefix = "-6", 128, fmt.Sprintf("fd00:7:%d::", number)
	}
	for i, h := range []*netlab.Host{l.director, l.backends[number-1]} {
		on(l.t, h, "ip", "link", "set", name, "up")
		h.Address(name, fmt.Sprintf("%s%d/%d", prefix, i+1, map[bool]int{false: 24, true: 64}[six]))
	}
	lead := func(h *netlab.Host, number int, via string) {
		to := netip.PrefixFrom(lanAddress(number, six), bits)
		on(l.t, h, "ip", family, "route", "add", to.String(), "via", prefix+via, "dev", name)
	}
	if direct {
		end := netip.PrefixFrom(lanAddress(backendHost+number-1, six), bits).String()
		l.backends[number-1].Address(name, end)
		on(l.t, l.director, "ip", family, "route", "add", end, "dev", name)
	} else {
		lead(l.director, backendHost+number-1, "2")
	}
	if back {
		lead(l.backends[number-1], snatHost, "1")
	}
}

// wantByKernel checks that packets have passed the device from which the kernel sends.
func (l *lab) wantByKernel(least int) {
	l.t.Helper()
	var devices []struct {
		Name  string `json:"ifname"`
		Stats struct {
			RX struct {
				Packets int `json:"packets"`
			} `json:"rx"`
		} `json:"stats64"`
	}
	out := on(l.t, l.director, "ip", "-s", "-j", "link")
	l.must(json.Unmarshal([]byte(out), &devices))
	for _, d := range devices {
		if strings.HasPrefix(d.Name, "weirout") && strings.HasSuffix(d.Name, "-x") && d.Stats.RX.Packets >= least {
			return
		}
	}
	l.t.Errorf("fewer than %d packets have gone by the kernel:\n%s", least, out)
}
