package test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Probes take the path of clients' packets, and say what is wrong with it: the servers themselves
// stay as they are.
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backend4
func TestBrokenWaysAreNamed(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 4})
	const health = "  health: {kind: http, interval: 50ms, timeout: 300ms, fall: 2, panic: 0}\n"
	service := func(name, vip, mode string, backend int) string {
		return "- name: " + name + "\n  vip: \"" + vip + "\"\n  protocol: tcp\n  port: 80\n  mode: " + mode + "\n" + health +
			"  backends: [{name: a, address: \"" + lanAddress(backendHost+backend, strings.Contains(vip, ":")).String() + "\"}]\n"
	}
	agents := map[int]*daemon{}
	faults := []struct {
		name, vip, mode string
		backend         int
		spoil           func(*netlab.Host) // nil: the backend is broken from the beginning
		why             string
	}{
		{"vip-missing", "192.0.2.10", "l2dsr", 0, func(h *netlab.Host) {
			agents[0].end(syscall.SIGKILL) // otherwise the agent restores its VIPs
			on(t, h, "ip", "address", "del", "192.0.2.10/32", "dev", "lo")
		},
			"vip: 10.2.0.21 answers, and not to what is for 192.0.2.10: the VIP is missing on lo, or something drops it"},
		{"vip-missing-6", "2001:db8::10", "l2dsr", 0, func(h *netlab.Host) { on(t, h, "ip", "address", "del", "2001:db8::10/128", "dev", "lo") },
			"vip: fd00:2::21 answers, and not to what is for 2001:db8::10: the VIP is missing on lo, or something drops it"},
		{"agent-stopped", "192.0.2.11", "gue", 1, func(h *netlab.Host) { agents[1].end(syscall.SIGTERM); on(t, h, weir, "detach", "--bpffs", h.BPFFS()) },
			"tunnel: 10.2.0.22 answers, and refuses the tunnel: nothing unwraps gue there"},
		{"agent-stopped-6", "2001:db8::11", "gue", 1, func(*netlab.Host) {},
			"tunnel: fd00:2::22 answers, and refuses the tunnel: nothing unwraps gue there"},
		{"small-mtu", "192.0.2.12", "ipip", 2, func(*netlab.Host) { on(t, l.lan, "ip", "link", "set", "eth4", "mtu", "1450") },
			"mtu: short packets are answered, and those of 1480 bytes are not: something on the way takes no such long ones"},
		{"answers-arp", "10.2.0.100", "l2dsr", 3, nil, "arp: 10.2.0.24 answers ARP for 10.2.0.100: raise arp_ignore there"},
	}
	// Packets are as long in the lab as on a wire: its links would take longer ones.
	on(t, l.director, "ethtool", "-K", "eth0", "tso", "off", "gso", "off")
	on(t, l.lan, "ethtool", "-K", "eth1", "gro", "off")
	var services []string
	for _, f := range faults {
		services = append(services, service(f.name, f.vip, f.mode, f.backend))
	}
	for i, b := range l.backends {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })}
		listener, err := b.Listen("tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		go func() { _ = server.Serve(listener) }()
		agents[i] = startDaemon(t, b, "agent", configText("", "eth0", services...))
	}
	// The agent would prevent the fault. The director asks every ten seconds.
	agents[3].end(syscall.SIGKILL)
	for _, of := range []string{"all", "eth0"} {
		l.backends[3].Sysctl("net.ipv4.conf."+of+".arp_ignore", "0")
	}
	// Not startDaemon: it waits until every backend owns slots, and the broken one may have lost
	// them before the first look.
	director := launchDaemon(t, l.director, "run", configText("eth0", "", services...))
	director.waitFor("answer on its socket", func() bool { _, err := director.services(); return err == nil })
	director.waitFor("find all well at their VIPs", func() bool {
		return !slices.ContainsFunc(director.backends(), func(b api.Backend) bool {
			return b.Service != "answers-arp" && (b.Health == nil || b.Health.State != model.HealthUp || b.Health.To.Addr().Is4() && b.Health.To.Addr() == b.Address)
		})
	})
	for _, f := range faults {
		if f.spoil != nil {
			f.spoil(l.backends[f.backend])
		}
	}
	shown := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", shown, director.logged())
		}
	})
	for _, f := range faults {
		director.waitFor("say of "+f.name+" "+f.why, func() bool {
			shown = on(t, director.host, weir, "backends", f.name, "--socket", director.socket)
			return strings.Contains(shown, "  down  ") && strings.Contains(shown, "  "+f.why+"\n")
		})
	}
}
