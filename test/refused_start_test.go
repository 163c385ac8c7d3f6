package test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// A file that is valid by itself and contradicts a stored set is refused, while the director runs and at a start:
// then all that the kernel's tables are made for comes from the version that goes on, and tenants are served.
func TestStartWithFileThatASetRefuses(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]struct {
		director, refused string
		group             bool
	}{
		"no VTEP":             {"{interfaces: [eth0]}", "needs director.vtep", false},
		"smaller limits":      {"{interfaces: [eth0], vtep: VTEP, limits: {services: 1}}", "more than director.limits.services", false},
		"another XDP mode":    {"{interfaces: [eth0], xdp: generic}", "needs director.vtep", false},
		"no VTEP, in a group": {"{interfaces: [eth0], store: STORE}", "needs director.vtep", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnderlay(t, "vxlan", false)
			const member, client = "172.16.0.11", "172.16.0.2"
			vips := []string{"172.16.0.100", "172.16.0.101"}
			server := u.add("server", 5001, member+"/24")
			server.Address("lo", vips[0]+"/32", vips[1]+"/32")
			server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
			server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
			startNginx(t, server.Host)
			caller := u.add("client", 5001, client+"/24")
			begins, store := u.file("  []\n"), ""
			if file.group {
				etcd := etcdlab.New(t, etcdlab.Options{Members: 1, On: u.director.Do})
				store = fmt.Sprintf("{etcd: {endpoints: ['%s'], prefix: /weir/group}}", etcd.Endpoints[0])
				begins = strings.Replace(begins, "{interfaces", "{store: "+store+", interfaces", 1)
			}
			d := startDaemon(t, u.director, "run", begins)
			var set []string
			for i, vip := range vips {
				set = append(set, fmt.Sprintf("- {name: red%d, segment: 'vxlan:5001', vip: %s, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: %s, mac: '%s', vtep: '%v'}]}\n",
					i, vip, member, server.port.MAC, server.vtep))
			}
			d.apply(set...)
			serves := func(when string) {
				t.Helper()
				for _, vip := range vips {
					if out, err := tryOn(t, caller.Host, "curl", "--silent", "--max-time", "10", "http://"+vip+"/name"); err != nil || out != "server" {
						t.Errorf("%s the client gets %q (%v) from %s, want the server's answer", when, out, err, vip)
					}
				}
			}
			serves("at first")

			vtep := fmt.Sprintf("{addresses: ['%v'], peers: ['%v', '%v']}", u.vtep(directorHost), lanPrefix(false), lanPrefix(true))
			d.edit("director: " + strings.NewReplacer("VTEP", vtep, "STORE", store).Replace(file.director) + "\nservices: []\n")
			refused := func() bool { return d.hasProblem(model.ProblemFile, file.refused) }
			d.waitFor("refuse the file", refused)
			serves("with a file that is refused")
			d.end(syscall.SIGTERM)
			d.start()
			d.waitFor("refuse the file at the start", func() bool { return d.listens() && refused() })
			d.waitFor("serve the tenants", func() bool {
				list, err := d.services()
				return err == nil && len(list) == 2 && list[0].Backends[0].State == model.Active
			})
			serves("after a start with a file that is refused")
			status := d.directorStatus()
			if status.Info.Applied.IsZero() {
				t.Error("the status says that no version of the file has run")
			}
			for _, p := range status.Problems {
				if p.Kind != model.ProblemFile {
					t.Errorf("besides the file's there is a problem: %+v", p)
				}
			}

			// The file is taken when the set goes, and its text is kept: what waits for the next start is told.
			d.apply("  []\n")
			d.waitFor("take the file", func() bool { return !refused() && d.hasProblem(model.ProblemRestart, "director.") })
		})
	}
}
