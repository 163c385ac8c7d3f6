package test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// BFD with other projects' daemons, in the lab of lab_test.go: one hop from the director to the
// router, two to the client.
//
//	client --- router --- switch --- director
//	several hops  one hop
const (
	oneHop4, oneHop6           = "10.2.0.1", "fd00:2::1"
	severalHops4, severalHops6 = "10.0.0.2", "fd00::2"
)

// bfdLab is that lab with a director that speaks BFD, and its daemon.
type bfdLab struct {
	*lab
	run   *daemon
	peers map[string]bfdPeer // by the director's name for them
}

// atDirector returns the director's address of the neighbor's family.
func atDirector(neighbor string) string {
	return lanAddress(directorHost, strings.Contains(neighbor, ":")).String()
}

func newBFDLab(t *testing.T) *bfdLab {
	t.Helper()
	b := &bfdLab{lab: newLab(t, size{})}
	t.Cleanup(func() {
		if t.Failed() && b.run != nil {
			t.Logf("weir logged:\n%s", b.run.logged())
		}
	})
	return b
}

// The timers of tests: one finds a loss soon, and the other keeps sessions up while this machine is
// busy with other things.
const (
	soon    = "interval: 50ms, multiplier: 3"
	patient = "interval: 400ms, multiplier: 7"
)

// bfdConfig is the director's file with these neighbors.
func bfdConfig(keys, timers string, neighbors ...string) string {
	var section strings.Builder
	fmt.Fprintf(&section, "bfd:\n%s  neighbors:\n", keys)
	for _, n := range neighbors {
		fmt.Fprintf(&section, "  - {address: %q, source: %q, multihop: %v, %s}\n", n, atDirector(n),
			n == severalHops4 || n == severalHops6, timers)
	}
	return configText("eth0", "") + section.String()
}

// bfdEnd is the other end's view of the session with the director.
func bfdEnd(neighbor string, interval, multiplier int) bfdSession {
	return bfdSession{local: neighbor, remote: atDirector(neighbor), multihop: neighbor == severalHops4 || neighbor == severalHops6,
		interval: interval, multiplier: multiplier}
}

// bfdStatus returns what a director's BFD process says.
func bfdStatus(t *testing.T, h *netlab.Host) (s model.BFDStatus, err error) {
	return bfdStatusAt(t, h, bfd.Socket(filepath.Join(h.Dir(), "run.sock")))
}

// bfdStatusAt is bfdStatus for one of several directors on a host.
func bfdStatusAt(t *testing.T, h *netlab.Host, socket string) (model.BFDStatus, error) {
	return askWeir[model.BFDStatus](&daemon{t: t, host: h, socket: socket}, "bfd", "status")
}

// bfdProcess waits for a director's BFD process and returns its number.
func bfdProcess(t *testing.T, h *netlab.Host) int {
	t.Helper()
	var s model.BFDStatus
	waitFor(t, "the BFD process to answer", func() (ok bool) {
		var err error
		s, err = bfdStatus(t, h)
		return err == nil
	})
	return s.PID
}

// sendSignal sends a signal to a process.
func sendSignal(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("signal process %d: %v", pid, err)
	}
}

// takeProgramOff detaches a director's program from its interface, and leaves the pin. Another
// owner's program takes the place, so that the director cannot put its own back, until the returned
// function removes that program.
func takeProgramOff(t *testing.T, d *daemon) (giveBack func()) {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(d.bpffs, "weir", "xdp-eth0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "firewall", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // XDP_PASS
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.(interface{ Detach() error }).Detach(); err != nil {
		t.Fatal(err)
	}
	err = d.host.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		theirs, err := link.AttachXDP(link.XDPOptions{Program: other, Interface: eth0.Index, Flags: link.XDPDriverMode})
		if err == nil {
			giveBack = sync.OnceFunc(func() { theirs.Close() })
			t.Cleanup(giveBack)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return giveBack
}

// status returns what the BFD process says.
func (b *bfdLab) status() (model.BFDStatus, error) { return bfdStatus(b.t, b.director) }

// neighbor returns what the BFD process says of one neighbor.
func (b *bfdLab) neighbor(address string) model.BFDSessionStatus {
	s, _ := b.status()
	for _, n := range s.Sessions {
		if n.Neighbor.String() == address {
			return n
		}
	}
	return model.BFDSessionStatus{}
}

// both waits until both ends of a session are in a state.
func (b *bfdLab) both(neighbor, state string) {
	b.t.Helper()
	waitFor(b.t, fmt.Sprintf("both ends of the session with %s to be %s", neighbor, state), func() bool {
		return b.neighbor(neighbor).State == state && b.peers[neighbor].state(atDirector(neighbor)) == state
	})
}

// theirs waits until the neighbor's end is in a state.
func (b *bfdLab) theirs(neighbor, state string) {
	b.t.Helper()
	waitFor(b.t, fmt.Sprintf("%s to see the session %s", neighbor, state), func() bool {
		return b.peers[neighbor].state(atDirector(neighbor)) == state
	})
}

// pid waits for the BFD process and returns its number.
func (b *bfdLab) pid() int {
	b.t.Helper()
	return bfdProcess(b.t, b.director)
}

// Sessions come up with BIRD and with FRR, over IPv4 and IPv6, one hop and several, with the timers
// that were configured; when the daemon is killed, the director sees it. A session is up only while
// the program is on the interface, the link is up and the process answers for both, and each end
// says why it is down.
func TestBFDWithRouters(t *testing.T) {
	t.Parallel()
	b := newBFDLab(t)
	near, far := []string{oneHop4, oneHop6}, []string{severalHops4, severalHops6}
	b.run = launchDaemon(t, b.director, "run", bfdConfig("", soon, slices.Concat(near, far)...))
	start := func(speak func(*testing.T, *netlab.Host, []bfdSession) bfdPeer) {
		here := speak(t, b.router, []bfdSession{bfdEnd(oneHop4, 50, 4), bfdEnd(oneHop6, 50, 4)})
		there := speak(t, b.client, []bfdSession{bfdEnd(severalHops4, 50, 4), bfdEnd(severalHops6, 50, 4)})
		b.peers = map[string]bfdPeer{oneHop4: here, oneHop6: here, severalHops4: there, severalHops6: there}
		b.agree()
	}
	start(birdBFD)
	b.peers[oneHop4].kill()
	b.peers[severalHops4].kill()
	b.missed(slices.Concat(near, far)...)
	start(startBFDD)
	b.peers[severalHops4].kill()
	b.missed(far...)
	frr := b.peers[oneHop4].(*bfdd)
	says := func(want string) func() bool {
		return func() bool { return strings.EqualFold(frr.peer(atDirector(oneHop4)).RemoteDiagnostic, want) }
	}

	t.Run("the process is frozen", func(t *testing.T) {
		pid := b.pid()
		sendSignal(t, pid, syscall.SIGSTOP)
		b.theirs(oneHop4, "down")
		sendSignal(t, pid, syscall.SIGCONT)
		b.both(oneHop4, "up")
	})
	t.Run("the process is killed", func(t *testing.T) {
		// Another process has the session again so soon that a look may miss the gap.
		pid, before := b.pid(), frr.losses(atDirector(oneHop4))
		sendSignal(t, pid, syscall.SIGKILL)
		waitFor(t, "the router to lose the session", func() bool { return frr.losses(atDirector(oneHop4)) > before })
		b.both(oneHop4, "up")
		if now := b.pid(); now == pid {
			t.Error("it is still there")
		}
	})
	t.Run("the link is down", func(t *testing.T) {
		on(t, b.director, "ip", "link", "set", "eth0", "down")
		b.theirs(oneHop4, "down")
		waitFor(t, "the director to say why", func() bool { return b.neighbor(oneHop4).Diagnostic == "path-down" })
		on(t, b.director, "ip", "link", "set", "eth0", "up")
		b.both(oneHop4, "up")
	})
	t.Run("the program is taken off the interface", func(t *testing.T) {
		takeProgramOff(t, b.run)
		b.both(oneHop4, "down")
		waitFor(t, "the router to hear why", says("forwarding plane reset"))
		if got := b.neighbor(oneHop4).Diagnostic; got != "forwarding-reset" {
			t.Errorf("the director's end is down because of %s", got)
		}
	})
}

// agree waits until all sessions are up, with the timers of both ends.
func (b *bfdLab) agree() {
	b.t.Helper()
	for n := range b.peers {
		b.both(n, "up")
	}
	for n, peer := range b.peers {
		waitFor(b.t, n+" to send every 50 ms, with multiplier 4", func() bool {
			s := b.neighbor(n)
			return s.Interval.String() == "50ms" && s.Detection.String() == "200ms"
		})
		if frr, ok := peer.(*bfdd); ok {
			waitFor(b.t, n+" to know what the director wants", func() bool {
				p := frr.peer(atDirector(n))
				return p.RemoteReceive == 50 && p.RemoteTransmit == 50 && p.RemoteMultiplier == 3
			})
		}
	}
}

// missed waits until the director has found that those neighbors are gone.
func (b *bfdLab) missed(neighbors ...string) {
	b.t.Helper()
	for _, n := range neighbors {
		waitFor(b.t, "the director to miss "+n, func() bool {
			s := b.neighbor(n)
			return s.State == "down" && s.Diagnostic == "detection-expired" && s.Remote == 0
		})
	}
}

// weir run is not the datapath: sessions outlive it when it is killed, stopped or replaced. Packets
// of other hosts cannot end a session.
func TestBFDOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	b := newBFDLab(t)
	b.run = launchDaemon(t, b.director, "run", bfdConfig("", patient, oneHop4))
	b.peers = map[string]bfdPeer{oneHop4: startBFDD(t, b.router, []bfdSession{bfdEnd(oneHop4, 400, 7)})}
	b.both(oneHop4, "up")
	b.run.ready()
	b.discards(t)
	pid, changes := b.pid(), b.neighbor(oneHop4).Changes
	same := func(what string) {
		t.Helper()
		if s := b.neighbor(oneHop4); s.State != "up" || s.Changes != changes {
			t.Errorf("%s: the session is %s, and has changed %d times, not %d", what, s.State, s.Changes, changes)
		}
		if now := b.pid(); now != pid {
			t.Errorf("%s: process %d speaks BFD, not %d", what, now, pid)
		}
	}

	b.run.end(syscall.SIGKILL)
	same("killed")
	b.run.start()
	b.run.ready()
	b.run.end(syscall.SIGTERM)
	same("ended")
	b.run.edit(bfdConfig("  restart-time: 5s\n", patient, oneHop4))
	b.run.start()
	b.run.ready()
	same("started again")

	t.Run("for the restart time", func(t *testing.T) {
		deadline := func() time.Time {
			s, err := b.status()
			if err != nil {
				t.Fatal(err)
			}
			return s.Deadline
		}
		waitFor(t, "the new restart time to hold", func() bool { return time.Until(deadline()) < 6*time.Second })
		sendSignal(t, b.run.cmd.Process.Pid, syscall.SIGSTOP)
		before := deadline()
		s, err := b.status()
		if held := err == nil && s.PID == pid && len(s.Sessions) == 1 && s.Sessions[0].State == "up" && s.Sessions[0].Changes == changes; !held && time.Now().Before(before) {
			t.Errorf("stopped: process %d has %+v, not process %d a session that has changed %d times (%v)", s.PID, s.Sessions, pid, changes, err)
		}
		b.theirs(oneHop4, "down")
		if now := time.Now(); now.Before(before) {
			t.Errorf("down %v before the time is over", before.Sub(now))
		}
		waitFor(t, "the process to end", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		sendSignal(t, b.run.cmd.Process.Pid, syscall.SIGCONT)
		b.both(oneHop4, "up")
	})
	t.Run("and ends when nobody is to be told", func(t *testing.T) {
		pid := b.pid()
		b.run.edit(configText("eth0", ""))
		waitFor(t, "the process to end", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		b.theirs(oneHop4, "down")
		b.run.edit(bfdConfig("", patient, oneHop4))
		b.both(oneHop4, "up")
	})
	t.Run("or when the datapath is detached", func(t *testing.T) {
		pid := b.pid()
		b.run.end(syscall.SIGTERM)
		on(t, b.director, weir, "detach", "--bpffs", b.run.bpffs, "--socket", b.run.socket)
		b.theirs(oneHop4, "down")
		waitFor(t, "the process to end", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	})
}

// discards shows that a wrong packet is counted by what is wrong, and changes nothing, even if it
// is from the neighbor's own host or has the session's own number.
func (b *bfdLab) discards(t *testing.T) {
	before := b.neighbor(oneHop4)
	down := bfd.Packet{State: bfd.Down, Multiplier: 3, Mine: 77, Yours: before.Discriminator, DesiredTx: time.Second, RequiredRx: time.Second}
	wrong := func(change func(p []byte)) []byte {
		bytes := down.Append(nil)
		change(bytes)
		return bytes
	}
	other := down
	other.Yours++
	for _, c := range []struct {
		reason string
		source string
		ttl    int
		packet []byte
	}{
		{"ttl", oneHop4, 254, down.Append(nil)},
		{"length", oneHop4, 255, down.Append(nil)[:23]},
		{"length", oneHop4, 255, nil},
		{"version", oneHop4, 255, wrong(func(p []byte) { p[0] = 0 })},
		{"multiplier", oneHop4, 255, wrong(func(p []byte) { p[2] = 0 })},
		{"multipoint", oneHop4, 255, wrong(func(p []byte) { p[1] |= 1 })},
		{"my-discriminator", oneHop4, 255, wrong(func(p []byte) { clear(p[4:8]) })},
		{"state-without-session", oneHop4, 255, wrong(func(p []byte) { clear(p[8:12]); p[1] = 3 << 6 })},
		{"your-discriminator", oneHop4, 255, other.Append(nil)},
		{"unknown-peer", "10.0.0.1", 255, down.Append(nil)},
		{"authentication", oneHop4, 255, func() []byte { p := down; p.Auth = []byte{4, 2}; return p.Append(nil) }()},
	} {
		counted := func() uint64 {
			s, err := b.status()
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range s.Discards {
				if d.Name == c.reason {
					return d.Count
				}
			}
			t.Fatalf("there is no reason %s", c.reason)
			return 0
		}
		was := counted()
		dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(c.source)}, Control: func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TTL, c.ttl) })
			return err
		}}
		err := b.router.Do(func() error {
			conn, err := dialer.Dial("udp", net.JoinHostPort(atDirector(oneHop4), "3784"))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(c.packet)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "a packet with wrong "+c.reason+" to be counted", func() bool { return counted() == was+1 })
	}
	if after := b.neighbor(oneHop4); after.State != "up" || after.Changes != before.Changes || after.Remote != before.Remote {
		t.Errorf("the session was %+v and is %+v", before, after)
	}
}
