package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// ofSystemd says that the tests are a service of a systemd that is theirs alone: make test-systemd.
const ofSystemd = "WEIR_SYSTEMD"

// A package with the units under systemd, as an operator has it: installed, started, reloaded, restarted,
// hung, replaced by other versions and purged under load, and at last rebooted. The tests' own unit is what
// the network is on other hosts: systemd stops it after the director, so it sees what that leaves.
//
//	client --- router (FRR) --- switch --- director
//	                                   --- backend1
func TestSystemd(t *testing.T) {
	if os.Getenv(ofSystemd) == "" {
		t.Skipf("it installs and purges weir, and reboots: make test-systemd runs it under a systemd of its own (%s is not set)", ofSystemd)
	}
	reboots := make(chan os.Signal, 1)
	signal.Notify(reboots, syscall.SIGUSR1) // of SIGTERM the lab would end
	l := newAnnouncing(t, 1, 1, "")
	l.frr = startFRR(t, l.router, routerlab.FRRConfig{BGP: strings.Replace(frrBFD(), "bfd 5 300 300", "bfd 20 1000 1000", 1), BFD: "bfd\n"})
	u := newUnits(t, l)
	defer u.explain()

	u.dpkg("--install", u.packages["1.0.0"])
	u.run("an installed package starts nothing", u.nothingRuns)
	u.run("an agent is purged", u.agentIsPurged)
	u.dpkg("--install", u.packages["1.0.0"])
	u.enable("weir-agent", "weir")
	echoStream(t, l.backends[0], u.stream.at(1, 7))
	echo(t, l.backends[0], u.stream.at(1, 7))
	u.run("all that a director and an agent do is let", u.allIsLet)
	u.run("nothing is lost", u.nothingIsLost)
	u.run("other network namespaces", u.namespaces)
	u.run("a late interface", u.lateInterface)
	u.run("a director is purged", u.directorIsPurged)
	u.dpkg("--install", u.packages["1.0.0"])
	u.enable("weir-agent", "weir")
	u.run("a start after weir detach", u.startAfterDetach)
	u.run("a reboot withdraws the routes before the network goes", func(t *testing.T) { u.reboot(t, reboots) })
}

// units are weir's units on this machine, each in the namespace of a host of the lab.
type units struct {
	t        *testing.T
	l        *announcing
	director *daemon
	agent    *daemon
	stream   way
	checked  way
	calls    string            // of the hook
	packages map[string]string // by version, whatever weir is in them
}

func newUnits(t *testing.T, l *announcing) *units {
	u := &units{t: t, l: l, stream: way{mode: "gue"}, checked: way{mode: "nat"}, calls: "/var/lib/weir/calls", packages: map[string]string{}}
	u.director = &daemon{t: t, host: l.director, verb: "run", config: "/etc/weir/weir.yaml", socket: "/run/weir/director.sock"}
	u.agent = &daemon{t: t, host: l.backends[0], verb: "agent", config: "/etc/weir/weir.yaml", socket: "/run/weir/agent.sock"}
	for unit, host := range map[string]*netlab.Host{"weir": l.director, "weir-bfd": l.director, "weir-agent": l.backends[0]} {
		u.dropIn(unit, "lab", "NetworkNamespacePath=/run/netns/"+host.Namespace())
	}
	startNginx(t, l.backends[0])
	for _, version := range []string{"1.0.0", "2.0.0"} {
		u.packages[version] = "../build/systemd/weir-" + version + ".deb"
		if _, err := os.Stat(u.packages[version]); err != nil {
			t.Fatalf("make test-systemd makes the packages as a release does: %v", err)
		}
	}
	return u
}

// run runs a part that the later ones need.
func (u *units) run(claim string, f func(t *testing.T)) {
	began := time.Now()
	if !u.t.Run(claim, func(t *testing.T) {
		defer func(t *testing.T) { u.t, u.director.t, u.agent.t = t, t, t }(u.t)
		u.t, u.director.t, u.agent.t = t, t, t
		f(t)
	}) {
		u.t.FailNow()
	}
	u.t.Logf("%s: %.0f s", claim, time.Since(began).Seconds())
}

// explain shows what the units have logged if something has failed.
func (u *units) explain() {
	if u.t.Failed() {
		u.t.Logf("%s\n%s", u.try("systemctl", "status", "--no-pager", "--lines=0", "weir", "weir-agent", "weir-bfd"),
			u.try("journalctl", "--no-pager", "--output=short-precise", "--unit=weir", "--unit=weir-agent", "--unit=weir-bfd", "--lines=200"))
	}
}

// text is the file of director and agent.
func (u *units) text(more ...string) string {
	services := []string{
		u.stream.service("tcp", "7", everyBackend(1)), u.stream.service("udp", "7", everyBackend(1)),
		u.checked.service("tcp", "80", everyBackend(1)) + "  health: {kind: http, http: {path: /name}, interval: 1s, panic: 0}\n",
	}
	neighbor := fmt.Sprintf("{address: %s, asn: %d, hold-time: 3m, restart-time: 5m, keep-when-silent: true, bfd: {interval: 1s, multiplier: 20}}", lanAddress(routerHost, false), routerAS) // a guest may stand still for seconds
	return configText("eth0", "eth0", append(services, more...)...) + bgpText(directorHost, neighbor) +
		fmt.Sprintf("hooks:\n- {name: cloud, exec: [/bin/sh, -c, \"cat >>%s\"]}\n", u.calls)
}

// write writes the file.
func (u *units) write(text string) {
	u.t.Helper()
	if err := os.WriteFile(u.director.config+".new", []byte(text), 0o644); err != nil {
		u.t.Fatal(err)
	}
	if err := os.Rename(u.director.config+".new", u.director.config); err != nil {
		u.t.Fatal(err)
	}
}

// dropIn adds lines to a unit's section Service.
func (u *units) dropIn(unit, name string, lines ...string) {
	u.t.Helper()
	dir := filepath.Join("/etc/systemd/system", unit+".service.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		u.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".conf"), []byte("[Service]\n"+strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		u.t.Fatal(err)
	}
}

func (u *units) dpkg(args ...string) { u.t.Helper(); u.do("dpkg", args...) }

// dpkgOn runs dpkg in a host's network: maintainer scripts detach what is there.
func (u *units) dpkgOn(h *netlab.Host, args ...string) {
	u.t.Helper()
	u.do("nsenter", append([]string{"--net=/run/netns/" + h.Namespace(), "dpkg"}, args...)...)
}

// do runs a command that has to succeed.
func (u *units) do(name string, args ...string) string {
	u.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		u.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// try returns what a command prints, whether it succeeds or not.
func (u *units) try(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

func (u *units) enable(names ...string) {
	u.t.Helper()
	u.write(u.text())
	u.do("systemctl", append([]string{"enable", "--now"}, names...)...)
	u.whole()
}

// show returns a property of a unit.
func (u *units) show(unit, property string) string {
	u.t.Helper()
	return strings.TrimSpace(u.do("systemctl", "show", "--value", "--property="+property, unit))
}

// route is the route that the router learns.
func (u *units) route() string { return u.stream.vip().String() + "/32" }

// whole waits until all works, with the route and BFD.
func (u *units) whole() {
	u.t.Helper()
	c := u.director.read()
	waitFor(u.t, "the agent to hold the VIPs", func() bool { return u.agent.holds(c) && u.agent.listens() })
	waitFor(u.t, "the director to forward", func() bool { return u.director.forwards(c) && u.director.checked(1) })
	waitFor(u.t, "the session with the router", func() bool {
		status, err := u.director.tryBGP()
		return err == nil && len(status.Neighbors) == 1 && status.Neighbors[0].State == model.SessionEstablished && status.Neighbors[0].BFD == "up"
	})
	waitRouted(u.t, u.l.router, u.route(), "via "+lanAddress(directorHost, false).String())
}

func (u *units) nothingRuns(t *testing.T) {
	for _, unit := range []string{"weir", "weir-agent", "weir-bfd"} {
		if state := u.try("systemctl", "is-active", unit); state != "inactive" {
			t.Errorf("%s is %s", unit, state)
		}
	}
	for _, unit := range []string{"weir", "weir-agent"} {
		if state := u.try("systemctl", "is-enabled", unit); state != "disabled" {
			t.Errorf("%s is %s", unit, state)
		}
	}
}

// left is what weir could leave on a host, in its kernel and among its files.
func (u *units) left(h *netlab.Host) string {
	u.t.Helper()
	var b strings.Builder
	for _, command := range []string{"ip -brief address", "ip rule", "ip route show table all", "tc filter show dev eth0 ingress", "ip -details link show eth0"} {
		words := strings.Fields(command)
		for line := range strings.Lines(on(u.t, h, words[0], words[1:]...)) {
			if strings.Contains(line, "xdp") || !strings.Contains(command, "link") {
				b.WriteString(line)
			}
		}
	}
	for _, path := range []string{"/etc/weir", "/var/lib/weir*", "/run/weir", "/sys/fs/bpf/weir", "/usr/bin/weir", "/usr/lib/systemd/system/weir*", "/usr/share/*/weir*", "/usr/share/man/*/weir*", "/etc/systemd/system/*/weir*"} {
		matches, err := filepath.Glob(path)
		if err != nil {
			u.t.Fatal(err)
		}
		for _, m := range matches {
			if !strings.HasSuffix(filepath.Dir(m), ".service.d") {
				fmt.Fprintln(&b, m)
			}
		}
	}
	return b.String()
}

func (u *units) agentIsPurged(t *testing.T) {
	u.dpkg("--purge", "weir")
	before := u.left(u.agent.host)
	u.dpkg("--install", u.packages["1.0.0"])
	u.write(u.text())
	u.do("systemctl", "enable", "--now", "weir-agent")
	c := u.director.read()
	waitFor(t, "the agent to hold the VIPs", func() bool { return u.agent.holds(c) })
	if during := u.left(u.agent.host); !strings.Contains(during, "/sys/fs/bpf/weir") || during == before {
		t.Fatalf("the agent has set up nothing:\n%s", during)
	}
	u.dpkgOn(u.agent.host, "--purge", "weir")
	u.wantSame(before, u.left(u.agent.host))
}

func (u *units) wantSame(before, after string) {
	u.t.Helper()
	if before != after {
		u.t.Errorf("a purged package has left something:\n%s\nwhere there was\n%s", after, before)
	}
	if pids := u.try("pidof", "weir"); pids != "" {
		u.t.Errorf("a purged package has left the processes %s", pids)
	}
}

// allIsLet holds each bound of the units against what needs it.
func (u *units) allIsLet(t *testing.T) {
	for _, unit := range []string{"weir", "weir-agent", "weir-bfd"} {
		if state, by := u.show(unit, "ActiveState"), u.show(unit, "NotifyAccess"); state != "active" || by != "main" {
			t.Errorf("%s is %s, and %q may tell systemd so", unit, state, by)
		}
		pid := u.show(unit, "MainPID")
		if status, err := os.ReadFile("/proc/" + pid + "/status"); err != nil || strings.Contains(string(status), "\nUid:\t0") {
			t.Errorf("%s runs as root (%v)", unit, err)
		}
	}
	for unit, says := range map[string]string{"weir": "forwards 3 services", "weir-agent": "unwraps and redirects for 3 services"} {
		waitFor(t, "systemd to show that "+unit+" "+says, func() bool { return u.show(unit, "StatusText") == says })
	}
	status, err := bfdStatusAt(t, u.director.host, "/run/weir/bfd.sock")
	if err != nil || !status.Realtime || fmt.Sprint(status.PID) != u.show("weir-bfd", "MainPID") {
		t.Errorf("weir bfd is %+v (%v), not the unit's process with real-time priority", status, err)
	}
	if name := curl(t, u.l.client, u.checked.url("name")); name != "backend1" {
		t.Errorf("%s brings %q", u.checked, name)
	}
	waitFor(t, "the hook to be called", func() bool {
		calls, err := os.ReadFile(u.calls)
		return err == nil && strings.Contains(string(calls), u.stream.vip().String())
	})
	file := filepath.Join(t.TempDir(), "packets")
	capture := u.director.host.Command(t.Context(), weir, "capture", "--socket", u.director.socket, "--packets", "1", "-w", file)
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	captured := make(chan error, 1)
	go func() { captured <- capture.Wait() }()
	waitFor(t, "a packet to be captured", func() bool {
		curl(t, u.l.client, u.checked.url("name"))
		select {
		case err := <-captured:
			if err != nil {
				t.Fatalf("weir capture: %v", err)
			}
			return true
		default:
			return false
		}
	})
	for line := range strings.Lines(u.try("journalctl", "--no-pager", "--unit=weir", "--unit=weir-agent", "--unit=weir-bfd")) {
		for _, sign := range []string{"ermitted", "ermission", "ead-only", "level=ERROR"} {
			if strings.Contains(line, sign) {
				t.Errorf("a unit's bound is in the way: %s", line)
			}
		}
	}
}

func (u *units) nothingIsLost(t *testing.T) {
	load := startLoad(t, u.l.lab, u.stream)
	changes := watchRoutes(t, u.l.router)
	claim := func(what, unit string, otherProcess bool, do func()) {
		t.Helper()
		before := u.show(unit, "MainPID")
		do()
		waitFor(t, unit+" to run after "+what, func() bool {
			pid := u.show(unit, "MainPID")
			return u.show(unit, "ActiveState") == "active" && pid != "0" && (pid != before) == otherProcess
		})
		u.whole()
		load.more(100)
		t.Logf("after %s: %d requests, %d datagrams", what, load.asked.Load(), load.back.Load())
	}
	// Whatever the grace period is, a process that is replaced hands over.
	u.dropIn("weir", "grace", "ExecStart=", "ExecStart=/usr/bin/weir run -c /etc/weir/weir.yaml --grace-period 1h")
	u.do("systemctl", "daemon-reload")
	for _, unit := range []string{"weir", "weir", "weir-agent"} {
		claim("a restart", unit, true, func() { u.do("systemctl", "restart", unit) })
	}
	another := way{mode: "l2dsr"}.service("tcp", "81", everyBackend(1))
	u.write(u.text(another))
	claim("a reload", "weir", false, func() { u.do("systemctl", "reload", "weir") })
	u.write("nonsense: yes\n")
	u.do("systemctl", "reload", "weir")
	waitFor(t, "systemd to show what is wrong with the file", func() bool {
		return strings.HasPrefix(u.show("weir", "StatusText"), "forwards 4 services; 1 problem: /etc/weir/weir.yaml:1: ")
	})
	u.write(u.text())
	claim("a mended file", "weir", false, func() { u.do("systemctl", "reload", "weir") })
	for _, unit := range []string{"weir", "weir-agent"} {
		u.dropIn(unit, "watchdog", "WatchdogSec=10s", "TimeoutAbortSec=2s")
	}
	u.do("systemctl", "daemon-reload")
	for _, unit := range []string{"weir", "weir-agent"} {
		claim("a shorter watchdog", unit, true, func() { u.do("systemctl", "restart", unit) })
		claim("a hang", unit, true, func() { u.do("kill", "-STOP", u.show(unit, "MainPID")) })
		if n := u.show(unit, "NRestarts"); n == "0" {
			t.Errorf("%s was not restarted by the watchdog", unit)
		}
	}
	for _, version := range []string{"2.0.0", "1.0.0"} {
		claim("version "+version, "weir", true, func() { u.dpkg("--install", u.packages[version]) })
		if got := u.do("dpkg-query", "--show", "--showformat=${Version}", "weir"); got != version+"-1" {
			t.Errorf("version %s is installed, not %s", got, version)
		}
	}
	if err := os.Remove("/etc/systemd/system/weir.service.d/grace.conf"); err != nil {
		t.Fatal(err)
	}
	u.do("systemctl", "daemon-reload")
	claim("a restart without a grace period", "weir", true, func() { u.do("systemctl", "restart", "weir") })
	load.wantUndisturbed()
	if n := changes(u.route()); n > 0 {
		t.Errorf("the router's route has changed %d times", n)
	}
}

// namespaces tries what docs/operate/install.md says about agents of other network namespaces.
func (u *units) namespaces(t *testing.T) {
	guest := u.l.Host("guest")
	u.dropIn("weir-agent", "namespaces", "CapabilityBoundingSet=CAP_SYS_ADMIN", "AmbientCapabilities=CAP_SYS_ADMIN", "RestrictNamespaces=no")
	u.do("systemctl", "daemon-reload")
	u.write(strings.Replace(u.text(), "agent:\n", "agent:\n  namespaces: ["+guest.Namespace()+"]\n", 1))
	u.do("systemctl", "restart", "weir-agent")
	u.whole()
	if text := u.show("weir-agent", "StatusText"); strings.Contains(text, "problem") {
		t.Errorf("an agent with agent.namespaces shows %q", text)
	}
	if err := os.Remove("/etc/systemd/system/weir-agent.service.d/namespaces.conf"); err != nil {
		t.Fatal(err)
	}
	u.do("systemctl", "daemon-reload")
	u.write(u.text())
	u.do("systemctl", "restart", "weir-agent")
	u.whole()
}

// lateInterface starts the director before its interface is there.
func (u *units) lateInterface(t *testing.T) {
	u.write(strings.Replace(u.text(), "interfaces: [eth0]", "interfaces: [late0]", 1))
	u.do("systemctl", "restart", "weir")
	waits := func(want bool) {
		t.Helper()
		waitFor(t, fmt.Sprintf("systemd to show that weir waits for an interface: %t", want), func() bool {
			return strings.Contains(u.show("weir", "StatusText"), "late0 is not there: weir waits for it") == want
		})
	}
	waits(true)
	started := u.show("weir", "MainPID")
	on(t, u.director.host, "ip", "link", "add", "late0", "type", "veth", "peer", "name", "late1")
	for _, name := range []string{"late0", "late1"} {
		on(t, u.director.host, "ip", "link", "set", name, "up")
	}
	waits(false)
	if now := u.show("weir", "MainPID"); now != started {
		t.Errorf("weir has not waited for the interface: process %s, then %s", started, now)
	}
	u.write(u.text())
	u.do("systemctl", "reload", "weir")
	u.whole()
	on(t, u.director.host, "ip", "link", "delete", "late0")
}

func (u *units) directorIsPurged(t *testing.T) {
	if during := u.left(u.director.host); !strings.Contains(during, "xdp") {
		t.Fatalf("the director has set up nothing:\n%s", during)
	}
	u.dpkgOn(u.director.host, "--remove", "weir")
	if during := u.left(u.director.host); !strings.Contains(during, "xdp") {
		t.Errorf("forwarding has ended with the package's removal:\n%s", during)
	}
	u.dpkgOn(u.director.host, "--purge", "weir")
	after := u.left(u.director.host)
	for _, sign := range []string{"xdp", "weir", u.stream.vip().String()} {
		if strings.Contains(after, sign) {
			t.Errorf("a purged package has left something (%s):\n%s", sign, after)
		}
	}
	if pids := u.try("pidof", "weir"); pids != "" {
		t.Errorf("a purged package has left the processes %s", pids)
	}
}

// startAfterDetach starts director and agent when the directory of their pins is gone.
func (u *units) startAfterDetach(t *testing.T) {
	u.do("systemctl", "stop", "weir", "weir-agent", "weir-bfd")
	on(t, u.director.host, "/usr/bin/weir", "detach")
	on(t, u.agent.host, "/usr/bin/weir", "detach")
	if err := os.RemoveAll("/sys/fs/bpf/weir"); err != nil {
		t.Fatal(err)
	}
	u.do("systemctl", "start", "weir", "weir-agent")
}

// reboot reboots, and says what is there when systemd ends the network.
func (u *units) reboot(t *testing.T, stopped <-chan os.Signal) {
	u.do("systemctl", "--no-block", "reboot")
	select {
	case <-stopped:
	case <-time.After(3 * time.Minute):
		t.Fatalf("the network is not stopped: %s", u.try("systemctl", "list-jobs", "--no-pager"))
	}
	if there := routed(t, u.l.router, u.route()); there != "nowhere" {
		t.Errorf("when the network goes, the router sends the VIP's packets %s", there)
	}
	if out := on(t, u.director.host, "ip", "-json", "link", "show", "eth0"); !isUp(t, out) {
		t.Errorf("the interface has gone before the routes: %s", out)
	}
	log := u.try("journalctl", "--no-pager", "--unit=weir", "--lines=20")
	if !strings.Contains(log, "director withdraws") {
		t.Errorf("the director has not withdrawn its routes:\n%s", log)
	}
}

func isUp(t *testing.T, text string) bool {
	t.Helper()
	var links []struct {
		State string `json:"operstate"`
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil {
		t.Fatal(err)
	}
	return len(links) == 1 && links[0].State == "UP"
}
