package test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/bfd"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// bfdAsked is a director's file with one neighbor, two hops away, and more keys.
func bfdAsked(keys string) string {
	return configText("eth0", "") + fmt.Sprintf("bfd:\n  neighbors:\n  - {address: %s, source: %s, multihop: true, %s, %s}\n",
		severalHops4, atDirector(severalHops4), patient, keys)
}

// discarded returns how many packets were discarded for a reason.
func (b *bfdLab) discarded(reason string) uint64 {
	b.t.Helper()
	s, err := b.status()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range s.Discards {
		if d.Name == reason {
			return d.Count
		}
	}
	b.t.Fatalf("there is no reason %s", reason)
	return 0
}

// sendBFD sends a packet of BFD from a host to the director, over several hops.
func sendBFD(t *testing.T, h *netlab.Host, ttl int, packet []byte) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(severalHops4)}, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TTL, ttl) })
		return err
	}}
	err := h.Do(func() error {
		conn, err := dialer.Dial("udp", net.JoinHostPort(atDirector(severalHops4), "4784"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(packet)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unmoved sends a packet, which may name the session by its number, and makes sure that the packet is
// discarded for a reason and the session stays as it is.
func (b *bfdLab) unmoved(what, reason string, packet func(to uint32) []byte) {
	t := b.t
	t.Helper()
	before, was := b.neighbor(severalHops4), b.discarded(reason)
	sendBFD(t, b.client, 37, packet(before.Discriminator))
	waitFor(t, what+" to be counted as "+reason, func() bool { return b.discarded(reason) > was })
	received := b.neighbor(severalHops4).Received
	waitFor(t, "the router's next packets", func() bool { return b.neighbor(severalHops4).Received > received+3 })
	if now := b.neighbor(severalHops4); now.State != "up" || now.Changes != before.Changes || now.Remote != before.Remote {
		t.Errorf("%s: the session was %+v and is %+v", what, before, now)
	}
	if state := b.peers[severalHops4].state(atDirector(severalHops4)); state != "up" {
		t.Errorf("%s: at the router the session is %s", what, state)
	}
}

// strange is a packet of a host that knows only the addresses: it says that the session is down.
var strange = bfd.Packet{State: bfd.Down, Multiplier: 3, Mine: 0xdeadbeef, DesiredTx: time.Second, RequiredRx: time.Second}

// knowing is the same of a host that knows the session's number, too.
func knowing(to uint32) []byte {
	p := strange
	p.Yours = to
	return p.Append(nil)
}

// A host that knows only the addresses cannot end a session over several hops with a packet: the
// packet names no session while the router's own do, or comes from too far away.
//
//	client (FRR's bfdd) --- router --- switch --- director
func TestStrangersEndNoBFDSession(t *testing.T) {
	t.Parallel()
	b := newBFDLab(t)
	b.run = launchDaemon(t, b.director, "run", bfdAsked(""))
	b.peers = map[string]bfdPeer{severalHops4: startBFDD(t, b.client, []bfdSession{bfdEnd(severalHops4, 400, 7)})}
	b.both(severalHops4, "up")
	for _, state := range []bfd.State{bfd.Down, bfd.AdminDown} {
		b.unmoved("a packet that says "+state.String(), "doubted", func(uint32) []byte {
			p := strange
			p.State = state
			return p.Append(nil)
		})
	}
	b.run.edit(bfdAsked("ttl-security: 2"))
	waitFor(t, "ttl-security to hold", func() bool { return b.neighbor(severalHops4).TTLSecurity == 2 })
	b.unmoved("a packet from far away", "ttl", knowing)
}

// Nor can a host that knows the session's number, where the packets are signed.
//
//	client (BIRD) --- router --- switch --- director
func TestStrangersSignNoBFDPacket(t *testing.T) {
	t.Parallel()
	birds := map[model.BFDAuthenticationType]string{
		model.KeyedMD5: "keyed md5", model.MeticulousKeyedMD5: "meticulous keyed md5",
		model.KeyedSHA1: "keyed sha1", model.MeticulousKeyedSHA1: "meticulous keyed sha1",
	}
	// Each process changes from one kind to another.
	for _, kinds := range [][]model.BFDAuthenticationType{{model.KeyedMD5, model.MeticulousKeyedSHA1}, {model.KeyedSHA1, model.MeticulousKeyedMD5}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			t.Parallel()
			b := newBFDLab(t)
			b.run, b.peers = launchDaemon(t, b.director, "run", bfdAsked("")), map[string]bfdPeer{}
			for _, kind := range kinds {
				b.signed(kind, birds[kind])
			}
		})
	}
}

// signed has a session with BIRD that is authenticated, tries it, and ends BIRD.
func (b *bfdLab) signed(kind model.BFDAuthenticationType, options string) {
	t := b.t
	t.Helper()
	secret := write(t, b.director, "password", "a secret\n")
	// BIRD sends with a usual TTL over several hops: ttl-security is for routers that send with
	// 255.
	b.run.edit(bfdAsked(fmt.Sprintf("authentication: {type: %s, key-id: 7, password-file: %s}", kind, secret)))
	waitFor(t, "the session to be authenticated by "+string(kind), func() bool { return b.neighbor(severalHops4).Authentication == kind })
	end := bfdEnd(severalHops4, 400, 7)
	end.birdAlso = fmt.Sprintf(`authentication %s; password "a secret" { id 7; };`, options)
	b.peers[severalHops4] = birdBFD(t, b.client, []bfdSession{end})
	b.both(severalHops4, "up")
	b.unmoved("a packet without a signature", "authentication", knowing)
	// Restarted routers begin with any sequence number, and so does weir bfd.
	b.peers[severalHops4].kill()
	b.peers[severalHops4] = birdBFD(t, b.client, []bfdSession{end})
	b.both(severalHops4, "up")
	pid := b.pid()
	sendSignal(t, pid, syscall.SIGKILL)
	waitFor(t, "another process", func() bool { s, err := b.status(); return err == nil && s.PID != pid })
	b.both(severalHops4, "up")
	b.peers[severalHops4].kill()
	b.missed(severalHops4)

	end.birdAlso = fmt.Sprintf(`authentication %s; password "another" { id 7; };`, options)
	b.peers[severalHops4] = birdBFD(t, b.client, []bfdSession{end})
	waitFor(t, "the director to say that passwords differ", func() bool { return strings.Contains(b.neighbor(severalHops4).Refused, "another password") })
	// The file is read periodically.
	write(t, b.director, "password", "another\n")
	b.both(severalHops4, "up")
	b.peers[severalHops4].kill()
	b.missed(severalHops4)
}

// Two directors on one host, with their sockets in one directory, each have their own BFD process
// if each neighbor has a source. A director that cannot have one says so.
//
//	router (FRR's bfdd) --- switch --- eth0 director
//	                   --------------- eth1 director
func TestTwoDirectorsSpeakBFD(t *testing.T) {
	t.Parallel()
	b := newBFDLab(t)
	second := b.Link(b.router, b.director, netlab.LinkOptions{XDP: true, A: []string{"10.3.0.1/24"}, B: []string{"10.3.0.11/24"}})
	second.A.ReceiveXDP()
	b.run = launchDaemon(t, b.director, "run", bfdConfig("", patient, oneHop4))
	dir := b.director.Dir()
	other := &daemon{t: t, host: b.director, binary: weir, verb: "run", bpffs: filepath.Join(b.director.BPFFS(), "second"),
		log: filepath.Join(dir, "second.log"), socket: filepath.Join(dir, "second.sock")}
	on(t, b.director, "mkdir", "-p", other.bpffs, filepath.Join(dir, "second"))
	text := func(source string) string {
		return strings.Replace(configText(second.B.Name, ""), "director:\n", fmt.Sprintf("director:\n  store: {directory: %s}\n", filepath.Join(dir, "second-state")), 1) +
			fmt.Sprintf("bfd:\n  neighbors:\n  - {address: 10.3.0.1, %s %s}\n", source, patient)
	}
	other.config = write(t, b.director, "second/weir.yaml", text("source: 10.3.0.11,"))
	other.start()
	other.ready()
	b.peers = map[string]bfdPeer{oneHop4: startBFDD(t, b.router, []bfdSession{bfdEnd(oneHop4, 400, 7),
		{local: "10.3.0.1", remote: "10.3.0.11", interval: 400, multiplier: 7}})}
	b.both(oneHop4, "up")
	ofOther := func() (s model.BFDStatus, err error) { return bfdStatusAt(t, b.director, bfd.Socket(other.socket)) }
	waitFor(t, "the second director's session to be up", func() bool {
		s, err := ofOther()
		return err == nil && len(s.Sessions) == 1 && s.Sessions[0].State == "up"
	})
	if b.peers[oneHop4].state("10.3.0.11") != "up" {
		t.Error("the router has no session with the second director")
	}
	write(t, b.director, "second/weir.yaml", text("")) // it needs the packets to all addresses, and cannot have them
	why := "UDP port 3784 is another process's"
	waitFor(t, "weir status to say why it has no BFD", func() bool {
		out, err := tryOn(t, b.director, weir, "status", "--socket", other.socket)
		return err != nil && strings.Contains(out, "error") && strings.Contains(out, why) // the exit status says so, too
	})
	waitFor(t, "an event of it", func() bool {
		out, err := tryOn(t, b.director, weir, "events", "--last", "10", "--socket", other.socket)
		return err == nil && strings.Contains(out, why)
	})
	b.both(oneHop4, "up")
	write(t, b.director, "second/weir.yaml", text("source: 10.3.0.11,"))
	waitFor(t, "weir status to have nothing to say", func() bool {
		out, err := tryOn(t, b.director, weir, "status", "--socket", other.socket)
		return err == nil && !strings.Contains(out, why)
	})
	waitFor(t, "the second director's session to be up again", func() bool {
		s, err := ofOther()
		return err == nil && len(s.Sessions) == 1 && s.Sessions[0].State == "up"
	})
	other.end(syscall.SIGTERM)
	on(t, b.director, weir, "detach", "--bpffs", other.bpffs, "--socket", other.socket)
	b.both(oneHop4, "up")
}

// A failure of BFD is shown in events, status and metrics until it is over: here the process is
// frozen, and does not answer.
func TestBFDProcessIsMissed(t *testing.T) {
	t.Parallel()
	b := newBFDLab(t)
	b.run = launchDaemon(t, b.director, "run", bfdConfig("", patient, oneHop4))
	b.peers = map[string]bfdPeer{oneHop4: startBFDD(t, b.router, []bfdSession{bfdEnd(oneHop4, 400, 7)})}
	b.both(oneHop4, "up")
	ask := func(args ...string) string {
		out, _ := tryOn(t, b.director, weir, append(args, "--socket", b.run.socket)...)
		return out
	}
	pid := b.pid()
	sendSignal(t, pid, syscall.SIGKILL)
	waitFor(t, "an event that the process was lost", func() bool {
		return strings.Contains(ask("events", "--last", "20"), "when the datapath is lost: the BFD process does not answer")
	})
	b.both(oneHop4, "up")
	pid = b.pid()
	sendSignal(t, pid, syscall.SIGSTOP)
	waitFor(t, "weir status to say so", func() bool {
		return strings.Contains(ask("status"), "when the datapath is lost: the BFD process does not answer")
	})
	waitFor(t, "the metric to say so", func() bool {
		return strings.Contains(on(t, b.director, "curl", "-s", "--unix-socket", b.run.socket, "http://weir/metrics"), "weir_bfd_process_up 0")
	})
	sendSignal(t, pid, syscall.SIGCONT)
	b.both(oneHop4, "up")
	waitFor(t, "weir status to say that all is well", func() bool { return !strings.Contains(ask("status"), "does not answer") })
	waitFor(t, "an event that all is well", func() bool {
		return strings.Contains(ask("events", "--last", "20"), "is over: routers are not told when the datapath is lost")
	})
}
