package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// With only the capabilities of systemd's units, and with only their own directories writable, a director
// and agents forward, check, remember their state and can restart. TestSystemd tries all bounds.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestUnitsLetDoAllThatIsNeeded(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 2})
	nat, gue := way{mode: "nat"}, way{mode: "gue"}
	services := []string{nat.service("tcp", "80", everyBackend(2)) + "  health: {kind: http, http: {path: /name}, interval: 200ms, panic: 0}\n", gue.service("tcp", "80", everyBackend(2))}
	for _, b := range l.backends {
		agent := newDaemon(t, b, "agent", configText("", "eth0", services...))
		agent.asUnit("weir-agent.service")
		agent.start()
		agent.ready()
		startNginx(t, b)
	}
	text := strings.Replace(configText("eth0", "", services...), "director:\n", "director:\n  neighbor: {interfaces: [{name: eth0}]}\n", 1)
	director := newDaemon(t, l.director, "run", text+
		fmt.Sprintf("bfd:\n  neighbors:\n  - {address: %v}\n", lanAddress(routerHost, false)))
	director.asUnit("weir.service")
	director.start()
	director.ready()
	forwards := func() {
		t.Helper()
		waitFor(t, "checks to have found backends well", func() bool { return director.checked(2) })
		for range 8 {
			for _, w := range []way{nat, gue} {
				if name := curl(t, l.client, w.url("name")); !strings.HasPrefix(name, "backend") {
					t.Errorf("%s brings %q", w, name)
				}
			}
		}
	}
	forwards()
	director.end(syscall.SIGKILL)
	director.start()
	director.ready()
	forwards()
	for _, warning := range []string{"ermi", "read-only", "level=ERROR"} {
		for line := range strings.Lines(director.logged()) {
			if strings.Contains(line, warning) && !strings.Contains(line, "BFD may be late") { // weir-bfd.service is not here
				t.Errorf("the unit's director logs: %s", line)
			}
		}
	}
	director.end(syscall.SIGTERM)
}

// asUnit restricts the daemon like systemd with a unit of contrib/systemd: ProtectSystem=strict and
// CapabilityBoundingSet=. Its state and its log are where all daemons of tests have them.
func (d *daemon) asUnit(unit string) {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "contrib", "systemd", unit))
	if err != nil {
		d.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nCapabilityBoundingSet=")
	line, _, _ := strings.Cut(after, "\n")
	bounds := "-all"
	for _, name := range strings.Fields(line) {
		bounds += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	if !strings.Contains(string(text), "\nProtectSystem=strict\n") || bounds == "-all" {
		d.t.Fatalf("%s does not bound what weir may", unit)
	}
	script := fmt.Sprintf("#!/bin/sh\nset -e\nmount --rbind %[1]s %[1]s\nmount -o remount,bind,ro /\n! touch /unit-may-write 2>/dev/null\n"+
		"exec setpriv --bounding-set=%[2]s --inh-caps=-all --no-new-privs %[3]s \"$@\"\n", d.host.Dir(), bounds, d.binary)
	path := write(d.t, d.host, "unit-"+unit, script)
	if err := os.Chmod(path, 0o755); err != nil {
		d.t.Fatal(err)
	}
	inner := write(d.t, d.host, "as-"+unit, fmt.Sprintf("#!/bin/sh\nexec unshare --mount --propagation slave %s \"$@\"\n", path))
	if err := os.Chmod(inner, 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.binary = inner
}
