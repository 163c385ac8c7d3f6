package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// Doctor finds what this host lacks for a session: a route to the neighbor, and its password.
func TestDoctorLooksAtNeighbors(t *testing.T) {
	h := newHost(t)
	secret := filepath.Join(filepath.Dir(h.file), "password")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bgp := func(neighbor string) { // every neighbor is in AS 65000
		h.configure(fmt.Sprintf("%s\nbgp: {asn: 65001, router-id: 10.0.0.1, neighbors: [{asn: 65000, %s}]}", onEth0, neighbor), "web")
	}
	for _, test := range []struct {
		neighbor string
		mode     os.FileMode // of the password's file
		code     int
		says     string
	}{
		{"address: 10.0.0.2", 0o600, 0, "ok bgp neighbor 10.0.0.2, AS 65000, from 10.0.0.1"},
		{"address: 10.0.0.2, source: 10.0.0.1, password-file: " + secret, 0o600, 0, "ok bgp neighbor 10.0.0.2, AS 65000, from 10.0.0.1"},
		{"address: 10.0.0.2, password-file: " + secret, 0o644, 0,
			"warn config " + h.file + ": bgp.neighbors[0].password-file: everybody on this host can read " + secret + "; fix: chmod o= " + secret},
		{"address: 10.9.0.2", 0o600, 1, "FAIL bgp neighbor 10.9.0.2: dial udp 10.9.0.2:179: connect: network is unreachable; " +
			"fix: add a route, or see that bgp.neighbors has the right address and source"},
		{"address: 10.0.0.2, source: 10.0.0.9", 0o600, 1, "FAIL bgp neighbor 10.0.0.2: dial udp 10.0.0.9:0->10.0.0.2:179: bind: cannot assign requested address; " +
			"fix: add a route, or see that bgp.neighbors has the right address and source"},
		{"address: 10.0.0.2, password-file: /nowhere/password", 0o600, 1, "FAIL bgp neighbor 10.0.0.2: password-file: open /nowhere/password: no such file or directory; " +
			"fix: put the password on the first line of a file that root can read"},
		{"interface: eth0", 0o600, 0, "ok bgp neighbor eth0, AS 65000, whatever router advertises itself there"},
		{"interface: eth7", 0o600, 1, "FAIL bgp neighbor eth7: there is no interface eth7; " +
			"fix: see that the interface is there and up, with IPv6 (net.ipv6.conf.eth7.disable_ipv6=0)"},
		{"address: \"fe80::1%eth7\"", 0o600, 1, "FAIL bgp neighbor fe80::1%eth7: there is no interface eth7; " +
			"fix: see that the interface is there and up, with IPv6 (net.ipv6.conf.eth7.disable_ipv6=0)"},
	} {
		if err := os.Chmod(secret, test.mode); err != nil {
			t.Fatal(err)
		}
		bgp(test.neighbor)
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with a neighbor {%s} the exit status is %d, want %d:\n%s", test.neighbor, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
}

// Doctor finds what keeps BFD from working, or lets any host speak BFD in a neighbor's name.
func TestDoctorLooksAtBFD(t *testing.T) {
	h := newHost(t)
	secret := filepath.Join(filepath.Dir(h.file), "password")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bfd := func(neighbor string) {
		h.configure(fmt.Sprintf("%s\nbfd: {neighbors: [{address: 10.0.0.2, %s}]}", onEth0, neighbor), "web")
	}
	authentication := "authentication: {password-file: %s}"
	for _, test := range []struct {
		neighbor string
		mode     os.FileMode // of the password's file
		code     int
		says     string
	}{
		{"multihop: true", 0o600, 0, "warn bfd neighbor 10.0.0.2: over several hops, packets in its name may come from anywhere; fix: give it ttl-security or authentication"},
		{fmt.Sprintf(authentication, secret), 0o644, 0, "warn config " + h.file + ": bfd.neighbors[0].authentication.password-file: everybody on this host can read " + secret + "; fix: chmod o= " + secret},
		{fmt.Sprintf(authentication, "/nowhere"), 0o600, 1, "FAIL bfd neighbor 10.0.0.2: authentication: password-file: open /nowhere: no such file or directory; " +
			"fix: put the key on the first line of a file that root can read"},
	} {
		if err := os.Chmod(secret, test.mode); err != nil {
			t.Fatal(err)
		}
		bfd(test.neighbor)
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with a neighbor {%s} the exit status is %d, want %d:\n%s", test.neighbor, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
	for _, fine := range []string{"multihop: true, ttl-security: 2", "multihop: true, " + fmt.Sprintf(authentication, secret), "interval: 50ms"} {
		bfd(fine)
		if code, out, _ := h.doctor(); code != 0 || len(findings(out, "bfd")) > 0 {
			t.Errorf("with a neighbor {%s} the exit status is %d:\n%s", fine, code, out)
		}
	}
	bfd("interval: 50ms")
	conn, err := h.ListenPacket("udp", ":3784")
	if err != nil {
		t.Fatal(err)
	}
	code, out, _ := h.doctor()
	if code != 1 {
		t.Errorf("with another BFD daemon the exit status is %d", code)
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, out, fmt.Sprintf("FAIL bfd UDP port 3784 is held by %.*s (process %d); fix: end it, or keep its BFD off: a host has one BFD daemon for an address", len(name)-1, name, os.Getpid()))
	conn.Close()
	if code, out, _ := h.doctor(); code != 0 || len(findings(out, "bfd")) > 0 {
		t.Errorf("without it, the exit status is %d:\n%s", code, out)
	}
}

// findings are the lines of one check.
func findings(out, check string) (lines []string) {
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == check {
			lines = append(lines, line)
		}
	}
	return lines
}

// Doctor finds what keeps a director from answering for VIPs, and what else would answer.
func TestDoctorLooksAtLinks(t *testing.T) {
	h := newHost(t)
	for _, test := range []struct {
		head, does string
		code       int
		says       string
	}{
		{head: "director: {interfaces: [eth0], neighbor: {interfaces: [{name: eth0}]}}",
			says: "ok neighbor VIPs in 10.0.0.0/24 are answered for on eth0"},
		{head: "director: {interfaces: [eth0, eth7], neighbor: {interfaces: [{name: eth0, prefixes: [203.0.113.0/24]}, {name: eth7}]}}", code: 1,
			says: "FAIL neighbor no VIP is answered for on eth7: there is no such interface"},
		{head: `director: {interfaces: [eth0], group: [10.0.0.7, 10.0.0.8], store: {etcd: {endpoints: ["http://10.0.0.9:2379"]}}, neighbor: {interfaces: [{name: eth0}]}}`, code: 1,
			says: "FAIL neighbor none of the addresses in director.group is this host's, so it answers for nothing; fix: put this host's address in director.group"},
		{head: "director: {interfaces: [eth0], neighbor: {interfaces: [{name: eth0}]}}", does: "203.0.113.1/32", code: 1,
			says: "FAIL neighbor 203.0.113.1 is an address of eth0: the kernel answers for it also when another director owns it; fix: ip addr del 203.0.113.1/32 dev eth0"},
	} {
		if test.does != "" {
			h.Address("eth0", test.does)
		}
		h.configure(test.head, "web")
		code, out, _ := h.doctor()
		if code != test.code {
			t.Errorf("with %s the exit status is %d, want %d:\n%s", test.head, code, test.code, out)
		}
		wantLines(t, out, test.says)
	}
}

// TestDoctorAsksWhereAgentsReport: doctor finds agents by their file: one that can report, one
// without its password, and one whose etcd does not answer.
func TestDoctorAsksWhereAgentsReport(t *testing.T) {
	if got := examineReports(model.AgentStore{}, nil); got != nil {
		t.Errorf("of an agent that does not report doctor says %v", got)
	}
	c := etcdlab.New(t, etcdlab.Options{Members: 1})
	etcd := model.Etcd{Endpoints: c.Endpoints, Prefix: c.Prefix}
	backends := []model.HostAddress{{Address: netip.MustParseAddr("10.0.0.1")}, {Segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}, Address: netip.MustParseAddr("2001:db8::1")}}
	for _, test := range []struct {
		backends []model.HostAddress
		password string // is in this file
		level    doctor.Level
		text     string
	}{
		{backends, "", doctor.OK, c.Prefix + ": takes reports about 2 backends of this host"},
		{nil, "", doctor.OK, c.Prefix + ": no backend of this host is of mode gue: there is nothing to report"},
		{backends, "/nowhere/password", doctor.Fail, "read the password for etcd"},
	} {
		etcd.PasswordFile = test.password
		found := examineReports(model.AgentStore{Etcd: etcd}, test.backends)
		if len(found) != 1 || found[0].Level != test.level || found[0].Check != "etcd" || !strings.Contains(found[0].Text, test.text) {
			t.Errorf("%v, password in %q: doctor says %+v, want %s %s", test.backends, test.password, found, test.level, test.text)
		}
	}
	h := newHost(t)
	h.configure("agent: {interfaces: [eth0], store: {etcd: {endpoints: [\"http://10.0.0.1:1\"]}}}", "web")
	if code, out, _ := h.doctor("--role", "agent"); code != 1 || !strings.Contains(out, "FAIL  etcd") {
		t.Errorf("where etcd does not answer the exit status is %d, and doctor says\n%s", code, out)
	}
}
