package test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// put says to a director where hosts are.
func (d *daemon) put(hosts ...string) (string, error) {
	d.t.Helper()
	return tryOn(d.t, d.host, weir, "segments", "--socket", d.socket, "--file", write(d.t, d.host, "hosts.yaml", "segments:\n"+strings.Join(hosts, "")))
}

// mustPut does so, and it is taken.
func (d *daemon) mustPut(hosts ...string) {
	d.t.Helper()
	if out, err := d.put(hosts...); err != nil {
		d.t.Fatalf("weir segments --file: %v\n%s", err, out)
	}
}

func (d *daemon) segments() model.SegmentsStatus {
	d.t.Helper()
	return mustAskWeir[model.SegmentsStatus](d, "segments")
}

// hasProblem reports whether a director lists a problem of a kind whose text has some words.
func (d *daemon) hasProblem(kind model.ProblemKind, words string) bool {
	d.t.Helper()
	return slices.ContainsFunc(d.directorStatus().Problems, func(p model.Problem) bool { return p.Kind == kind && strings.Contains(p.Text, words) })
}

// answersAs asks the VIP from a host, and wants the name of the server that answers.
func answersAs(t *testing.T, client *netlab.Host, vip, want string) {
	t.Helper()
	if out, err := tryOn(t, client, "curl", "--silent", "--max-time", "10", "http://"+vip+"/name"); err != nil || out != want {
		t.Errorf("%s gets %q (%v), want %s", client.Name, out, err, want)
	}
}

// Clients of the API say where a backend is: packets go there before the request is answered, a move is followed, the
// next process knows it, and the configuration counts before it.
func TestHostsOfAPI(t *testing.T) {
	t.Parallel()
	u := newUnderlay(t, "vxlan", false)
	const vip, member, client = "172.16.0.100", "172.16.0.11", "172.16.0.2"
	var servers []vm
	for _, name := range []string{"old", "new"} {
		server := u.add(name, 5001, member+"/24")
		server.Address("lo", vip+"/32")
		server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		startNginx(t, server.Host)
		servers = append(servers, server)
	}
	caller := u.add("client", 5001, client+"/24")
	file := u.file(fmt.Sprintf("- {name: web, segment: 'vxlan:5001', vip: %s, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: %s}]}\n", vip, member))
	at := func(server vm) string {
		return fmt.Sprintf("{address: %s, mac: '%s', vtep: '%v'}", member, server.port.MAC, server.vtep)
	}
	in := func(host string) string { return "- {id: 'vxlan:5001', hosts: [" + host + "]}\n" }

	d := launchDaemon(t, u.director, "run", file)
	d.waitFor("say that nothing says where the backend is", func() bool {
		return d.listens() && d.hasProblem(model.ProblemBackend, "nothing says at which VTEP")
	})
	d.mustPut(in(at(servers[0])))
	d.ready()
	answersAs(t, caller.Host, vip, "old")
	if out, _ := tryOn(t, u.director, weir, "doctor", "-c", d.config, "--bpffs", d.bpffs, "--socket", d.socket); !strings.Contains(out, "1 of 1 have a next hop") || strings.Contains(out, "backend "+member) {
		t.Errorf("of a backend that the API has placed weir doctor says\n%s", out)
	}

	// What is wrong changes nothing.
	if out, err := d.put(in(at(servers[1])), "- {id: 'vlan:7', hosts: []}\n"); err == nil || !strings.Contains(out, "segments[1].id: vlan:7 is not vxlan:VNI or geneve:VNI") {
		t.Errorf("a wrong list is answered with %q, %v", out, err)
	}
	answersAs(t, caller.Host, vip, "old")

	d.mustPut(in(at(servers[1])))
	answersAs(t, caller.Host, vip, "new")

	d.end(syscall.SIGTERM)
	answersAs(t, caller.Host, vip, "new")
	d.start()
	d.ready()
	answersAs(t, caller.Host, vip, "new")
	if of := d.segments().Segments; len(of) != 1 || len(of[0].Hosts) != 1 || of[0].Hosts[0].Source != model.HostsOfAPI || !slices.Equal(of[0].Services, []string{"web"}) {
		t.Errorf("the next process knows %+v", of)
	}

	d.edit(file + "segments:\n" + in(at(servers[0])))
	d.waitFor("say that the API contradicts the configuration", func() bool {
		return d.hasProblem(model.ProblemSegment, "172.16.0.11: the configuration says")
	})
	d.waitFor("go by the configuration", func() bool { return d.backends()[0].NextHop.String() == servers[0].port.MAC.String() })
	answersAs(t, caller.Host, vip, "old")
	d.mustPut(in(at(servers[0])))
	d.waitFor("know no contradiction any more", func() bool { return !d.hasProblem(model.ProblemSegment, "172.16.0.11") })

	// Without a place to keep it nothing is taken.
	d.edit(file)
	d.waitFor("follow the API again", func() bool { return d.segments().Segments[0].Hosts[0].Source == model.HostsOfAPI })
	if err := os.RemoveAll(u.director.Dir() + "/state/hosts-api"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(u.director.Dir()+"/state/hosts-api/in-the-way", 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := d.put(in(at(servers[1]))); err == nil || !strings.Contains(out, "hosts-api") {
		t.Errorf("what cannot be kept is answered with %q, %v", out, err)
	}
	answersAs(t, caller.Host, vip, "old")
}
