package test

import (
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// Nothing says where a tenant's client is: its packets are dropped, or what a nat backend answers it. That is a problem,
// which status and doctor show with what to add, and it is over when that is added.
func TestUnknownTenantsClient(t *testing.T) {
	t.Parallel()
	u := newUnderlay(t, "vxlan", false)
	const vip, gateway = "172.16.0.100", "172.16.0.3"
	server := u.add("server", 5001, "172.16.0.11/24")
	client := u.add("client", 5001, "172.16.0.2/24")
	server.Route("172.16.0.2/32", gateway) // the director is the way back
	startNginx(t, server.Host)
	file := func(peers, hosts string) string {
		return fmt.Sprintf("director: {interfaces: [eth0], vtep: {addresses: ['%v'], peers: [%s]}}\nsegments:\n- {id: 'vxlan:5001', addresses: [%s], hosts: [%s]}\n- {id: 'vxlan:5002'}\n"+
			"services:\n- {name: web, segment: 'vxlan:5001', vip: %s, protocol: tcp, port: 80, mode: nat, backends: [{name: a, address: 172.16.0.11, mac: '%s', vtep: '%v'}]}\n",
			u.vtep(directorHost), peers, gateway, hosts, vip, server.port.MAC, server.vtep)
	}
	d := startDaemon(t, u.director, "run", file("", ""))
	calls := func() (answer string) {
		answer, _ = tryOn(t, client.Host, "curl", "--silent", "--max-time", "2", "http://"+vip+"/name") // it may get no answer
		return answer
	}
	check := func(reason, says string) {
		t.Helper()
		if answer := calls(); answer != "" {
			t.Errorf("the client gets %q", answer)
		}
		d.waitFor("have a problem with "+reason, func() bool { return d.hasProblem(model.ProblemSegment, "("+reason+")") })
		if out := on(t, u.director, weir, "status", "--socket", d.socket); !strings.Contains(out, says) {
			t.Errorf("status does not say %q:\n%s", says, out)
		}
		// Its exit status is that of the host, which is not asked about here.
		if out, _ := tryOn(t, u.director, weir, "doctor", "--role", "director", "-c", d.config, "--bpffs", d.bpffs, "--socket", d.socket); !strings.Contains(out, "director segment") || !strings.Contains(out, says) {
			t.Errorf("doctor does not say %q:\n%s", says, out)
		}
	}
	asks := func(want ...string) {
		t.Helper()
		out := on(t, u.director, weir, "explain", "--socket", d.socket, "172.16.0.2:5555", vip+":80/tcp", "--flags", "syn", "--segment", "vxlan:5001")
		for _, words := range want {
			if !strings.Contains(out, words) {
				t.Errorf("explain does not say %q:\n%s", words, out)
			}
		}
	}
	tunnel := fmt.Sprintf("made up: vxlan:5001 on the wire, from VTEP %v, ", server.vtep)
	asks(tunnel+"one that is known; nothing says where 172.16.0.2 is", fmt.Sprintf(" at VTEP %v, vxlan:5001 on the wire", server.vtep), "vxlan: VNI 5001", "tcp: 5555 > 80, syn")
	captures := func(flags ...string) (out string) {
		t.Helper()
		captured := make(chan string, 1)
		go func() {
			out, _ := tryOn(t, u.director, weir, append([]string{"capture", "--socket", d.socket}, flags...)...) // what it says is looked at
			captured <- out
		}()
		d.waitFor("end a capture", func() bool {
			calls()
			select {
			case out = <-captured:
				return true
			default:
				return false
			}
		})
		return out
	}
	// The segment of these packets is not found out, and their tunnel names it.
	if out := captures("--segment", "vxlan:5002", "--drops", "--duration", "3s"); !strings.Contains(out, "0 packets (its time is over)") {
		t.Errorf("packets of vxlan:5001 are captured as those of vxlan:5002:\n%s", out)
	}
	if out := captures("--segment", "vxlan:5001", "--drops", "--packets", "3"); !strings.Contains(out, "drop_overlay_peer\n") || !strings.Contains(out, fmt.Sprintf(", in vxlan VNI 5001 %v > %v, ", client.vtep, u.vtep(directorHost))) || !strings.Contains(out, "172.16.0.") {
		t.Errorf("the capture does not name the sender, the receiver and the network:\n%s", out)
	}
	for _, command := range []string{"services", "backends", "flows", "events", "segments", "capture", "top --once"} {
		if out, err := tryOn(t, u.director, weir, append(strings.Fields(command), "--socket", d.socket, "--segment", "vxlan:9999")...); err == nil || !strings.Contains(out, "this director knows no segment vxlan:9999") {
			t.Errorf("weir %s of an unknown segment: %v\n%s", command, err, out)
		}
		if command != "capture" { // it would wait for packets
			on(t, u.director, weir, append(strings.Fields(command), "--socket", d.socket, "--segment", "vxlan:5001")...)
		}
	}
	check("drop_overlay_peer", "name the client in segments[].hosts, or its VTEP in director.vtep.peers")
	d.edit(file(fmt.Sprintf("'%v'", client.vtep), ""))
	d.waitFor("take packets from the client's VTEP", func() bool { calls(); return d.reason("drop_overlay_host") > 0 })
	check("drop_overlay_host", "or the segment's router in segments[].gateway")
	if !d.hasProblem(model.ProblemSegment, "no gateway in vxlan:5001") {
		t.Errorf("the problem does not name the segment: %+v", d.directorStatus().Problems)
	}
	d.edit(file("", fmt.Sprintf("{address: 172.16.0.2, mac: '%s', vtep: '%v'}", client.port.MAC, client.vtep)))
	d.waitFor("answer the client", func() bool { return calls() == "server" })
	asks(fmt.Sprintf("made up: vxlan:5001 on the wire, from VTEP %v, where 172.16.0.2 is", client.vtep))
	// The last, because it names a VTEP.
	if out, err := d.put(fmt.Sprintf("- {id: 'vxlan:7777', hosts: [{address: 172.16.0.2, mac: '%s', vtep: '%v'}]}", client.port.MAC, client.vtep)); err != nil || !strings.Contains(out, "the director has 1 host in 1 segment from its API\nnamed nowhere else, so that nothing is sent there yet: vxlan:7777") {
		t.Errorf("nothing is said of a list of hosts of an unknown segment: %v\n%s", err, out)
	}
}
