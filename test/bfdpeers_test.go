package test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// bfdSession is a session as both kinds of routers are configured with it.
type bfdSession struct {
	local, remote string
	multihop      bool
	interval      int // of both directions, in milliseconds
	multiplier    int
	minimumTTL    int    // for bfdd; 0: 250
	birdAlso      string // BIRD's own options
}

// bfdPeer is a router's BFD daemon: another project's, from the distribution.
type bfdPeer interface {
	// state returns what the daemon says of its session with an address: "up",
	// "down", "init" or "admin-down".
	state(remote string) string
	// kill ends the daemon without a packet to its peers.
	kill()
}

// bfdd is FRR's.
type bfdd struct {
	t *testing.T
	*routerlab.FRR
}

// startBFDD runs FRR's bfdd on a host.
func startBFDD(t *testing.T, h *netlab.Host, sessions []bfdSession) bfdPeer {
	t.Helper()
	var conf strings.Builder
	conf.WriteString("bfd\n")
	for _, s := range sessions {
		fmt.Fprintf(&conf, " peer %s", s.remote)
		if s.multihop {
			conf.WriteString(" multihop")
		}
		fmt.Fprintf(&conf, " local-address %s\n", s.local)
		if s.multihop {
			fmt.Fprintf(&conf, "  minimum-ttl %d\n", cmp.Or(s.minimumTTL, 250))
		}
		fmt.Fprintf(&conf, "  receive-interval %d\n  transmit-interval %d\n  detect-multiplier %d\n  no shutdown\n", s.interval, s.interval, s.multiplier)
	}
	return &bfdd{t, startFRR(t, h, routerlab.FRRConfig{BFD: conf.String()})}
}

// bfddPeer is a session as bfdd shows it.
type bfddPeer struct {
	Peer             string
	Status           string
	Diagnostic       string
	RemoteDiagnostic string `json:"remote-diagnostic"`
	RemoteTransmit   int    `json:"remote-transmit-interval"`
	RemoteReceive    int    `json:"remote-receive-interval"`
	RemoteMultiplier int    `json:"remote-detect-multiplier"`
}

func (b *bfdd) peer(remote string) (found bfddPeer) {
	out, err := b.Query("show bfd peers json")
	if err != nil {
		return found
	}
	var peers []bfddPeer
	if err := json.Unmarshal([]byte(out), &peers); err != nil {
		b.t.Fatalf("bfdd says %q: %v", out, err)
	}
	for _, p := range peers {
		if p.Peer == remote {
			return p
		}
	}
	return found
}

func (b *bfdd) state(remote string) string {
	return strings.ReplaceAll(b.peer(remote).Status, "shutdown", "admin-down")
}

// losses returns how often the session was lost.
func (b *bfdd) losses(remote string) int {
	out, err := b.Query("show bfd peers counters json")
	if err != nil {
		b.t.Fatal(err)
	}
	var peers []struct {
		Peer string `json:"peer"`
		Down int    `json:"session-down"`
	}
	if err := json.Unmarshal([]byte(out), &peers); err != nil {
		b.t.Fatalf("bfdd says %s: %v", out, err)
	}
	for _, p := range peers {
		if p.Peer == remote {
			return p.Down
		}
	}
	b.t.Fatalf("bfdd counts nothing of %s: %s", remote, out)
	return 0
}

func (b *bfdd) kill() { kill(b.t, b.BFDD) }

func kill(t *testing.T, d *routerlab.Daemon) {
	t.Helper()
	if err := d.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// bird is BIRD with its bfd protocol.
type bird struct {
	t *testing.T
	*routerlab.BIRD
}

// birdBFD runs BIRD on a host, with the timers of the first session.
func birdBFD(t *testing.T, h *netlab.Host, sessions []bfdSession) bfdPeer {
	t.Helper()
	var conf strings.Builder
	conf.WriteString("log stderr all;\nrouter id 192.0.2.200;\nprotocol device {}\nprotocol bfd {\n")
	for _, where := range []string{`interface "*"`, "multihop"} {
		fmt.Fprintf(&conf, " %s { interval %d ms; idle tx interval 1 s; multiplier %d; %s };\n", where, sessions[0].interval, sessions[0].multiplier, sessions[0].birdAlso)
	}
	for _, s := range sessions {
		if s.multihop {
			fmt.Fprintf(&conf, " neighbor %s local %s multihop yes;\n", s.remote, s.local)
		} else {
			fmt.Fprintf(&conf, " neighbor %s dev \"eth1\" local %s;\n", s.remote, s.local)
		}
	}
	conf.WriteString("}\n")
	return &bird{t, startBIRD(t, h, conf.String())}
}

func (b *bird) state(remote string) string {
	out, err := b.Query("show bfd sessions")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == remote {
			return strings.ReplaceAll(strings.ToLower(fields[2]), "admindown", "admin-down")
		}
	}
	return ""
}

func (b *bird) kill() { kill(b.t, b.BIRD.Daemon) }
